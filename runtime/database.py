"""The tuning database: what was measured, what each graph runs with, and bugs that were found.

    database = Database()
    key = Key(graph, "f32[1x128]", "fast", "cpu", identity("cpu", threads=2), compiler_version())
    database.add_trials(key, [('{"lanes":8}', "ok", 1.4e-5, 0.02, 31, 1.2e-5)])
    database.best(key).seconds       # 1.4e-05
    database.choice(key)             # None, until something was chosen

Every look-up is by the whole key: what another machine or another version of the compiler measured
is never an answer here. Trouble with the file (read-only, full, made by a newer dodeca) is told of
once, through the logger "dodeca", and then it is as if nothing were kept; a damaged file is set
aside (runtime/database_file.py). `Database(path, strict=True)` raises Error instead.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_type_hints

from ..dialect.errors import ArgumentError, Error
from .cache_folder import cache_folder, warn_once
from .database_file import Damaged, DatabaseFile
from .identity import compiler_version, device_in_words, is_this_machine

if TYPE_CHECKING:
    from .database_export import Imported

T = TypeVar("T")
R = TypeVar("R", bound="Key | TrialRecord | Part | Choice | BugRecord")


@dataclass(frozen=True)
class Key:
    """What a result holds for."""

    graph: str  # a canonical hash of the program
    arguments: str  # shapes and dtypes in words, or a range of them
    precision: str
    target: str
    device: str  # `identity.identity`, canonical JSON
    compiler: str  # `identity.compiler_version`


class TrialRecord(NamedTuple):
    """What trying one schedule gave; see `trial.Trial`. `seconds` is infinite unless it is "ok"."""

    schedule: str
    status: str
    seconds: float
    noise: float
    samples: int
    predicted: float
    created: float = 0.0  # seconds since 1970, as all times here


class Part(NamedTuple):
    """What is known of one kernel of a choice."""

    kernel: str  # its name in the module
    graph: str  # its trials are under the choice's key with this graph and these arguments
    arguments: str
    seconds: float  # of one launch, measured
    noise: float
    samples: int
    candidates: int  # how many schedules of it were tried


@dataclass(frozen=True)
class Choice:
    """What a graph runs with."""

    key: Key
    name: str  # the user's, of the model
    kernels: str  # MLIR: the module of kernels with their schedules
    seconds: float  # of one call
    noise: float  # as a part of the seconds
    runner_up: float  # seconds of the second best program, 0 if there is none
    candidates: int  # how many were tried
    budget: float  # seconds that the search had
    created: float = field(default_factory=time.time)
    samples: int = 0  # how many calls were timed
    runner_up_noise: float = 0.0  # 0: not known
    parts: tuple[Part, ...] = ()
    origin: str = ""  # the file that it was imported from; empty if it was measured here

    def part_keys(self) -> tuple[Key, ...]:
        """The keys under which the trials of its kernels are."""
        parts = self.parts
        return tuple(replace(self.key, graph=p.graph, arguments=p.arguments) for p in parts)


class BugRecord(NamedTuple):
    """A candidate that crashed, hung or was wrong, and the file that repeats it."""

    key: Key
    schedule: str
    status: str
    message: str
    reproducer: str
    created: float


# (schedule, status, seconds, noise, samples, predicted)
Tried = tuple[str, str, float, float, int, float]

# A row takes a file from the version before it to its own. Rows are never changed, only added.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE devices (id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE)",
        """CREATE TABLE keys (id INTEGER PRIMARY KEY, graph TEXT NOT NULL, arguments TEXT NOT NULL,
        precision TEXT NOT NULL, target TEXT NOT NULL, compiler TEXT NOT NULL,
        device INTEGER NOT NULL, UNIQUE (graph, arguments, precision, target, compiler, device))""",
        # a schedule is found by its digest: an index of the texts would double the file
        """CREATE TABLE trials (id INTEGER PRIMARY KEY, key INTEGER NOT NULL, digest BLOB NOT NULL,
        schedule TEXT NOT NULL, status TEXT NOT NULL, seconds REAL NOT NULL,
        samples INTEGER NOT NULL, predicted REAL NOT NULL, created REAL NOT NULL)""",
        "CREATE UNIQUE INDEX trials_schedule ON trials (key, digest)",
        "CREATE INDEX trials_best ON trials (key, seconds) WHERE status = 'ok'",
        # `sum` is of the text: a damaged bit in it could be another program
        """CREATE TABLE choices (key INTEGER PRIMARY KEY, name TEXT NOT NULL, kernels TEXT NOT NULL,
        sum INTEGER NOT NULL, seconds REAL NOT NULL, runner_up REAL NOT NULL,
        candidates INTEGER NOT NULL, budget REAL NOT NULL, created REAL NOT NULL)""",
        """CREATE TABLE bugs (id INTEGER PRIMARY KEY, key INTEGER NOT NULL, digest BLOB NOT NULL,
        schedule TEXT NOT NULL, status TEXT NOT NULL, message TEXT NOT NULL,
        reproducer TEXT NOT NULL, created REAL NOT NULL, UNIQUE (key, digest))""",
    ),
    (  # how sure a measurement is, the kernels of a choice one by one, and where it comes from
        "ALTER TABLE trials ADD COLUMN noise REAL NOT NULL DEFAULT 0",
        "ALTER TABLE choices ADD COLUMN noise REAL NOT NULL DEFAULT 0",
        "ALTER TABLE choices ADD COLUMN samples INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE choices ADD COLUMN runner_up_noise REAL NOT NULL DEFAULT 0",
        "ALTER TABLE choices ADD COLUMN parts TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE choices ADD COLUMN origin TEXT NOT NULL DEFAULT ''",
        "CREATE INDEX choices_name ON choices (name)",
    ),
)

_KEY = "graph, arguments, precision, target, identity, compiler"
_KEYS = "keys JOIN devices ON devices.id = device"
_THIS_KEY = """(SELECT id FROM keys WHERE graph = ? AND arguments = ? AND precision = ?
AND target = ? AND device = (SELECT id FROM devices WHERE identity = ?) AND compiler = ?)"""
_TRIAL = "schedule, status, seconds, noise, samples, predicted, created"
_CHOICE = (
    "name, kernels, seconds, noise, runner_up, candidates, budget, created, samples, "
    "runner_up_noise, parts, origin, sum"
)


def database_path() -> Path | None:
    """Where the database is, unless nothing is to be kept."""
    folder = cache_folder()
    return None if folder is None else folder / "tuning.sqlite"


class Database:
    """The database in a file; without a path in the cache folder, or in memory if there is none.

    Any number of processes may have the file open. Threads may share a Database, and it survives a
    fork. What a call wrote is there when it returns. `with Database() as database` closes the file.
    """

    def __init__(self, path: Path | str | None = None, strict: bool = False):
        self.path = database_path() if path is None else Path(path).absolute()
        self._file = DatabaseFile(self.path, MIGRATIONS)
        self._strict = strict

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; the next call opens it again."""
        self._file.close()

    # --- trials ---------------------------------------------------------------------------------

    def add_trials(self, key: Key, trials: Iterable[Tried]) -> bool:
        """Keep trials; whether they were kept. Of two of one schedule, the one with more samples
        stays, or the newer one."""
        now = time.time()
        checked(key)
        rows = [checked(TrialRecord(*trial, created=now)) for trial in trials]
        return self._write(lambda c: insert_trials(c, key_id(c, key), rows))

    def trials(self, key: Key) -> list[TrialRecord]:
        """All trials of a key, the fastest first."""
        return self._read(lambda connection: read_trials(connection, key), [])

    def best(self, key: Key) -> TrialRecord | None:
        """The fastest trial of a key."""
        query = f"""SELECT {_TRIAL} FROM trials
        WHERE key = {_THIS_KEY} AND status = 'ok' ORDER BY seconds LIMIT 1"""

        def find(connection: sqlite3.Connection) -> TrialRecord | None:
            row = connection.execute(query, _values(key)).fetchone()
            return row and _trial(row)

        return self._read(find, None)

    # --- choices --------------------------------------------------------------------------------

    def choose(self, choice: Choice) -> bool:
        """Keep what a graph runs with, in place of what it ran with; whether it was kept."""
        checked(choice)
        return self._write(lambda connection: insert_choice(connection, choice))

    def choice(self, key: Key) -> Choice | None:
        """What a graph runs with, if that is known."""
        return self._read(lambda connection: read_choice(connection, key), None)

    def choices(self, text: str = "") -> list[Choice]:
        """The choices for a model's name, a part of it, or the beginning of a graph's hash.

        Without a text, all of them. They are in the order of their names, then the newest first.
        """
        return self._read(lambda connection: read_choices(connection, text), [])

    # --- bugs of the compiler -------------------------------------------------------------------

    def add_bug(
        self, key: Key, schedule: str, status: str, message: str, reproducer: Path | str
    ) -> bool:
        """Keep a candidate that was wrong, crashed or hung, one for each schedule of a key."""
        bug = checked(BugRecord(key, schedule, status, message, str(reproducer), time.time()))

        def insert(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR REPLACE INTO bugs (key, digest, schedule, status, message, reproducer, "
                "created) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (key_id(connection, key), digest_of(schedule), *bug[1:]),
            )

        return self._write(insert)

    def bugs(self) -> list[BugRecord]:
        """All that were found, the newest first."""
        query = f"""SELECT {_KEY}, schedule, status, message, reproducer, created
        FROM {_KEYS} JOIN bugs ON bugs.key = keys.id ORDER BY created DESC, bugs.id DESC"""
        return self._read(
            lambda c: [BugRecord(Key(*row[:6]), *row[6:]) for row in c.execute(query)], []
        )

    # --- between machines -----------------------------------------------------------------------

    def export(self, path: Path | str, name: str | None = None) -> None:
        """Write one file with everything but bugs, or with the choices for `name` (see `choices`).

        ArgumentError if there is nothing to write.
        """
        from .database_export import write_export  # here and below, for few programs need it

        self._file.read(lambda c: write_export(self._file, c, Path(path), name))

    def import_(self, path: Path | str, compiler: str = "") -> Imported:
        """Take in such a file, all of it or, where it is damaged, nothing (ParseError).

        What another machine or another version of the compiler measured (`compiler`: this one's,
        if it is not `compiler_version()`) is kept under its own keys; the summary says so.
        """
        from .database_export import read_export

        return read_export(self._file, Path(path), compiler or compiler_version())

    # --- how ------------------------------------------------------------------------------------

    def _read(self, operation: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        try:
            return self._file.read(operation)
        except Error as error:
            self._complain(error)
            return otherwise

    def _write(self, operation: Callable[[sqlite3.Connection], object]) -> bool:
        try:
            self._file.write(operation)
        except Error as error:
            self._complain(error)
            return False
        return True

    def _complain(self, error: Error) -> None:
        if self._strict:
            raise error
        warn_once(f"database {self.path}", f"{error}; going on without it")


# --- rows -----------------------------------------------------------------------------------------


def apart(key: Key, compiler: str) -> str:
    """Why what is under a key says nothing here, in words; empty if it does say something."""
    if not is_this_machine(key.target, key.device):
        return f"another machine: {device_in_words(key.device)}"
    return "" if key.compiler == compiler else f"another version of dodeca: {key.compiler}"


def checked(record: R) -> R:
    """The record; ArgumentError if a field is not of its type, or is a number that cannot be."""
    for name, kind in fields_of(type(record)).items():
        value = getattr(record, name)
        if kind is str and isinstance(value, str):
            continue
        if kind not in (str, int, float):  # a key, or parts
            for inner in value if isinstance(value, tuple) else (value,):
                checked(inner)
            continue
        # True is not a number here, nor NaN, nor an int that SQLite has not
        number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        if kind is int and number and isinstance(value, int) and value < 2**63:
            continue
        # only what is a trial's may be infinite
        large = isinstance(record, TrialRecord) and isinstance(value, float)
        if kind is float and number and (value < 2**63 or large):
            continue
        found = repr(value)
        found = found if len(found) <= 30 else f"{found[:27]}..."
        expected = "a text" if kind is str else f"{kind.__name__}, 0 or more"
        raise ArgumentError(f"{type(record).__name__}: {name} is {found}, expected {expected}")
    if isinstance(record, TrialRecord | BugRecord):
        from .trial import STATUSES  # here, for a look-up has no use for it

        if record.status not in STATUSES:
            known = ", ".join(STATUSES)
            raise ArgumentError(f"status is {record.status!r}, expected one of {known}")
    return record


@cache
def fields_of(record: type) -> dict[str, Any]:
    """The type of each field of a record, in their order."""
    return get_type_hints(record)


def key_id(connection: sqlite3.Connection, key: Key) -> int:
    """The number that stands for a key; a new one if the key is new."""
    query = f"SELECT {_THIS_KEY}"
    row = connection.execute(query, _values(key)).fetchone()
    if row[0] is None:
        connection.execute("INSERT OR IGNORE INTO devices (identity) VALUES (?)", (key.device,))
        connection.execute(
            "INSERT OR IGNORE INTO keys (graph, arguments, precision, target, device, compiler) "
            "VALUES (?, ?, ?, ?, (SELECT id FROM devices WHERE identity = ?), ?)",
            _values(key),
        )
        row = connection.execute(query, _values(key)).fetchone()
    if not isinstance(row[0], int):
        raise Damaged("a key is not found where it was written")
    return row[0]


def read_keys(connection: sqlite3.Connection) -> list[Key]:
    """All keys."""
    return [Key(*row) for row in connection.execute(f"SELECT {_KEY} FROM {_KEYS} ORDER BY keys.id")]


def read_trials(connection: sqlite3.Connection, key: Key) -> list[TrialRecord]:
    """All trials of a key, the fastest first."""
    query = f"SELECT {_TRIAL} FROM trials WHERE key = {_THIS_KEY} ORDER BY seconds, id"
    return [_trial(row) for row in connection.execute(query, _values(key))]


def read_choice(connection: sqlite3.Connection, key: Key) -> Choice | None:
    """The choice of a key."""
    query = f"SELECT {_CHOICE} FROM choices WHERE key = {_THIS_KEY}"
    row = connection.execute(query, _values(key)).fetchone()
    return row and _choice(key, row)


def read_choices(connection: sqlite3.Connection, text: str) -> list[Choice]:
    """See `Database.choices`."""
    query = f"SELECT name, {_KEY} FROM {_KEYS} JOIN choices ON choices.key = keys.id"
    keys = [
        Key(graph, *rest)
        for name, graph, *rest in connection.execute(query)
        if text.casefold() in name.casefold() or graph.startswith(text)
    ]
    found = [choice for key in keys if (choice := read_choice(connection, key))]
    return sorted(found, key=lambda choice: (choice.name, -choice.created))


def insert_trials(connection: sqlite3.Connection, number: int, rows: Iterable[TrialRecord]) -> None:
    """Insert under a key's number, or replace what has fewer samples, or as many and is older."""
    connection.executemany(
        f"INSERT INTO trials (key, digest, {_TRIAL}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (key, digest) DO UPDATE SET status = excluded.status, "
        "seconds = excluded.seconds, noise = excluded.noise, samples = excluded.samples, "
        "predicted = excluded.predicted, created = excluded.created WHERE "
        "(excluded.samples, excluded.created) >= (trials.samples, trials.created)",
        ((number, digest_of(row.schedule), *row) for row in rows),
    )


def insert_choice(connection: sqlite3.Connection, choice: Choice, only_newer: bool = False) -> bool:
    """Insert or replace; whether that was done, which it is not if an older one is to be kept."""
    number = key_id(connection, choice.key)
    parts = json.dumps(choice.parts, separators=(",", ":"))
    done = connection.execute(
        f"INSERT INTO choices (key, {_CHOICE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
        f"ON CONFLICT (key) DO UPDATE SET ({_CHOICE}) = ({_excluded(_CHOICE)}) "
        "WHERE ? OR excluded.created > choices.created",
        (
            *(number, choice.name, choice.kernels, choice.seconds, choice.noise),
            *(choice.runner_up, choice.candidates, choice.budget, choice.created, choice.samples),
            *(choice.runner_up_noise, parts, choice.origin, _sum(choice.kernels)),
            not only_newer,
        ),
    )
    return done.rowcount > 0


def digest_of(text: str) -> bytes:
    """What a schedule is found by."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _excluded(columns: str) -> str:
    return ", ".join(f"excluded.{column.strip()}" for column in columns.split(","))


def _values(key: Key) -> tuple[str, ...]:
    """A key's fields in their order: that of `_KEY` and `_THIS_KEY`."""
    return tuple(vars(key).values())


def _sum(text: str) -> int:
    return zlib.crc32(text.encode())


_TRIAL_TYPES = (str, str, float, float, int, float, float)
_CHOICE_TYPES = (str, str, float, float, float, int, float, float, int, float, str, str, int)


def _trial(row: tuple[Any, ...]) -> TrialRecord:
    if tuple(map(type, row)) != _TRIAL_TYPES:
        raise Damaged("a trial is not what was written")
    return TrialRecord(*row)


def _choice(key: Key, row: tuple[Any, ...]) -> Choice:
    *values, parts, origin, expected = row
    if tuple(map(type, row)) != _CHOICE_TYPES or _sum(values[1]) != expected:
        raise Damaged("a choice is not what was written")
    try:
        listed = tuple(Part(*part) for part in json.loads(parts))
    except (TypeError, ValueError):
        raise Damaged("the kernels of a choice are not what was written") from None
    return Choice(key, *values, parts=listed, origin=origin)
