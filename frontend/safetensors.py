"""Weights in safetensors files, mapped into memory: nothing is read before it is used.

>>> model.load_state(dd.safetensors.load("model.safetensors"))
"""

from __future__ import annotations

import json
import os
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from .creation import asarray
from .dialect.dtypes import DTYPES, DType
from .dialect.errors import DtypeError, ParseError
from .runtime.weight_file import NAMES
from .tensor import Tensor


def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a file by their names, each a leaf of that name.

    ParseError, naming the file, if it is missing, cut off or not safetensors; DtypeError for a
    dtype that dodeca does not have.
    """
    try:
        with safe_open(path, framework="np"):  # checks the header and that the data is all there
            pass
        header, start = _header(Path(path))
        data = np.memmap(path, np.uint8, mode="r")
    except (SafetensorError, OSError, ValueError) as error:
        raise ParseError(f"{path}: not a safetensors file that can be read: {error}") from None
    header.pop("__metadata__", None)
    return {name: _tensor(path, name, entry, data, start) for name, entry in header.items()}


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header and where the data begins: its length in 8 bytes, then that much JSON."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)), 8 + length


def _tensor(path: Any, name: str, entry: dict[str, Any], data: np.ndarray, start: int) -> Tensor:
    if entry["dtype"] not in NAMES:
        known = ", ".join(NAMES)
        raise DtypeError(f"{path}: {name} is {entry['dtype']}, dodeca has {known}")
    kind: DType = DTYPES[NAMES[entry["dtype"]]]
    shape = tuple(entry["shape"])
    array = np.frombuffer(data, kind.numpy, prod(shape), start + entry["data_offsets"][0])
    return asarray(np.require(array.reshape(shape), requirements="A"), name=name)
