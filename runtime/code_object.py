"""What an AMD GPU's object file says of its kernels: registers, spills, memory, arguments.

    >>> read_amdgpu_metadata(kernel.binary)["kernels"][0]["vgprs"]
    7

The facts stand in a note of the ELF file, in MessagePack (LLVM's AMDGPU usage guide, code object V3
and later).
"""

from __future__ import annotations

import struct
from typing import Any

from ..dialect.errors import ParseError
from .elf import elf_notes

_OWNER, _METADATA = "AMDGPU", 32
_FACTS = {  # ours: theirs
    "name": ".name",
    "symbol": ".symbol",
    "vgprs": ".vgpr_count",
    "agprs": ".agpr_count",
    "sgprs": ".sgpr_count",
    "vgpr_spills": ".vgpr_spill_count",
    "sgpr_spills": ".sgpr_spill_count",
    "shared_bytes": ".group_segment_fixed_size",
    "private_bytes": ".private_segment_fixed_size",
    "argument_bytes": ".kernarg_segment_size",
    "wavefront": ".wavefront_size",
    "block_limit": ".max_flat_workgroup_size",
}


def read_amdgpu_metadata(data: bytes) -> dict[str, Any]:
    """The target, and for each kernel its resources and arguments.

    Sizes are in bytes, spills in registers. An argument has `offset`, `size`, `kind`, which is
    "global_buffer", "by_value", "hidden_block_count_x" or so, and perhaps a `name`. A file without
    the note raises ParseError.
    """
    for owner, kind, content in elf_notes(data):
        if (owner, kind) == (_OWNER, _METADATA):
            facts, _ = _unpack(content, 0)
            kernels = [_kernel(one) for one in facts["amdhsa.kernels"]]
            version = tuple(facts["amdhsa.version"])
            return {"target": facts.get("amdhsa.target"), "version": version, "kernels": kernels}
    raise ParseError("the file has no note with AMDGPU metadata")


def _kernel(facts: dict[str, Any]) -> dict[str, Any]:
    arguments = [
        {key[1:].replace("value_kind", "kind"): value for key, value in one.items()}
        for one in facts.get(".args", [])
    ]
    return {ours: facts.get(theirs) for ours, theirs in _FACTS.items()} | {"arguments": arguments}


def _unpack(data: bytes, at: int) -> tuple[Any, int]:
    """The MessagePack value that starts at a position, and the position after it."""
    tag = data[at]
    at += 1
    if tag <= 0x7F:
        return tag, at
    if tag >= 0xE0:
        return tag - 0x100, at
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at
    if tag in _NUMBERS:
        form = _NUMBERS[tag]
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    kind, length, at = _container(data, tag, at)
    if kind == "bytes":
        return data[at : at + length], at + length
    if kind == "text":
        return data[at : at + length].decode(), at + length
    items = []
    for _ in range(length * 2 if kind == "map" else length):
        item, at = _unpack(data, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2], strict=True)) if kind == "map" else items), at


_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {
    **dict(
        zip(
            range(0xCA, 0xD4),
            (">f", ">d", ">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q"),
            strict=True,
        )
    )
}
_CONTAINERS = {
    **{0xC4 + i: ("bytes", form) for i, form in enumerate((">B", ">H", ">I"))},
    **{0xD9 + i: ("text", form) for i, form in enumerate((">B", ">H", ">I"))},
    **{0xDC + i: ("array", form) for i, form in enumerate((">H", ">I"))},
    **{0xDE + i: ("map", form) for i, form in enumerate((">H", ">I"))},
}


def _container(data: bytes, tag: int, at: int) -> tuple[str, int, int]:
    """What a tag begins, how long it is, and where its content starts."""
    if tag <= 0x8F:
        return "map", tag & 0x0F, at
    if tag <= 0x9F:
        return "array", tag & 0x0F, at
    if tag <= 0xBF:
        return "text", tag & 0x1F, at
    if tag not in _CONTAINERS:
        raise ParseError(f"MessagePack: unknown tag {tag:#x}")
    kind, form = _CONTAINERS[tag]
    return kind, struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
