"""Kernels with shared memory, barriers and waits, all of which they need, and their mutants.

A `Case` has the IR of a kernel, its launch and what it should compute; `mutants(case)` gives the
same IR with a barrier deleted, a wait weakened or an index shifted, each of which has to be caught.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from simt_kernels import kernel, run


@dataclass(frozen=True)
class Case:
    name: str
    target: str
    ir: str
    threads: tuple
    blocks: tuple
    make: Callable  # rng -> (inputs, expected outputs)
    tolerance: float = 1e-5
    shared: int = 0
    more: tuple[tuple[str, str, str], ...] = field(default=())  # other mutants: name, old, new


class Lines:
    """IR, line by line; loops are unrolled."""

    def __init__(self):
        self.lines: list[str] = []
        self.count = 0

    def let(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %n{self.count} = {text}")
        return f"%n{self.count}"

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def index(self, *terms) -> str:
        """The sum of (value, factor) products and numbers, as i32."""
        total = "0"
        for term in terms:
            if isinstance(term, tuple):
                term = self.let(f"mul i32 {term[0]}, {term[1]}")
            total = self.let(f"add i32 {total}, {term}")
        return total

    def at(self, kind: str, base: str, index, space: int = 1) -> str:
        pointer = f"ptr addrspace({space})"
        return self.let(f"getelementptr {kind}, {pointer} {base}, i32 {index}")

    def load(
        self, kind: str, base: str, index, space: int = 1, of: str = "", align: int = 4
    ) -> str:
        place = self.at(of or kind, base, index, space)
        align = 2 if kind == "half" else align
        return self.let(f"load {kind}, ptr addrspace({space}) {place}, align {align}")

    def store(self, kind: str, value: str, base: str, index, space: int = 1, of: str = "") -> None:
        place = self.at(of or kind, base, index, space)
        align = 1 if kind == "i8" else 4
        self.do(f"store {kind} {value}, ptr addrspace({space}) {place}, align {align}")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def shared(name: str, count: int, kind: str = "float") -> str:
    return f"@{name} = internal addrspace(3) global [{count} x {kind}] undef, align 128\n"


BARRIER = {"cuda": "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)",
           "hip": "call void @llvm.amdgcn.s.barrier()"}  # fmt: skip


def tiled(target: str) -> Case:
    """C = A B through tiles of 8 by 8 in shared memory; a block of 8 by 8 threads for each of C."""
    family, k, f = target.partition(":")[0], 24, Lines()
    word = {"cuda": "nvvm.read.ptx.sreg", "hip": "amdgcn"}[family]
    tid, ctaid = ("tid", "ctaid") if family == "cuda" else ("workitem.id", "workgroup.id")
    x, y = "%t", f.let(f"call i32 @llvm.{word}.{tid}.y()")
    column, row = f.index((("%b"), 8), x), None
    row = f.index((f.let(f"call i32 @llvm.{word}.{ctaid}.y()"), 8), y)
    place, total = f.index((y, 8), x), "0.0"
    for start in range(0, k, 8):
        f.store("float", f.load("float", "%p0", f.index((row, k), start, x)), "@a", place, 3)
        f.store(
            "float", f.load("float", "%p1", f.index((y, 16), start * 16, column)), "@b", place, 3
        )
        f.do(BARRIER[family])
        for i in range(8):
            a = f.load("float", "@a", f.index((y, 8), i), 3)
            b = f.load("float", "@b", f.index(i * 8, x), 3)
            total = f.let(f"call float @llvm.fma.f32(float {a}, float {b}, float {total})")
        if start + 8 < k:
            f.do(BARRIER[family])
    f.store("float", total, "%p2", f.index((row, 16), column))

    def make(rng):
        a, b = rng.standard_normal((16, k), "f4"), rng.standard_normal((k, 16), "f4")
        return [a, b], [a @ b]

    text = kernel(target, f.text, 3, shared("a", 64) + shared("b", 64))
    return Case(f"tiled matmul, {family}", target, text, (8, 8, 1), (2, 2, 1), make)


def copied() -> Case:
    """Sums over rows of another thread's values, through two buffers that cp.async fills."""
    f, rows = Lines(), 6
    to = "call void @llvm.nvvm.cp.async.ca.shared.global.4"

    def issue(row):
        place = f.at("float", f"@s{row % 2}", "%t", 3)
        source = f.at("float", "%p0", f.index((row * 64), "%t"))
        f.do(f"{to}(ptr addrspace(3) {place}, ptr addrspace(1) {source})")
        f.do("call void @llvm.nvvm.cp.async.commit.group()")

    other, total = f.let("xor i32 %t, 33"), "0.0"
    issue(0)
    for row in range(rows):
        if row + 1 < rows:
            issue(row + 1)
        f.do(f"call void @llvm.nvvm.cp.async.wait.group(i32 {int(row + 1 < rows)})")
        f.do(BARRIER["cuda"])
        total = f.let(f"fadd float {total}, {f.load('float', f'@s{row % 2}', other, 3)}")
        if row + 2 < rows:
            f.do(BARRIER["cuda"])
    f.store("float", total, "%p1", "%t")

    def make(rng):
        x = rng.standard_normal((rows, 64), "f4")
        return [x], [x.sum(0)[np.arange(64) ^ 33]]

    text = kernel("cuda:sm_80", f.text, 2, shared("s0", 64) + shared("s1", 64))
    commit = "  call void @llvm.nvvm.cp.async.commit.group()\n"
    more = tuple((f"commit {i} left out", str(i), commit) for i in range(1, rows))
    return Case(
        "double-buffered cp.async", "cuda:sm_80", text, (64, 1, 1), (1, 1, 1), make, 1e-5, 0, more
    )


def reduction(target: str) -> Case:
    """The sum of 256 values by shuffles, then of the warps' sums by the first warp."""
    family, f = target.partition(":")[0], Lines()
    wave = 64 if "gfx9" in target else 32

    def halve(value, step):
        if family == "cuda":
            other = f.let(
                "call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, "
                f"float {value}, i32 {step}, i32 31)"
            )
        else:
            lane = f.let("xor i32 %t, " + str(step))
            byte = f.let(f"shl i32 {lane}, 2")
            bits = f.let(f"bitcast float {value} to i32")
            got = f.let(f"call i32 @llvm.amdgcn.ds.bpermute(i32 {byte}, i32 {bits})")
            other = f.let(f"bitcast i32 {got} to float")
        return f.let(f"fadd float {value}, {other}")

    value = f.load("float", "%p0", f.index(("%b", 256), "%t"))
    step = wave // 2
    while step:
        value, step = halve(value, step), step // 2
    warp = f.let(f"udiv i32 %t, {wave}")
    count = 256 // wave
    first = f.let(f"icmp eq i32 {f.let(f'and i32 %t, {wave - 1}')}, 0")
    aside = f.index("%t", count)  # the other lanes write where nobody reads
    f.store("float", value, "@s", f.let(f"select i1 {first}, i32 {warp}, i32 {aside}"), 3)
    f.do(BARRIER[family])
    lane = f.let(f"and i32 %t, {count - 1}")
    value, step = f.load("float", "@s", lane, 3), count // 2
    while step:
        value, step = halve(value, step), step // 2
    f.store("float", value, "%p1", f.index(("%b", 256), "%t"))

    def make(rng):
        x = rng.standard_normal((3, 256), "f4")
        return [x], [np.repeat(x.sum(1, keepdims=True), 256, 1)]

    text = kernel(target, f.text, 2, shared("s", count + 256))
    shift = (
        (("a shuffle goes too far", "i32 16, i32 31", "i32 8, i32 31"),) if family == "cuda" else ()
    )
    return Case(f"reduction, {target}", target, text, (256, 1, 1), (3, 1, 1), make, 1e-4, 0, shift)


def tensor_cores() -> Case:
    """C (32, 8) = A (32, 32) B (32, 8) in float16: cp.async, ldmatrix, mma.m16n8k16; two warps."""
    f = Lines()
    for i in range(2):  # A: 2048 bytes, 16 for each thread, twice; rows of 80 bytes
        chunk = f.index("%t", 64 * i)
        row, part = f.let(f"lshr i32 {chunk}, 2"), f.let(f"and i32 {chunk}, 3")
        place = f.at("i8", "@a", f.index((row, 80), (part, 16)), 3)
        source = f.at("i8", "%p0", f.index((chunk, 16)))
        f.do(f"call void @llvm.nvvm.cp.async.cg.shared.global.16(ptr addrspace(3) {place}, "
             f"ptr addrspace(1) {source})")  # fmt: skip
    place, source = f.at("i64", "@w", "%t", 3), f.at("i64", "%p1", "%t")
    f.do(f"call void @llvm.nvvm.cp.async.ca.shared.global.8(ptr addrspace(3) {place}, "
         f"ptr addrspace(1) {source})")  # fmt: skip
    f.do("call void @llvm.nvvm.cp.async.commit.group()")
    f.do("call void @llvm.nvvm.cp.async.wait.group(i32 0)")
    f.do(BARRIER["cuda"])
    lane, warp = f.let("and i32 %t, 31"), f.let("lshr i32 %t, 5")
    low, high = f.let(f"and i32 {lane}, 15"), f.let(f"lshr i32 {lane}, 4")
    total = ["0.0"] * 4
    four, two = "{ i32, i32, i32, i32 }", "{ i32, i32 }"
    for k in range(0, 32, 16):
        at = f.at("i8", "@a", f.index((warp, 16 * 80), (low, 80), k * 2, (high, 16)), 3)
        loaded = f.let(
            f"call {four} @llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p3(ptr addrspace(3) {at})"
        )
        a = [f.let(f"extractvalue {four} {loaded}, {i}") for i in range(4)]
        at = f.at("i8", "@w", f.index((low, 16), k * 16), 3)
        loaded = f.let(
            f"call {two} @llvm.nvvm.ldmatrix.sync.aligned.m8n8.x2.trans.b16.p3("
            f"ptr addrspace(3) {at})"
        )
        b = [f.let(f"extractvalue {two} {loaded}, {i}") for i in range(2)]
        halves = [f.let(f"bitcast i32 {x} to <2 x half>") for x in (*a, *b)]
        passed = [f"<2 x half> {x}" for x in halves] + [f"float {x}" for x in total]
        kinds = "{ float, float, float, float }"
        d = f.let(f"call {kinds} @llvm.nvvm.mma.m16n8k16.row.col.f32.f32({', '.join(passed)})")
        total = [f.let(f"extractvalue {kinds} {d}, {i}") for i in range(4)]
    group, inside = f.let(f"lshr i32 {lane}, 2"), f.let(f"and i32 {lane}, 3")
    for i in range(4):
        row = f.index((warp, 16), group, 8 * (i // 2))
        f.store("float", total[i], "%p2", f.index((row, 8), (inside, 2), i % 2))

    def make(rng):
        a, b = (rng.standard_normal(s, "f4").astype("f2") for s in ((32, 32), (32, 8)))
        return [a, b], [a.astype("f4") @ b.astype("f4")]

    text = kernel("cuda:sm_80", f.text, 3, shared("a", 32 * 80, "i8") + shared("w", 512, "i8"))
    return Case("tensor cores", "cuda:sm_80", text, (64, 1, 1), (1, 1, 1), make)


def matrix_cores(target: str) -> Case:
    """C (32, 16) = A (32, 32) B (32, 16) in float16 through LDS; a wave for each 16 rows."""
    f, wave = Lines(), 64 if "gfx9" in target else 32
    per = 4 if wave == 64 else 16 if "gfx11" in target else 8  # elements of A in a lane
    count = 2 * wave
    for i in range(1024 * 2 // (16 * count)):
        chunk = f.index("%t", count * i)
        row, part = f.let(f"lshr i32 {chunk}, 2"), f.let(f"and i32 {chunk}, 3")
        value = f.load("<4 x i32>", "%p0", f.index((chunk, 16)), of="i8")
        f.store("<4 x i32>", value, "@a", f.index((row, 80), (part, 16)), 3, of="i8")
    for i in range(-(-512 * 2 // (8 * count))):
        chunk = f.index("%t", count * i)
        value = f.load("<2 x i32>", "%p1", f.index((chunk, 8)), of="i8")
        f.store("<2 x i32>", value, "@w", f.index((chunk, 8)), 3, of="i8")
    f.do(BARRIER["hip"])
    lane, warp = f.let(f"and i32 %t, {wave - 1}"), f.let(f"udiv i32 %t, {wave}")
    low, high = f.let(f"and i32 {lane}, 15"), f.let(f"lshr i32 {lane}, 4")
    kind = f"<{per} x half>"
    out = 4 if wave == 64 else 8
    total = "zeroinitializer"
    for k in range(0, 32, 16):
        inner = f.index(k) if per == 16 else f.index((high, per), k)
        a = f.load(kind, "@a", f.index((warp, 16 * 80), (low, 80), (inner, 2)), 3, of="i8")
        b = "poison"
        for j in range(per):
            at = f.index((inner, 32), j * 32, (low, 2))
            one = f.let(f"load half, ptr addrspace(3) {f.at('i8', '@w', at, 3)}, align 2")
            b = f.let(f"insertelement {kind} {b}, half {one}, i32 {j}")
        sums = f"<{out} x float>"
        name = f"wmma.f32.16x16x16.f16.v8f32.v{per}f16"
        rest = ""
        if wave == 64:
            name, rest = "mfma.f32.16x16x16f16", ", i32 0, i32 0, i32 0"
        total = f.let(
            f"call {sums} @llvm.amdgcn.{name}({kind} {a}, {kind} {b}, {sums} {total}{rest})"
        )
    for r in range(out):
        row = {4: ((high, 4), r), 8: ((high, 1), 2 * r) if per == 16 else ((high, 8), r)}[out]
        value = f.let(f"extractelement <{out} x float> {total}, i32 {r}")
        f.store("float", value, "%p2", f.index((f.index((warp, 16), *row), 16), low))

    def make(rng):
        a, b = (rng.standard_normal(s, "f4").astype("f2") for s in ((32, 32), (32, 16)))
        return [a, b], [a.astype("f4") @ b.astype("f4")]

    text = kernel(target, f.text, 3, shared("a", 32 * 80, "i8") + shared("w", 1024, "i8"))
    return Case(f"matrix cores, {target}", target, text, (count, 1, 1), (1, 1, 1), make)


def producer_and_consumer() -> Case:
    """One warp fills two stages, another adds them up: named barriers say full and empty."""
    f, turns = Lines(), 5
    sync = "call void @llvm.nvvm.barrier.cta.sync.aligned.count(i32 {}, i32 64)"
    arrive = "call void @llvm.nvvm.barrier.cta.arrive.aligned.count(i32 {}, i32 64)"
    lane = f.let("and i32 %t, 31")
    f.do(f"br i1 {f.let('icmp ult i32 %t, 32')}, label %fill, label %add")
    f.label("fill")
    for i in range(turns):
        if i >= 2:
            f.do(sync.format(3 + i % 2))
        f.store("float", f.load("float", "%p0", f.index(32 * i, lane)), f"@s{i % 2}", lane, 3)
        f.do(arrive.format(1 + i % 2))
    f.do("br label %end")
    f.label("add")
    total, other = "0.0", f.let(f"xor i32 {lane}, 21")
    for i in range(turns):
        f.do(sync.format(1 + i % 2))
        total = f.let(f"fadd float {total}, {f.load('float', f'@s{i % 2}', other, 3)}")
        if i + 2 < turns:
            f.do(arrive.format(3 + i % 2))
    f.store("float", total, "%p1", lane)
    f.do("br label %end")
    f.label("end")

    def make(rng):
        x = rng.standard_normal((turns, 32), "f4")
        return [x], [x.sum(0)[np.arange(32) ^ 21]]

    ir = kernel("cuda:sm_80", f.text, 2, shared("s0", 32) + shared("s1", 32))
    return Case("named barriers", "cuda:sm_80", ir, (64, 1, 1), (1, 1, 1), make)


def halves() -> Case:
    """Two exchanges through one array on gfx12, with work between the halves of each barrier."""
    f, target = Lines(), "hip:gfx1201"
    value = f.load("float", "%p0", "%t")
    for turn in range(2):
        f.store("float", value, "@s", "%t", 3)
        f.do("call void @llvm.amdgcn.s.barrier.signal(i32 -1)")
        other = f.let(f"xor i32 %t, {(77, 32)[turn]}")
        f.do("call void @llvm.amdgcn.s.barrier.wait(i16 -1)")
        value = f.load("float", "@s", other, 3)
        if not turn:  # nothing between: MLIR writes a barrier of gfx12 so
            f.do("call void @llvm.amdgcn.s.barrier.signal(i32 -1)")
            f.do("call void @llvm.amdgcn.s.barrier.wait(i16 -1)")
    f.store("float", value, "%p1", "%t")

    def make(rng):
        x = rng.standard_normal(128, "f4")
        return [x], [x[np.arange(128) ^ 77 ^ 32]]

    ir = kernel(target, f.text, 2, shared("s", 128))
    return Case("barriers in halves", target, ir, (128, 1, 1), (1, 1, 1), make)


def epilogue() -> Case:
    """Results of mma leave through shared memory: stmatrix, then rows of 16 bytes."""
    f = Lines()
    lane, warp = f.let("and i32 %t, 31"), f.let("lshr i32 %t, 5")
    group, inside = f.let(f"lshr i32 {lane}, 2"), f.let(f"and i32 {lane}, 3")

    def pair(base, row, column, stride):
        return f.load("i32", base, f.index((row, stride), (column, 2)), of="half")

    a = []
    for i in range(4):
        row = f.index((warp, 16), group, 8 * (i % 2))
        a.append(pair("%p0", row, f.index(inside, 4 * (i // 2)), 16))
    b = [pair("%p1", group, f.index(inside, 4 * i), 16) for i in range(2)]
    words = [f.let(f"bitcast i32 {x} to <2 x half>") for x in (*a, *b)]
    zeros = ["<2 x half> zeroinitializer"] * 2
    passed = ", ".join([f"<2 x half> {x}" for x in words] + zeros)
    two = "{ <2 x half>, <2 x half> }"
    d = f.let(f"call {two} @llvm.nvvm.mma.m16n8k16.row.col.f16.f16({passed})")
    out = [f.let(f"bitcast <2 x half> {f.let(f'extractvalue {two} {d}, {i}')} to i32")
           for i in range(2)]  # fmt: skip
    at = f.at("i8", "@s", f.index((warp, 256), (f.let(f"and i32 {lane}, 15"), 16)), 3)
    f.do(f"call void @llvm.nvvm.stmatrix.sync.aligned.m8n8.x2.b16.p3(ptr addrspace(3) {at}, "
         f"i32 {out[0]}, i32 {out[1]})")  # fmt: skip
    f.do(BARRIER["cuda"])
    far = f.let("xor i32 %t, 32")  # another warp's rows
    place = f.index((f.let(f"and i32 {far}, 31"), 8), (f.let(f"lshr i32 {far}, 5"), 256))
    value = f.load("<2 x i32>", "@s", place, 3, of="i8")
    f.store("<2 x i32>", value, "%p2", place, of="i8")

    def make(rng):
        a, b = (rng.standard_normal(s, "f4").astype("f2") for s in ((32, 16), (8, 16)))
        return [a, b], [a.astype("f4") @ b.astype("f4").T]

    ir = kernel("cuda:sm_90", f.text, 3, shared("s", 512, "i8"))
    return Case("epilogue", "cuda:sm_90", ir, (64, 1, 1), (1, 1, 1), make, 2e-3)


CASES = [
    producer_and_consumer(),
    halves(),
    epilogue(),
    tiled("cuda:sm_80"),
    tiled("hip:gfx942"),
    copied(),
    reduction("cuda:sm_80"),
    reduction("hip:gfx942"),
    reduction("hip:gfx1100"),
    tensor_cores(),
    matrix_cores("hip:gfx942"),
    matrix_cores("hip:gfx1100"),
    matrix_cores("hip:gfx1201"),
]


def outcome(case: Case, ir: str, reverse: bool = False, checked: bool = True) -> float:
    """The greatest error of a kernel's results, relative to their scale."""
    inputs, expected = case.make(np.random.default_rng(1))
    dtype = np.float16 if case.name == "epilogue" else np.float32
    outputs = [np.full(x.shape, np.nan, dtype) for x in expected]
    arrays = [np.ascontiguousarray(x) for x in inputs] + outputs
    run(ir, case.target, arrays, case.blocks, case.threads, checked, shared_bytes=case.shared,
        reverse=reverse)  # fmt: skip
    worst = 0.0
    for found, want in zip(outputs, expected, strict=True):
        error = np.abs(found - want).max() / np.abs(want).max()
        worst = max(worst, float(np.inf if np.isnan(error) else error))
    return worst


def mutants(case: Case):
    """(name, IR) of each way to break a kernel."""
    lines = case.ir.split("\n")
    for number, line in enumerate(lines):
        if re.search(r"call void @llvm\.[\w.]*barrier", line):
            yield f"line {number}: no barrier", _without(lines, number)
        wait = re.search(r"wait\.group\(i32 (\d+)\)", line)
        if wait:
            weaker = line.replace(f"i32 {wait[1]}", f"i32 {int(wait[1]) + 1}")
            yield f"line {number}: a weaker wait", _without(lines, number, weaker)
            yield f"line {number}: no wait", _without(lines, number)
    yield from _shifted(lines)
    for name, old, new in case.more:
        if old.isdigit():
            yield name, _nth(case.ir, new, int(old))
        else:
            yield name, case.ir.replace(old, new, 1)


def _shifted(lines):
    """An index into shared memory is one element further, at six places."""
    places = [
        number for number, line in enumerate(lines)
        if re.search(r"= getelementptr \S+, ptr addrspace\(3\) @", line)
    ]  # fmt: skip
    for number in places[:: max(1, len(places) // 6)]:
        found = re.search(r"(%\S+) = (getelementptr (\S+), .*), i32 (\S+)$", lines[number])
        step = 16 if found[3] == "i8" else 1
        new = f"  %m = add i32 {found[4]}, {step}\n  {found[1]} = {found[2]}, i32 %m"
        yield f"line {number}: an index is shifted", _without(lines, number, new)


def _without(lines, number, instead=""):
    return "\n".join([*lines[:number], instead, *lines[number + 1 :]])


def _nth(text, part, count):
    """The text without the count-th occurrence of a part."""
    at = -1
    for _ in range(count + 1):
        at = text.index(part, at + 1)
    return text[:at] + text[at + len(part) :]
