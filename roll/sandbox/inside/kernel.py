"""The Linux calls that Python lacks. All raise ``OSError`` with the call's name where the kernel refuses."""

from __future__ import annotations

import ctypes
import os

LIBC = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
MNT_DETACH = 0x2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 0x1, 0x2, 0x4

_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_SECCOMP = 1, 24, 22
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_CAPABILITY_VERSION_3 = 0x20080522
_SIGKILL = 9

# These numbers are the same on every architecture; the older calls below are not.
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 442, 444, 445, 446
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
MACHINE = os.uname().machine


def _check(result: int, name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def _syscall(name: str, number: int, *arguments: object) -> int:
    converted = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _check(LIBC.syscall(ctypes.c_long(number), *converted), name)


def _prctl(name: str, option: int, *arguments: int) -> None:
    values = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    _check(LIBC.prctl(option, *values), name)


def die_with_parent() -> None:
    """Ask to be killed when the thread that started this process ends."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, _SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def no_new_privileges() -> None:
    """Make set-uid programs powerless for this process and its descendants."""
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def set_seccomp_filter(program: ctypes.Structure) -> None:
    """Install a seccomp filter for this process and its descendants."""
    _prctl("PR_SET_SECCOMP", _PR_SET_SECCOMP, 2, ctypes.addressof(program))


def unshare(flags: int) -> None:
    """Move this process (for ``CLONE_NEWPID``: its children) into new namespaces."""
    _check(LIBC.unshare(flags), "unshare")


def enter(namespace: int) -> None:
    """Move this process into the namespace behind an open file."""
    _check(LIBC.setns(namespace, 0), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount ``source`` on ``target``."""
    arguments = [None if text is None else text.encode() for text in (source, target, kind)]
    _check(LIBC.mount(*arguments, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def unmount(target: str) -> None:
    """Detach what is mounted on ``target``, even if it is in use."""
    _check(LIBC.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def set_mount_attributes(target: str, attributes: int, recursive: bool = True) -> None:
    """Set attributes such as read-only on the mount at ``target``, and on all below it if ``recursive``."""
    values = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    _syscall(
        f"mount_setattr {target}",
        _MOUNT_SETATTR,
        _AT_FDCWD,
        ctypes.c_char_p(target.encode()),
        _AT_RECURSIVE if recursive else 0,
        ctypes.byref(values),
        ctypes.sizeof(values),
    )


def change_root(path: str) -> None:
    """Make the mount at ``path`` the root and detach the old one, so that nothing leads back."""
    os.chdir(path)
    _syscall("pivot_root", _PIVOT_ROOT[MACHINE], ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    unmount(".")
    os.chdir("/")


def drop_capabilities() -> None:
    """Give up every capability for good."""
    for capability in range(64):
        # Fails past the last capability, or where there is nothing to drop from: capset below is what counts.
        LIBC.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _syscall("capset", _CAPSET[MACHINE], ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


class _RulesetAttributes(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_FS_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}
_FS_RIGHTS_LATEST = 0xFFFF


def landlock_version() -> int:
    """Return the version of Landlock in the running kernel; 0 without Landlock."""
    return max(0, LIBC.syscall(ctypes.c_long(_LANDLOCK_CREATE), None, ctypes.c_long(0), ctypes.c_long(1)))


def landlock(readable: list[str], devices: list[str], writable: str) -> None:
    """Deny this process and its descendants every file outside the given paths.

    From version 4 on TCP is denied as well, from version 6 on signals to processes that are not restricted by it.
    """
    version = landlock_version()
    every_right = _FS_RIGHTS.get(version, _FS_RIGHTS_LATEST)
    attributes = _RulesetAttributes(every_right, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _syscall("landlock_create_ruleset", _LANDLOCK_CREATE, ctypes.byref(attributes), size, 0)
    for path in readable:
        rights = _EXECUTE | _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
        _allow(ruleset, path, rights)
    for path in devices:
        _allow(ruleset, path, _READ_FILE | _WRITE_FILE)
    _allow(ruleset, writable, every_right)
    _syscall("landlock_restrict_self", _LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = _PathBeneath(rights, folder)
    _syscall("landlock_add_rule", _LANDLOCK_ADD, ruleset, 1, ctypes.byref(rule), 0)
    os.close(folder)
