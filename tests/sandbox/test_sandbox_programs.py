"""How programs end, what comes back of them, and that nothing of them is left."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from roll.sandbox import Job, Limits, Reason, Run, SandboxError, run_job, run_job_sync, run_python, run_python_sync

pytestmark = pytest.mark.processes

SHORT = Limits(seconds=0.7)
NAME_PROCESS = "import ctypes\nctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\n"


def processes_named(name: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == name:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_for(condition, seconds: float = 100.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_output_and_error_come_back_apart() -> None:
    outcome = run_python_sync("import sys\nfor i in range(3):\n    print(i)\n    print(-i, file=sys.stderr)")
    assert (outcome.reason, outcome.exit_code) == (Reason.OK, 0)
    assert outcome.stdout == "0\n1\n2\n"
    assert outcome.stderr == "0\n-1\n-2\n"
    assert outcome.report == b""


def test_text_of_all_languages_goes_in_and_out() -> None:
    text = "größer 東京 \U0001f600"
    assert run_python_sync("print(input())", stdin=text).stdout == text + "\n"
    assert run_python_sync(f"print({text!r})").stdout == text + "\n"


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert run_python_sync("import os\nos.write(1, b'a\\xffb')").stdout == "a\ufffdb"


def test_large_input_is_read_whole_and_output_need_not_be_read_in_time() -> None:
    size = 3_000_000
    outcome = run_python_sync("import sys\nprint('y' * 200_000)\nprint(len(sys.stdin.read()))", stdin="x" * size)
    assert outcome.stdout == "y" * 200_000 + f"\n{size}\n"


@pytest.mark.parametrize(
    ("code", "reason", "exit_code"),
    [
        ("pass", Reason.OK, 0),
        ("exit()", Reason.OK, 0),
        ("import sys\nsys.exit(3)", Reason.ERROR, 3),
        ("import sys\nsys.exit('no')", Reason.ERROR, 1),
        ("import os\nos._exit(5)", Reason.ERROR, 5),
        ("1 / 0", Reason.ERROR, 1),
        ("this is no Python", Reason.ERROR, 1),
        ("raise KeyboardInterrupt", Reason.ERROR, 1),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", Reason.SIGNAL, -signal.SIGSEGV),
        ("x = ' ' * (1 << 31)", Reason.MEMORY, 1),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", Reason.MEMORY, 1),
        ("try:\n    x = ' ' * (1 << 31)\nexcept MemoryError:\n    print('caught')", Reason.OK, 0),
    ],
)
def test_reason_and_exit_code(code: str, reason: Reason, exit_code: int) -> None:
    outcome = run_python_sync(code, limits=Limits(seconds=60))  # filling the memory takes long on a busy machine
    assert (outcome.reason, outcome.exit_code) == (reason, exit_code), outcome.stderr


def test_traceback_is_that_of_a_program_alone() -> None:
    outcome = run_python_sync("def f():\n    return 1 / 0\n\nf()\n")
    lines = outcome.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith('main.py", line 4, in <module>')
    assert lines[2].strip() == "f()"
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "supervisor" not in outcome.stderr


def test_program_is_the_main_module_and_ends_like_one() -> None:
    code = (
        "import atexit, threading, time\n"
        "atexit.register(print, 'at exit')\n"
        "print(__name__, end=' ')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
    )
    assert run_python_sync(code).stdout == "__main__ thread\nat exit\n"


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\ntime.sleep(60)",
        "import signal\nfor s in (1, 2, 3, 10, 14, 15, 24): signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        "input()\nimport threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
    ],
)
def test_program_that_does_not_end_is_stopped(code: str) -> None:
    outcome = run_python_sync(code, stdin="\n", limits=SHORT)
    assert outcome.reason is Reason.TIMEOUT
    assert outcome.exit_code == -signal.SIGKILL
    assert 0.7 <= outcome.seconds < 30  # of an hour, or of a minute


def test_output_before_a_timeout_is_kept() -> None:
    limits = Limits(seconds=4)  # on a busy machine Python needs more than one to begin
    assert (
        run_python_sync("print('so far', flush=True)\nimport time\ntime.sleep(60)", limits=limits).stdout == "so far\n"
    )


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_endless_output_is_cut_off(stream: str) -> None:
    outcome = run_python_sync(
        f"import sys\nwhile True: sys.{stream}.write('x' * 1000)", limits=Limits(seconds=60, output_bytes=50_000)
    )
    assert outcome.reason is Reason.OUTPUT
    assert outcome.truncated
    assert getattr(outcome, stream) == "x" * 50_000


def test_output_of_exactly_the_limit_is_allowed() -> None:
    limits = Limits(output_bytes=10_000)
    assert run_python_sync("print('x' * 9_999)", limits=limits).reason is Reason.OK
    assert run_python_sync("print('x' * 10_000)", limits=limits).reason is Reason.OUTPUT


def test_files_have_a_size_limit() -> None:
    outcome = run_python_sync("f = open('f', 'wb')\nf.write(bytes(3 << 20))\nf.flush()", limits=Limits(file_mb=2))
    assert outcome.reason is not Reason.OK
    assert run_python_sync("open('f', 'wb').write(bytes(1 << 20))", limits=Limits(file_mb=2)).reason is Reason.OK


def test_process_that_left_the_session_dies_with_the_run() -> None:
    name, main = f"daemon{os.getpid()}", f"main{os.getpid()}"
    code = (
        "import os, signal, sys, time\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit())\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        + textwrap.indent(NAME_PROCESS.format(name=name) + "while True: time.sleep(0.1)\n", " " * 8)
        + "    os._exit(0)\nos.wait()\n"
        + NAME_PROCESS.format(name=main)
        + "time.sleep(600)"
    )
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(run_python_sync, code, limits=Limits(seconds=100))
        assert wait_for(lambda: len(processes_named(name)) == 1 == len(processes_named(main)))
        os.kill(processes_named(main)[0], signal.SIGUSR1)
        assert run.result().reason is Reason.OK
    assert processes_named(name) == []


def test_process_that_holds_the_output_open_does_not_delay_the_end() -> None:
    outcome = run_python_sync("import os, time\nif os.fork() == 0:\n    time.sleep(60)\nprint('done')")
    assert outcome.reason is Reason.OK
    assert outcome.stdout == "done\n"
    assert outcome.seconds < 30


def test_small_fork_bomb_is_over_when_the_time_is() -> None:
    name = f"bomb{os.getpid()}"
    code = NAME_PROCESS.format(name=name) + (
        "import os, time\nend = time.time() + 20\nwhile time.time() < end:\n    try: os.fork()\n"
        "    except OSError: time.sleep(0.01)\n"
    )
    if run_python_sync("").protection.process_limit is False:
        pytest.skip("the kernel does not count the processes of this user")
    outcome = run_python_sync(code, limits=Limits(seconds=1.0, processes=6))
    assert outcome.reason is Reason.TIMEOUT
    assert processes_named(name) == []


def test_sandbox_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    name = f"orphan{os.getpid()}"
    code = NAME_PROCESS.format(name=name) + "import time\ntime.sleep(60)"
    script = f"from roll.sandbox import *\nrun_python_sync({code!r}, limits=Limits(seconds=60))"
    environment = os.environ | {"TMPDIR": str(tmp_path)}  # Its empty folder stays behind.
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2], env=environment)
    try:
        assert wait_for(lambda: processes_named(name) != [])
    finally:
        parent.kill()
        parent.wait()
    assert wait_for(lambda: processes_named(name) == [])


def test_cancelling_kills_the_program() -> None:
    name = f"cancel{os.getpid()}"
    code = NAME_PROCESS.format(name=name) + "import time\ntime.sleep(60)"

    async def cancel() -> None:
        task = asyncio.create_task(run_python(code, limits=Limits(seconds=60)))
        assert await asyncio.to_thread(wait_for, lambda: processes_named(name) != [])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert wait_for(lambda: processes_named(name) == [])


def test_nothing_is_left_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    deep = "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')\nopen('f', 'w')\nos.chmod('.', 0)"
    assert run_python_sync(deep).reason is Reason.OK
    assert run_python_sync("open('f', 'w').write('x')\nwhile True: pass", limits=SHORT).reason is Reason.TIMEOUT
    assert list(tmp_path.iterdir()) == []


def test_runs_of_a_job_share_files_given_and_nothing_else() -> None:
    leave = (
        "import os\nprint(open('given.txt').read(), sorted(os.listdir('.')))\nopen('left', 'w')\nos.remove('given.txt')"
    )
    job = Job(
        (Run(leave), Run(leave), Run("import sub.module\nprint(sub.module.x)")),
        files={"given.txt": "here", "sub/module.py": "x = 7"},
    )
    first, second, third = run_job_sync(job, Limits())
    assert first.stdout == second.stdout == "here ['given.txt', 'main.py', 'sub']\n"
    assert third.stdout == "7\n"


def test_prelude_gives_its_names_to_every_run() -> None:
    job = Job((Run("names.append(math.pi)\nprint(names)"),) * 2, prelude="import math\nnames = []")
    assert [outcome.stdout for outcome in run_job_sync(job, Limits())] == ["[3.141592653589793]\n"] * 2


def test_a_run_does_not_know_the_input_of_another() -> None:
    spy = (
        "import sys, gc\nframe, seen = sys._getframe(), []\nwhile frame:\n    seen.append(repr(frame.f_locals))\n"
        "    frame = frame.f_back\nprint('nee' + 'dle' in ''.join(seen))"
    )
    outcomes = run_job_sync(Job((Run(spy, "own"), Run("pass", "the needle"))), Limits())
    assert outcomes[0].stdout == "False\n", outcomes[0].stderr


def test_job_ends_after_so_many_failures() -> None:
    runs = tuple(Run(code) for code in ("pass", "1/0", "pass", "1/0", "pass"))
    assert len(run_job_sync(Job(runs), Limits())) == 5
    assert len(run_job_sync(Job(runs, stop_after_failures=1), Limits())) == 2
    assert len(run_job_sync(Job(runs, stop_after_failures=2), Limits())) == 4


def test_job_ends_when_its_time_is_over() -> None:
    outcomes = run_job_sync(Job((Run("pass"), *[Run("while True: pass")] * 9), total_seconds=1.0), Limits(seconds=0.7))
    first, *others = [outcome.reason for outcome in outcomes]
    assert first is Reason.OK
    # On a busy machine the first takes what the third would have.
    assert others in ([Reason.TIMEOUT], [Reason.TIMEOUT] * 2)


def test_many_at_a_time_do_not_mix() -> None:
    async def run_all() -> list[str]:
        outcomes = await asyncio.gather(*(run_python("print(input() * 2)", stdin=str(n)) for n in range(12)))
        return [outcome.stdout for outcome in outcomes]

    assert asyncio.run(run_all()) == [f"{n}{n}\n" for n in range(12)]


def test_workers_bound_the_jobs_at_a_time() -> None:
    name = f"worker{os.getpid()}"
    job = Job((Run(NAME_PROCESS.format(name=name) + "import time\ntime.sleep(0.2)"),))
    most = 0

    async def run_all() -> None:
        nonlocal most
        jobs = asyncio.gather(*(run_job(job, Limits(), workers=2) for _ in range(5)))
        while not jobs.done():
            most = max(most, len(processes_named(name)))
            await asyncio.sleep(0.005)
        assert all(outcome.reason is Reason.OK for (outcome,) in await jobs)

    asyncio.run(run_all())
    assert 1 <= most <= 2


def test_only_the_standard_library_is_importable_unless_asked_for() -> None:
    assert "ModuleNotFoundError" in run_python_sync("import pytest").stderr
    assert run_python_sync("import pytest", site_packages=True, limits=Limits(seconds=30)).reason is Reason.OK
    assert run_python_sync("import json, decimal, sqlite3, zoneinfo").reason is Reason.OK


def test_sets_are_printed_in_the_same_order_every_time() -> None:
    code = "print(set('abcdefghij'))"
    assert run_python_sync(code).stdout == run_python_sync(code).stdout


def test_sandbox_that_cannot_start_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SandboxError, match="ended with code 1"):
        run_python_sync("pass")


def test_limits_must_be_positive() -> None:
    with pytest.raises(ValueError, match="Limits.seconds is 0"):
        Limits(seconds=0)
