"""`dodeca-keep-sqrt`: square roots on their way to a GPU's dialect.

llvm.intr.sqrt x    becomes    llvm.call_intrinsic "llvm.sqrt"(x)
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import llvm

from ...dialect.verifier import walk


def keep_sqrt(module: ir.Operation) -> None:
    """`dodeca-keep-sqrt`: rewrites each `llvm.intr.sqrt x` as `llvm.call_intrinsic "llvm.sqrt"(x)`.

    They mean the same, but `convert-gpu-to-nvvm` refuses the first: it wants to see every square
    root itself and make it a call to libdevice. Goes between `convert-math-to-llvm` and it.
    """
    for op in walk(module):
        if op.name != "llvm.intr.sqrt":
            continue
        with ir.InsertionPoint(op), op.location:
            call = llvm.call_intrinsic(op.result.type, "llvm.sqrt", list(op.operands), [], [])
        op.result.replace_all_uses_with(call)
        op.erase()
