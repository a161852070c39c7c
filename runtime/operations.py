"""What Python does for threads that ask: the shape of such an operation, and the table of them.

In: an intrinsic with the types of its arguments. Out: an `Operation`, which says how threads lay
out what they give and what they get, who has to ask together, and the function in numpy.

    operation = operation_for("nvvm.mma.m16n8k16.row.col.f32.f32", "{ float, ... }", [...])
    results = operation.run(block, lanes, given)    # given[i]: (groups, lanes, ...) arrays
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from .fibers import EXCHANGE
from .ir_text import bytes_of, parts

_NUMPY = {
    "half": np.dtype(np.float16),
    "bfloat": np.dtype(ml_dtypes.bfloat16),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "ptr": np.dtype(np.uint64),
    "i1": np.dtype(np.uint8),
}

Run = Callable[[Any, np.ndarray, list[np.ndarray]], Sequence[np.ndarray]]


@cache
def numpy_type(kind: str) -> np.dtype:
    """The numpy dtype of an IR type: a subarray for a vector."""
    vector = re.fullmatch(r"<(\d+) x (\w+)>", kind)
    if vector:
        return np.dtype((numpy_type(vector[2]), (int(vector[1]),)))
    return _NUMPY[kind] if kind in _NUMPY else np.dtype(f"i{bytes_of(kind)}")


@dataclass(frozen=True)
class Fields:
    """Values that lie one after the other, without gaps."""

    kinds: tuple[str, ...]
    offsets: tuple[int, ...]
    bytes: int = 0

    @classmethod
    def of(cls, kinds: Sequence[str]) -> Fields:
        offsets, end = [], 0
        for kind in kinds:
            offsets.append(end)
            end += bytes_of(kind)
        if end > EXCHANGE:
            raise ValueError(f"{end} bytes of values; a thread can give {EXCHANGE}")
        return cls(tuple(kinds), tuple(offsets), end)

    def read(self, memory: np.ndarray) -> list[np.ndarray]:
        """The values in (..., bytes) of memory: an array (..., [elements]) for each."""
        return [self._view(memory, index) for index in range(len(self.kinds))]

    def write(self, memory: np.ndarray, values: Sequence[np.ndarray]) -> None:
        for index, value in enumerate(values):
            self._view(memory, index)[...] = value

    def _view(self, memory: np.ndarray, index: int) -> np.ndarray:
        kind, offset = self.kinds[index], self.offsets[index]
        part = memory[..., offset : offset + bytes_of(kind)]
        dtype = numpy_type(kind)
        return part.view(dtype.base) if dtype.shape else part.view(dtype)[..., 0]


@dataclass(frozen=True, eq=False)
class Product:
    """D = A B + C of a warp: where each element lies, and how it is read.

    A place is a lane times 65536, plus an offset into what the lane gives: (m, k) of A, (n, k) of
    B, (m, n) of C. `same`: so many bytes at the start must be repeated 16 lanes on.
    """

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    dtypes: tuple[np.dtype, np.dtype, np.dtype]
    short: bool  # of float32, only the bits of a tf32 are read
    c_start: int  # where C begins in what a lane gives
    c_bytes: int
    same: int = 0


@dataclass(frozen=True)
class Operation:
    """What threads ask for. `scope`: who asks together: "thread", "warp", "warpgroup" or "block".

    `unit` names the matrix unit that it runs on, for the counts. `row_bytes` and `rows`: it reads
    or writes this many bytes of shared memory at the pointer of each of the first lanes.
    """

    name: str
    scope: str
    run: Run
    given: Fields
    back: Fields
    unit: str = ""
    sites: tuple[str, ...] = ("meets",)
    rows: int = 0
    row_bytes: int = 0
    suffix: str = ""
    key: str = ""
    chip: str = ""
    back_at: int = EXCHANGE
    product: Product | None = None  # done in LLVM IR, by the first lane of the warp

    def named(self, key: str) -> Operation:
        return replace(self, key=key)

    def touches(self, let: Callable[[str], str]) -> list[str]:
        """IR that announces what an operation does to memory, before it is asked for."""
        if not self.rows:
            return []
        lane = let("call i32 @sim.lane()")
        has = let(f"icmp ult i32 {lane}, {self.rows}")
        pointer = next(f"%a{i}" for i, kind in enumerate(self.given.kinds) if kind == "ptr")
        return [
            f"  br i1 {has}, label %touch, label %ask",
            "touch:",
            f"  call void @sim.touch(ptr {pointer}, i64 {self.row_bytes}, i32 %site)",
            "  br label %ask",
            "ask:",
        ]


def operation_for(
    name: str, result: str, arguments: Sequence[tuple[str, str]], chip: str = ""
) -> Operation | None:
    """The operation of an intrinsic; None if there is none."""
    from .async_copies import ASYNC_ROWS
    from .block_barriers import BARRIER_ROWS
    from .matrix_units import MATRIX_ROWS
    from .warpgroups import WARPGROUP_ROWS

    given = Fields.of([kind for kind, _ in arguments])
    back = Fields.of([] if result == "void" else parts(result))
    for pattern, make in (*MATRIX_ROWS, *ASYNC_ROWS, *WARPGROUP_ROWS, *BARRIER_ROWS):
        found = re.fullmatch(pattern, name)
        if found:
            return make(Operation(name, "warp", _nothing, given, back, chip=chip), found, arguments)
    return None


def _nothing(block: Any, lanes: np.ndarray, given: list[np.ndarray]) -> list[np.ndarray]:
    raise NotImplementedError
