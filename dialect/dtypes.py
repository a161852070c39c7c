"""The table of dtypes: one row says everything any part of the compiler asks about a dtype.

>>> DTYPES["bfloat16"].mlir, DTYPES["bfloat16"].bits
('bf16', 16)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import DtypeError

try:
    from ml_dtypes import bfloat16
except ImportError:  # a saved program runs without it: arrays of bfloat16 are 2-byte voids then
    bfloat16 = "V2"


@dataclass(frozen=True)
class DType:
    """A dtype: its names, its width in bits in memory, and how the interpreter widens it."""

    name: str
    mlir: str  # the element type as MLIR prints it
    numpy: np.dtype
    kind: str  # "float", "int" (signed), "uint" or "bool"
    bits: int  # width in memory; a bool takes a byte
    wide: np.dtype  # what the interpreter computes in when asked for higher precision

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def lowest(self) -> Any:
        """The identity of max: -inf, the least integer, or False."""
        if self.is_float:
            return -float("inf")
        return False if self.kind == "bool" else int(np.iinfo(self.numpy).min)

    def __str__(self) -> str:
        return self.name


def _row(name: str, mlir: str, kind: str, bits: int, wide: str | None = None) -> DType:
    plain = np.dtype(bfloat16) if name == "bfloat16" else np.dtype(name)
    return DType(name, mlir, plain, kind, bits, np.dtype(wide) if wide else plain)


_ROWS = [
    _row("float32", "f32", "float", 32, "float64"),
    _row("float16", "f16", "float", 16, "float64"),
    _row("bfloat16", "bf16", "float", 16, "float64"),
    _row("float64", "f64", "float", 64, "longdouble"),
    _row("int8", "i8", "int", 8),
    _row("uint8", "ui8", "uint", 8),
    _row("int16", "i16", "int", 16),
    _row("int32", "i32", "int", 32),
    _row("int64", "i64", "int", 64),
    _row("bool", "i1", "bool", 8),
]
DTYPES: dict[str, DType] = {row.name: row for row in _ROWS}
BY_MLIR = {row.mlir: row for row in DTYPES.values()}
BY_NUMPY = {row.numpy: row for row in DTYPES.values()}


def dtype(value: Any) -> DType:
    """The row for a name, a numpy dtype, a Python type or a row; DtypeError lists what is known."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in DTYPES:
        return DTYPES[value]
    if value is float:  # numpy's is float64
        return DTYPES["float32"]
    try:
        return BY_NUMPY[np.dtype(value if value is not None else "")]  # numpy's None is float64
    except (KeyError, TypeError):
        raise DtypeError(f"unknown dtype {value!r}; dodeca has {', '.join(DTYPES)}") from None
