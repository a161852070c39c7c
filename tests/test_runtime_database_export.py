"""A tuning database between machines: what fits is used, the rest is kept apart, damage refused."""

import errno
import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dodeca.dialect.errors import ArgumentError, Error, ParseError
from dodeca.runtime.database import Choice, Database, Key, Part
from dodeca.runtime.database_export import Imported
from dodeca.runtime.identity import compiler_version, identity

HERE = Key("3fa9c0ffee", "f32[4x8]", "fast", "cpu", identity("cpu", 2), compiler_version())
KERNEL = replace(HERE, graph="77aa", arguments="f32[8]")
ELSEWHERE = replace(HERE, device='{"core":"znver9","kind":"cpu","model":"A CPU","threads":4}')
EARLIER = replace(HERE, compiler="0.0+abc")
CHOICE = Choice(
    *(HERE, "embedding", 'module {\n  "é\t"\n}\n', 0.024, 0.03, 0.025, 214, 60.0),
    created=1.7e9,
    samples=41,
    runner_up_noise=0.02,
    parts=(Part("k0_sum", "77aa", "f32[8]", 1.5e-5, 0.03, 21, 40),),
)
TRIAL = ["a", "ok", 1.4e-5, 0.02, 31, 1.2e-5, 1.7e9]
TRIALS = [("a", "ok", 1.4e-5, 0.02, 31, 1.2e-5), ("b", "crashed", math.inf, 0.0, 0, math.inf)]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """Choices of this machine, another one and another version, and trials of a kernel."""
    made = Database(tmp_path / "from.sqlite", strict=True)
    for key in (HERE, ELSEWHERE, EARLIER):
        made.choose(replace(CHOICE, key=key))
    made.choose(replace(CHOICE, key=replace(HERE, graph="bb"), name="layer", parts=()))
    made.add_trials(KERNEL, TRIALS)
    made.add_trials(replace(ELSEWHERE, graph="other kernel"), TRIALS)
    made.add_bug(HERE, "a", "wrong", "differs", "/tmp/a.mlir")
    return made


@pytest.fixture
def file(database: Database, tmp_path: Path) -> Path:
    database.export(tmp_path / "exported")
    return tmp_path / "exported"


def test_what_fits_is_used_and_the_rest_is_kept_apart(
    database: Database, file: Path, tmp_path: Path
) -> None:
    other = Database(tmp_path / "to.sqlite", strict=True)
    apart = (
        ("another machine: A CPU (znver9), 4 threads", 1, 2),
        ("another version of dodeca: 0.0+abc", 1, 0),
    )
    assert other.import_(file) == Imported(2, 2, 0, apart)
    assert other.choice(HERE) == replace(CHOICE, origin="exported")
    assert other.trials(KERNEL) == database.trials(KERNEL)
    assert [choice.key for choice in other.choices("embedding")] == [HERE, ELSEWHERE, EARLIER]
    assert other.bugs() == []
    # once more, nothing is new
    assert other.import_(file).older == 4
    assert other.trials(KERNEL) == database.trials(KERNEL)


def test_what_is_newer_here_stays(database: Database, file: Path) -> None:
    newer = replace(CHOICE, seconds=0.02, created=1.8e9)
    database.choose(newer)
    database.add_trials(KERNEL, [("a", "ok", 1e-5, 0.02, 32, 1.2e-5)])
    assert database.import_(file).older == 4
    assert database.choice(HERE) == newer
    best = database.best(KERNEL)
    assert best is not None and best.samples == 32


def test_an_export_of_one_model_has_its_kernels(
    database: Database, file: Path, tmp_path: Path
) -> None:
    database.export(file, "embed")
    other = Database(tmp_path / "to.sqlite", strict=True)
    assert other.import_(file).choices == 1
    assert {choice.name for choice in other.choices()} == {"embedding"}
    assert other.trials(KERNEL) == database.trials(KERNEL)
    assert other.trials(replace(ELSEWHERE, graph="other kernel")) == []


def test_an_export_that_fails_leaves_no_file(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    kept.write_text("what was there")

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", no_space)
        with pytest.raises(Error, match="kept cannot be written: No space left"):
            database.export(kept)
    with pytest.raises(ArgumentError, match="nothing of that name"):
        database.export(kept, "no such model")
    assert kept.read_text() == "what was there"
    with pytest.raises(Error, match="cannot be written: No such file or directory"):
        database.export(tmp_path / "no" / "file")
    with pytest.raises(ArgumentError, match="the tuning database itself"):
        database.export(tmp_path / "from.sqlite")
    with pytest.raises(ArgumentError, match="the tuning database itself"):
        database.import_(tmp_path / "from.sqlite")
    with pytest.raises(Error, match="cannot be read: No such file or directory"):
        database.import_(tmp_path / "none")
    assert not list(tmp_path.glob(".*"))
    assert database.choice(HERE) == CHOICE


def contents(database: Database) -> list[Any]:
    """Every row of a database."""
    tables = ("devices", "keys", "trials", "choices", "bugs")
    return database._file.read(
        lambda c: [c.execute(f"SELECT * FROM {table}").fetchall() for table in tables]
    )


def refused(file: Path, data: bytes, tmp_path: Path) -> str:
    """The message with which a file of these bytes is refused by a database that stays as it is."""
    file.write_bytes(data)
    with Database(tmp_path / "to.sqlite", strict=True) as database:
        database.add_trials(HERE, TRIALS)
        before = contents(database)
        with pytest.raises(ParseError) as raised:
            database.import_(file)
        assert contents(database) == before
    message = str(raised.value)
    assert message.startswith(f"{file}:") and message.endswith("; nothing was imported")
    assert message.isprintable()
    return message


def test_a_cut_file_is_refused(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    lines = data.splitlines(keepends=True)
    for length in (0, 1, len(lines[0]), len(data) // 2, len(data) - 1):
        refused(file, data[:length], tmp_path)
    refused(file, b"".join([*lines[:3], *lines[4:]]), tmp_path)
    assert "cut or changed" in refused(file, data + b"{}\n", tmp_path)


def test_a_changed_byte_is_refused(file: Path, tmp_path: Path) -> None:
    data = bytearray(file.read_bytes())
    for position in range(5, len(data), 211):
        data[position] ^= 1
        refused(file, bytes(data), tmp_path)
        data[position] ^= 1


def sealed(lines: list[Any]) -> bytes:
    """A file of these records with a check sum that is right."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    end = {"sha256": hashlib.sha256(text.encode()).hexdigest()}
    return (text + json.dumps(end) + "\n").encode()


def test_a_sealed_file_is_taken(file: Path, tmp_path: Path) -> None:
    """So that the refusals below are for what they change, and not for the seal."""
    lines = [json.loads(line) for line in file.read_text().splitlines()[:-1]]
    file.write_bytes(sealed(lines))
    assert Database(tmp_path / "to.sqlite", strict=True).import_(file).choices == 2


def set_trial(position: int, value: Any) -> Callable[[list[Any]], object]:
    def change(lines: list[Any]) -> None:
        next(line["trial"] for line in lines if "trial" in line)[position] = value

    return change


def set_choice(name: str, value: Any) -> Callable[[list[Any]], object]:
    def change(lines: list[Any]) -> None:
        next(line["choice"] for line in lines if "choice" in line)[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[0].update(format="other"), "not an exported tuning database"),
        (lambda lines: lines[0].update(version=2), "of version 2; this dodeca knows 1"),
        (lambda lines: lines[0].update(version="1"), "not an exported tuning database"),
        (lambda lines: lines.pop(1), "no key above it"),
        (lambda lines: lines.insert(2, {"code": "import os"}), "no such record"),
        (lambda lines: lines.insert(2, [1]), "no such record"),
        (lambda lines: lines.insert(2, {"trial": 1}), "no such record"),
        (lambda lines: lines[1].update(more=1), "no such record"),
        (lambda lines: lines.insert(1, {"trial": TRIAL}), "no key above it"),
        (lambda lines: lines[1]["key"].pop(), "a Key has 6 fields"),
        (lambda lines: lines[1]["key"].__setitem__(0, 3), "graph is 3"),
        (lambda lines: lines[1]["key"].__setitem__(0, "x" * 20_000), "graph is too long"),
        (lambda lines: lines[1]["key"].__setitem__(0, "\ud800"), "surrogates not allowed"),
        (set_trial(0, 7), "schedule is 7"),
        (set_trial(1, "great"), "status is 'great'"),
        (set_trial(2, -1.0), "seconds is -1.0"),
        (set_trial(2, "1"), "seconds is '1'"),
        (set_trial(2, math.nan), "is not JSON"),
        (set_trial(5, 10**400), "predicted is 1000"),
        (set_trial(4, 2**63), "samples is 9223372036854775808"),
        (set_trial(4, True), "samples is True"),
        (lambda lines: lines.insert(2, {"trial": ["a"]}), "a TrialRecord has 7 fields"),
        (set_choice("name", "\x1b[2J"), "name has characters that are not to be printed"),
        (set_choice("kernels", ["module"] * 50), "kernels is ['module', 'module', 'modul...,"),
        (set_choice("seconds", math.inf), "is not JSON"),
        (set_choice("more", 1), "not the fields of one"),
        (set_choice("parts", [["k", "g", "a", 1.0, 0.0, 1]]), "a Part has 7 fields"),
        (set_choice("parts", [["k\n", "g", "a", 1.0, 0.0, 1, 1]]), "kernel has characters"),
        (set_choice("parts", {}), "not the fields of one"),
    ],
)
def test_what_is_not_as_it_should_be_is_refused(
    change: Callable[[list[Any]], object], message: str, file: Path, tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in file.read_text().splitlines()[:-1]]
    change(lines)
    assert message in refused(file, sealed(lines), tmp_path)


def test_json_that_is_nested_too_deeply_is_refused(file: Path, tmp_path: Path) -> None:
    head = file.read_bytes().splitlines(keepends=True)[0]
    refused(file, head + b'{"key":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", tmp_path)
