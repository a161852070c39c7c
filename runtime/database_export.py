"""A part of the tuning database as a file for another machine: JSON, one record a line.

    {"format": "dodeca tuning", "version": 1}
    {"key": ["6f2c...", "f32[1x128]", "fast", "cpu", "{...}", "0.1.0+51e9757c177b"]}
    {"trial": ["{...}", "ok", 1.4e-05, 0.02, 31, 1.2e-05, 1764500000.0]}
    {"choice": {"name": "sentence_embedding", "kernels": "module {...}", ...}}
    {"sha256": "..."}

A trial and a choice belong to the key above them. The check sum is over all lines before it, so a
file that was cut or changed is refused; it does not prove who wrote it. Of a file that comes in,
every field is checked for its type and its length, and texts are kept as texts. But the kernels of
a choice are a program, and one for this machine will run: import from those whose code you run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from ..dialect.errors import ArgumentError, Error, ParseError
from .database import (
    Choice,
    Key,
    Part,
    TrialRecord,
    apart,
    checked,
    fields_of,
    insert_choice,
    insert_trials,
    key_id,
    read_choices,
    read_keys,
    read_trials,
)
from .database_file import DatabaseFile

FORMAT = "dodeca tuning"
VERSION = 1
_WORDS = 10_000  # characters of a text that is shown: names, keys
_TEXT = 64 << 20  # characters of a module or a schedule
_LINE = 2 * _TEXT  # bytes
_PARTS = 10_000
_CHOICE = tuple(name for name in fields_of(Choice) if name not in ("key", "origin"))


@dataclass(frozen=True)
class Imported:
    """What became of the contents of an imported file."""

    choices: int  # that this machine runs with from now on
    trials: int  # that this machine's searches see
    older: int  # choices that were not taken, for there is a newer one
    apart: tuple[tuple[str, int, int], ...]  # why, and how many choices and trials are kept so


# --- out ------------------------------------------------------------------------------------------


def write_export(
    database: DatabaseFile, connection: sqlite3.Connection, path: Path, name: str | None
) -> None:
    """Write the file beside `path`, then give it its name."""
    _not_itself(database, path, "export")
    new = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        connection.execute("BEGIN")  # one state of the database, whatever others write
        with open(new, "xb") as file:
            _write_lines(file, _records(connection, name))
        os.replace(new, path)
    except OSError as error:
        raise Error(f"export: {path} cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("COMMIT")
        with contextlib.suppress(OSError):
            new.unlink()


def _write_lines(file: IO[bytes], records: Iterator[dict[str, Any]]) -> None:
    digest, empty = hashlib.sha256(), True

    def write(record: dict[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        digest.update(line)
        file.write(line)

    write({"format": FORMAT, "version": VERSION})
    for record in records:
        write(record)
        empty = empty and "key" in record
    if empty:
        raise ArgumentError("export: there is nothing of that name to write")
    write({"sha256": digest.hexdigest()})


def _records(connection: sqlite3.Connection, name: str | None) -> Iterator[dict[str, Any]]:
    choices = {choice.key: choice for choice in read_choices(connection, name or "")}
    keys = read_keys(connection)
    if name is not None:
        chosen = choices.items()
        keys = [each for key, choice in chosen for each in (key, *choice.part_keys())]
    for key in dict.fromkeys(keys):
        yield {"key": list(vars(key).values())}
        for trial in read_trials(connection, key):
            values = [None if value == math.inf else value for value in trial]
            yield {"trial": values}
        if key in choices:
            found = vars(choices[key])
            yield {"choice": {item: found[item] for item in _CHOICE}}


def _not_itself(database: DatabaseFile, path: Path, what: str) -> None:
    """Writing over the database would end it; opening and closing it would undo its locks here."""
    with contextlib.suppress(OSError):
        if database.path is not None and database.path.samefile(path):
            raise ArgumentError(f"{what}: {path} is the tuning database itself")


# --- in -------------------------------------------------------------------------------------------


def read_export(database: DatabaseFile, path: Path, compiler: str) -> Imported:
    """Take in a file, in one transaction; ParseError for one that is not sound."""
    _not_itself(database, path, "import")
    try:
        with open(path, "rb") as file:
            return database.write(lambda connection: _Reader(file, path, compiler).read(connection))
    except OSError as error:
        raise Error(f"import: {path} cannot be read: {error.strerror}") from None


class _Reader:
    """One reading of a file."""

    def __init__(self, file: IO[bytes], path: Path, compiler: str):
        self.file, self.path, self.compiler = file, path, compiler
        self.line = 0
        self.key: Key | None = None
        self.number = 0  # of the key, in the database
        self.why = ""  # why the key is not of this machine
        self.older = 0
        self.choices: Counter[str] = Counter()
        self.trials: Counter[str] = Counter()

    def read(self, connection: sqlite3.Connection) -> Imported:
        self.file.seek(0)
        digest = hashlib.sha256()
        self.header(self.next(digest))
        while True:
            before = digest.hexdigest()
            record = self.next(digest)
            match record:
                case {"key": list(values), **rest} if not rest:
                    key: Key = self.made(Key, values)
                    self.key, self.number = key, key_id(connection, key)
                    self.why = apart(key, self.compiler)
                case {"trial": list(values), **rest} if not rest:
                    self.trial(connection, values)
                case {"choice": dict(values), **rest} if not rest:
                    self.choice(connection, values)
                case {"sha256": str(total)}:
                    if total != before or self.file.read(1):
                        self.refuse("it was cut or changed")
                    break
                case _:
                    self.refuse("no such record is known")
        why = sorted({*self.choices, *self.trials} - {""})
        rows = tuple((reason, self.choices[reason], self.trials[reason]) for reason in why)
        return Imported(self.choices[""], self.trials[""], self.older, rows)

    def next(self, digest: Any) -> Any:
        """The next line's record."""
        self.line += 1
        text = self.file.readline(_LINE)
        if not text.endswith(b"\n"):
            self.refuse("it ends here, or the line is too long")
        digest.update(text)
        try:
            return json.loads(text, parse_constant=self.refuse)
        except (ValueError, RecursionError):
            self.refuse("the line is not JSON")

    def header(self, record: Any) -> None:
        match record:
            case {"format": format, "version": int(version)} if format == FORMAT:
                if version > VERSION:
                    self.refuse(f"it is of version {version}; this dodeca knows {VERSION}")
            case _:
                self.refuse("it is not an exported tuning database")

    def trial(self, connection: sqlite3.Connection, values: list[Any]) -> None:
        self.under()
        trial = self.made(TrialRecord, [math.inf if value is None else value for value in values])
        insert_trials(connection, self.number, [trial])
        self.trials[self.why] += 1

    def choice(self, connection: sqlite3.Connection, values: dict[str, Any]) -> None:
        parts = values.get("parts")
        if set(values) != set(_CHOICE) or not isinstance(parts, list) or len(parts) > _PARTS:
            self.refuse("the choice has not the fields of one")
        made = tuple(self.made(Part, part) for part in parts)
        fields: dict[str, Any] = {**values, "parts": made, "origin": self.path.name}
        choice = Choice(self.under(), **fields)
        if insert_choice(connection, self.sound(choice), only_newer=True):
            self.choices[self.why] += 1
        else:
            self.older += 1

    def under(self) -> Key:
        if self.key is None:
            self.refuse("there is no key above it")
        return self.key

    def made(self, kind: Any, values: Any) -> Any:
        """A record of that kind from its fields in their order."""
        fields = len(fields_of(kind))
        if not isinstance(values, list) or len(values) != fields:
            self.refuse(f"a {kind.__name__} has {fields} fields")
        return self.sound(kind(*values))

    def sound(self, record: Any) -> Any:
        """The record, if its fields are what they may be. Texts that are shown are of one line."""
        try:
            checked(record)
            for name in fields_of(type(record)):
                value = getattr(record, name)
                if isinstance(value, str):
                    value.encode()
                    words = name not in ("kernels", "schedule")
                    if len(value) > (_WORDS if words else _TEXT):
                        self.refuse(f"{name} is too long")
                    if words and not value.isprintable():
                        self.refuse(f"{name} has characters that are not to be printed")
        except (ArgumentError, UnicodeError) as error:
            self.refuse(str(error))
        return record

    def refuse(self, why: str) -> NoReturn:
        raise ParseError(f"{self.path}:{self.line}: {why}; nothing was imported")
