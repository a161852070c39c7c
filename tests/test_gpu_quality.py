"""How good the kernels of large tiles are, in numbers that need no GPU: memory, registers, SASS.

A figure that is not reached yet is not asserted, but what is reached is, so that it stays.
"""

import re
from functools import cache

import pytest
from dodeca.dialect.errors import CompileError, TargetError
from dodeca.runtime import disassembly
from dodeca.runtime.counters import Counts
from dodeca.runtime.disassembly import opcodes
from dodeca.runtime.program import Kernel
from dodeca.runtime.toolchain import assemble_ptx
from gpu_kernels import (
    Case,
    Facts,
    attention,
    executable,
    facts_of,
    flash,
    matmul,
    matmul_turned,
    tiled,
)

M, N, K = 256, 128, 256
TILE = tiled(128, 128, 8, "float16")
GEMM = Case(matmul, (((M, K), "float16"), ((K, N), "float16")), TILE)
TURNED = Case(matmul_turned, (((M, K), "float16"), ((N, K), "float16")), TILE)
FLASH = Case(attention, (((2, 128, 64), "float16"),) * 3, flash(128, 64, 4, 64, stages=2))
BOTH = pytest.mark.parametrize("case", [GEMM, TURNED], ids=["nn", "nt"])
CUDA = pytest.mark.parametrize("chip", ["cuda:sm_80", "cuda:sm_90a"])


@cache
def _made(case: Case, chip: str) -> tuple[Kernel, Facts, Counts]:
    exe = executable(case, chip)
    (kernel,) = exe.kernels
    (counts,) = exe.count(*case.arrays())
    return kernel, facts_of(kernel), counts


@cache
def _opcodes(case: Case, chip: str) -> dict[str, int]:
    kernel, _, _ = _made(case, chip)
    return opcodes(assemble_ptx(kernel.text, chip.partition(":")[2])[0])


@CUDA
@BOTH
def test_a_product_asks_memory_for_no_more_than_it_needs(case: Case, chip: str) -> None:
    _, _, counts = _made(case, chip)
    for traffic in (counts.global_load, counts.shared_load, counts.shared_store):
        assert traffic.requests and traffic.units == traffic.ideal
    # a block reads its rows, and each of the two blocks all columns
    assert counts.global_load.bytes == 2 * (M * K + 2 * K * N)


@CUDA
@BOTH
def test_a_product_runs_on_matrix_instructions_alone(case: Case, chip: str) -> None:
    kernel, _, counts = _made(case, chip)
    assert counts.matrix == {"mma.m16n8k16.f32.f16": M * N * K // (16 * 8 * 16)}
    loop = _loop(kernel.text)
    assert loop.count("mma.sync") == 64  # 128 by 128 by 64, of 8 warps
    assert not re.search(r"\b(fma|mul|add)\.(rn\.)?(f16|f16x2|f32|bf16)", loop)


@CUDA
@BOTH
def test_a_product_has_room_for_another_block(case: Case, chip: str) -> None:
    _, facts, _ = _made(case, chip)
    assert (facts.spills, facts.stack) == (0, 0)
    assert facts.registers <= 186


@CUDA
@BOTH
def test_the_instructions_of_a_product(case: Case, chip: str) -> None:
    """Triton 3.9 has 688 for this tile on sm_80, 64 of them HMMA."""
    found = _opcodes(case, chip)
    assert found["HMMA"] == 64
    assert sum(found.values()) <= 688
    assert not found.keys() & {"LDL", "STL", "HFMA2", "FFMA"}


@BOTH
def test_a_product_on_cdna(case: Case) -> None:
    _, facts, counts = _made(case, "hip:gfx942")
    assert facts.registers <= 128 and (facts.spills, facts.stack) == (0, 0)
    assert counts.matrix == {"mfma.f32.16x16x16f16": M * N * K // 16**3}
    assert counts.global_load.units == counts.global_load.ideal
    assert counts.shared_load.requests and counts.shared_load.units == counts.shared_load.ideal
    if case is TURNED:  # else columns are turned on their way into LDS, against its banks
        assert counts.shared_store.units == counts.shared_store.ideal


@CUDA
def test_attention_keeps_its_state_in_registers(chip: str) -> None:
    _, facts, counts = _made(FLASH, chip)
    assert (facts.spills, facts.stack) == (0, 0)
    assert counts.matrix == {"mma.m16n8k16.f32.f16": 2 * 2 * 128 * 128 * 64 // (16 * 8 * 16)}
    for traffic in (counts.global_load, counts.shared_load, counts.shared_store):
        assert traffic.requests and traffic.units == traffic.ideal
    assert _opcodes(FLASH, chip)["HMMA"] == 128  # two products of 128 by 64 by 64, of 4 warps


def test_attention_on_cdna() -> None:
    _, facts, counts = _made(FLASH, "hip:gfx942")
    assert facts.registers <= 196 and (facts.spills, facts.stack) == (0, 0)
    assert counts.matrix == {"mfma.f32.16x16x16f16": 2 * 2 * 128 * 128 * 64 // 16**3}
    assert counts.global_load.units == counts.global_load.ideal


def _loop(ptx: str) -> str:
    """The body of the innermost loop with matrix instructions: from a label to a branch back."""
    bodies = []
    for label in re.findall(r"^(\$L\w+):", ptx, re.M):
        begin = ptx.index(f"{label}:")
        if back := re.search(rf"bra(?:\.uni)?\s+{re.escape(label)};", ptx[begin:]):
            bodies.append(ptx[begin : begin + back.end()])
    return min((body for body in bodies if "mma.sync" in body), key=len)


# --- the disassembler ---------------------------------------------------------------------------


def test_what_is_no_cubin_is_refused() -> None:
    with pytest.raises(CompileError, match="nvdisasm failed"):
        disassembly.disassemble(b"no ELF file")


def test_a_disassembler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disassembly, "find_nvdisasm", lambda: None)
    with pytest.raises(TargetError, match="nvidia-cuda-nvdisasm"):
        opcodes(b"")
