"""Named pieces of data in one file, each with a hash: what saved programs and caches are kept in.

    data = pack({"program.json": b"{}", "0": b"code"})
    unpack(data)["0"]                     # b"code"; ParseError if any byte of `data` was changed
    held = open_container("model.dodeca")
    held.bytes("program.json")            # held.view(...) is a part of the mapped file

A container is a zip file without compression, so that other tools can list it, and every member
starts at a multiple of 64 bytes, so that it can be used where it is mapped. The member `index.json`
has the size and the SHA-256 of each member; the zip's comment has the format and the SHA-256 of
all that is not a member's content: headers, padding, the index. So no byte can change unseen. A
hash says nothing of who wrote a file.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
import re
import struct
import threading
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..dialect.errors import ParseError

FORMAT = 1
INDEX = "index.json"
ALIGNMENT = 64  # bytes: where members start; a cache line, and the widest vector register
_MAGIC = "dodeca container"
_PADDING = 0xD935  # the id of a zip header's extra field that only pads
_HEADER, _EXTRA = 30, 4  # bytes of a local header without name and extra; of an extra's head
_SIZES = 20  # bytes of the extra field with sizes of 64 bits
_LARGE = 1 << 30  # bytes from which on a member has it; zip's own limit is at 2^31
_MOST_MEMBERS, _LARGEST_INDEX = 65_000, 1 << 24
Bytes = bytes | bytearray | memoryview


def pack(files: Mapping[str, Bytes]) -> bytes:
    """The files as the bytes of a container; the same files give the same bytes."""
    made = io.BytesIO()
    write_container(made, files)
    return made.getvalue()


def unpack(data: bytes) -> dict[str, bytes]:
    """The files of a container, each checked; ParseError if it is damaged or of a later format."""
    held = Container(memoryview(data), "the container")
    return {name: held.bytes(name) for name in held.names}


def write_container(file: IO[bytes], files: Mapping[str, Bytes]) -> None:
    """Write a container to an empty binary file that can seek and, in the end, be read."""
    if INDEX in files:
        raise ValueError(f"a container's {INDEX} is its own")
    members = {
        name: {"bytes": memoryview(data).nbytes, "sha256": _digest(data)}
        for name, data in files.items()
    }
    index = json.dumps({"members": members}, separators=(",", ":")).encode()
    hashed = hashlib.sha256()
    with zipfile.ZipFile(file, "w") as packed:
        for name, data in {INDEX: index, **files}.items():
            info, large = _placed(name, memoryview(data).nbytes, file.tell())
            with packed.open(info, "w", force_zip64=large) as member:
                member.write(data)
        packed.comment = _comment("0" * 64)
    spans = _spans(file, "the container")
    for begin, end in _between(spans, file.seek(0, os.SEEK_END) - len(_comment("0" * 64))):
        file.seek(begin)
        hashed.update(file.read(end - begin))
    file.seek(-64, os.SEEK_END)
    file.write(hashed.hexdigest().encode())
    file.seek(0, os.SEEK_END)


def _placed(name: str, size: int, at: int) -> tuple[zipfile.ZipInfo, bool]:
    """A member's header, so long that what follows it is aligned; whether it is one for 64 bits."""
    info = zipfile.ZipInfo(name)  # of 1980: the time of writing is not part of what is written
    large = size > _LARGE
    start = at + _HEADER + len(name.encode()) + _EXTRA + (_SIZES if large else 0)
    fill = -start % ALIGNMENT
    info.extra = _PADDING.to_bytes(2, "little") + fill.to_bytes(2, "little") + b"\0" * fill
    info.file_size = size
    return info, large


def _comment(digest: str) -> bytes:
    return f"{_MAGIC} {FORMAT} {digest}".encode()


def _digest(data: Bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class _Member:
    bytes: int
    sha256: str


class Container:
    """A container in memory. `view` and `bytes` check a member's hash before they give it.

    `where` names it in a ParseError. Headers and index are checked when it is opened.
    """

    def __init__(self, data: memoryview, where: str):
        self._data, self._where = data, where
        self._checked: set[str] = set()
        file = io.BufferedReader(_Raw(data))
        self._spans = _spans(file, where)
        self._check_comment()
        self._members = self._index()

    @property
    def names(self) -> list[str]:
        """The members, in the order in which they were written."""
        return list(self._members)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def view(self, name: str) -> memoryview:
        """A member where it lies, checked; ParseError if there is none of that name."""
        if name not in self._members:
            raise self._damaged(f"it has no {name!r}")
        content = self._content(name)
        if name not in self._checked:
            if _digest(content) != self._members[name].sha256:
                raise self._damaged(f"the hash of {name!r} does not fit its content")
            self._checked.add(name)
        return content

    def check(self, names: Collection[str], threads: int) -> None:
        """Check these members' hashes on several threads, so that `view` has nothing left to do."""
        left = sorted((name for name in names if name in self._members), key=self.size)
        failed: list[ParseError] = []

        def work() -> None:
            while left and not failed:
                try:
                    self.view(left.pop())
                except IndexError:  # another thread took the last
                    return
                except ParseError as error:
                    failed.append(error)

        team = [threading.Thread(target=work) for _ in range(min(threads, len(left)) - 1)]
        for one in team:
            one.start()
        work()
        for one in team:
            one.join()
        if failed:
            raise failed[0]

    def size(self, name: str) -> int:
        """The bytes of a member that is there."""
        return self._members[name].bytes

    def bytes(self, name: str) -> bytes:
        """A copy of a member, checked."""
        return bytes(self.view(name))

    def _content(self, name: str) -> memoryview:
        begin, end = self._spans[name]
        return self._data[begin:end]

    def _damaged(self, why: str) -> ParseError:
        return ParseError(f"{self._where} is damaged: {why}")

    def _check_comment(self) -> None:
        """The format, and the hash of everything that is not a member's content."""
        tail = bytes(self._data[-200:])
        found = re.search(rb"dodeca container (\d{1,9}) ([0-9a-f]{64})$", tail)
        if found is None:
            raise ParseError(f"{self._where} is not a container of dodeca's")
        if int(found[1]) != FORMAT:
            raise ParseError(
                f"{self._where} has format {int(found[1])}; this version of dodeca reads "
                f"format {FORMAT}"
            )
        hashed = hashlib.sha256()
        for begin, end in _between(self._spans, len(self._data) - len(found[0])):
            hashed.update(self._data[begin:end])
        if hashed.hexdigest().encode() != found[2]:
            raise self._damaged("the hash of its headers does not fit them")

    def _index(self) -> dict[str, _Member]:
        if INDEX not in self._spans:
            raise self._damaged(f"it has no {INDEX!r}")
        begin, end = self._spans[INDEX]
        if end - begin > _LARGEST_INDEX:
            raise self._damaged("its index is too large")
        rows = parse_json(self._content(INDEX), f"{self._where}: {INDEX}")
        rows = rows.get("members") if isinstance(rows, dict) else None
        if not isinstance(rows, dict) or {*rows, INDEX} != {*self._spans}:
            raise self._damaged("its index does not fit its members")
        members = {}
        for name, row in rows.items():
            begin, end = self._spans[name]
            if not isinstance(row, dict) or row.get("bytes") != end - begin:
                raise self._damaged(f"the size of {name!r} is not the one in the index")
            members[name] = _Member(end - begin, str(row.get("sha256")))
        return members


class _Raw(io.RawIOBase):
    """Bytes as a file, without a copy of them."""

    def __init__(self, data: memoryview):
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._data)}[whence]
        if start + offset < 0:
            raise ValueError("before the start")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


def _spans(file: Any, where: str) -> dict[str, tuple[int, int]]:
    """Where each member's content begins and ends, in the order of the file."""
    try:
        with zipfile.ZipFile(file) as packed:
            rows = packed.infolist()
        if len(rows) > _MOST_MEMBERS:
            raise ParseError(f"{where} is damaged: too many members")
        spans: dict[str, tuple[int, int]] = {}
        for row in sorted(rows, key=lambda one: one.header_offset):
            spans[row.filename] = _span(file, row)
        size = file.seek(0, os.SEEK_END)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, OSError, KeyError):
        raise ParseError(f"{where} is not a container of dodeca's, or is damaged") from None
    except (ArithmeticError, LookupError, MemoryError, RuntimeError, struct.error):
        raise ParseError(f"{where} is damaged: its headers make no sense") from None
    last = 0
    for begin, end in spans.values():
        if begin < last or end > size:
            raise ParseError(f"{where} is damaged: its members overlap or end after it")
        last = end
    if len(spans) != len(rows):
        raise ParseError(f"{where} is damaged: two members have one name")
    return spans


_StructError = __import__("struct").error


def _span(file: Any, row: zipfile.ZipInfo) -> tuple[int, int]:
    if row.compress_type != zipfile.ZIP_STORED or row.compress_size != row.file_size:
        raise ValueError("compressed")
    file.seek(row.header_offset)
    header = file.read(_HEADER)
    if len(header) < _HEADER or header[:4] != b"PK\3\4":
        raise ValueError("no header")
    name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    begin = row.header_offset + _HEADER + name + extra
    return begin, begin + row.file_size


def _between(spans: Mapping[str, tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """The parts of a file of some size that are not a member's content, but for the index's."""
    parts, at = [], 0
    for name, (begin, end) in spans.items():
        if name != INDEX:
            parts.append((at, begin))
            at = end
    return [*parts, (at, size)]


def parse_json(data: Bytes, where: str) -> Any:
    """JSON in UTF-8; ParseError if it is not, or if an object has a key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key occurs twice")
        return found

    try:
        return json.loads(bytes(data).decode(), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"{where} is not JSON: {error}") from None


def open_container(path: str | os.PathLike[str]) -> Container:
    """The container of a file, which is mapped, not read.

    FileNotFoundError and its like as `open` raises them. Views stay valid when the file is replaced
    or deleted; a file that is overwritten or cut in place changes under its readers.
    """
    with Path(path).open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise ParseError(f"{path} is empty")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Container(memoryview(mapped), str(path))
