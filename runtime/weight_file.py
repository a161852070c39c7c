"""Arrays in a safetensors file, mapped into memory, read with nothing but numpy.

    >>> read_weights("model.safetensors")["embeddings.weight"].shape
    (30522, 384)

The format: the length of a header in 8 bytes, the header in JSON, with dtype, shape and place of
each array, then the arrays.
"""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from ..dialect.dtypes import DTYPES
from ..dialect.errors import ParseError
from .container import parse_json

NAMES = {  # the format's names of dtypes, and ours
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F64": "float64",
    "I8": "int8",
    "U8": "uint8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "BOOL": "bool",
}
_LARGEST_HEADER = 100 << 20


def read_weights(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays by name, read-only; those of a dtype that dodeca does not have are left out.

    ParseError, naming the file, if it is not safetensors or is cut off.
    """
    size = Path(path).stat().st_size
    data = np.memmap(path, np.uint8, mode="r") if size else np.empty(0, np.uint8)
    length = int.from_bytes(data[:8].tobytes(), "little")
    if size < 8 or length > min(size - 8, _LARGEST_HEADER):
        raise ParseError(f"{path}: not a safetensors file")
    header = parse_json(data[8 : 8 + length].tobytes(), f"{path}: the header")
    if not isinstance(header, dict):
        raise ParseError(f"{path}: not a safetensors file")
    body = data[8 + length :]
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            array = _array(entry, body, f"{path}: {name}")
            if array is not None:
                found[name] = array
    return found


def _are_sizes(numbers: Any) -> TypeGuard[list[int]]:
    return isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers)


def _array(entry: Any, body: np.ndarray, where: str) -> np.ndarray | None:
    fields = entry if isinstance(entry, dict) else {}
    shape, place = fields.get("shape"), fields.get("data_offsets")
    if not _are_sizes(shape) or not _are_sizes(place):
        raise ParseError(f"{where}: its shape or place makes no sense")
    begin, end = place if len(place) == 2 else (1, 0)
    if not begin <= end <= len(body):
        raise ParseError(f"{where}: it is not all there")
    kind = fields.get("dtype")
    if not isinstance(kind, str) or kind not in NAMES:
        return None
    dtype = DTYPES[NAMES[kind]].numpy
    if prod(shape) * dtype.itemsize != end - begin:
        raise ParseError(f"{where}: its shape does not fit its place")
    if begin == end:
        return np.empty(shape, dtype)
    array = np.ndarray(shape, dtype, body, begin)
    array.flags.writeable = False
    return array
