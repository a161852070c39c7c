"""The matrix products of a kernel, laid out as LLVM IR reads them.

In: operations, of which some are a `Product`. Out: a `PLAN` for each, in one array:

    products = Products(code.operations)
    state["plans"] = products.plans.ctypes.data
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .matrix_ir import BFLOAT, BYTE, FLOAT, HALF, INTEGER, PLAN, SCRATCH, TF32
from .operations import Operation, Product

_KINDS = {"float16": HALF, "bfloat16": BFLOAT, "float32": FLOAT, "int32": INTEGER}


class Products:
    """The products of a kernel, and how often each has run."""

    def __init__(self, operations: Sequence[Operation]):
        self.operations = operations
        self.plans = np.zeros(max(1, len(operations)), PLAN)
        self.scratch = np.zeros(SCRATCH)
        self._kept: list[np.ndarray] = []
        for plan, operation in zip(self.plans, operations, strict=False):
            if operation.product is not None:
                self._fill(plan, operation.product)

    def _fill(self, plan: np.void, one: Product) -> None:
        plan["m"], plan["k"] = one.a.shape
        plan["n"] = len(one.b)
        plan["c_start"], plan["c_bytes"], plan["same"] = one.c_start, one.c_bytes, one.same
        for name, places, dtype in zip("abc", (one.a, one.b, one.c), one.dtypes, strict=True):
            self._kept.append(np.ascontiguousarray(places))
            plan[name] = self._kept[-1].ctypes.data
            plan[f"{name}_kind"] = _KINDS.get(dtype.name, BYTE)
            if dtype.itemsize == 1:
                self._kept.append(np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64))
                plan[f"{name}_values"] = self._kept[-1].ctypes.data
            elif one.short and name != "c":
                plan[f"{name}_kind"] = TF32

    def add_to(self, counts: dict[str, int]) -> None:
        """Add how often each unit has run, and begin to count again."""
        for plan, operation in zip(self.plans, self.operations, strict=False):
            if plan["done"]:
                counts[operation.unit] = counts.get(operation.unit, 0) + int(plan["done"])
                plan["done"] = 0
