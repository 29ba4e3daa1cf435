"""Opens files like choir's C part (src/file/path_status.h): regular files only, never links, pipes or devices;
written atomically; by one process at a time. The whole package opens files here, so that a directory from another
source can neither block it nor redirect it to other files."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import shutil
import stat
from typing import Callable, Iterator, Union

from ._errors import ArgumentError, BusyError, FormatError, file_error

try:
    import fcntl
except ImportError:  # Windows: runs are not locked
    fcntl = None  # type: ignore[assignment]

Path = Union[str, os.PathLike]
LIMIT = 16 << 20  # max bytes of a JSON file, as in src/file/json.c
TEXT_LIMIT = 1 << 30  # max bytes of a text, or of the rows of a task
NAME_LIMIT = 100  # max bytes of a name that is part of a file name; file systems allow 255
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # not on Windows
_ALONE = _NOFOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def component(name: str, what: str) -> str:
    """Returns `name` if it is a valid path component: short, with printable characters only. `what` describes it in
    messages."""
    if not name or "/" in name or name in (".", "..") or not name.isprintable() or len(name.encode()) > NAME_LIMIT:
        raise ArgumentError(
            f"{what} is {ascii(name)}, and files are named after it: give it up to {NAME_LIMIT} bytes that can be "
            "printed, without '/'"
        )
    return name


def _refuse(path: Path, mode: int, wanted: str) -> None:
    kinds = ((stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a directory"), (stat.S_ISREG, "a file"))
    what = next((name for test, name in kinds if test(mode)), "a pipe, device or socket")
    raise FormatError(
        f"{os.fspath(path)}: is {what}, and choir wants {wanted} there: put that itself in its place, or use another"
    )


def opened(path: Path, flags: int = os.O_RDONLY, given: bool = False) -> int:
    """The descriptor of a regular file. given: the user named this file, so links are followed. A file that is
    written in place must have one link: another name may belong to another study."""
    try:
        fd = os.open(path, (flags | _ALONE) & ~(_NOFOLLOW if given else 0), 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and not given:
            _refuse(path, stat.S_IFLNK, "a regular file")
        raise file_error(path, error) from None
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and (flags & os.O_ACCMODE == os.O_RDONLY or status.st_nlink <= 1):
        return fd
    os.close(fd)
    if not stat.S_ISREG(status.st_mode):
        _refuse(path, status.st_mode, "a regular file")
    raise FormatError(f"{os.fspath(path)}: has {status.st_nlink} hard links, and would change under all of these names: "
                      "put a copy in its place")  # fmt: skip


def read(path: Path, most: int = LIMIT, given: bool = False) -> bytes:
    """Reads a whole file of at most `most` bytes."""
    with open(opened(path, given=given), "rb") as file:
        try:
            found = file.read(most + 1)
        except OSError as error:
            raise file_error(path, error) from None
    if len(found) > most:
        raise FormatError(f"{os.fspath(path)}: has more than {most} bytes")
    return found


def read_text(path: Path, most: int = TEXT_LIMIT, given: bool = False) -> str:
    try:
        return read(path, most, given).decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{os.fspath(path)}: is not in UTF-8: {error.reason} at byte {error.start}") from None


def is_there(path: Path) -> bool:
    """Whether the path exists. If this cannot be determined, an error is raised."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise file_error(path, error) from None
    return True


def directory(path: Path) -> None:
    """Creates a directory and its parents unless it exists; a link to a directory is refused."""
    try:
        if is_there(path) and not stat.S_ISDIR(os.lstat(path).st_mode):
            _refuse(path, os.lstat(path).st_mode, "a directory")
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise file_error(path, error) from None


def copy(source: Path, target: Path) -> None:
    """Copies to a file that must not exist."""
    with open(opened(source), "rb") as old:
        with open(opened(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as new:
            try:
                shutil.copyfileobj(old, new)
            except OSError as error:
                raise file_error(target, error) from None


def _remove_dead(parent: str, mine: str) -> None:
    """Removes temporary files of killed processes of this machine."""
    for name in os.listdir(parent or "."):
        process = name[len(mine) :]
        if name.startswith(mine) and re.fullmatch("[0-9]+", process) and not os.path.exists(f"/proc/{process}"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(parent, name))


def append(path: Path, line: str) -> None:
    """Appends a line to a regular file, which is created if absent. An incomplete last line, left by a full disk or a
    killed process, is removed; concurrent writers wait for each other."""
    with open(opened(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "a+b") as file:
        try:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise file_error(path, error) from None


def save(path: Path, content: Union[str, bytes]) -> None:
    """Replaces or creates a regular file atomically, even if the process is killed or the power fails."""
    parent, name = os.path.split(os.fspath(path))
    mine = f".{name}.{platform.node()}-"
    new = os.path.join(parent, f"{mine}{os.getpid()}")
    try:
        if is_there(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            _refuse(path, os.lstat(path).st_mode, "a regular file")
        _remove_dead(parent, mine)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)  # left by a process with the same number, before a reboot
        with open(opened(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise file_error(path, error) from None


def _is_named(fd: int, path: str) -> bool:
    """Whether the open file still has that name: the previous holder of the lock may have removed it."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    own = os.fstat(fd)
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)


def _is_lock(text: bytes) -> bool:
    """Whether the content is that of a lock: a number and a line end, or a part of it that a power failure left."""
    return len(text) < 32 and re.fullmatch(rb"[0-9\0]*\n?", text) is not None


def _take(fd: int, parent: str, path: str, notice: Callable[[str], None]) -> None:
    text = os.pread(fd, 32, 0)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = re.match(rb"[0-9]+", text)
        process = f"process {who[0].decode()}" if who else "another process"
        raise BusyError(f"{parent}: {process} is using it; wait for it, stop it, or choose another directory") from None
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        notice(f"{path}: this file system has no locks ({error.strerror}): see to it that one process writes there")
    if not _is_lock(text):
        raise ArgumentError(f"{path}: is there, and not a lock of choir's; choose another directory")


def _locked(parent: str, path: str, notice: Callable[[str], None]) -> int:
    """The descriptor of the lock; if the file loses its name meanwhile, it is opened again."""
    while True:
        fd = opened(path, os.O_RDWR | os.O_CREAT)
        try:
            _take(fd, parent, path, notice)
            if _is_named(fd, path):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                return fd
        except BaseException as error:
            os.close(fd)
            raise file_error(path, error) from None
        os.close(fd)


@contextlib.contextmanager
def claimed(parent: Path, inner: str, notice: Callable[[str], None]) -> Iterator[None]:
    """Context in which only this process writes into a directory, which is created if absent. `inner` is created
    before the lock: a lock without that directory belongs to another program."""
    parent = os.fspath(parent)
    path = os.path.join(parent, "lock")
    if is_there(path) and not is_there(os.path.join(parent, inner)):
        raise ArgumentError(f"{path}: is there, and the directory holds no study; choose another directory")
    directory(os.path.join(parent, inner))
    fd = _locked(parent, path, notice)
    try:
        yield
    finally:
        os.close(fd)
