"""The cache's folder, and its store of files: what is put is found whole, or not at all."""

import errno
import logging
import os
import threading
import time
from pathlib import Path

import pytest
from dodeca.runtime import cache_folder as module
from dodeca.runtime.cache_folder import Store, cache_folder

LONG_AGO = 1.6e9


@pytest.fixture(autouse=True)
def forget_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_warned", set())


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"DODECA_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ({"DODECA_CACHE": "~/b"}, "/home/me/b"),
        ({"DODECA_CACHE": "off", "XDG_CACHE_HOME": "/x"}, None),
        ({"XDG_CACHE_HOME": "/x"}, "/x/dodeca"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/dodeca"),
        ({}, "/home/me/.cache/dodeca"),
    ],
)
def test_where_it_is(
    variables: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DODECA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == (None if expected is None else Path(expected))


def the_file(folder: Path) -> Path:
    """The one file of a store."""
    (path,) = folder.glob("objects/??/*")
    return path


def test_what_is_put_is_found(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    assert store.get("a") is None
    for data in (b"", b"first", bytes(100_000)):
        store.put("a", data)
        store.put("b", b"other")
        assert Store(tmp_path / "cache").get("a") == data
        assert store.get("b") == b"other"
    assert len(list(tmp_path.glob("cache/objects/??/*"))) == 2
    assert (tmp_path / "cache").stat().st_mode & 0o77 == 0  # code of this user's, for nobody else


def test_without_a_folder_nothing_is_kept() -> None:
    store = Store(None)
    store.put("a", b"data")
    assert store.get("a") is None
    assert store.trim() == 0


@pytest.mark.parametrize("where", [0, 31, 32, -1])
def test_a_changed_byte_makes_a_file_absent(where: int, tmp_path: Path) -> None:
    Store(tmp_path).put("a", b"some data")
    path = the_file(tmp_path)
    stored = bytearray(path.read_bytes())
    stored[where] ^= 1
    path.write_bytes(stored)
    assert Store(tmp_path).get("a") is None
    assert not path.exists()


@pytest.mark.parametrize("length", [0, 10, 32, 40])
def test_a_truncated_file_is_absent(length: int, tmp_path: Path) -> None:
    Store(tmp_path).put("a", b"some data")
    os.truncate(the_file(tmp_path), length)
    assert Store(tmp_path).get("a") is None


def test_a_file_under_another_name_is_absent(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("a", b"some data")
    data = the_file(tmp_path).read_bytes()
    the_file(tmp_path).unlink()
    store.put("b", b"other")
    the_file(tmp_path).write_bytes(data)
    assert store.get("b") is None


def test_a_reader_sees_whole_files_while_others_write(tmp_path: Path) -> None:
    store, done = Store(tmp_path), threading.Event()
    store.put("a", b"0" * 50_000)

    def write(letter: bytes) -> None:
        while not done.is_set():
            Store(tmp_path).put("a", letter * 50_000)

    writers = [threading.Thread(target=write, args=(letter,)) for letter in (b"1", b"2")]
    for writer in writers:
        writer.start()
    try:
        found = [store.get("a") for _ in range(300)]
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert all(data is not None and data == data[:1] * 50_000 for data in found)


def test_a_folder_that_cannot_be_made_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = Store(tmp_path / "file")
    with caplog.at_level(logging.WARNING, "dodeca"):
        store.put("a", b"data")
        store.put("b", b"data")
        assert store.get("a") is None
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "cannot be written" in caplog.messages[0]
    assert "cannot be read: Not a directory" in caplog.messages[1]


def test_a_full_disk_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    store.put("a", b"data")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        store.put("a", b"new")
        store.put("b", b"new")
    assert caplog.text.count("No space left on device") == 1
    assert store.get("a") == b"data"
    assert store.get("b") is None
    assert not list(tmp_path.glob("objects/??/.*"))  # no half of a file stays


def test_trimming_removes_what_was_not_used_for_longest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for n in range(5):
        store.put(str(n), bytes(1000))
    for n, path in enumerate(sorted(tmp_path.glob("objects/??/*"))):
        os.utime(path, (LONG_AGO + n, LONG_AGO + n))
    kept = sorted(tmp_path.glob("objects/??/*"))[1:3]
    names = [n for n in map(str, range(5)) if store._path(tmp_path / "objects", n) in kept]
    for name in names:
        assert store.get(name) is not None  # used now
    assert store.trim(2500) == 2 * 1032
    assert [n for n in map(str, range(5)) if store.get(n) is not None] == names


def test_a_store_is_trimmed_once_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = []
    monkeypatch.setattr(Store, "trim", lambda self: trimmed.append(self))
    Store(tmp_path).put("a", b"")
    Store(tmp_path).put("a", b"")
    assert len(trimmed) == 1
    stamp, yesterday = tmp_path / "objects" / "trimmed", time.time() - 25 * 3600
    os.utime(stamp, (yesterday, yesterday))
    store = Store(tmp_path)
    store.put("a", b"")
    assert len(trimmed) == 2
    os.utime(stamp, (yesterday, yesterday))
    store.put("b", b"")  # which does not look again
    assert len(trimmed) == 2
