"""The tuning database: what is kept, how files of other versions and damaged ones are met, and that
no acknowledged write is lost to threads, forks, or killed processes."""

import importlib
import math
import os
import re
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from dodeca.dialect.errors import ArgumentError, Error
from dodeca.runtime import cache_folder, database_file
from dodeca.runtime.database import MIGRATIONS, Choice, Database, Key, Part

DEVICE = '{"core":"znver9","kind":"cpu","model":"A CPU","threads":4}'
KEY = Key("3fa9c0ffee", "f32[4x8]", "fast", "cpu", DEVICE, "1.0+abc")
PARTS = (Part("k0_sum", "77aa", "f32[8]", 1.5e-5, 0.03, 21, 40),)
CHOICE = Choice(
    *(KEY, "sentence_embedding", "module {\n}\n", 0.024, 0.03, 0.025, 214, 60.0),
    created=1.7e9,
    samples=41,
    runner_up_noise=0.02,
    parts=PARTS,
)
TRIAL = ('{"lanes":8}', "ok", 1.4e-5, 0.02, 31, 1.2e-5)


@pytest.fixture(autouse=True)
def forget_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_folder, "_warned", set())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "tuning.sqlite"


def integrity(path: Path) -> str:
    """What SQLite's full check says of a file."""
    with sqlite3.connect(path) as connection:
        (found,) = connection.execute("PRAGMA integrity_check").fetchone()
    connection.close()
    return found


# --- what is kept ---------------------------------------------------------------------------------


def test_trials_come_back_the_fastest_first(path: Path) -> None:
    rows = [
        ("a", "ok", 3e-5, 0.1, 5, 1e-5),
        ("b", "ok", 1e-5, 0.2, 6, 2e-5),
        ("c", "crashed", math.inf, 0.0, 0, math.inf),
        ("d", "ok", 2e-5, 0.3, 7, 3e-5),
    ]
    with Database(path, strict=True) as database:
        assert database.best(KEY) is None
        assert database.add_trials(KEY, rows[:1]) and database.add_trials(KEY, iter(rows[1:]))
        found = database.trials(KEY)
        assert [tuple(row[:6]) for row in found] == [rows[1], rows[3], rows[0], rows[2]]
        assert database.best(KEY) == found[0]
    with Database(path, strict=True) as again:
        assert again.trials(KEY) == found


def test_more_samples_replace_fewer_and_newer_replaces_older(path: Path) -> None:
    database = Database(path, strict=True)

    def seconds_after(seconds: float, samples: int, status: str = "ok") -> float:
        database.add_trials(KEY, [("a", status, seconds, 0.0, samples, 0.0)])
        (found,) = database.trials(KEY)
        return found.seconds

    assert seconds_after(1.0, 5) == 1.0
    assert seconds_after(2.0, 4) == 1.0
    assert seconds_after(3.0, 5) == 3.0
    assert seconds_after(4.0, 6) == 4.0
    assert seconds_after(math.inf, 0, "hung") == 4.0


def test_only_what_was_timed_can_be_the_best(path: Path) -> None:
    database = Database(path, strict=True)
    database.add_trials(KEY, [("a", "wrong", 1e-9, 0.0, 3, 0.0), TRIAL])
    best = database.best(KEY)
    assert best is not None and best.schedule == TRIAL[0]


@pytest.mark.parametrize("field", list(vars(KEY)))
def test_a_look_up_is_by_the_whole_key(field: str, path: Path) -> None:
    database = Database(path, strict=True)
    database.add_trials(KEY, [TRIAL])
    database.choose(CHOICE)
    other = replace(KEY, **{field: "another"})
    assert database.best(other) is None and database.trials(other) == []
    assert database.choice(other) is None
    assert database.best(KEY) and database.choice(KEY) == CHOICE


def test_choices_are_found_by_name_and_by_hash(path: Path) -> None:
    database = Database(path, strict=True)
    old = replace(CHOICE, key=replace(KEY, device="{}"), created=1.6e9)
    other = replace(CHOICE, key=replace(KEY, graph="77"), name="Layer")
    for choice in (old, CHOICE, other):
        assert database.choose(choice)
    assert database.choices() == [other, CHOICE, old]
    assert database.choices("EMBED") == [CHOICE, old]
    assert database.choices("3fa9") == [CHOICE, old]
    assert database.choices("layer") == database.choices("7") == [other]
    assert database.choices("a9c0") == []
    better = replace(CHOICE, seconds=0.02, parts=())
    database.choose(better)
    assert database.choice(KEY) == better


def test_bugs_are_kept_once_for_a_schedule(path: Path) -> None:
    database = Database(path, strict=True)
    database.add_bug(KEY, "a", "wrong", "differs", Path("/tmp/a.mlir"))
    database.add_bug(KEY, "b", "hung", "no end", "/tmp/b.mlir")
    database.add_bug(KEY, "a", "crashed", "SIGSEGV", "/tmp/c.mlir")
    found = [(b.key, b.schedule, b.status, b.message, b.reproducer) for b in database.bugs()]
    assert found == [
        (KEY, "a", "crashed", "SIGSEGV", "/tmp/c.mlir"),
        (KEY, "b", "hung", "no end", "/tmp/b.mlir"),
    ]


@pytest.mark.parametrize(
    ("position", "value"),
    [(0, None), (1, "great"), (2, math.nan), (2, -1.0), (3, "1"), (4, 1.5), (4, True), (4, 2**63)],
)
def test_what_is_no_trial_is_refused(position: int, value: object, path: Path) -> None:
    database = Database(path)
    trial = list(TRIAL)
    trial[position] = value  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(ArgumentError):
        database.add_trials(KEY, [TRIAL, tuple(trial)])  # pyright: ignore[reportArgumentType]
    assert database.trials(KEY) == []


def test_what_is_no_choice_or_key_is_refused(path: Path) -> None:
    database = Database(path)
    for wrong in (
        {"name": None},
        {"seconds": math.inf},
        {"candidates": 1.0},
        {"key": replace(KEY, graph=3)},  # pyright: ignore[reportArgumentType]
        {"parts": (PARTS[0]._replace(samples=-1),)},
    ):
        with pytest.raises(ArgumentError):
            database.choose(replace(CHOICE, **wrong))
    with pytest.raises(ArgumentError):
        database.add_trials(replace(KEY, device=3), [TRIAL])  # pyright: ignore[reportArgumentType]
    assert database.choices() == []


def test_without_a_folder_it_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DODECA_CACHE", "off")
    database = Database(strict=True)
    database.choose(CHOICE)
    assert database.choice(KEY) == CHOICE
    assert Database(strict=True).choice(KEY) is None


def test_it_is_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DODECA_CACHE", str(tmp_path / "cache"))
    Database().choose(CHOICE)
    assert Database(tmp_path / "cache" / "tuning.sqlite").choice(KEY) == CHOICE
    assert (tmp_path / "cache").stat().st_mode & 0o77 == 0


# --- versions -------------------------------------------------------------------------------------

# A file as version 1 of the schema made it.
VERSION_1 = """
CREATE TABLE devices (id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE);
CREATE TABLE keys (id INTEGER PRIMARY KEY, graph TEXT NOT NULL, arguments TEXT NOT NULL,
    precision TEXT NOT NULL, target TEXT NOT NULL, compiler TEXT NOT NULL,
    device INTEGER NOT NULL, UNIQUE (graph, arguments, precision, target, compiler, device));
CREATE TABLE trials (id INTEGER PRIMARY KEY, key INTEGER NOT NULL, digest BLOB NOT NULL,
    schedule TEXT NOT NULL, status TEXT NOT NULL, seconds REAL NOT NULL,
    samples INTEGER NOT NULL, predicted REAL NOT NULL, created REAL NOT NULL);
CREATE UNIQUE INDEX trials_schedule ON trials (key, digest);
CREATE INDEX trials_best ON trials (key, seconds) WHERE status = 'ok';
CREATE TABLE choices (key INTEGER PRIMARY KEY, name TEXT NOT NULL, kernels TEXT NOT NULL,
    sum INTEGER NOT NULL, seconds REAL NOT NULL, runner_up REAL NOT NULL,
    candidates INTEGER NOT NULL, budget REAL NOT NULL, created REAL NOT NULL);
CREATE TABLE bugs (id INTEGER PRIMARY KEY, key INTEGER NOT NULL, digest BLOB NOT NULL,
    schedule TEXT NOT NULL, status TEXT NOT NULL, message TEXT NOT NULL,
    reproducer TEXT NOT NULL, created REAL NOT NULL, UNIQUE (key, digest));
INSERT INTO devices VALUES (1, '{"core":"znver9","kind":"cpu","model":"A CPU","threads":4}');
INSERT INTO keys VALUES (1, '3fa9c0ffee', 'f32[4x8]', 'fast', 'cpu', '1.0+abc', 1);
INSERT INTO trials VALUES (1, 1, x'27c35e6e9373877f29e562464e46497e', 'a', 'ok', 0.5, 9, 0.25, 7.0);
INSERT INTO choices VALUES (1, 'old', 'module {}', 3975168751, 0.5, 0.75, 3, 60.0, 7.0);
PRAGMA user_version = 1;
"""


def test_a_file_of_version_1_is_brought_up_to_date(path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1)
    connection.close()
    with Database(path, strict=True) as database:
        (trial,) = database.trials(KEY)
        assert trial == ("a", "ok", 0.5, 0.0, 9, 0.25, 7.0)
        expected = Choice(KEY, "old", "module {}", 0.5, 0.0, 0.75, 3, 60.0, created=7.0)
        assert database.choice(KEY) == expected
        database.add_trials(KEY, [("a", "ok", 0.25, 0.5, 9, 0.25), TRIAL])
        assert [row.seconds for row in database.trials(KEY)] == [TRIAL[2], 0.25]
        database.choose(CHOICE)
        assert database.choice(KEY) == CHOICE
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        made = "SELECT name FROM sqlite_master WHERE name = 'choices_name'"
        assert connection.execute(made).fetchone()
    connection.close()
    assert not list(path.parent.glob("*corrupt*"))


def test_a_file_of_a_newer_version_is_left_alone(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Database(path).choose(CHOICE)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Error, match="version 3, made by a newer dodeca; this one knows version 2"):
        Database(path, strict=True).choice(KEY)
    with Database(path) as database:
        assert database.choice(KEY) is None and database.best(KEY) is None
        assert not database.choose(CHOICE) and not database.add_trials(KEY, [TRIAL])
    assert path.read_bytes() == before
    assert len(caplog.messages) == 1 and "going on without it" in caplog.messages[0]


# --- damage and trouble ---------------------------------------------------------------------------


def filled(path: Path) -> list[Key]:
    """A file with trials and choices under many keys."""
    keys = [replace(KEY, graph=f"{n:064x}") for n in range(30)]
    with Database(path, strict=True) as database:
        for key in keys:
            database.add_trials(key, [(f"{n:200}", "ok", 1.0, 0.0, 5, 1.0) for n in range(20)])
            database.choose(replace(CHOICE, key=key, kernels="module {}" * 500))
    return keys


def damage(data: bytes, kind: str) -> bytes:
    if kind == "another kind of file":
        return b"a text\n" * 1000
    if kind == "truncated":
        return data[: len(data) // 2]
    if kind == "header":
        return data[:20] + bytes(80) + data[100:]
    if kind == "schema":
        return data.replace(b"CREATE TABLE trials", b"CREATE TABLE tri\xffls")
    page = data.index(b"module {}")  # in a page of choices
    if kind == "garbage":
        return data[: page - 2000] + bytes(range(256)) * 40 + data[page - 2000 + 256 * 40 :]
    assert kind == "a bit"
    return data[:page] + b"M" + data[page + 1 :]


@pytest.mark.parametrize(
    "kind", ["another kind of file", "truncated", "header", "schema", "garbage", "a bit"]
)
def test_a_damaged_file_is_set_aside(
    kind: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = filled(path)
    damaged = damage(path.read_bytes(), kind)
    path.write_bytes(damaged)
    database = Database(path, strict=True)
    for key in keys:  # whatever is met, each call answers
        database.best(key)
        database.trials(key)
        database.choice(key)
    assert database.add_trials(KEY, [TRIAL]) and database.choose(CHOICE)
    assert [row.schedule for row in database.trials(KEY)] == [TRIAL[0]]
    assert database.choices() == [CHOICE]
    database.close()
    (aside,) = path.parent.glob("tuning.sqlite.corrupt-*")
    assert aside.read_bytes() == damaged
    assert re.fullmatch(r"tuning\.sqlite\.corrupt-\d{8}-\d{6}", aside.name)
    assert integrity(path) == "ok"
    (message,) = caplog.messages
    assert aside.name in message and "a new one is begun" in message


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE trials SET seconds = x'00'",
        "UPDATE trials SET schedule = CAST(x'ff' AS TEXT)",
        "UPDATE choices SET seconds = 'fast'",
        "UPDATE choices SET kernels = 'other'",
        "UPDATE choices SET parts = '[[1]]'",
        "UPDATE choices SET parts = '{'",
        "DROP TABLE choices",
    ],
)
def test_rows_that_are_not_what_was_written(statement: str, path: Path) -> None:
    with Database(path, strict=True) as database:
        database.add_trials(KEY, [TRIAL])
        database.choose(CHOICE)
        database._file.write(lambda connection: connection.execute(statement))
        assert database.best(KEY) is None or database.choice(KEY) is None
    assert len(list(path.parent.glob("*corrupt*"))) == 1


def test_damage_that_is_met_in_a_write(path: Path) -> None:
    filled(path)
    path.write_bytes(damage(path.read_bytes(), "another kind of file"))
    with Database(path, strict=True) as database:
        assert database.choose(CHOICE)
    assert Database(path, strict=True).choices() == [CHOICE]


def test_others_that_have_the_file_open_go_on_with_the_new_one(path: Path) -> None:
    first, second = Database(path, strict=True), Database(path, strict=True)
    first.choose(CHOICE)
    second.choose(CHOICE)
    first._file._set_aside(path, Exception("so it is said"))
    assert second.choice(KEY) is None
    assert len(list(path.parent.glob("*corrupt*-wal"))) == 1  # of the one that is still open
    second._file._set_aside(path, Exception("again"))
    first.add_trials(KEY, [TRIAL])
    assert second.best(KEY) == first.best(KEY) is not None
    # a process that is late finds that the file was set aside already
    second._file._opened = (0, 0)
    second._file._set_aside(path, Exception("late"))
    assert first.best(KEY) == second.best(KEY) is not None


def test_a_write_into_a_file_that_is_set_aside_meanwhile_is_done_again(path: Path) -> None:
    first, second = Database(path, strict=True), Database(path, strict=True)
    first.choose(CHOICE)
    runs = []

    def write(connection: sqlite3.Connection) -> None:
        runs.append(connection)
        connection.execute("INSERT INTO devices (identity) VALUES ('new')")
        if len(runs) == 1:
            second.choice(KEY)
            second._file._set_aside(path, Exception("so it is said"))

    first._file.write(write)
    assert len(runs) == 2
    query = "SELECT identity FROM devices"
    assert second._file.read(lambda c: c.execute(query).fetchall()) == [("new",)]


def test_a_file_that_was_removed_is_made_anew(path: Path) -> None:
    database = Database(path, strict=True)
    database.choose(CHOICE)
    for file in path.parent.iterdir():
        file.unlink()
    path.parent.rmdir()
    assert database.add_trials(KEY, [TRIAL])
    assert Database(path, strict=True).best(KEY) is not None


def test_a_mistake_of_ours_does_not_set_a_file_aside(path: Path) -> None:
    database = Database(path, strict=True)
    database.choose(CHOICE)
    with pytest.raises(Error, match="syntax error"):
        database._file.read(lambda c: c.execute("SELECT FROM"))
    with pytest.raises(sqlite3.ProgrammingError):
        database._file.read(lambda c: c.execute("SELECT ?", ()))
    assert database.choice(KEY) == CHOICE
    assert not list(path.parent.glob("*corrupt*"))


def test_a_full_disk_loses_nothing_that_was_written(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(path)
    assert database.choose(CHOICE)
    # SQLite's error for a file that may not grow is that of a full disk
    database._file.read(lambda c: c.execute("PRAGMA max_page_count = 1").fetchall())
    large = replace(CHOICE, kernels="x" * 1_000_000)
    assert not database.choose(large) and not database.choose(large)
    assert len(caplog.messages) == 1 and "database or disk is full" in caplog.messages[0]
    assert database.choice(KEY) == CHOICE
    strict = Database(path, strict=True)
    strict._file.read(lambda c: c.execute("PRAGMA max_page_count = 1").fetchall())
    with pytest.raises(Error, match="database or disk is full"):
        strict.choose(large)


def test_a_place_where_no_file_can_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    database = Database(tmp_path / "file" / "tuning.sqlite")
    assert not database.choose(CHOICE)
    assert database.choice(KEY) is None
    assert len(caplog.messages) == 1


def test_a_read_only_folder_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Database(path).choose(CHOICE)

    def no(*_: object) -> bool:
        return False

    monkeypatch.setattr(database_file, "os", SimpleNamespace(**vars(os) | {"access": no}))
    database = Database(path)
    assert database.choice(KEY) == CHOICE
    assert not database.add_trials(KEY, [TRIAL])
    assert "readonly" in caplog.messages[0]


# --- threads and processes ------------------------------------------------------------------------


def test_threads_may_share_one(path: Path) -> None:
    database, failures = Database(path, strict=True), []

    def write(thread: int) -> None:
        try:
            for n in range(25):
                database.add_trials(KEY, [(f"{thread} {n}", "ok", 1.0, 0.0, 5, 0.0)])
                assert database.best(KEY)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(database.trials(KEY)) == 8 * 25


def script(text: str, *words: str) -> str:
    """What a script in a process of its own prints."""
    command = [sys.executable, "-c", text, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Eight processes write trials, and each notes in a file what was acknowledged. Four are killed
# after so many; the others end by themselves.
WRITERS = """
import os, signal, sys, time
from dodeca.runtime.database import Database, Key
path, folder = sys.argv[1:]
key = Key("g", "a", "fast", "cpu", "{}", "v")
Database(path, strict=True).best(key)

def write(writer):
    database = Database(path, strict=True)
    log = os.open(f"{folder}/{writer}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    n = 0
    while writer < 4 or n < 150:
        rows = [(f"{writer} {n} {row}", "ok", 1.0, 0.0, 5, 0.0) for row in range(2)]
        if database.add_trials(key, rows):
            os.write(log, b"%d\\n" % n)
        n += 1
    os._exit(0)

def acknowledged(writer):
    try:
        return os.path.getsize(f"{folder}/{writer}")
    except OSError:
        return 0

children = []
for writer in range(8):
    child = os.fork()
    if child == 0:
        write(writer)
    children.append(child)
for writer in range(4):
    while acknowledged(writer) < 40 * (writer + 1):
        time.sleep(0.001)
    os.kill(children[writer], signal.SIGKILL)
print(*(os.waitpid(child, 0)[1] for child in children))
"""


def test_writers_that_are_killed_lose_nothing_and_stop_nobody(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "acknowledged"
    folder.mkdir()
    ended = script(WRITERS, str(path), str(folder)).split()
    assert ended == ["9"] * 4 + ["0"] * 4
    assert integrity(path) == "ok"
    with Database(path, strict=True) as database:
        written = {row.schedule for row in database.trials(Key("g", "a", "fast", "cpu", "{}", "v"))}
    acknowledged = {
        f"{writer} {n} {row}"
        for writer in range(8)
        for n in (folder / str(writer)).read_text().split()
        for row in range(2)
    }
    assert len(acknowledged) >= 2 * 4 * 150
    assert acknowledged <= written
    # of a write that was cut off, all or nothing is there
    assert {name[:-1] + "1" for name in written} <= written
    assert not list(path.parent.glob("*corrupt*"))


# The child goes on with the database of before the fork, also when the parent has closed its own.
FORK = """
import os, sys, threading
from dodeca.runtime.database import Database, Key
key = Key("g", "a", "fast", "cpu", "{}", "v")
database = Database(sys.argv[1], strict=True)
add = lambda name: database.add_trials(key, [(name, "ok", 1.0, 0.0, 5, 0.0)])
busy = threading.Thread(target=lambda: [add("thread") for _ in range(300)])
add("before")
busy.start()
to_child, from_child = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    add("child 1")
    os.write(from_child[1], b"x")
    os.read(to_child[0], 1)
    add("child 2")
    os._exit(0)
os.read(from_child[0], 1)
busy.join()
add("parent")
database.close()
os.write(to_child[1], b"x")
assert os.waitpid(child, 0)[1] == 0
"""


def test_it_survives_a_fork(path: Path) -> None:
    script(FORK, str(path))
    with Database(path, strict=True) as database:
        names = {row.schedule for row in database.trials(Key("g", "a", "fast", "cpu", "{}", "v"))}
    assert names == {"before", "thread", "child 1", "child 2", "parent"}
    assert integrity(path) == "ok"


# --- what it costs --------------------------------------------------------------------------------


def test_the_benchmark_measures(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "bench"))
    bench = importlib.import_module("database")
    for name, value in (("LOOKUPS", 20), ("WRITES", 3), ("PROCESSES", 1)):
        monkeypatch.setattr(bench, name, value)
    header, *rows = bench.measure(path, 250)
    assert all(len(row) == len(header) for row in rows)
    for row in rows[:6]:
        assert 0 < float(row[1].split()[0]) <= float(row[2].split()[0]) < 60_000
    with Database(path, strict=True) as database:
        (choice,) = database.choices()
        assert len(database.trials(choice.key)) >= bench.PER_KEY
