"""The table of primitives: the 12 operations that every program is made of.

A row is a primitive's name, its arity, the kinds of dtype it takes, its meaning in numpy, and its
algebra. The MLIR operations, the verifier, the interpreter, the terms of the e-graph and the tests
come from these rows; an interpretation that needs more than a row (how to lower it, say) is a table
elsewhere keyed by the same names.

    >>> PRIMITIVES["add"].identity, PRIMITIVES["add"].commutative
    (0, True)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dtypes import DTYPES

FLOAT = frozenset({"float"})
NUMBER = frozenset({"float", "int", "uint"})
ANY = frozenset({"float", "int", "uint", "bool"})


@dataclass(frozen=True)
class Primitive:
    """One primitive. `meaning` maps numpy arrays (for a reduction: array, axis) to an array."""

    name: str
    form: str  # "unary", "binary", "reduce" or "view"
    kinds: frozenset[str]  # the kinds of dtype that its operands may have
    summary: str
    meaning: Callable[..., Any] | None = None
    gives_bool: bool = False
    commutative: bool = False
    identity: Any = None  # add, mul: neutral element; reductions: the value of an empty one

    @property
    def arity(self) -> int | None:
        """The number of tensor operands; None for a view, which has as many as its sources."""
        return {"unary": 1, "binary": 2, "reduce": 1, "view": None}[self.form]


def _sum(x: np.ndarray, axis: int) -> np.ndarray:
    return np.add.reduce(x, axis=axis, dtype=x.dtype)


def _max(x: np.ndarray, axis: int) -> np.ndarray:
    lowest = DTYPES["float32" if x.dtype.kind == "f" else x.dtype.name].lowest  # of all floats
    return np.maximum.reduce(x, axis=axis, initial=lowest)


_ROWS = [
    Primitive("exp2", "unary", FLOAT, "2 to the power x", np.exp2),
    Primitive("log2", "unary", FLOAT, "logarithm to base 2; NaN below 0, -inf at 0", np.log2),
    Primitive("sin", "unary", FLOAT, "sine of x radians, right for every finite x", np.sin),
    Primitive("sqrt", "unary", FLOAT, "square root, correctly rounded", np.sqrt),
    Primitive("recip", "unary", FLOAT, "1/x, correctly rounded", np.reciprocal),
    Primitive("add", "binary", ANY, "x + y; integers wrap; bool: or", np.add, False, True, 0),
    Primitive("mul", "binary", ANY, "x * y; integers wrap; bool: and", np.multiply, False, True, 1),
    Primitive("mod", "binary", NUMBER, "C's remainder: sign of x; integer x mod 0 is 0", np.fmod),
    Primitive("less_than", "binary", ANY, "x < y as bool; false on NaN", np.less, gives_bool=True),
    Primitive("sum_reduce", "reduce", ANY, "sum over one axis; 0 if it is empty", _sum, identity=0),
    Primitive("max_reduce", "reduce", ANY, "maximum over one axis; NaN if one is NaN", _max),
    Primitive("contiguous", "view", ANY, "the one movement operation: a tensor made from a view"),
]
PRIMITIVES: dict[str, Primitive] = {row.name: row for row in _ROWS}
