"""One SQLite file that any number of threads and processes use, and that outlives its own damage.

    file = DatabaseFile(folder / "tuning.sqlite", MIGRATIONS)
    file.write(lambda connection: connection.execute("INSERT ...", (1, 2)))
    file.read(lambda connection: connection.execute("SELECT ...").fetchall())

What `write` did stands in the file once it returns, and stays if the process is killed; a loss of
power may undo the last writes, and damages nothing (write-ahead log, synchronous=NORMAL). A file
that SQLite finds damaged is set aside as `NAME.corrupt-TIME`, and the operation is done on a new
one. Nothing is checked in advance, for that would read the whole file: damage is met where it is.

Other processes may have the file open that is set aside. So the file under the name is compared
with the one that is open, before each operation and after each write; a write that went into one
set aside is done again. Files are opened under a shared lock of `NAME.lock`, and made, migrated
and set aside under an exclusive one. Connections are closed before a fork: SQLite's do not survive
one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from ..dialect.errors import Error
from .cache_folder import make_folder, warn_once

T = TypeVar("T")
BUSY_SECONDS = 60.0  # how long to wait for another process's write
_DAMAGE = {
    *(sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT),
    # the statements are fixed: where one is an error, a table is not what the version promises
    *(sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH),
}


class Damaged(Exception):
    """A row is not what was written."""


class DatabaseFile:
    """The file at `path`, or a database in memory if that is None.

    `migrations[i]` is the statements that take a file from version i to version i + 1.
    """

    def __init__(self, path: Path | None, migrations: Sequence[Sequence[str]]):
        self.path = path
        self._migrations = migrations
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None  # device and inode
        self._lock = threading.RLock()
        _instances.add(self)

    def read(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """What `operation` returns; Error if the file cannot be read."""
        return self._run(operation, writes=False)

    def write(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """The same in one transaction. It may be run again, on a new file."""
        return self._run(lambda connection: _transaction(connection, operation), writes=True)

    def close(self) -> None:
        """Close the connection; the next operation opens another."""
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(sqlite3.Error):  # a damaged one may complain
                    self._connection.close()
            self._connection = None

    def __del__(self) -> None:
        self.close()  # newer Pythons warn of a connection that is only let go

    def _run(self, operation: Callable[[sqlite3.Connection], T], writes: bool) -> T:
        with self._lock:
            for _ in range(5):
                try:
                    result = operation(self._current())
                    if not writes or self._identity() == self._opened:
                        return result
                except sqlite3.ProgrammingError:  # a mistake of ours
                    raise
                except (sqlite3.DatabaseError, UnicodeDecodeError, Damaged) as error:
                    if not _is_damage(error) or self.path is None:
                        raise Error(f"the tuning database {self.path}: {error}") from None
                    self._set_aside(self.path, error)
                except OSError as error:
                    raise Error(f"the tuning database {self.path}: {error.strerror}") from None
            raise Error(f"the tuning database {self.path} is damaged again as soon as it is made")

    def _current(self) -> sqlite3.Connection:
        """A connection to the file that has the name now."""
        if self._connection is None or self._identity() != self._opened:
            try:
                self._open()
            except BaseException:  # a file that was refused does not stay open
                self.close()
                raise
        assert self._connection is not None
        return self._connection

    # --- opening --------------------------------------------------------------------------------

    def _open(self) -> None:
        self.close()
        if self.path is None:
            self._connection = self._connect(":memory:")
            self._migrate(self._connection)
            return
        make_folder(self.path.parent)
        if not os.access(self.path.parent, os.W_OK):
            self._open_read_only(self.path)
            return
        with self._guard(exclusive=False):
            current = self._open_file(self.path)
        if not current:
            with self._guard(exclusive=True):
                if not self._open_file(self.path):
                    assert self._connection is not None
                    self._connection.execute("PRAGMA journal_mode = WAL")
                    self._migrate(self._connection)

    def _open_file(self, path: Path) -> bool:
        """Open the file, made if it is not there; whether it is of the newest version."""
        self.close()
        self._connection = self._connect(str(path))
        self._opened = self._identity()
        self._connection.execute("PRAGMA synchronous = NORMAL")
        return self._version(self._connection) == len(self._migrations)

    def _open_read_only(self, path: Path) -> None:
        # without a log SQLite would have to make one; a file that nobody can change needs none
        logged = path.with_name(path.name + "-wal").exists()
        options = "mode=ro" if logged else "mode=ro&immutable=1"
        self._connection = self._connect(f"file:{quote(str(path))}?{options}", uri=True)
        self._opened = self._identity()
        found = self._version(self._connection)
        if found != len(self._migrations):
            raise Error(f"the tuning database {path} is of version {found} and cannot be written")

    def _connect(self, name: str, uri: bool = False) -> sqlite3.Connection:
        # a lock of ours is around every use, so any thread may have its turn
        return sqlite3.connect(
            name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri
        )

    def _version(self, connection: sqlite3.Connection) -> int:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > len(self._migrations):
            raise Error(
                f"the tuning database {self.path} is of version {version}, made by a newer dodeca; "
                f"this one knows version {len(self._migrations)}"
            )
        return version

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Bring the file to the newest version, in one transaction."""

        def steps(connection: sqlite3.Connection) -> None:
            for statements in self._migrations[self._version(connection) :]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(self._migrations)}")

        _transaction(connection, steps)

    # --- which file it is -----------------------------------------------------------------------

    def _identity(self) -> tuple[int, int] | None:
        """Device and inode of the file that has the name now."""
        if self.path is None:
            return None
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _set_aside(self, path: Path, error: Exception) -> None:
        """Give a damaged file another name, unless another process did so already."""
        self.close()
        aside = path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}")
        while aside.exists():
            aside = aside.with_name(aside.name + "+")
        with self._guard(exclusive=True):
            if self._identity() != self._opened:
                return
            path.rename(aside)
            for end in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    path.with_name(path.name + end).rename(aside.with_name(aside.name + end))
        warn_once(
            f"damaged {path}",
            f"the tuning database {path} is damaged ({error}); it is kept as {aside.name}, "
            "and a new one is begun",
        )

    @contextlib.contextmanager
    def _guard(self, exclusive: bool) -> Iterator[None]:
        """The lock of the file's name, between processes; SQLite has its own for the contents."""
        import fcntl

        assert self.path is not None
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        lock = os.open(self.path.with_name(self.path.name + ".lock"), flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield
        finally:
            os.close(lock)


def _transaction(connection: sqlite3.Connection, operation: Callable[[sqlite3.Connection], T]) -> T:
    connection.execute("BEGIN IMMEDIATE")  # so that it need not wait, or fail, half way
    try:
        result = operation(connection)
        connection.execute("COMMIT")
        return result
    finally:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")


def _is_damage(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # not SQLite's: a row, or a text that is not UTF-8
        return not isinstance(error, sqlite3.Error) or isinstance(error, sqlite3.OperationalError)
    # an older SQLite may not understand a statement, which is no fault of the file
    ours = str(error).endswith("syntax error") and not str(error).startswith("malformed")
    return code & 0xFF in _DAMAGE and not ours


_instances: weakref.WeakSet[DatabaseFile] = weakref.WeakSet()
_forking = threading.Lock()
_held: list[DatabaseFile] = []  # by the fork in progress


def _before_fork() -> None:
    _forking.acquire()
    for file in list(_instances):
        file._lock.acquire()
        _held.append(file)
        if file.path is not None:
            file.close()


def _after_fork() -> None:
    while _held:
        _held.pop()._lock.release()
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )
