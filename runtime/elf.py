"""What the runtime reads from 64-bit little-endian ELF files: symbols, notes, dynamic entries.

>>> [name for name, defined in elf_symbols(kernel.binary) if defined]
['k0']
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ..dialect.errors import ParseError

_SYMBOLS, _NOTE = 2, 7  # section types
_DYNAMIC = 2  # a program header's type
_LOCAL = 0  # a symbol's binding


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int  # for a table of symbols: the section with their names


def _sections(data: bytes) -> list[_Section]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ParseError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    found = []
    for i in range(count):
        fields = struct.unpack_from("<IIQQQQII", data, table + i * size)
        found.append(_Section(fields[1], fields[4], fields[5], fields[6]))
    return found


def elf_symbols(data: bytes) -> Iterator[tuple[str, bool]]:
    """The global symbols of an object file: (name, whether the file defines it)."""
    sections = _sections(data)
    for section in sections:
        if section.kind != _SYMBOLS:
            continue
        names = sections[section.link].offset
        for at in range(section.offset, section.offset + section.size, 24):
            name, info, _, home = struct.unpack_from("<IBBH", data, at)
            if name and info >> 4 != _LOCAL:
                start = names + name
                text = data[start : data.index(b"\0", start)].decode()
                yield text, home != 0 or text == "_GLOBAL_OFFSET_TABLE_"  # which a linker makes


def elf_notes(data: bytes) -> Iterator[tuple[str, int, bytes]]:
    """The notes of a file: (owner, type, content)."""
    for section in _sections(data):
        at, end = section.offset, section.offset + section.size
        while section.kind == _NOTE and at + 12 <= end:
            owner, size, kind = struct.unpack_from("<III", data, at)
            name = data[at + 12 : at + 12 + owner].rstrip(b"\0").decode()
            start = at + 12 + -(-owner // 4) * 4
            yield name, kind, data[start : start + size]
            at = start + -(-size // 4) * 4


def elf_dynamic(data: bytes) -> list[tuple[int, int]]:
    """The dynamic entries of a shared library: (tag, value). ParseError if it is no whole one."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ParseError("not a 64-bit little-endian ELF file")
    try:
        (table,) = struct.unpack_from("<Q", data, 0x20)
        size, count = struct.unpack_from("<HH", data, 0x36)
        for i in range(count):
            kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", data, table + i * size)
            if kind == _DYNAMIC:
                entries = struct.iter_unpack("<qQ", data[offset : offset + length])
                return [(tag, value) for tag, value in entries]
    except struct.error:
        raise ParseError("the ELF file is cut off, or its headers make no sense") from None
    raise ParseError("the ELF file is not a shared library")
