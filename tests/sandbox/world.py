"""A script: shuts itself into a poorer world, runs hostile programs in the sandbox there, and prints what happened.

``python world.py NAME PORT FILE``: PORT is listening on this machine, FILE lies outside of any sandbox.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict

from roll.sandbox import Limits, capabilities, run_python_sync
from roll.sandbox.inside import kernel, syscalls


def machine() -> None:
    """What the machine allows."""


def ordinary_user() -> None:
    """A user without any rights, who may make user namespaces."""
    user, group = os.getuid(), os.getgid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    kernel.no_new_privileges()
    kernel.drop_capabilities()


def strict_container() -> None:
    """A container that forbids namespaces, mounts, ptrace and the like."""
    kernel.no_new_privileges()
    syscalls.deny_dangerous_calls()


def bare_root() -> None:
    """Root without a single capability, where namespaces are forbidden: a container that dropped all of them."""
    strict_container()
    kernel.drop_capabilities()


def no_mounts() -> None:
    """As the machine, but mounting is forbidden and only /tmp can be written."""
    kernel.no_new_privileges()
    kernel.landlock(["/"], ["/dev/null"], "/tmp")


def no_maps() -> None:
    """An ordinary user whose user namespaces cannot be given users, as under some AppArmor profiles."""
    ordinary_user()
    no_mounts()


WORLDS = {world.__name__: world for world in (machine, ordinary_user, strict_container, bare_root, no_mounts, no_maps)}


_OTHERS = """
import ctypes, fcntl, os, struct, time
def attempt(action, *words):
    try: action(*words)
    except OSError as error: print(error.errno)
for other in (VICTIM, os.getppid()):
    read, write = os.pipe()
    attempt(fcntl.fcntl, read, 10, 9)
    attempt(fcntl.fcntl, read, 8, other)
    attempt(fcntl.fcntl, read, 15, struct.pack("ii", 1, other))
    attempt(fcntl.fcntl, read, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(write, b"x")
    attempt(os.setpriority, os.PRIO_PROCESS, other, 19)
    attempt(os.setpriority, os.PRIO_USER, 0, 19)
    attempt(os.setpriority, os.PRIO_PGRP, other, 19)
    attempt(os.sched_setaffinity, other, [max(os.sched_getaffinity(0))])
    attempt(os.sched_setscheduler, other, os.SCHED_IDLE, os.sched_param(0))
    attempt(os.sched_setparam, other, os.sched_param(0))
time.sleep(0.1)
os.nice(1)
os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
print("done")
"""


def programs(port: int, outside: str, victim: int) -> dict[str, str]:
    return {
        "others": _OTHERS.replace("VICTIM", str(victim)),
        "connect": f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)",
        "raw_socket_call": (
            "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
            "print(libc.socket(2, 1, 0), libc.socket(1, 1, 0), libc.socket(10, 2, 0))"
        ),
        "read": f"print(open({outside!r}).read())",
        "write": f"open({outside!r}, 'r+').write('hostile')",
        "environment": "import os\nprint(sorted(os.environ))",
        "processes": "import os, time\nfor _ in range(12):\n    if os.fork() == 0: time.sleep(9)\nprint('all')",
        "kill_parent": "import os\nos.kill(os.getppid(), 9)\nprint('done')",
        "kill_all": "import os\nos.kill(-1, 9)\nprint('done')",
        "namespaces": "import ctypes\nprint(ctypes.CDLL(None).unshare(0x10000000))",
        "chown": "import os\nos.chown('main.py', 12345, 12345)",
        "new_privileges": "import ctypes\nprint(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))",
        "descriptors": (
            "import os\nfound = []\nfor n in range(300):\n    try: os.fstat(n)\n    except OSError: continue\n"
            "    found.append(n)\nprint(found)"
        ),
        "own_folder": "import os\nopen('x', 'w').write('y')\nprint(sorted(os.listdir('.')))",
    }


if __name__ == "__main__":
    world, port, outside = sys.argv[1:]
    try:
        WORLDS[world]()
    except OSError as error:
        sys.exit(f"this machine cannot make the world: {error}")
    victim = subprocess.Popen(["sleep", "300"])
    state = (os.getpriority(os.PRIO_PROCESS, victim.pid), os.sched_getscheduler(victim.pid))
    before = [*state, sorted(os.sched_getaffinity(victim.pid))]
    outcomes = {
        name: asdict(run_python_sync(code, limits=Limits(seconds=5, processes=8), require_network_isolation=False))
        for name, code in programs(int(port), outside, victim.pid).items()
    }
    for outcome in outcomes.values():
        outcome["report"] = outcome["report"].hex()
    died = victim.poll()
    if died is None:
        state = (os.getpriority(os.PRIO_PROCESS, victim.pid), os.sched_getscheduler(victim.pid))
        after = [*state, sorted(os.sched_getaffinity(victim.pid))]
        subprocess.Popen.terminate(victim)
    else:
        after = [died]
    answer = {"protection": asdict(capabilities()), "outcomes": outcomes, "victim": [before, after]}
    sys.stdout.write(json.dumps(answer))
