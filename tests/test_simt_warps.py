"""Shuffles, votes and other talk within a warp, against the vendors' documents in numpy."""

import numpy as np
import pytest
from dodeca.dialect.errors import Error, TargetError
from simt_kernels import call_on, kernel, one_call, run, text_for_chip

RNG = np.random.default_rng(3)
FULL = np.full(32, -1, np.int32)
ONES = np.uint32(0xFFFFFFFF)


def ints(count=32, low=-(2**31), high=2**31):
    return RNG.integers(low, high, count, np.int64).astype(np.int32)


# --- NVIDIA -------------------------------------------------------------------------------------


def ptx_shfl(mode, a, b, c):
    """The pseudocode of shfl.sync in the PTX ISA, lane by lane."""
    out, found = np.zeros_like(a), np.zeros(32, bool)
    for lane in range(32):
        bval, cval, segment = int(b[lane]) & 31, int(c[lane]) & 31, int(c[lane]) >> 8 & 31
        most = lane & segment | cval & ~segment & 31
        least = lane & segment
        if mode == "up":
            j = lane - bval
            p = j >= most
        elif mode == "down":
            j = lane + bval
            p = j <= most
        elif mode == "bfly":
            j = lane ^ bval
            p = j <= most
        else:
            j = least | bval & ~segment & 31
            p = j <= most
        out[lane], found[lane] = a[j if p else lane], p
    return out, found


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("kind", ["i32", "f32", "i32p", "f32p"])
def test_shuffles(mode, kind):
    value = ints() if kind[0] == "i" else RNG.standard_normal(32).astype("f4")
    word = "i32" if kind[0] == "i" else "float"
    result = f"{{ {word}, i1 }}" if kind.endswith("p") else word
    for width in (32, 16, 8):
        clamp = ((32 - width) << 8) | (0 if mode == "up" else 31)
        b, c = ints(low=0, high=32), np.full(32, clamp, np.int32)
        found = call_on(
            "cuda:sm_80", f"nvvm.shfl.sync.{mode}.{kind}", result,
            ["i32", word, "i32", "i32"], [FULL, value, b, c],
        )  # fmt: skip
        wanted = ptx_shfl(mode, value, b, c)
        for one, want in zip(found, wanted, strict=False):
            np.testing.assert_array_equal(one, want)


@pytest.mark.parametrize("bits", [0x0, 0xFFFFFFFF, 0x80F1])
def test_votes(bits):
    p = (bits >> np.arange(32) & 1).astype(np.uint8)
    for how, wanted in [
        ("ballot", np.full(32, bits, np.uint32).view("i4")),
        ("all", np.full(32, bits == 0xFFFFFFFF)),
        ("any", np.full(32, bits != 0)),
        ("uni", np.full(32, bits in (0, 0xFFFFFFFF))),
    ]:
        result = "i32" if how == "ballot" else "i1"
        name = f"nvvm.vote.{how}.sync"
        found = call_on("cuda:sm_80", name, result, ["i32", "i1"], [FULL, p])
        np.testing.assert_array_equal(found[0].astype(wanted.dtype), wanted)


def test_match():
    value = ints(low=0, high=4)
    same = (value[:, None] == value).astype(np.uint64) @ (1 << np.arange(32, dtype=np.uint64))
    any_of = call_on("cuda:sm_80", "nvvm.match.any.sync.i32", "i32", ["i32", "i32"], [FULL, value])
    np.testing.assert_array_equal(any_of[0].view("u4"), same)
    wide = np.full(32, 5 << 40)
    for value, mask in ((wide, ONES), (wide + np.arange(32), 0)):
        found = call_on(
            "cuda:sm_80", "nvvm.match.all.sync.i64p", "{ i32, i1 }", ["i32", "i64"], [FULL, value]
        )
        np.testing.assert_array_equal(found[0].view("u4"), mask)
        np.testing.assert_array_equal(found[1], bool(mask))


REDUX = {
    "add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "min": np.minimum, "max": np.maximum, "umin": np.minimum, "umax": np.maximum,
}  # fmt: skip


@pytest.mark.parametrize("name", REDUX)
def test_redux(name):
    value = ints()
    typed = value.view("u4") if name[0] == "u" else value
    wanted = REDUX[name].reduce(typed, dtype=typed.dtype)
    found = call_on("cuda:sm_80", f"nvvm.redux.sync.{name}", "i32", ["i32", "i32"], [value, FULL])[
        0
    ]
    np.testing.assert_array_equal(found.view(typed.dtype), wanted)


@pytest.mark.parametrize("name", ["fmin", "fmax", "fmin.abs", "fmax.NaN", "fmin.abs.NaN"])
def test_redux_of_floats(name):
    value = RNG.standard_normal(32).astype("f4")
    value[5] = np.nan
    typed = np.abs(value) if "abs" in name else value
    propagating, plain = (np.minimum, np.fmin) if "min" in name else (np.maximum, np.fmax)
    wanted = (propagating if "NaN" in name else plain).reduce(typed)
    found = call_on(
        "cuda:sm_100a", f"nvvm.redux.sync.{name}", "float", ["float", "i32"], [value, FULL]
    )[0]
    np.testing.assert_array_equal(found, wanted)


def test_lanes_and_elections():
    lane = np.arange(32)
    for name, wanted in {
        "laneid": lane, "lanemask.lt": (1 << lane) - 1, "lanemask.le": (2 << lane) - 1,
        "lanemask.eq": 1 << lane, "warpsize": 32 + 0 * lane,
        "lanemask.gt": 0xFFFFFFFF & ~((2 << lane) - 1), "lanemask.ge": 0xFFFFFFFF & -(1 << lane),
    }.items():  # fmt: skip
        found = call_on("cuda:sm_80", f"nvvm.read.ptx.sreg.{name}", "i32", [], [])[0]
        np.testing.assert_array_equal(found.view("u4"), wanted.astype("u4"))
    found = call_on("cuda:sm_90", "nvvm.elect.sync", "{ i32, i1 }", ["i32"], [FULL])
    np.testing.assert_array_equal(found[1], lane == 0)
    found = call_on("cuda:sm_80", "nvvm.activemask", "i32", [], [])
    np.testing.assert_array_equal(found[0], -1)


HALVES = """
  %low = icmp ult i32 %t, 16
  br i1 %low, label %a, label %b1
a:
  %x = call i32 @llvm.nvvm.redux.sync.add(i32 %t, i32 65535)
  br label %join
b1:
  %y = call i32 @llvm.nvvm.redux.sync.add(i32 %t, i32 MASK)
  br label %join
join:
  %z = phi i32 [ %x, %a ], [ %y, %b1 ]
  %q = getelementptr i32, ptr addrspace(1) %p0, i32 %t
  store i32 %z, ptr addrspace(1) %q
"""


def test_masks_divide_a_warp():
    ir, out = kernel("cuda:sm_80", HALVES.replace("MASK", "-65536"), 1), np.zeros(32, np.int32)
    assert text_for_chip(ir, "cuda:sm_80")
    run(ir, "cuda:sm_80", [out])
    np.testing.assert_array_equal(out, np.repeat([120, 376], 16))
    message = (
        r"kernel k, block .*: threads 16 wait with a mask that leaves them out: .*16-31 wait at"
    )
    with pytest.raises(Error, match=message):
        run(kernel("cuda:sm_80", HALVES.replace("MASK", "-131072"), 1), "cuda:sm_80", [out])


def test_a_lane_that_is_not_in_the_mask_waits_forever():
    text = "  %x = call i32 @llvm.nvvm.redux.sync.add(i32 %t, i32 65535)"
    with pytest.raises(Error, match="threads 16-31 wait with a mask that leaves them out"):
        run(kernel("cuda:sm_80", text, 0), "cuda:sm_80", [])


def test_what_a_lane_that_left_would_have_said_is_a_nan():
    body = """
  %gone = icmp ugt i32 %t, 19
  br i1 %gone, label %out, label %on
out:
  ret void
on:
  %f = uitofp i32 %t to float
  %x = call float @llvm.nvvm.shfl.sync.down.f32(i32 -1, float %f, i32 4, i32 31)
  %q = getelementptr float, ptr addrspace(1) %p0, i32 %t
  store float %x, ptr addrspace(1) %q"""
    out = np.zeros(32, np.float32)
    run(kernel("cuda:sm_80", body, 1), "cuda:sm_80", [out])
    np.testing.assert_array_equal(out[:16], np.arange(4, 20))
    assert np.isnan(out[16:20]).all()


def test_a_warp_that_is_not_full():
    value = np.arange(20, dtype=np.int32)
    found = call_on(
        "cuda:sm_80", "nvvm.redux.sync.add", "i32", ["i32", "i32"], [value, FULL[:20]], threads=20
    )
    np.testing.assert_array_equal(found[0], 190)


# --- AMD: the ISA guides -------------------------------------------------------------------------

WAVES = ["hip:gfx942", "hip:gfx1100"]


def lanes_of(target):
    return 64 if "gfx9" in target else 32


@pytest.mark.parametrize("target", WAVES)
def test_permutes_through_memory(target):
    n = lanes_of(target)
    value, index = ints(n), ints(n, 0, 4 * n)
    found = call_on(target, "amdgcn.ds.bpermute", "i32", ["i32", "i32"], [index, value])[0]
    np.testing.assert_array_equal(found, value[index // 4])
    wanted = np.zeros(n, np.int32)
    for lane in range(n):
        wanted[index[lane] // 4] = value[lane]
    found = call_on(target, "amdgcn.ds.permute", "i32", ["i32", "i32"], [index, value])[0]
    np.testing.assert_array_equal(found, wanted)


DPP = {  # control -> lane that is read, or None
    0b00011011: lambda i, n: i // 4 * 4 + (3 - i % 4),  # quad_perm:[3,2,1,0]
    0x101: lambda i, n: i + 1 if i % 16 < 15 else None,  # row_shl:1
    0x118: lambda i, n: i - 8 if i % 16 >= 8 else None,  # row_shr:8
    0x124: lambda i, n: i // 16 * 16 + (i % 16 - 4) % 16,  # row_ror:4
    0x140: lambda i, n: i // 16 * 16 + 15 - i % 16,  # row_mirror
    0x141: lambda i, n: i // 8 * 8 + 7 - i % 8,  # row_half_mirror
}
DPP_OF = {
    "hip:gfx942": {
        0x138: lambda i, n: i - 1 if i else None,  # wave_shr:1
        0x134: lambda i, n: (i + 1) % n,  # wave_rol:1
        0x142: lambda i, n: i // 16 * 16 - 1 if i >= 16 else None,  # row_bcast:15
        0x143: lambda i, n: 31 if i >= 32 else None,  # row_bcast:31
        0x153: lambda i, n: i // 16 * 16 + 3,  # row_newbcast:3
    },
    "hip:gfx1100": {
        0x153: lambda i, n: i // 16 * 16 + 3,  # row_share:3
        0x165: lambda i, n: i // 16 * 16 + (i % 16 ^ 5),  # row_xmask:5
    },
}


@pytest.mark.parametrize("target", WAVES)
def test_dpp(target):
    n = lanes_of(target)
    old, value = ints(n), ints(n)
    for control, source in {**DPP, **DPP_OF[target]}.items():
        for rows, banks, bound in ((15, 15, 0), (15, 15, 1), (0xA, 0x3, 0)):
            wanted = old.copy()
            for i in range(n):
                read = source(i, n)
                if rows >> i // 16 & 1 and banks >> i // 4 % 4 & 1:
                    if read is not None:
                        wanted[i] = value[read]
                    elif bound:
                        wanted[i] = 0
            kinds = ["i32", "i32", *(f"i32 {x}" for x in (control, rows, banks))]
            kinds.append(f"i1 {str(bool(bound)).lower()}")
            first = (rows, banks, bound) == (15, 15, 0)
            found = call_on(
                target, "amdgcn.update.dpp.i32", "i32", kinds, [old, value], accept=first
            )[0]
            np.testing.assert_array_equal(found, wanted, f"{control:#x} {rows} {banks} {bound}")


@pytest.mark.parametrize("target", WAVES)
def test_swizzle(target):
    n = lanes_of(target)
    value, lane = ints(n), np.arange(n)
    for offset in (0x041F, 0x7C1F, 0x001E, 0x8000 | 0b00011011, 0x3C07):
        if offset & 0x8000:
            source = lane // 4 * 4 + (offset >> 2 * (lane % 4) & 3)
        else:
            inside = (lane & offset & 31 | offset >> 5 & 31) ^ offset >> 10 & 31
            source = lane & 32 | inside
        kinds = ["i32", f"i32 {offset}"]
        found = call_on(target, "amdgcn.ds.swizzle", "i32", kinds, [value])[0]
        np.testing.assert_array_equal(found, value[source])


@pytest.mark.parametrize("target", WAVES)
def test_lanes_and_ballots(target):
    n = lanes_of(target)
    value, lane = ints(n), np.arange(n)
    first = call_on(target, "amdgcn.readfirstlane.i32", "i32", ["i32"], [value])[0]
    np.testing.assert_array_equal(first, value[0])
    read = call_on(target, "amdgcn.readlane.i32", "i32", ["i32", "i32 21"], [value])[0]
    np.testing.assert_array_equal(read, value[21])
    p = (value & 1).astype(np.uint8)
    bits = sum(int(bit) << i for i, bit in enumerate(p))
    found = call_on(target, f"amdgcn.ballot.i{n}", f"i{n}", ["i1"], [p])[0]
    np.testing.assert_array_equal(found.view(f"u{n // 8}"), bits)
    mask, base = ints(n), ints(n, 0, 100)
    for half, shift in (("lo", 0), ("hi", 32)):
        below = ((1 << lane) - 1 >> shift & 0xFFFFFFFF) if n == 64 or not shift else 0 * lane
        count = [int(b & int(m) & 0xFFFFFFFF).bit_count() for b, m in zip(below, mask, strict=True)]
        name = f"amdgcn.mbcnt.{half}"
        found = call_on(target, name, "i32", ["i32", "i32"], [mask, base])[0]
        np.testing.assert_array_equal(found, base + count)
    size = call_on(target, "amdgcn.wavefrontsize", "i32", [], [])[0]
    np.testing.assert_array_equal(size, n)


@pytest.mark.parametrize("target", WAVES)
def test_wider_values_and_reductions(target):
    n = lanes_of(target)
    wide = RNG.integers(-(2**62), 2**62, n)
    found = call_on(target, "amdgcn.readlane.i64", "i64", ["i64", "i32 9"], [wide])[0]
    np.testing.assert_array_equal(found, wide[9])
    real = RNG.standard_normal(n).astype("f4")
    found = call_on(target, "amdgcn.readfirstlane.f32", "float", ["float"], [real])[0]
    np.testing.assert_array_equal(found, real[0])
    value, old = ints(n, 0, 1000), ints(n)
    kinds = ["i32 77", "i32 3", "i32"]
    found = call_on(target, "amdgcn.writelane.i32", "i32", kinds, [old])[0]
    np.testing.assert_array_equal(found, np.where(np.arange(n) == 3, 77, old))
    kinds = ["i32", *(f"i32 {x}" for x in (0x140, 15, 15)), "i1 true"]
    found = call_on(target, "amdgcn.mov.dpp.i32", "i32", kinds, [value])[0]
    np.testing.assert_array_equal(found, value.reshape(-1, 16)[:, ::-1].reshape(-1))
    for name, combine in (("add", np.add), ("umax", np.maximum), ("xor", np.bitwise_xor)):
        name = f"amdgcn.wave.reduce.{name}.i32"
        found = call_on(target, name, "i32", ["i32", "i32 0"], [value])[0]
        np.testing.assert_array_equal(found, combine.reduce(value))


def test_waves_of_64_on_rdna():
    """A function may ask for them; v_permlane64 then changes the halves."""
    ir = one_call("hip:gfx1100", "amdgcn.permlane64.i32", "i32", ["i32"])
    value, out = ints(64), np.zeros(64, np.int32)
    run(ir, "hip:gfx1100", [value, out], threads=64)
    np.testing.assert_array_equal(out, value)  # of two waves of 32: nothing happens
    ir = ir.replace(") {", ") #0 {") + 'attributes #0 = { "target-features"="+wavefrontsize64" }'
    assert "v_permlane64" in text_for_chip(ir, "hip:gfx1100")
    run(ir, "hip:gfx1100", [value, out], threads=64)
    np.testing.assert_array_equal(out, value[np.arange(64) ^ 32])


def test_permlanes_of_rdna():
    old, value, lane = ints(), ints(), np.arange(32)
    low, high = 0x76543210, 0x0FEDCBA9
    picks = np.array([(high << 32 | low) >> 4 * (i % 16) & 15 for i in range(32)])
    for name, row in (("permlane16", lane & 16), ("permlanex16", lane & 16 ^ 16)):
        kinds = ["i32", "i32", f"i32 {low}", f"i32 {high}", "i1 false", "i1 false"]
        found = call_on("hip:gfx1100", f"amdgcn.{name}.i32", "i32", kinds, [old, value])[0]
        np.testing.assert_array_equal(found, value[row + picks])


def test_permlane_swaps_of_cdna4():
    a, b, lane = ints(64), ints(64), np.arange(64)
    for row in (16, 32):
        odd = (lane & row) != 0
        first = np.where(odd, b[lane - row], a)
        second = np.where(odd, b, a[(lane + row) % 64])
        kinds = ["i32", "i32", "i1 false", "i1 false"]
        name = f"amdgcn.permlane{row}.swap"
        found = call_on("hip:gfx950", name, "{ i32, i32 }", kinds, [a, b])
        np.testing.assert_array_equal(found[0], first)
        np.testing.assert_array_equal(found[1], second)


def test_what_is_not_known_is_named():
    value = ints(64)
    with pytest.raises(TargetError, match="rotate or FFT"):
        call_on("hip:gfx942", "amdgcn.ds.swizzle", "i32", ["i32", "i32 57344"], [value])
