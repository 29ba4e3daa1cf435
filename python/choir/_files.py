"""Files as choir's C part takes and makes them (src/file/path_status.h): regular ones, never links, pipes or devices;
whole or absent; one process at a time. All of the package opens files here, so that a directory that somebody else
made can neither hang it nor lead it elsewhere."""

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
except ImportError:  # Windows, where no run is locked
    fcntl = None  # type: ignore[assignment]

Path = Union[str, os.PathLike]
LIMIT = 16 << 20  # bytes of a JSON file, as src/file/json.c has it
TEXT_LIMIT = 1 << 30  # of a text, or the rows of a task
NAME_LIMIT = 100  # bytes of a name that is a part of longer ones, of which file systems take 255
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has none of these
_ALONE = _NOFOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def component(name: str, what: str) -> str:
    """`name`, if it can stand in a path: one component, short, of characters that can be printed. `what` says whose it
    is."""
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
    """The descriptor of a regular file. given: a user named this very file, so that a link leads to what it names. What
    is written in place has one link: its other name may be that of another study."""
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
    """All of a file, of `most` bytes at most."""
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
    """Whether anything has that name. What cannot be told is an error, not an absence."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise file_error(path, error) from None
    return True


def directory(path: Path) -> None:
    """Makes a directory and those above it, if it is not there; a link to one is refused."""
    try:
        if is_there(path) and not stat.S_ISDIR(os.lstat(path).st_mode):
            _refuse(path, os.lstat(path).st_mode, "a directory")
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise file_error(path, error) from None


def copy(source: Path, target: Path) -> None:
    """To a file that is not there yet."""
    with open(opened(source), "rb") as old:
        with open(opened(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as new:
            try:
                shutil.copyfileobj(old, new)
            except OSError as error:
                raise file_error(target, error) from None


def _remove_dead(parent: str, mine: str) -> None:
    """Files that processes of this machine were saving when they were killed."""
    for name in os.listdir(parent or "."):
        process = name[len(mine) :]
        if name.startswith(mine) and re.fullmatch("[0-9]+", process) and not os.path.exists(f"/proc/{process}"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(parent, name))


def append(path: Path, line: str) -> None:
    """Adds a line to a regular file, which is made if it is not there. Half a line, which a full disk or a killed process
    left at its end, goes; processes that add lines at the same time wait for each other."""
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
    """Replaces a regular file, or makes it: whole or as it was, whenever the process is killed or the power goes."""
    parent, name = os.path.split(os.fspath(path))
    mine = f".{name}.{platform.node()}-"
    new = os.path.join(parent, f"{mine}{os.getpid()}")
    try:
        if is_there(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            _refuse(path, os.lstat(path).st_mode, "a regular file")
        _remove_dead(parent, mine)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)  # of a process that had this one's number, before the machine started anew
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
    """Whether the file still has that name: who held the lock before may have removed it."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    own = os.fstat(fd)
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)


def _is_lock(text: bytes) -> bool:
    """A number and a line end, or what a power failure left of it: a part, zeros, nothing."""
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
    """The descriptor of the lock; one that loses its name meanwhile is opened anew."""
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
    """While this process alone writes into a directory, which is made if it is not there. `inner` is made before the
    lock: a lock without that directory is somebody else's file."""
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
