"""`dodeca-lower`: from tile programs to the LLVM dialect.

In: a module of tile functions (`func.func` for a CPU, a `gpu.module` for a GPU). Out: the `llvm`
dialect. The passes are upstream's but for `dodeca-keep-sqrt`.
"""

from __future__ import annotations

from .targets import Target

_LAST = "reconcile-unrealized-casts,canonicalize,cse"
_CPU = (
    "convert-scf-to-cf,convert-vector-to-llvm,finalize-memref-to-llvm,"
    "convert-math-to-llvm,convert-arith-to-llvm,convert-index-to-llvm,"
    "convert-func-to-llvm{use-bare-ptr-memref-call-conv=1},convert-cf-to-llvm,convert-ub-to-llvm,"
    + _LAST
)
_GPU = {  # for each family what comes first, and what comes last
    "cuda": (
        "convert-nvgpu-to-nvvm",
        "convert-gpu-to-nvvm{use-bare-ptr-memref-call-conv=1},convert-nvvm-to-llvm",
    ),
    "hip": (
        "convert-amdgpu-to-rocdl{chipset=CHIP}",
        "convert-gpu-to-rocdl{chipset=CHIP use-bare-ptr-memref-call-conv=1 runtime=HIP}",
    ),
}


def lowering(target: Target) -> str:
    """The passes, upstream's but for one, that lower tile programs for a target."""
    if not target.is_gpu:
        return _CPU
    first, last = (text.replace("CHIP", target.chip) for text in _GPU[target.family])
    first += ",convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm"
    return f"gpu.module({first}),dodeca-keep-sqrt,gpu.module({last},{_LAST})"
