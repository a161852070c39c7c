"""`dodeca-lower`: from tile programs to the LLVM dialect.

In: a module of tile functions (`func.func` for a CPU, a `gpu.module` for a GPU). Out: the `llvm`
dialect. The passes are upstream's but for `dodeca-keep-sqrt`.
"""

from __future__ import annotations

from .blocks.lower import LAST, block_lowering
from .targets import Target

_CPU = (
    "convert-scf-to-cf,convert-vector-to-llvm,finalize-memref-to-llvm,"
    "convert-math-to-llvm,convert-arith-to-llvm,convert-index-to-llvm,"
    "convert-func-to-llvm{use-bare-ptr-memref-call-conv=1},convert-cf-to-llvm,convert-ub-to-llvm,"
    + LAST
)


def lowering(target: Target) -> str:
    """The passes, upstream's but for one, that lower tile programs for a target."""
    return block_lowering(target) if target.is_gpu else _CPU
