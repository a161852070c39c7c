"""Kernels for Hopper: TMA into two stages with mbarriers, and wgmma on swizzled tiles."""

import numpy as np
from dodeca.runtime.async_copies import tensor_map
from simt_kernels import kernel
from simt_mutants import BARRIER, Case, Lines, shared

TARGET = "cuda:sm_90a"
INIT = "call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) {}, i32 {})"
EXPECT = "@llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta"
WAIT = "@llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta"
ARRIVE = "@llvm.nvvm.mbarrier.arrive.scope.cta.space.cta"
LOOP = (  # as MLIR writes nvvm.mbarrier.try_wait.parity
    r'call void asm sideeffect "{\0A\09.reg .pred       P1; \0A\09LAB_WAIT: \0A\09'
    r"mbarrier.try_wait.parity.shared.b64 P1, [$0], $1, $2; \0A\09@P1 bra.uni DONE; \0A\09"
    r'bra.uni     LAB_WAIT; \0A\09DONE: \0A\09}", "r,r,r"'
    "(ptr addrspace(3) %s, i32 %d, i32 1000)"
)


def pipeline(tensor: bool = True) -> Case:
    """Sums over tiles of 8 rows of 32 floats that thread 0 fetches two ahead."""
    f, tiles = Lines(), 5
    first = f.let("icmp eq i32 %t, 0")
    f.do(f"br i1 {first}, label %make, label %made")
    f.label("make")
    for s in range(2):
        f.do(INIT.format(f"@full{s}", 1))
        f.do(INIT.format(f"@empty{s}", 64))
    f.do("br label %made")
    f.label("made")
    f.do(BARRIER["cuda"])
    total = "zeroinitializer"
    row, piece = f.let("lshr i32 %t, 3"), f.let("and i32 %t, 7")
    turned = f.let(f"xor i32 {row}, {piece}") if tensor else piece
    place = f.index((row, 128), (turned, 16))
    generic = f.let("addrspacecast ptr addrspace(1) %p0 to ptr")
    for i in range(tiles):
        s, use = i % 2, i // 2
        f.do(f"br i1 {first}, label %fetch{i}, label %fetched{i}")
        f.label(f"fetch{i}")
        if use:
            f.do(LOOP % (f"@empty{s}", use - 1 & 1))
        f.let(f"call i64 {EXPECT}(ptr addrspace(3) @full{s}, i32 1024)")
        to = f.let(f"addrspacecast ptr addrspace(3) @stage{s} to ptr addrspace(7)")
        if tensor:
            f.do(
                "call void @llvm.nvvm.cp.async.bulk.tensor.g2s.tile.2d("
                f"ptr addrspace(7) {to}, ptr addrspace(3) @full{s}, ptr {generic}, i32 0, "
                f"i32 {8 * i}, i16 0, i64 0, i1 false, i1 false, i32 0)"
            )
        else:
            of = f.at("i8", "%p0", 1024 * i)
            f.do(
                "call void @llvm.nvvm.cp.async.bulk.global.to.shared.cluster("
                f"ptr addrspace(7) {to}, ptr addrspace(3) @full{s}, ptr addrspace(1) {of}, "
                "i32 1024, i16 0, i64 0, i1 false, i1 false)"
            )
        f.do(f"br label %fetched{i}")
        f.label(f"fetched{i}")
        f.let(f"call i1 {WAIT}(ptr addrspace(3) @full{s}, i32 {use & 1})")
        value = f.load("<4 x float>", f"@stage{s}", place, 3, of="i8")
        total = f.let(f"fadd <4 x float> {total}, {value}")
        if i + 2 < tiles:
            f.let(f"call i64 {ARRIVE}(ptr addrspace(3) @empty{s}, i32 1)")
    f.store("<4 x float>", total, "%p2", f.index(("%t", 16)), of="i8")
    before = "".join(
        shared(f"stage{s}", 256).replace("align 128", "align 1024")
        + shared(f"full{s}", 1, "i64")
        + shared(f"empty{s}", 1, "i64")
        for s in range(2)
    )

    def make(rng):
        x = rng.standard_normal((8 * tiles - 3, 32), "f4")  # the last tile hangs over
        padded = np.concatenate([x, np.zeros((3, 32), "f4")])
        if not tensor:
            return [padded, padded], [padded.reshape(tiles, 8, 32).sum(0).reshape(64, 4)]
        return [tensor_map(x, (8, 32), 128), x], [
            padded.reshape(tiles, 8, 32).sum(0).reshape(64, 4)
        ]

    more = [
        ("fewer bytes expected", "i32 1024)\n", "i32 1008)\n"),
        ("fewer arrivals", "@empty0, i32 64", "@empty0, i32 63"),
        ("more arrivals", "@empty0, i32 64", "@empty0, i32 65"),
        (
            "another parity",
            f"{WAIT}(ptr addrspace(3) @full1, i32 0",
            f"{WAIT}(ptr addrspace(3) @full1, i32 1",
        ),
        ("another stage", f"{WAIT}(ptr addrspace(3) @full1", f"{WAIT}(ptr addrspace(3) @full0"),
    ]
    ir = kernel(TARGET, f.text, 3, before)
    for i, line in enumerate(ir.split("\n")):
        if (
            (WAIT in line and "call" in line)
            or "LAB_WAIT" in line
            or (f"{ARRIVE}(" in line and "call" in line)
        ):
            more.append((f"line {i} left out", line + "\n", ""))
    name = "TMA pipeline" if tensor else "bulk copy pipeline"
    return Case(name, TARGET, ir, (64, 1, 1), (1, 1, 1), make, 1e-5, 0, tuple(more))


def wgmma(n: int, a: list[str], b: str, sums: list[str], keep: int, turned: int = 0) -> str:
    """One product as MLIR writes it: `a` is a descriptor or four registers; `turned`: B by rows."""
    count, base, more = len(sums), 2 * len(sums), len(a) - 1
    registers = more > 0
    outs = ", ".join(f"${i}" for i in range(count))
    first = ", ".join(f"${base + i}" for i in range(len(a)))
    flags = [1, 1, turned] if registers else [1, 1, 0, turned]  # signs, and who lies MN-major
    named = ", ".join(f"${base + more + 3 + i}" for i in range(len(flags)))
    text = (
        rf"{{\0A.reg .pred p;\0Asetp.ne.b32 p, ${base + more + 2}, 0;\0A"
        rf"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {{{outs}}}, "
        rf"{'{' + first + '}' if registers else first}, ${base + more + 1}, p, {named};\0A}}\0A"
    )
    kinds = ["=f"] * count + [str(i) for i in range(count)]
    kinds += ["r" if registers else "l"] * len(a) + ["l"] + ["n"] * (1 + len(flags))
    passed = [f"float {x}" for x in sums] + [f"{'i32' if registers else 'i64'} {x}" for x in a]
    passed += [f"i64 {b}", *(f"i32 {x}" for x in (keep, *flags))]
    result = "{ " + ", ".join(["float"] * count) + " }"
    return f'call {result} asm sideeffect "{text}", "{",".join(kinds)}"({", ".join(passed)})'


def warpgroup(swizzle: int) -> Case:
    """C (64, 16) = A (64, K) B (16, K)^T, twice through the same tiles; K is a row of a tile."""
    f, width = Lines(), swizzle or 128
    k, n = width // 2, 16
    result = "{ " + ", ".join(["float"] * (n // 2)) + " }"
    sums = ["0.0"] * (n // 2)

    def place(row, piece):
        if not swizzle:  # core matrices of 8 rows by 16 bytes, then the next 8 rows
            group, inside = f.let(f"lshr i32 {row}, 3"), f.let(f"and i32 {row}, 7")
            return f.index((group, 8 * width), (inside, 16), piece * 128)
        offset = f.index((row, width), piece * 16)
        turn = f.let(f"and i32 {f.let(f'lshr i32 {offset}, 7')}, {swizzle // 16 - 1}")
        return f.let(f"xor i32 {offset}, {f.let(f'shl i32 {turn}, 4')}")

    def fill(base, source, rows, half):
        """Thread t writes row t % rows; with fewer rows than threads, several share one."""
        row = f.let(f"and i32 %t, {rows - 1}")
        own = f.let(f"udiv i32 %t, {rows}")
        sharers, pieces = 128 // rows, width // 16
        for piece in range(pieces):
            value = f.load(
                "<4 x i32>", source, f.index((row, 2 * width), half * width, piece * 16), of="i8"
            )
            mine = f.let(f"icmp eq i32 {own}, {piece % sharers}")
            at = f.let(
                f"select i1 {mine}, i32 {place(row, piece)}, i32 {f.index(65536, ('%t', 16))}"
            )
            f.store("<4 x i32>", value, base, at, 3, of="i8")

    def descriptor(base, step):
        address = f.let(f"ptrtoint ptr addrspace(3) {base} to i32")
        address = f.let(f"zext i32 {f.let(f'and i32 {address}, 262143')} to i64")
        moved = f.let(f"add i64 {address}, {step}")
        start = f.let(f"lshr i64 {moved}, 4")
        mode = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
        leading = 8 if not swizzle else 1
        rest = leading << 16 | (8 * width >> 4) << 32 | mode << 62
        return f.let(f"or i64 {start}, {rest - (1 << 64) if rest >> 63 else rest}")

    for half in range(2):
        if half:
            f.do(BARRIER["cuda"])
        fill("@a", "%p0", 64, half)
        fill("@w", "%p1", 16, half)
        f.do(BARRIER["cuda"])
        f.do("call void @llvm.nvvm.wgmma.fence.sync.aligned()")
        for step in range(k // 16):
            at = step * (256 if not swizzle else 32)
            a, b = descriptor("@a", at), descriptor("@w", at)
            d = f.let(wgmma(n, [a], b, sums, int(bool(half or step))))
            sums = [f.let(f"extractvalue {result} {d}, {i}") for i in range(n // 2)]
        f.do("call void @llvm.nvvm.wgmma.commit_group.sync.aligned()")
        f.do("call void @llvm.nvvm.wgmma.wait_group.sync.aligned(i64 0)")
    warp, lane = f.let("lshr i32 %t, 5"), f.let("and i32 %t, 31")
    group, inside = f.let(f"lshr i32 {lane}, 2"), f.let(f"and i32 {lane}, 3")
    for i, value in enumerate(sums):
        row = f.index((warp, 16), group, 8 * (i % 4 // 2))
        f.store("float", value, "%p2", f.index((row, n), (inside, 2), 8 * (i // 4) + i % 2))

    def make(rng):
        a, b = (rng.standard_normal(s, "f4").astype("f2") for s in ((64, 2 * k), (n, 2 * k)))
        return [a, b], [a.astype("f4") @ b.astype("f4").T]

    before = "".join(
        f"@{name} = internal addrspace(3) global [{count} x i8] undef, align 1024\n"
        for name, count in (("a", 65536 + 2048), ("w", 65536 + 2048))
    )
    more = tuple(
        (name, old, new)
        for name, old, new in [
            ("no wait", "  call void @llvm.nvvm.wgmma.wait_group.sync.aligned(i64 0)\n", ""),
            ("a weaker wait", "wait_group.sync.aligned(i64 0)", "wait_group.sync.aligned(i64 1)"),
            ("no commit", "  call void @llvm.nvvm.wgmma.commit_group.sync.aligned()\n", ""),
        ]
    )
    return Case(
        f"wgmma, swizzle {swizzle}", TARGET, kernel(TARGET, f.text, 3, before), (128, 1, 1),
        (1, 1, 1), make, 1e-5, 0, more,
    )  # fmt: skip


def row_major(swizzle: int, n: int, from_registers: bool) -> Case:
    """C (64, n) = A (64, 32) B (32, n), with B as it is in memory: along its rows.

    B lies in tiles of 32 rows of `swizzle` bytes, one beside the other.
    """
    f, k = Lines(), 32
    count = n // 2
    result = "{ " + ", ".join(["float"] * count) + " }"
    aside = f.index(32768, ("%t", 16))

    def turn(offset, width):
        turn = f.let(f"and i32 {f.let(f'lshr i32 {offset}, 7')}, {width // 16 - 1}")
        return f.let(f"xor i32 {offset}, {f.let(f'shl i32 {turn}, 4')}")

    row = f.let("and i32 %t, 63")
    upper = f.let("icmp ult i32 %t, 64")
    for piece in range(4):  # A: rows of 64 bytes, K-major
        value = f.load("<4 x i32>", "%p0", f.index((row, 64), piece * 16), of="i8")
        at = f.let(
            f"select i1 {upper}, i32 {turn(f.index((row, 64), piece * 16), 64)}, i32 {aside}"
        )
        f.store("<4 x i32>", value, "@a", at, 3, of="i8")
    row = f.let("and i32 %t, 31")
    first = f.let("icmp ult i32 %t, 32")
    for piece in range(n // 8):
        tile, inside = divmod(piece, swizzle // 16)
        value = f.load("<4 x i32>", "%p1", f.index((row, 2 * n), piece * 16), of="i8")
        place = turn(f.index((row, swizzle), tile * 32 * swizzle, inside * 16), swizzle)
        at = f.let(f"select i1 {first}, i32 {place}, i32 {aside}")
        f.store("<4 x i32>", value, "@w", at, 3, of="i8")
    f.do(BARRIER["cuda"])
    warp, lane = f.let("lshr i32 %t, 5"), f.let("and i32 %t, 31")
    group, inside = f.let(f"lshr i32 {lane}, 2"), f.let(f"and i32 {lane}, 3")

    def descriptor(base, step, leading, stride, mode):
        address = f.let(f"ptrtoint ptr addrspace(3) {base} to i32")
        address = f.let(f"zext i32 {f.let(f'and i32 {address}, 262143')} to i64")
        start = f.let(f"lshr i64 {f.let(f'add i64 {address}, {step}')}, 4")
        rest = leading >> 4 << 16 | stride >> 4 << 32 | mode << 62
        return f.let(f"or i64 {start}, {rest - (1 << 64) if rest >> 63 else rest}")

    sums = ["0.0"] * count
    for step in range(2):
        b = descriptor("@w", step * 16 * swizzle, 32 * swizzle, 8 * swizzle,
                       {128: 1, 64: 2, 32: 3}[swizzle])  # fmt: skip
        if from_registers:
            a = []
            for i in range(4):
                at = f.index((f.index((warp, 16), group, 8 * (i % 2)), 64), (inside, 4),
                             step * 32 + 16 * (i // 2))  # fmt: skip
                a.append(f.load("i32", "%p0", at, of="i8"))
        else:
            a = [descriptor("@a", step * 32, 16, 512, 2)]
        d = f.let(wgmma(n, a, b, sums, step, 1))
        sums = [f.let(f"extractvalue {result} {d}, {i}") for i in range(count)]
    f.do("call void @llvm.nvvm.wgmma.commit_group.sync.aligned()")
    f.do("call void @llvm.nvvm.wgmma.wait_group.sync.aligned(i64 0)")
    for i, value in enumerate(sums):
        row = f.index((warp, 16), group, 8 * (i % 4 // 2))
        f.store("float", value, "%p2", f.index((row, n), (inside, 2), 8 * (i // 4) + i % 2))

    def make(rng):
        a, b = (rng.standard_normal(s, "f4").astype("f2") for s in ((64, k), (k, n)))
        return [a, b], [a.astype("f4") @ b.astype("f4")]

    before = "".join(
        f"@{name} = internal addrspace(3) global [{32768 + 2048} x i8] undef, align 1024\n"
        for name in "aw"
    )
    where = "registers" if from_registers else "shared"
    return Case(
        f"wgmma, B by rows of {swizzle} for {n}, A in {where}", TARGET,
        kernel(TARGET, f.text, 3, before), (128, 1, 1), (1, 1, 1), make,
    )  # fmt: skip


BY_ROWS = [(32, 16, False), (32, 32, False), (64, 32, True), (128, 64, True)]
CASES = [
    *(row_major(*one) for one in BY_ROWS),
    *(pipeline(tensor) for tensor in (True, False)),
    *(warpgroup(swizzle) for swizzle in (0, 32, 64, 128)),
]
