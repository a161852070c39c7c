"""From tile programs of blocks of threads to the LLVM dialect: upstream's passes, and one of ours.

llvm.intr.sqrt x    becomes    llvm.call_intrinsic "llvm.sqrt"(x)    (`dodeca-keep-sqrt`)
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import llvm

from ...dialect.verifier import walk
from ..targets import Target

LAST = "reconcile-unrealized-casts,canonicalize,cse"
_FAMILIES = {  # for each family what comes first, and what comes last
    "cuda": (
        "convert-nvgpu-to-nvvm",
        "convert-gpu-to-nvvm{use-bare-ptr-memref-call-conv=1},convert-nvvm-to-llvm",
    ),
    "hip": (
        "convert-amdgpu-to-rocdl{chipset=CHIP}",
        "convert-gpu-to-rocdl{chipset=CHIP use-bare-ptr-memref-call-conv=1 runtime=HIP}",
    ),
}


def block_lowering(target: Target) -> str:
    """The passes for a GPU."""
    first, last = (text.replace("CHIP", target.chip) for text in _FAMILIES[target.family])
    first += ",convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm"
    return f"gpu.module({first}),dodeca-keep-sqrt,gpu.module({last},{LAST})"


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
