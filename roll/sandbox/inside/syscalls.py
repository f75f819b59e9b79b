"""The system calls that a program may not make: a seccomp filter."""

from __future__ import annotations

import ctypes

from . import kernel

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Names in order: no sockets, no reading of other processes, no kernel interfaces with a history of holes, and no memory
# that the limits of a process do not count.
_DENIED = {
    "x86_64": {
        "socket": 41, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
        "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
        "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
        "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176,
        "memfd_create": 319, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "reboot": 169, "swapon": 167,
        "acct": 163, "syslog": 103, "quotactl": 179, "name_to_handle_at": 303, "open_by_handle_at": 304,
        "personality": 135, "ioprio_set": 251,
    },
    "aarch64": {
        "socket": 198, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
        "add_key": 217, "request_key": 218, "keyctl": 219, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282,
        "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
        "kexec_load": 104, "kexec_file_load": 294, "init_module": 105, "finit_module": 273, "delete_module": 106,
        "memfd_create": 279, "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180, "reboot": 142, "swapon": 224,
        "acct": 89, "syslog": 116, "quotactl": 60, "name_to_handle_at": 264, "open_by_handle_at": 265,
        "personality": 92, "ioprio_set": 30,
    },
}  # fmt: skip
# io_uring (it could open sockets behind the filter's back), the new mount interface, pidfd_getfd, memfd_secret: numbers
# that all architectures share.
_DENIED_EVERYWHERE = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442, 447)
_SIGNALS = {"x86_64": (62, 200, 234, 129, 297, 424), "aarch64": (129, 130, 131, 138, 240, 424)}
"""kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal."""
# Calls that also act on other processes, with the arguments that must be 0, which is the caller itself: prlimit64 (a
# limit of no processor time would end them), setpriority (which, who), sched_setparam, sched_setscheduler,
# sched_setaffinity, sched_setattr, migrate_pages, move_pages.
_ON_ITSELF_ONLY = {
    "x86_64": {302: (0,), 141: (0, 1), 142: (0,), 144: (0,), 203: (0,), 314: (0,), 256: (0,), 279: (0,)},
    "aarch64": {261: (0,), 140: (0, 1), 118: (0,), 119: (0,), 122: (0,), 274: (0,), 238: (0,), 239: (0,)},
}  # fmt: skip
# Commands, in the second argument, that let the kernel send any signal to any process when a file is ready: of fcntl
# F_SETOWN, F_SETSIG and F_SETOWN_EX, of ioctl FIOSETOWN and SIOCSPGRP.
_DENIED_COMMANDS = {
    "x86_64": {72: (8, 10, 15), 16: (0x8901, 0x8902)},
    "aarch64": {25: (8, 10, 15), 29: (0x8901, 0x8902)},
}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_NEW_NAMESPACES = 0x7E020000
_FIRST_X32_CALL = 0x40000000

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP_EQUAL, _JUMP_GREATER_OR_EQUAL = 0x15, 0x35
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_NOT_PERMITTED, _NOT_IMPLEMENTED = 0x00050000 | 1, 0x00050000 | 38
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_FIRST_ARGUMENT, _ARGUMENT_BYTES = 0, 4, 16, 8


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction))]


def _instructions(machine: str, signals: bool, sockets: bool) -> list[tuple[int, int, int, int]]:
    program = [
        (_LOAD, 0, 0, _OFFSET_ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
    ]
    if machine == "x86_64":
        program += [(_JUMP_GREATER_OR_EQUAL, 0, 1, _FIRST_X32_CALL), (_RETURN, 0, 0, _NOT_PERMITTED)]
    named = {name: number for name, number in _DENIED[machine].items() if name != "socket" or not sockets}
    denied = (*named.values(), *_DENIED_EVERYWHERE, *(() if signals else _SIGNALS[machine]))
    for number in denied:
        program += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _NOT_PERMITTED)]
    for number, arguments in _ON_ITSELF_ONLY[machine].items():
        for argument in arguments:
            program += _with_argument(number, argument, [(_JUMP_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _NOT_PERMITTED)])
    for number, commands in _DENIED_COMMANDS[machine].items():
        for command in commands:
            program += _with_argument(number, 1, [(_JUMP_EQUAL, 0, 1, command), (_RETURN, 0, 0, _NOT_PERMITTED)])
    # The arguments of clone3 lie in memory that a filter cannot read. "Not implemented" makes libc use clone instead.
    program += [(_JUMP_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _NOT_IMPLEMENTED)]
    program += [
        (_JUMP_EQUAL, 0, 4, _CLONE[machine]),
        (_LOAD, 0, 0, _OFFSET_FIRST_ARGUMENT),
        (_AND, 0, 0, _NEW_NAMESPACES),
        (_JUMP_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _NOT_PERMITTED),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return program


def _with_argument(
    number: int, argument: int, then: list[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int]]:
    """Return what looks at an argument of a system call; the kernel reads the lower half of these arguments only."""
    load = (_LOAD, 0, 0, _OFFSET_FIRST_ARGUMENT + argument * _ARGUMENT_BYTES)
    back = (_LOAD, 0, 0, _OFFSET_NUMBER)
    return [(_JUMP_EQUAL, 0, len(then) + 2, number), load, *then, back]


def deny_dangerous_calls(signals: bool = True, sockets: bool = False) -> None:
    """Install the filter for this process and its descendants. Needs ``no_new_privileges`` before it.

    Args:
        signals: Whether they may send signals, to themselves as to any process of their user.
        sockets: Whether they may make sockets: in a network that leads nowhere.

    Raises:
        OSError: The kernel refuses, or the machine is neither x86-64 nor arm64.
    """
    if kernel.MACHINE not in _DENIED:
        raise OSError(f"no list of system calls for {kernel.MACHINE}")
    lines = _instructions(kernel.MACHINE, signals, sockets)
    array = (_Instruction * len(lines))(*(_Instruction(*line) for line in lines))
    kernel.set_seccomp_filter(_Program(len(lines), array))
