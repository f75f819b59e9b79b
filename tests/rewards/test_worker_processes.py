from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from reward_support import asked, grades, verdict

from roll.config.objects import load_object
from roll.rewards import RewardRequest, Rubric, Verdict, make_verifier, register_verifier
from roll.rewards.functions import FunctionVerifier
from roll.rewards.registry import VERIFIERS
from roll.rewards.worker_processes import WorkerCallError, WorkerDiedError, WorkerProcesses

pytestmark = pytest.mark.processes


def process_id(request) -> dict:
    return {"score": 1.0, "process": os.getpid()}


def loaded(*arguments) -> list[str]:
    return sorted({"torch", "ray", "transformers"} & set(sys.modules))


def called(function, *arguments):
    async def run():
        processes = WorkerProcesses(function, 1)
        try:
            return await processes.call(*arguments)
        finally:
            await processes.close()

    return asyncio.run(run())


def test_a_plain_function_is_called_in_another_process_and_a_quick_one_in_this() -> None:
    other = verdict(FunctionVerifier(process_id), asked(""))
    here = verdict(FunctionVerifier(process_id, is_quick=True), asked(""))
    assert here.metrics["process"] == os.getpid() != other.metrics["process"]


def test_a_registered_function_says_where_it_is_called() -> None:
    with VERIFIERS.restored():
        register_verifier("where", is_quick=True)(process_id)
        assert verdict(make_verifier("where"), asked("")).metrics["process"] == os.getpid()


def test_a_process_starts_without_torch() -> None:
    assert called(loaded) == []


def test_a_function_travels_with_what_it_refers_to() -> None:
    table = {"a": np.float32(0.25)}

    def looks_up(request, *, factor):
        return {"score": table[request.response] * factor, "n": np.int64(3)}

    assert verdict(FunctionVerifier(looks_up, {"factor": 2}), asked("a")) == Verdict(0.5, {"n": 3.0})


def test_a_function_that_cannot_travel_is_refused_with_what_to_do() -> None:
    lock = threading.Lock()

    def locks(request):
        with lock:
            return 1.0

    with pytest.raises(
        ValueError, match=r"locks: it cannot be sent to a grading process \(TypeError.*async def.*is_quick"
    ):
        FunctionVerifier(locks)


def test_a_function_of_a_file_that_is_not_on_the_path_travels(tmp_path: Path) -> None:
    (tmp_path / "helper_of_rewards.py").write_text("bonus = 0.5\n")
    file = tmp_path / "own_rewards.py"
    file.write_text(
        "import threading\nlock = threading.Lock()\nclass Answer(str): pass\n"
        "def score(request):\n    with lock:\n        return float(Answer(request.response) == request.ground_truth)\n"
    )
    function = load_object(str(file), "score")
    assert verdict(FunctionVerifier(function), asked("42", "42")).score == 1.0


@pytest.mark.exhaustive
def test_functions_of_a_script_a_notebook_and_python_c_travel(tmp_path: Path) -> None:
    script = tmp_path / "my_run.py"
    script.write_text(
        textwrap.dedent("""
        import asyncio, dataclasses
        from roll.rewards import RewardRequest, make_verifier, register_verifier

        BONUS = 0.25

        @dataclasses.dataclass
        class Found:
            value: float

        def helper(text):
            return Found(float(len(text)))

        @register_verifier("mine")
        def mine(request, *, factor=1.0):
            return helper(request.response).value * factor + BONUS

        async def main():
            verifier = make_verifier("mine", {"factor": 2.0})
            print((await verifier(RewardRequest([], "abc"))).score)
            await verifier.close()

        asyncio.run(main())
        """)
    )
    source = script.read_text()
    notebook = f"import __main__\nexec(compile({source!r}, '<cell 1>', 'exec'), __main__.__dict__)"  # as a cell runs
    for command in ([str(script)], ["-c", notebook]):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=100)
        assert (done.stdout.strip(), done.stderr) == ("6.25", "")


def fails(request):
    raise LookupError("no such row")


def prints(request):
    print("looked at", request.response)
    os.write(1, b"from C\n")
    return 1.0


def dies(request):
    os.kill(os.getpid(), signal.SIGSEGV)


def test_an_exception_is_no_score_and_says_where_it_was_raised() -> None:
    (grade,) = grades(Rubric([("own", 1.0, FunctionVerifier(fails))]), asked(""))
    assert grade.score is None and "LookupError: no such row (test_worker_processes.py:" in grade.error


@pytest.mark.exhaustive
def test_a_crash_is_no_score_and_the_next_call_has_a_new_process() -> None:
    async def run():
        processes = WorkerProcesses(crash_if, 1)
        with pytest.raises(WorkerDiedError) as caught:
            await processes.call(True)
        answer = await processes.call(False)
        await processes.close()
        return caught.value.signal, answer

    assert asyncio.run(run()) == (signal.SIGSEGV, "alive")
    (grade,) = grades(Rubric([("own", 1.0, FunctionVerifier(dies))]), asked(""))
    assert grade.score is None and "ended with code -11" in grade.error


def crash_if(wanted: bool) -> str:
    if wanted:
        dies(None)
    return "alive"


def test_what_a_function_prints_appears_here_and_does_not_disturb_the_answer(capsys) -> None:
    assert verdict(FunctionVerifier(prints), asked("x")).score == 1.0
    assert capsys.readouterr().out == "looked at x\n"


def needs_alarm(request):
    """As graders do that limit their own time, which works in the main thread alone."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(5)
    signal.alarm(0)
    return float(threading.current_thread() is threading.main_thread())


def test_a_function_runs_in_the_main_thread_and_may_use_signals() -> None:
    assert verdict(FunctionVerifier(needs_alarm), asked("")).score == 1.0


def test_a_process_that_cannot_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "breaks_elsewhere.py"
    broken.write_text(
        "import os\nif os.environ['OMP_NUM_THREADS'] == '1': raise ImportError('not here')\ndef f(): ...\n"
    )
    previous = os.environ.pop("OMP_NUM_THREADS", None)
    os.environ["OMP_NUM_THREADS"] = "2"
    try:
        function = load_object(str(broken), "f")
        with pytest.raises(WorkerDiedError, match="not here"):
            called(function)
    finally:
        del os.environ["OMP_NUM_THREADS"]
        if previous is not None:
            os.environ["OMP_NUM_THREADS"] = previous


def test_a_call_that_hangs_ends_itself_when_its_time_is_over() -> None:
    async def run():
        processes = WorkerProcesses(time.sleep, 1)
        with pytest.raises(WorkerDiedError) as caught:
            await processes.call(60, timeout=0.2)
        await processes.close()
        return caught.value.signal

    assert asyncio.run(run()) == signal.SIGALRM


def test_an_exception_of_the_call_is_raised_here_with_its_text() -> None:
    with pytest.raises(WorkerCallError, match="ValueError: .*int"):
        called(int, "x")


PATHOLOGICAL = [r"\boxed{10^{10^{10^{10}}}}", r"\boxed{9^{9^{9^{9}}}+1}", r"\boxed{(10^{10^{10}})!}"]


@pytest.mark.exhaustive
def test_answers_that_hang_cost_the_others_nothing_even_if_they_come_first() -> None:
    async def run():
        math = make_verifier("math", {"timeout": 2.0, "processes": 1})
        rubric = Rubric([("math", 1.0, math)], timeout=5.0, parallel=0)
        hanging = [asked(each, "5") for each in PATHOLOGICAL]
        honest = [asked(rf"\boxed{{{index}+x}}", f"x+{index}") for index in range(5)]
        results = await asyncio.gather(*(rubric.grade(request) for request in (*hanging, *honest)))
        await rubric.close()
        return results

    results = asyncio.run(run())
    assert [grade.score for grade in results[3:]] == [1.0] * 5
    assert all(grade.score in (None, 0.0) for grade in results[:3])


def test_a_request_travels_whole() -> None:
    def echo(request: RewardRequest):
        return float(request == expected)

    expected = asked("é\ud800", "g", row={"x": [1, {"y": None}]}, tag="t", domain="d")
    assert verdict(FunctionVerifier(echo), expected).score == 1.0
