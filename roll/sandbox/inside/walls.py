"""Which walls the machine allows, and how they are put up.

First the supervisor moves itself into new namespaces (``enter``), then each program gives up everything else just
before it starts (``close_door``). What the machine refuses is replaced by something weaker, and ``Walls`` says which it
was.
"""

from __future__ import annotations

import os
import resource

from . import kernel, syscalls

TYPE_CHECKING = False  # ``typing`` takes six milliseconds to import.
if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = 65534
WORK = "/tmp"
"""The working folder of programs in a root folder of their own."""
DEVICES = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"]
_SYSTEM = ["/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/alternatives"]
_NAMES = [
    "/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf", "/etc/localtime", "/etc/ssl", "/etc/mime.types",
]  # fmt: skip
"""What commands look names up in."""
_NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET


class Walls:
    """What is in force.

    Attributes:
        base: The empty folder that the sandbox was given.
        work: The working folder of programs.
        readable: Files and folders that programs may read.
        user: The user that programs become; ``None``: they stay who they are.
        namespaces: Whether network, processes and mounts are the sandbox's own.
        own_root: Whether the root folder is.
        landlock: Whether Landlock denies files outside of those.
        filter: Whether a filter denies dangerous system calls.
        process_limit: Whether the kernel counts the processes of programs: it never counts those of root.
        file_bytes: Room for files in the working folder.
    """

    def __init__(self, work: str, readable: list[str], file_bytes: int) -> None:
        self.base = work
        self.work = work
        self.readable = readable
        self.file_bytes = file_bytes
        self.user: int | None = None
        self.namespaces = False
        self.own_root = False
        self.landlock = False
        self.filter = False
        self.process_limit = False

    def describe(self) -> str:
        """Return the line that ``Protection.parse`` reads."""
        values = {
            "network": "namespace" if self.namespaces else "filter" if self.filter else "none",
            "processes": "namespace" if self.namespaces else "search",
            "files": "namespace" if self.own_root else "landlock" if self.landlock else "none",
            "user": "same" if self.user is None else "other",
            "process_limit": int(self.process_limit),
            "syscall_filter": int(self.filter),
        }
        return " ".join(f"{key}={value}" for key, value in values.items())


def enter(work: str, python: list[str], user: int, file_bytes: int) -> Walls:
    """Move this process into what the machine allows. Returns in a new process where it can have its own namespace.

    Args:
        work: An empty folder of ours.
        python: Folders of the interpreter and its libraries.
        user: The user that programs shall become if this process is root.
        file_bytes: Room for files where the working folder is a file system of its own.
    """
    readable = [path for path in dict.fromkeys([*_SYSTEM, *python]) if os.path.lexists(path)]
    walls = Walls(work, readable, file_bytes)
    root = os.getuid() == 0
    # A container may know few users, or forbid becoming another one.
    found = next((number for number in (user, NOBODY) if root and _succeeds(_become, number)), None)
    walls.namespaces, still_root = _own_namespaces(root)
    if walls.namespaces:
        _become_first_process()
        walls.own_root = _own_root(walls)
    else:
        kernel.adopt_orphans()
    if still_root and (walls.own_root or all(_open_to_all(path) for path in python)):
        walls.user = found
    _try(walls)
    return walls


def enclose(root: str, readable: list[str], writable: list[str], user: int, room: int) -> Walls:
    """Move this process into namespaces of its own, for a command. Returns in a new process, or not at all.

    Args:
        root: An empty folder of ours, which becomes the root folder.
        readable: Files and folders that the command may read, beside the system's.
        writable: Folders that it may change, under the names that they have outside.
        user: The user that it shall become if this process is root.
        room: Bytes of temporary files.

    Raises:
        OSError: The machine refuses; nothing weaker stands in for it.
    """
    seen = [path for path in dict.fromkeys([*_SYSTEM, *_NAMES, *readable]) if os.path.lexists(path)]
    walls = Walls(root, seen, room)
    is_root = os.getuid() == 0
    if is_root and not _succeeds(_become, user):
        user = NOBODY
    owned, still_root = _own_namespaces(is_root)
    if not owned:
        raise OSError("it allows no namespaces")
    walls.namespaces = True
    walls.user = user if still_root else None
    _become_first_process()
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("sandbox", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,nr_inodes=4000,mode=755")
    # First, so that folders below it are mounted over it.
    os.mkdir(root + WORK)
    kernel.mount("work", root + WORK, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"size={room},mode=1777")
    for path in seen:
        _show(path, root, kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV)
    for path in DEVICES:
        _show(path, root, kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID)
    for path in writable:
        # It may lie in a folder that is only read.
        os.makedirs(root + path, exist_ok=True)
        _bind(path, root + path, kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV)
        if walls.user is not None:
            _give(path, walls.user)
    _processes(root)
    kernel.change_root(root)
    kernel.set_mount_attributes("/", kernel.MOUNT_ATTR_RDONLY, recursive=False)
    walls.own_root = True
    _try(walls)
    return walls


def _processes(root: str) -> None:
    """Show the processes of the sandbox in ``/proc`` where that is allowed; a container may forbid it."""
    os.mkdir(root + "/proc")
    os.symlink(WORK, root + "/dev/shm")
    try:
        kernel.mount("proc", root + "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV)
    except OSError:
        return
    for name, number in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{number}", f"{root}/dev/{name}")


def _give(folder: str, user: int) -> None:
    """Make a user the owner of a folder and of all in it."""
    os.chown(folder, user, user)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(os.path.join(parent, name), user, user, follow_symlinks=False)


def _own_namespaces(root: bool) -> tuple[bool, bool]:
    """Try new namespaces: as root directly, else (and as a root without rights) inside a user namespace.

    Returns:
        Whether there are new namespaces, and whether this process is still root.
    """
    if root:
        try:
            kernel.unshare(_NAMESPACES)
            return True, True
        except OSError:
            pass
    # Some systems allow the namespace but not what makes it useful.
    if not _succeeds(_enter_user_namespace):
        return False, root
    _enter_user_namespace()
    return True, False


def _enter_user_namespace() -> None:
    user, group = os.getuid(), os.getgid()
    kernel.unshare(_NAMESPACES | kernel.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {user} 1"), ("gid_map", f"{NOBODY} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
            file.write(text)


def _become_first_process() -> None:
    """Go on as process 1 of the new namespace: the kernel kills all others with it, and none can signal it."""
    child = os.fork()
    if child == 0:
        kernel.die_with_parent()
        return
    os.closerange(0, 3)
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _own_root(walls: Walls) -> bool:
    """Try a root folder with Python, system libraries and nothing else; all of it read-only but the working folder."""
    root = walls.work
    try:
        kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("sandbox", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,nr_inodes=1000,mode=755")
    except OSError:
        return False
    try:
        for path in walls.readable:
            _show(path, root, kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV)
        for path in DEVICES:
            _show(path, root, kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID)
        os.mkdir(root + WORK)
        os.symlink(WORK, root + "/dev/shm")
        kernel.change_root(root)
        kernel.set_mount_attributes("/", kernel.MOUNT_ATTR_RDONLY)
    except OSError:
        os.chdir("/")
        kernel.unmount(root)
        return False
    walls.work = WORK
    return True


def _show(path: str, root: str, attributes: int) -> None:
    """Make ``path`` visible below ``root``."""
    target = root + path
    if os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    _bind(path, target, attributes)


def _bind(path: str, target: str, attributes: int) -> None:
    kernel.mount(path, target, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.set_mount_attributes(target, attributes)


def _succeeds(action: Callable[..., object], *arguments: int) -> bool:
    """Whether ``action`` works: tried in a child, for there would be no way back."""
    child = os.fork()
    if child == 0:
        try:
            action(*arguments)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _open_to_all(path: str) -> bool:
    """Whether another user can get to ``path``."""
    while path != "/":
        if not os.stat(path).st_mode & 0o001:
            return False
        path = os.path.dirname(path)
    return True


def _try(walls: Walls) -> None:
    """Find out which walls of a program stand: tried in a child, for they cannot be taken back."""
    child = os.fork()
    if child == 0:
        os._exit(_what_holds(walls))
    held = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    walls.process_limit, walls.landlock, walls.filter = bool(held & 1), bool(held & 2), bool(held & 4)


def _what_holds(walls: Walls) -> int:
    """Put up all walls there might be. Returns 1, 2 and 4 added up for the process limit, Landlock and the filter."""
    held = 0
    close_door(walls)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    try:
        if os.fork() == 0:
            os._exit(0)
    except OSError:
        held += 1
    try:
        if not walls.own_root and kernel.landlock_version() > 0:
            _restrict_files(walls)
            walls.landlock = True
            held += 2
    except OSError:
        pass
    try:
        syscalls.deny_dangerous_calls(_may_signal(walls))
        held += 4
    except OSError:
        pass
    return held


def _may_signal(walls: Walls) -> bool:
    """Whether a program can only signal its own processes: by a namespace, a user of its own, or Landlock."""
    alone = walls.user is not None and walls.user != NOBODY
    return walls.namespaces or alone or (walls.landlock and kernel.landlock_version() >= 6)


def _restrict_files(walls: Walls) -> None:
    devices = [path for path in DEVICES if os.path.exists(path)]
    kernel.landlock([os.path.realpath(path) for path in walls.readable], devices, walls.work)


def fresh_work_folder(walls: Walls, run: int, spare: int) -> None:
    """Give the run of this number an empty working folder, with room for ``spare`` bytes of our own."""
    user = os.getuid() if walls.user is None else walls.user
    group = os.getgid() if walls.user is None else walls.user
    if walls.own_root:
        if run:
            kernel.unmount(WORK)
        options = f"size={walls.file_bytes + spare},nr_inodes=4096,mode=700,uid={user},gid={group}"
        kernel.mount("work", WORK, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
        return
    # A new folder each time: emptying one that a hostile program has filled can fail in many ways.
    walls.work = f"{walls.base}/{run}"
    os.mkdir(walls.work, 0o700)
    if walls.user is not None:
        os.chmod(walls.base, 0o711)
        os.chown(walls.work, user, group)


def limit(seconds: float | None, memory: int, file_bytes: int, open_files: int, processes: int) -> None:
    """Set the resource limits of this process; without ``seconds`` it may compute as long as it lives."""
    # The wall clock stops a program first; this one is for processes that the wall clock does not see.
    values = {} if seconds is None else {resource.RLIMIT_CPU: int(seconds) + 2}
    values |= {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_NOFILE: open_files,
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for kind, value in values.items():
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def close_door(walls: Walls, sockets: bool = False) -> None:
    """Give up users, capabilities, files and system calls, but perhaps sockets: nothing after this can be trusted."""
    if walls.user is not None:
        _become(walls.user)
    kernel.no_new_privileges()
    kernel.drop_capabilities()
    if walls.landlock:
        _restrict_files(walls)
    if walls.filter:
        syscalls.deny_dangerous_calls(_may_signal(walls), sockets)
