"""Matrix instructions of the SIMT executor against numpy, with layouts written from the vendors'
documents: PTX ISA ("Matrix Fragments for mma"), AMD's matrix instruction calculator, GPUOpen."""

import ml_dtypes
import numpy as np
import pytest
from dodeca.dialect.errors import Error, TargetError
from simt_kernels import call_on, kernel, run
from simt_mutants import BARRIER, Lines

RNG = np.random.default_rng(5)
DTYPES = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32,
    "s8": np.int8, "u8": np.uint8, "i8": np.int8, "s32": np.int32, "i32": np.int32,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "xf32": np.float32,
    "fp8": ml_dtypes.float8_e4m3fnuz, "bf8": ml_dtypes.float8_e5m2fnuz,
    "fp8o": ml_dtypes.float8_e4m3fn, "bf8o": ml_dtypes.float8_e5m2,
}  # fmt: skip


def drawn(shape, kind):
    if kind in ("s8", "i8"):
        return RNG.integers(-128, 128, shape, np.int8)
    if kind == "u8":
        return RNG.integers(0, 256, shape, np.uint8)
    if kind in ("s32", "i32"):
        return RNG.integers(-1000, 1000, shape, np.int32)
    return RNG.standard_normal(shape).astype(DTYPES[kind])


def expected(a, b, c):
    if c.dtype.kind == "i":
        return (a.astype("i8") @ b.astype("i8") + c).astype(np.int32)
    return a.astype("f8") @ b.astype("f8") + c.astype("f8")


def close(found, wanted, kind):
    if kind in ("s32", "i32"):
        np.testing.assert_array_equal(found, wanted)
    else:
        tolerance = {"f32": 1e-6, "f16": 2e-3, "bf16": 1e-2}[kind]
        np.testing.assert_allclose(found.astype("f8"), wanted, rtol=tolerance, atol=1e-5)


def registers(values, kind):
    """(lanes, registers, ...) from (lanes, elements), as a type of IR."""
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    if kind == "float":
        return raw.view(np.float32)[:, :, None]
    return raw.reshape(len(values), -1, 4)


# --- NVIDIA: the PTX ISA's formulas, element by element ------------------------------------------


def ptx_a(k, size):
    """(row, column) of a_i for a lane, for 16-bit, 32-bit (tf32) and 8-bit elements."""

    def place(lane, i):
        group, inside = lane >> 2, lane % 4
        if size == 2:
            row = group if i in (0, 1, 4, 5) else group + 8
            return row, inside * 2 + (i & 1) + (8 if i >= 4 else 0)
        if size == 4:
            return group + (8 if i in (1, 3) else 0), inside + (4 if i >= 2 else 0)
        row = group if i < 4 or 8 <= i < 12 else group + 8
        return row, inside * 4 + (i & 3) + (16 if i >= 8 else 0)

    return place, 16 * k // 32


def ptx_b(k, size):
    def place(lane, i):
        group, inside = lane >> 2, lane % 4
        if size == 2:
            return inside * 2 + (i & 1) + (8 if i >= 2 else 0), group
        if size == 4:
            return inside + (4 if i else 0), group
        return inside * 4 + (i & 3) + (16 if i >= 4 else 0), group

    return place, 8 * k // 32


def ptx_c(lane, i):
    return (lane >> 2) + (8 if i >= 2 else 0), lane % 4 * 2 + (i & 1)


def spread(full, place, count, lanes=32):
    """What each lane holds of a matrix."""
    out = np.zeros((lanes, count), full.dtype)
    for lane in range(lanes):
        for i in range(count):
            out[lane, i] = full[place(lane, i)]
    return out


MMA = [  # intrinsic, k, A, B, accumulator, type of an A or B register, of a C register
    ("m16n8k8.row.col.f32.f32", 8, "f16", "f16", "f32", "<2 x half>", "float"),
    ("m16n8k8.row.col.f16.f16", 8, "f16", "f16", "f16", "<2 x half>", "<2 x half>"),
    ("m16n8k16.row.col.f32.f32", 16, "f16", "f16", "f32", "<2 x half>", "float"),
    ("m16n8k16.row.col.f16.f16", 16, "f16", "f16", "f16", "<2 x half>", "<2 x half>"),
    ("m16n8k8.row.col.bf16", 8, "bf16", "bf16", "f32", "i32", "float"),
    ("m16n8k16.row.col.bf16", 16, "bf16", "bf16", "f32", "i32", "float"),
    ("m16n8k4.row.col.tf32", 4, "tf32", "tf32", "f32", "i32", "float"),
    ("m16n8k8.row.col.tf32", 8, "tf32", "tf32", "f32", "i32", "float"),
    ("m16n8k16.row.col.s8", 16, "s8", "s8", "s32", "i32", "i32"),
    ("m16n8k16.row.col.u8", 16, "u8", "u8", "s32", "i32", "i32"),
    ("m16n8k32.row.col.s8", 32, "s8", "s8", "s32", "i32", "i32"),
    ("m16n8k32.row.col.u8", 32, "u8", "u8", "s32", "i32", "i32"),
    ("m16n8k32.row.col.s8.u8", 32, "s8", "u8", "s32", "i32", "i32"),
    ("m16n8k32.row.col.u8.s8", 32, "u8", "s8", "s32", "i32", "i32"),
    ("m16n8k32.row.col.f32.e4m3.e4m3.f32", 32, "e4m3", "e4m3", "f32", "i32", "float"),
    ("m16n8k32.row.col.f32.e5m2.e4m3.f32", 32, "e5m2", "e4m3", "f32", "i32", "float"),
]


@pytest.mark.parametrize("case", MMA, ids=[case[0] for case in MMA])
def test_mma_sync(case):
    name, k, a_kind, b_kind, c_kind, register, c_register = case
    a, b, c = drawn((16, k), a_kind), drawn((k, 8), b_kind), drawn((16, 8), c_kind)
    if a_kind == "tf32":  # of which a unit reads 10 bits of the mantissa
        a, b = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b))
    size = a.itemsize
    a_regs = registers(spread(a, *ptx_a(k, size)), register)
    b_regs = registers(spread(b, *ptx_b(k, size)), register)
    c_lanes = spread(c, ptx_c, 4)
    c_regs = registers(c_lanes, c_register)
    kinds = [register] * a_regs.shape[1] + [register] * b_regs.shape[1]
    kinds += [c_register] * c_regs.shape[1]
    values = [x[:, i] for x in (a_regs, b_regs, c_regs) for i in range(x.shape[1])]
    target = "cuda:sm_89" if "e4m3" in name else "cuda:sm_80"
    result = f"{{ {', '.join([c_register] * c_regs.shape[1])} }}"
    found = call_on(target, f"nvvm.mma.{name}", result, kinds, values)
    wanted = expected(a, b, c)
    found = np.concatenate([x.reshape(32, -1) for x in found], axis=1)
    close(found, spread(wanted, ptx_c, 4), c_kind)


# --- AMD ----------------------------------------------------------------------------------------

MFMA = [  # intrinsic, m, k, A, B, accumulator, type of A and B, of C
    ("mfma.f32.16x16x16f16", 16, 16, "f16", "f16", "f32", "<4 x half>", "<4 x float>"),
    ("mfma.f32.32x32x8f16", 32, 8, "f16", "f16", "f32", "<4 x half>", "<16 x float>"),
    ("mfma.f32.16x16x16bf16.1k", 16, 16, "bf16", "bf16", "f32", "<4 x i16>", "<4 x float>"),
    ("mfma.f32.32x32x8bf16.1k", 32, 8, "bf16", "bf16", "f32", "<4 x i16>", "<16 x float>"),
    ("mfma.f32.16x16x4f32", 16, 4, "f32", "f32", "f32", "float", "<4 x float>"),
    ("mfma.f32.32x32x2f32", 32, 2, "f32", "f32", "f32", "float", "<16 x float>"),
    ("mfma.f32.16x16x8.xf32", 16, 8, "xf32", "xf32", "f32", "<2 x float>", "<4 x float>"),
    ("mfma.f32.32x32x4.xf32", 32, 4, "xf32", "xf32", "f32", "<2 x float>", "<16 x float>"),
    ("mfma.i32.16x16x32.i8", 16, 32, "i8", "i8", "i32", "i64", "<4 x i32>"),
    ("mfma.i32.32x32x16.i8", 32, 16, "i8", "i8", "i32", "i64", "<16 x i32>"),
    ("mfma.f32.16x16x32.fp8.fp8", 16, 32, "fp8", "fp8", "f32", "i64", "<4 x float>"),
    ("mfma.f32.16x16x32.bf8.fp8", 16, 32, "bf8", "fp8", "f32", "i64", "<4 x float>"),
    ("mfma.f32.32x32x16.fp8.bf8", 32, 16, "fp8", "bf8", "f32", "i64", "<16 x float>"),
    ("mfma.f32.16x16x32.fp8.bf8", 16, 32, "fp8o", "bf8o", "f32", "i64", "<4 x float>"),
    ("mfma.f32.16x16x32.f16", 16, 32, "f16", "f16", "f32", "<8 x half>", "<4 x float>"),
    ("mfma.f32.16x16x32.bf16", 16, 32, "bf16", "bf16", "f32", "<8 x bfloat>", "<4 x float>"),
    ("mfma.f32.32x32x16.f16", 32, 16, "f16", "f16", "f32", "<8 x half>", "<16 x float>"),
    ("mfma.f32.32x32x16.bf16", 32, 16, "bf16", "bf16", "f32", "<8 x bfloat>", "<16 x float>"),
]


@pytest.mark.parametrize("case", MFMA, ids=[case[0] for case in MFMA])
def test_mfma(case):
    name, m, k, a_kind, b_kind, c_kind, register, c_register = case
    a, b, c = drawn((m, k), a_kind), drawn((k, m), b_kind), drawn((m, m), c_kind)
    if a_kind == "xf32":
        a, b = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b))
    per = m * k // 64

    def place_c(lane, i):
        if m == 32:
            return 8 * (i // 4) + 4 * (lane // 32) + i % 4, lane % 32
        return 4 * (lane // 16) + i, lane % 16

    a_lanes = spread(a, lambda lane, j: (lane % m, per * (lane // m) + j), per, 64)
    b_lanes = spread(b, lambda lane, j: (per * (lane // m) + j, lane % m), per, 64)
    c_lanes = spread(c, place_c, m * m // 64, 64)
    new = "x32.f16" in name or "x32.bf16" in name or "x16.f16" in name or "x16.bf16" in name
    kinds = [register, register, c_register, "i32 0", "i32 0", "i32 0"]
    target = "hip:gfx950" if new or a_kind == "fp8o" else "hip:gfx942"
    found = call_on(target, f"amdgcn.{name}", c_register, kinds, [a_lanes, b_lanes, c_lanes])[0]
    close(found, spread(expected(a, b, c), place_c, m * m // 64, 64), c_kind)


WMMA = [  # intrinsic, chip, A, accumulator, type of A and B, of C
    ("f32.16x16x16.f16.v8f32.v16f16", "gfx1100", "f16", "f32", "<16 x half>", "<8 x float>"),
    ("f32.16x16x16.bf16.v8f32.v16i16", "gfx1100", "bf16", "f32", "<16 x i16>", "<8 x float>"),
    ("f16.16x16x16.f16.v16f16.v16f16", "gfx1100", "f16", "f16", "<16 x half>", "<16 x half>"),
    ("bf16.16x16x16.bf16.v16i16.v16i16", "gfx1100", "bf16", "bf16", "<16 x i16>", "<16 x i16>"),
    ("i32.16x16x16.iu8.v8i32.v4i32", "gfx1100", "i8", "i32", "<4 x i32>", "<8 x i32>"),
    ("i32.16x16x16.iu8.v8i32.v4i32", "gfx1100", "u8", "i32", "<4 x i32>", "<8 x i32>"),
    ("f32.16x16x16.f16.v8f32.v8f16", "gfx1201", "f16", "f32", "<8 x half>", "<8 x float>"),
    ("f32.16x16x16.bf16.v8f32.v8i16", "gfx1201", "bf16", "f32", "<8 x i16>", "<8 x float>"),
    ("f16.16x16x16.f16.v8f16.v8f16", "gfx1201", "f16", "f16", "<8 x half>", "<8 x half>"),
    ("i32.16x16x16.iu8.v8i32.v2i32", "gfx1201", "i8", "i32", "<2 x i32>", "<8 x i32>"),
    ("f32.16x16x16.fp8.fp8.v8f32.v2i32", "gfx1201", "fp8o", "f32", "<2 x i32>", "<8 x float>"),
    ("f32.16x16x16.bf8.bf8.v8f32.v2i32", "gfx1201", "bf8o", "f32", "<2 x i32>", "<8 x float>"),
]


def wmma_case(case):
    name, chip, kind, c_kind, register, c_register = case
    a, b, c = drawn((16, 16), kind), drawn((16, 16), kind), drawn((16, 16), c_kind)
    if chip == "gfx1100":  # lanes 16-31 repeat A and B; even rows of C below, odd ones above
        a_lanes = spread(a, lambda lane, j: (lane % 16, j), 16)
        b_lanes = spread(b, lambda lane, j: (j, lane % 16), 16)
        place_c = lambda lane, r: (2 * r + lane // 16, lane % 16)  # noqa: E731
    else:
        a_lanes = spread(a, lambda lane, j: (lane % 16, 8 * (lane // 16) + j), 8)
        b_lanes = spread(b, lambda lane, j: (8 * (lane // 16) + j, lane % 16), 8)
        place_c = lambda lane, r: (8 * (lane // 16) + r, lane % 16)  # noqa: E731
    c_lanes = spread(c, place_c, 8)
    if chip == "gfx1100" and c_kind != "f32" and c_kind != "i32":  # a half of each register
        wide = np.zeros((32, 16), c.dtype)
        wide[:, 0::2] = c_lanes
        c_lanes = wide
    kinds = [register, register, c_register]
    if "iu8" in name:
        sign = f"i1 {str(kind == 'i8').lower()}"
        kinds = [sign, register, sign, register, c_register, "i1 false"]
    elif c_kind != "f32":
        kinds.append("i1 false")
    values = [a_lanes, b_lanes, c_lanes]
    return chip, name, kinds, values, (a, b, c, place_c)


@pytest.mark.parametrize("case", WMMA, ids=[f"{c[1]}.{c[0]}.{c[2]}" for c in WMMA])
def test_wmma(case):
    chip, name, kinds, values, (a, b, c, place_c) = wmma_case(case)
    found = call_on(f"hip:{chip}", f"amdgcn.wmma.{name}", case[5], kinds, values)[0]
    if found.shape[1] == 16:
        found = found[:, 0::2]
    if case[3] == "bf16":
        found = found.copy().view(ml_dtypes.bfloat16)
    close(found, spread(expected(a, b, c), place_c, 8), case[3])


def test_wmma_of_gfx11_wants_its_operands_twice():
    chip, name, kinds, values, _ = wmma_case(WMMA[0])
    values[1][16:] = 0
    with pytest.raises(Error, match="takes A and B twice, and lanes 16-31 hold others"):
        call_on(f"hip:{chip}", f"amdgcn.wmma.{name}", "<8 x float>", kinds, values)


def test_matrix_instructions_that_are_not_known():
    x = np.zeros((64, 1), np.float32)
    c = np.zeros((64, 32), np.float32)
    kinds = ["float", "float", "<32 x float>", "i32 0", "i32 0", "i32 0"]
    with pytest.raises(TargetError, match="32x32x1f32 is not simulated"):
        call_on("hip:gfx942", "amdgcn.mfma.f32.32x32x1f32", "<32 x float>", kinds, [x, x, c])
    y, kinds = np.zeros((64, 4), np.int16), ["<4 x i16>", "<4 x i16>", *kinds[2:]]
    with pytest.raises(TargetError, match="of several blocks, is not simulated"):
        name = "amdgcn.mfma.f32.32x32x4bf16.1k"
        call_on("hip:gfx942", name, "<32 x float>", kinds, [y, y, c])
    kinds = ["float", "float", "<4 x float>", "i32 1", "i32 0", "i32 0"]
    with pytest.raises(TargetError, match="with cbsz"):
        values = [x, x, c[:, :4].copy()]
        call_on("hip:gfx942", "amdgcn.mfma.f32.16x16x4f32", "<4 x float>", kinds, values)


def test_matrix_instructions_are_for_whole_warps():
    """Threads that are missing, have left or are elsewhere are reported, not waited for."""
    zeros = ", ".join(["<2 x half> zeroinitializer"] * 3 + ["float 0.0"] * 4)
    call = f"call {{ float, float, float, float }} @llvm.nvvm.mma.m16n8k8.row.col.f32.f32({zeros})"
    ir = kernel("cuda:sm_80", f"  %r = {call}", 0)
    with pytest.raises(Error, match=r"thread \(32, 0, 0\): its warp has fewer than 32 threads"):
        run(ir, "cuda:sm_80", [], threads=48)
    text = "  %c = icmp ult i32 %t, 8\n  br i1 %c, label %out, label %go\n"
    text += f"out:\n  ret void\ngo:\n  %r = {call}"
    with pytest.raises(Error, match="divergent warp 0: threads 0-7 have left the kernel"):
        run(kernel("cuda:sm_80", text, 0), "cuda:sm_80", [])
    text = f"  %c = icmp ult i32 %t, 8\n  br i1 %c, label %a, label %b2\na:\n  %r = {call}\n"
    text += f"  br label %end\nb2:\n  %s = {call}\n  br label %end\nend:"
    with pytest.raises(Error, match=r"divergent warp 0: threads 0-7 wait at .*; threads 8-31 wait"):
        run(kernel("cuda:sm_80", text, 0), "cuda:sm_80", [])


@pytest.mark.parametrize("seed", range(3))
def test_extreme_elements(seed):
    """Infinities, NaNs, subnormal numbers and sums that overflow, as numpy has them."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**16, (16, 16), np.uint16)
    a, b = bits.view(np.float16), rng.integers(0, 2**16, (16, 8), np.uint16).view(np.float16)
    if seed:  # without those that drown everything
        a, b = (np.where(np.isfinite(x), x, np.float16(0)).astype("f2") for x in (a, b))
    c = rng.standard_normal((16, 8)).astype("f4") * np.float32(1e30)
    values = [registers(spread(x, *ptx_b_or_a), "<2 x half>") for x, ptx_b_or_a in
              ((a, ptx_a(16, 2)), (b, ptx_b(16, 2)))]  # fmt: skip
    flat = [x[:, i] for x in values for i in range(x.shape[1])]
    flat += list(spread(c, ptx_c, 4).T.copy())
    kinds = ["<2 x half>"] * 6 + ["float"] * 4
    result = "{ float, float, float, float }"
    found = call_on("cuda:sm_80", f"nvvm.mma.{MMA[2][0]}", result, kinds, flat)
    with np.errstate(all="ignore"):
        wanted = spread(expected(a, b, c).astype("f4"), ptx_c, 4)
    np.testing.assert_allclose(np.stack(found, 1), wanted, rtol=1e-6)


WGMMA = [  # accumulator, A, B, k, type of a register of the accumulator
    ("f32", "f16", "f16", 16, "float"),
    ("f32", "bf16", "bf16", 16, "float"),
    ("f16", "f16", "f16", 16, "i32"),
    ("f32", "tf32", "tf32", 8, "float"),
    ("s32", "s8", "s8", 32, "i32"),
    ("s32", "u8", "s8", 32, "i32"),
    ("f32", "e4m3", "e5m2", 32, "float"),
]


@pytest.mark.parametrize("case", WGMMA, ids=[".".join(case[:3]) for case in WGMMA])
def test_wgmma_of_all_types(case):
    """Rows of 32 bytes with a swizzle of 32: 16-byte halves change places every four rows."""
    c_kind, a_kind, b_kind, k, register = case
    n = 8
    a, b, c = drawn((64, k), a_kind), drawn((n, k), b_kind), drawn((64, n), c_kind)
    if a_kind == "tf32":
        a, b = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b))
    f = Lines()
    for base, source, rows in (("@a", "%p0", 64), ("@w", "%p1", 8)):
        for piece in range(2):
            row = f.let(f"and i32 %t, {rows - 1}")
            value = f.load("<4 x i32>", source, f.index((row, 32), 16 * piece), of="i8")
            turn = f.let(f"and i32 {f.let(f'lshr i32 {row}, 2')}, 1")
            half = f.let(f"xor i32 {turn}, {piece}")
            own = f.let(f"icmp ult i32 %t, {rows}")
            place = f.index((row, 32), (half, 16))
            at = f.let(f"select i1 {own}, i32 {place}, i32 {f.index(4096, ('%t', 16))}")
            f.store("<4 x i32>", value, base, at, 3, of="i8")
    f.do(BARRIER["cuda"])
    descriptors = []
    for base in ("@a", "@w"):
        address = f.let(f"ptrtoint ptr addrspace(3) {base} to i32")
        start = f.let(f"lshr i32 {f.let(f'and i32 {address}, 262143')}, 4")
        rest = 1 << 16 | (256 >> 4) << 32 | 3 << 62
        wide = f.let(f"zext i32 {start} to i64")
        descriptors.append(f.let(f"or i64 {wide}, {rest - (1 << 64)}"))
    count = 2 if c_kind == "f16" else 4
    old = [f.load(register, "%p2", f.index(("%t", count), i)) for i in range(count)]
    kinds, flags = [register] * count, 5 if k == 16 else 3
    base = 2 * count
    names = ", ".join(f"${base + 3 + i}" for i in range(flags - 1)) if c_kind != "s32" else ""
    outs = ", ".join(f"${i}" for i in range(count))
    text = (
        rf"{{\0A.reg .pred p;\0Asetp.ne.b32 p, ${base + 2}, 0;\0A"
        rf"wgmma.mma_async.sync.aligned.m64n8k{k}.{c_kind}.{a_kind}.{b_kind} {{{outs}}}, "
        rf"${base}, ${base + 1}, p, {names};\0A}}\0A"
    )
    letter = "f" if register == "float" else "r"
    constraints = [f"={letter}"] * count + [str(i) for i in range(count)] + ["l", "l"]
    values = ["1", "1", "1", "0", "0"][:flags]
    constraints += ["n"] * flags
    passed = [f"{register} {x}" for x in old] + [f"i64 {x}" for x in descriptors]
    passed += [f"i32 {x}" for x in values]
    result = "{ " + ", ".join(kinds) + " }"
    d = f.let(f'call {result} asm sideeffect "{text}", "{",".join(constraints)}"'
              f"({', '.join(passed)})")  # fmt: skip
    f.do("call void @llvm.nvvm.wgmma.commit_group.sync.aligned()")
    f.do("call void @llvm.nvvm.wgmma.wait_group.sync.aligned(i64 0)")
    for i in range(count):
        f.store(
            register, f.let(f"extractvalue {result} {d}, {i}"), "%p3", f.index(("%t", count), i)
        )

    def place(thread, i):
        lane = thread % 32
        return thread // 32 * 16 + lane // 4 + (8 if i >= 2 else 0), lane % 4 * 2 + (i & 1)

    lanes = spread(c, place, 4, 128)
    out = np.zeros_like(lanes)
    before = "".join(
        f"@{name} = internal addrspace(3) global [8192 x i8] undef, align 1024\n" for name in "aw"
    )
    run(kernel("cuda:sm_90a", f.text, 4, before), "cuda:sm_90a", [a, b, lanes, out], threads=128)
    close(out, spread(expected(a, b.T, c), place, 4, 128), {"s32": "s32"}.get(c_kind, c_kind))
