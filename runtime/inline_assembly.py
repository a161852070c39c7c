r"""Inline assembly that the SIMT executor knows; any other is refused.

In: the text of an `asm` call. Out: the name of the operation that it is. These are known, by what
MLIR 22 writes where LLVM has no intrinsic:

    nvvm.mbarrier.try_wait.parity   { .reg .pred P1; LAB_WAIT: mbarrier.try_wait.parity.shared.b64
                                    P1, [$0], $1, $2; @P1 bra.uni DONE; bra.uni LAB_WAIT; DONE: }
    nvvm.wgmma.mma_async            { .reg .pred p; setp.ne.b32 p, $n, 0; wgmma.mma_async.sync.
                                    aligned.mMnNkK.d.a.b {$0, ...}, $a, $b, p, ...; }; accumulators
                                    come first, A is a descriptor (i64) or four registers
    amdgpu.lds_barrier              s_waitcnt lgkmcnt(0) s_barrier: a barrier of the block
    fence.proxy.async...;           nothing
    s_waitcnt ..., s_nop ...        nothing

Everything else that Hopper's kernels need comes as an intrinsic: `llvm.nvvm.cp.async.bulk.*` (TMA),
`llvm.nvvm.mbarrier.*`, `llvm.nvvm.wgmma.{fence,commit_group,wait_group}.sync.aligned`.

    >>> operation_of("fence.proxy.async.shared::cta;")
    ''
"""

from __future__ import annotations

import re

_KNOWN = [  # a pattern, and the operation: its name, or nothing
    (
        r"mbarrier\.try_wait\.parity\.shared(?:::cta)?\.b64 .*bra",
        "asm.mbarrier.try_wait.parity.loop",
    ),
    (r"wgmma\.mma_async\.sync\.aligned\.(m64n\d+k\d+\.\w+\.\w+\.\w+) ", "asm.wgmma.{}"),
    (r"^(?:;;;[\w: ]*)?\s*s_waitcnt lgkmcnt\(0\)\s+s_barrier\s*$", "amdgcn.s.barrier"),
    (r"^\s*fence\.proxy\.async[\w.:]*;\s*$", ""),
    (r"^\s*(?:s_waitcnt [\w() &]+|s_nop \d+)\s*$", ""),
]


def operation_of(text: str) -> str | None:
    """The name of an operation, "" for nothing, None for what is not known."""
    plain = re.sub(r"\\(?:0A|09|0D)", " ", text)
    for pattern, name in _KNOWN:
        found = re.search(pattern, plain)
        if found:
            return name.format(*found.groups())
    return None
