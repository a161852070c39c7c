"""Where dodeca keeps what it need not compute again, and a store of such files.

>>> store = Store(cache_folder())
>>> store.put("driver of a pool of threads, znver3, LLVM 20", object_code)
>>> store.get("driver of a pool of threads, znver3, LLVM 20") == object_code
True

Nothing here ever fails a compilation: a folder that cannot be read or written is as none at all,
and is told of once, through the logger "dodeca". The check sum of a file finds damage, not malice:
who can write into the folder can have this user run code, so it is made for this user alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from .environment import flag

LIMIT = 2 << 30  # bytes that a store may hold after `trim`
_DAY = 24 * 3600.0
_DIGEST = hashlib.sha256().digest_size
_warned: set[str] = set()  # kinds of trouble that this process has told of


def cache_folder() -> Path | None:
    """The folder of everything that is kept; it need not exist yet. None: nothing is to be kept.

    $DODECA_CACHE, where "off" means none, else $XDG_CACHE_HOME/dodeca, else ~/.cache/dodeca.
    """
    asked, caches = flag("DODECA_CACHE"), flag("XDG_CACHE_HOME")
    if asked.lower() == "off":
        return None
    try:
        if asked:
            return Path(asked).expanduser().absolute()
        # a relative one is to be ignored, says the XDG base directory specification
        base = Path(caches) if os.path.isabs(caches) else Path.home() / ".cache"
    except RuntimeError:  # no home
        return None
    return base / "dodeca"


def make_folder(folder: Path) -> None:
    """Make the folder of the cache where it is not there yet, for this user alone."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def warn_once(kind: str, message: str) -> None:
    """Log a warning about the cache, the first time that this process meets this kind of trouble.

    It is a log and no Python warning, for the caller's code is not at fault.
    """
    if kind not in _warned:
        _warned.add(kind)
        import logging  # here, for it takes longer than the rest of this module

        logging.getLogger("dodeca").warning(message)


class Store:
    """Bytes by key, each in a file `objects/ab/cdef...` named by the key's SHA-256.

    The key says all that the bytes depend on; it may be any text. A file is its check sum and the
    bytes; it is replaced as a whole, so any number of processes may read and write at once. Without
    a folder, nothing is found and nothing kept.
    """

    def __init__(self, folder: Path | None):
        self._objects = None if folder is None else Path(folder) / "objects"
        self._trimmed = False  # by this process

    def get(self, key: str) -> bytes | None:
        """The bytes that were put, or None. A damaged file is removed, and is None too."""
        if self._objects is None:
            return None
        path = self._path(self._objects, key)
        try:
            stored = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._trouble("read", error)
            return None
        data = stored[_DIGEST:]
        sound = stored[:_DIGEST] == _digest(key, data)
        with contextlib.suppress(OSError):  # read-only, or another process removes it
            if sound:
                os.utime(path)  # `trim` takes those that were not used for longest
            else:
                path.unlink()
        return data if sound else None

    def put(self, key: str, data: bytes) -> None:
        """Keep the bytes, in place of what the key had. After a day, the store is trimmed too."""
        if self._objects is None:
            return
        path = self._path(self._objects, key)
        new = path.with_name(f".{os.urandom(8).hex()}")
        try:
            make_folder(self._objects.parent)
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                # no fsync: after a loss of power the check sum tells, and nothing is lost
                new.write_bytes(_digest(key, data) + data)
                os.replace(new, path)
            finally:
                new.unlink(missing_ok=True)
        except OSError as error:
            self._trouble("written", error)
            return
        if not self._trimmed:
            self._trimmed = True
            self._trim_daily(self._objects / "trimmed")

    def trim(self, limit: int = LIMIT) -> int:
        """Remove the files that were not used for longest until `limit` bytes are left.

        Returns how many bytes are left.
        """
        files = [] if self._objects is None else sorted(_files(self._objects))
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= limit:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
                total -= size
        return total

    def _trim_daily(self, stamp: Path) -> None:
        """Trim, if no process has done so for a day; the time of a file says when it was."""
        with contextlib.suppress(OSError):
            if stamp.exists() and time.time() - stamp.stat().st_mtime < _DAY:
                return
            stamp.touch(mode=0o600)
            self.trim()

    def _trouble(self, what: str, error: OSError) -> None:
        reason = error.strerror or error
        warn_once(f"store {what}", f"the cache at {self._objects} cannot be {what}: {reason}")

    @staticmethod
    def _path(objects: Path, key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return objects / name[:2] / name[2:]


def _digest(key: str, data: bytes) -> bytes:
    """The check sum of a file, over the key too, so that one under a wrong name is not taken."""
    digest = hashlib.sha256(key.encode() + b"\0")
    digest.update(data)
    return digest.digest()


def _files(objects: Path) -> Iterator[tuple[float, int, str]]:
    """(time of the last use, bytes, path) of each file. What a killed process left half is old."""
    try:
        folders = [entry.path for entry in os.scandir(objects) if entry.is_dir()]
    except OSError:
        return
    for folder in folders:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    yield status.st_mtime, status.st_size, entry.path
