"""Arithmetic bodies of the primitives, in ops that no target turns into a call.

In: SSA values, scalars or n-D `vector<...>`, and the dtype's name. Out: arith, math and vector ops
at the current insertion point, and scf ops where a rare slow path deserves a branch:

    with ir.InsertionPoint(block), ir.Location.unknown():
        score = expand.emit("mul", [query, key], "float32", contract=True)
        weight = expand.emit("exp2", [score], "float32")
        half = expand.cast(weight, "float32", "bfloat16")

Nothing needs libm, compiler-rt, libdevice or ocml. Of `math` only `fma`, `trunc` and `sqrt` appear:
each is instructions on x86 with FMA, on NVPTX and on AMDGPU, provided that `convert-math-to-llvm`
runs before `convert-gpu-to-nvvm` and `-rocdl`, which would call libraries (and `dodeca-keep-sqrt`
between it and the former).

float16 and bfloat16 are computed in float32 and rounded once. Integers are signless here; the dtype
tells the sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import ml_dtypes
from mlir import ir
from mlir.dialects import arith, scf, vector
from mlir.dialects import math as mlir_math

from ..dialect.dtypes import DTYPES, DType
from ..dialect.dtypes import dtype as as_dtype
from ..dialect.ops import check_bitcast
from .lanes import Lanes, any_lane, branch, fma, horner, known_number, reshape, splat, where

# The largest error, rounded up, in units in the last place of the exact result: of all float32 and
# 16-bit floats, and of 20 million float64 of all magnitudes (against x87's 64 bits). What is not
# listed is exact or rounded correctly. (The tests hold these numbers: tests/ulp.py.)
#
#           float32  float64  16 bits
#   exp2       0.88     0.90     0.51
#   log2       1.32     1.05     0.51
#   sin        1.50     1.50     0.51

_ELEMENTS = {name: row.mlir.removeprefix("u") for name, row in DTYPES.items()}  # signless


# --- float formats -------------------------------------------------------------------------------


def _widen(x: Lanes, dtype: str) -> Lanes:
    """float16 and bfloat16 as float32, exactly; the rest as it is.

    By integers for bfloat16: arith.extf and truncf on it become library calls on some targets.
    """
    if dtype not in ("float16", "bfloat16"):
        return x
    number = known_number(x.value)
    if number is not None:  # stays known
        return splat(number, "f32", x.shape)
    return x.resize(32) if dtype == "float16" else (x.bits().resize(32) << 16).as_float()


def _round(x: Lanes, dtype: str, exact: bool = False) -> Lanes:
    """float32 or float64 rounded to nearest even as this dtype; `exact`: nothing is lost."""
    if x.width == 64 and DTYPES[dtype].bits == 16:
        x = _round_to_odd(x)
    if dtype != "bfloat16":
        return x.resize(DTYPES[dtype].bits)
    bits = x.bits()
    top = bits >> 16
    if not exact:
        rounded = (bits + ((top & 1) + 0x7FFF)) >> 16
        top = where(x.ne(x), top | 0x40, rounded)  # a NaN stays one, and quiet
    return top.resize(16).reinterpret("bf16")


def _round_to_odd(x: Lanes) -> Lanes:
    """float64 as float32, an inexact result with an odd last bit.

    Rounding this to 22 bits or fewer gives what rounding the float64 at once would have given
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd", 2008).
    """
    nearest = x.resize(32)
    back = nearest.resize(64)
    outward = (back.magnitude() > x.magnitude()).resize(32)
    inexact = (back < x) | (back > x)
    return where(inexact, (nearest.bits() - outward) | 1, nearest.bits()).as_float()


# --- exp2, log2, sin -----------------------------------------------------------------------------
#
# Coefficients by width. Each set is a minimax fit of the relative error (Remez exchange in mpmath,
# 45 digits) on the stated interval, rounded to the format one after another, lowest power first,
# with the rest fitted again after each. The bounds are those of the rounded polynomials.

_EXP2 = {  # (2^f - 1) / f on [-1/2, 1/2]: then 1 + f * this is within 2^-28.3 and 2^-57.7
    32: (0.6931472, 0.24022648, 0.0555036, 0.009618506, 0.0013390807, 0.00015326454),
    64: (0.6931471805599453, 0.24022650695910108, 0.05550410866482172, 0.009618129107601597,
         0.0013333558146546706, 0.00015403530449046904, 1.525273363340118e-05,
         1.3215438831116483e-06, 1.0178160323724941e-07, 7.073233654000935e-09,
         4.4388180814375725e-10),
}  # fmt: skip

_LOG2 = {  # log2(1 + f) / f on [sqrt(1/2) - 1, sqrt(2) - 1]: within 2^-25.0 and 2^-55.7
    32: (1.442695, -0.7213474, 0.48090896, -0.36070073, 0.28795388, -0.23901352, 0.2154763,
         -0.20678179, 0.12583649),
    64: (1.4426950408889634, -0.7213475204444817, 0.48089834696301015, -0.3606737602222028,
         0.2885390081736125, -0.2404491734983708, 0.2060992918826532, -0.18033687796857548,
         0.16029943362029783, -0.14426962842293747, 0.13115463383630632, -0.12022075301898823,
         0.11096206776840868, -0.10311427134163405, 0.09644568094261267, -0.08963317268590436,
         0.08190675762085177, -0.08100861570546206, 0.09284556059135916, -0.08751775951126861,
         0.039432638692560175),
}  # fmt: skip

_SIN = {  # (sin r / r - 1) / r^2 in powers of r^2, |r| <= 0.79 and 0.7855: 2^-32.4 and 2^-57.8
    32: (-0.16666667, 0.008333379, -0.00019853014, 2.8314842e-06),
    64: (-0.1666666666666663, 0.00833333333332184, -0.00019841269829358406, 2.7557313538427074e-06,
         -2.505073436924566e-08, 1.589543180777454e-10),
}  # fmt: skip

_COS = {  # (cos r - 1) / r^2 in powers of r^2 on the same intervals: 2^-32.8 and 2^-63.9
    32: (-0.5, 0.041666646, -0.0013887304, 2.44312e-05),
    64: (-0.5, 0.041666666666666595, -0.0013888888888873338, 2.480158728899754e-05,
         -2.7557314215331105e-07, 2.087570512086567e-09, -1.1358733132080553e-11),
}  # fmt: skip

_HALF_PI = {  # pi / 2 as a sum of three floats
    32: (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    64: (math.pi / 2, 6.123233995736766e-17, -1.4973849048591698e-33),
}
_NEAR = {32: 2.0**17, 64: 2.0**31}  # |x| up to which they are enough to reduce x


def _magic(x: Lanes) -> float:
    """Added to a small number, rounds it to an integer in the low mantissa bits."""
    return 1.5 * 2.0**x.format.nmant


def _exp2(_: DType, x: Lanes) -> Lanes:
    """2^x = 2^fraction * 2^a * 2^b; in two nearly equal steps it underflows gradually.

    With n = a + b, the low bits of x + magic are n + 2 bias, the sum of the exponent fields of 2^a
    and 2^b; half of it, rounded down, is the first one's.
    """
    mantissa, highest = x.format.nmant, x.format.maxexp
    magic, lowest = _magic(x) + 2 * (highest - 1), -highest - mantissa
    x = where(x > highest, highest, x)  # in this order a NaN passes
    x = where(x < lowest, lowest, x)
    shifted = x + magic
    power = horner(x - (shifted - magic), [1.0, *_EXP2[x.width]])
    sum_ = shifted.bits() << mantissa
    first = (shifted.bits() << (mantissa - 1)) & -(1 << mantissa)
    return (power * first.as_float()) * (sum_ - first).as_float()


def _endless_bits(x: Lanes) -> Lanes:
    """The bits of x > 0; a subnormal gets an exponent field below 1, as if it were normal."""
    mantissa, tiny = x.format.nmant, float(x.format.smallest_normal)
    lifted = (x * math.ldexp(1.0, mantissa)).bits() - (mantissa << mantissa)
    return where(x < tiny, lifted, x.bits())


def _log2(_: DType, x: Lanes) -> Lanes:
    """e + log2(1 + fraction) with x = 2^e (1 + fraction), 1 + fraction in [sqrt(1/2), sqrt(2))."""
    mantissa, bits = x.format.nmant, _endless_bits(x)
    exponent = (bits - x.like(math.sqrt(0.5)).bits()).shift_signed(mantissa)
    fraction = (bits - (exponent << mantissa)).as_float() - 1.0
    whole = exponent.resize(32).converted(arith.sitofp, x.element)
    first, *others = _LOG2[x.width]
    # The leading term apart from the others, and `whole` last: each saves half an ulp.
    tail = fraction * (fraction * horner(fraction, others))
    result = fma(fraction, first, tail) + whole
    result = where(x < math.inf, result, x)
    return where(x > 0.0, result, where(x.eq(0.0), -math.inf, x.like(math.nan)))


def _sin(dtype: DType, x: Lanes) -> Lanes:
    """sin x = ±sin r or ±cos r with x = n pi/2 + r.

    n pi/2 is subtracted in three parts (Cody and Waite); the first difference is exact, and the
    error of the second is kept, so that r is rounded once.
    """
    high, middle, low = _HALF_PI[x.width]
    shifted = fma(x, 2.0 / math.pi, _magic(x))
    n = shifted - _magic(x)
    rest = fma(n, -high, x)
    part = n * -middle
    near = rest + part
    error = (part - (near - rest)) + fma(n, -middle, -part)
    r, quadrant = near + fma(n, -low, error), shifted.bits()
    if float(ml_dtypes.finfo(dtype.numpy).max) > _NEAR[x.width]:
        # in a branch, since such arguments are rare
        values = [r.value, quadrant.value]
        anew = partial(_reduce_far_lanes, x, values) if x.shape else partial(_reduce_far, x)
        far = any_lane(x.magnitude() > _NEAR[x.width])
        r, quadrant = map(Lanes, branch(far, anew, values))

    odd = (quadrant << (x.width - 1)) < 0
    sign = (quadrant << (x.width - 2)) & (1 << (x.width - 1))
    square = r * r
    leading = (where(odd, 1.0, r).bits() ^ sign).as_float()
    series = where(odd, horner(square, _COS[x.width]), horner(square, _SIN[x.width]))
    result = fma(leading * square, series, leading)
    return where(x.eq(0.0), x, result)  # the sums above lost the sign of -0.0


def _reduce_far_lanes(x: Lanes, near: Sequence[ir.Value]) -> list[ir.Value]:
    """`near`, r and the quadrant, with the lanes where |x| > _NEAR reduced anew, one by one.

    So one scalar body serves a tile of any size.
    """
    count = math.prod(x.shape)
    flat_x = reshape(x.value, [count])
    start, stop, step = (arith.constant(ir.IndexType.get(), i) for i in (0, count, 1))
    loop = scf.ForOp(start, stop, step, [reshape(value, [count]) for value in near])
    at = [loop.induction_variable], [ir.ShapedType.get_dynamic_size()]
    with ir.InsertionPoint(loop.body):
        reduced = list(loop.inner_iter_args)
        one = Lanes(vector.extract(flat_x, *at))

        def reduce_one() -> list[ir.Value]:
            pairs = zip(_reduce_far(one), reduced, strict=True)
            return [vector.insert(new, old, *at) for new, old in pairs]

        scf.YieldOp(branch((one.magnitude() > _NEAR[x.width]).value, reduce_one, reduced))
    return [reshape(result, x.shape) for result in loop.results]


def _reduce_far(x: Lanes) -> list[ir.Value]:
    """r and n, mod 4, with x = n pi/2 + r, for one finite |x| > _NEAR; r is NaN for an infinity.

    Payne and Hanek ("Radian reduction for trigonometric functions", 1983) in 64-bit integers: with
    |x| = m 2^k, only 192 bits of 1/pi matter for |x| 2/pi mod 4, and which ones k tells. They are
    picked by selects, since a table would need memory.
    """
    bits = x.resize(64).bits()
    m = (bits & ((1 << 52) - 1)) | (1 << 52)
    exponent = (bits >> 52) & 0x7FF
    # The window starts at the bit of 1/pi that is worth 2 here; those before it count whole turns.
    start = exponent - (1023 - 11)
    count = (x.format.maxexp + 11) // 64 + 4
    words = [m.like(int(word, 16)) for word in _INVERSE_PI.split()[:count]]
    window, shift = _select_window(words, start >> 6, 4), start & 63
    back = shift.like(63) - shift  # and one more, since a shift by 64 would be poison
    w0, w1, w2 = ((a << shift) | ((b >> 1) >> back) for a, b in pairwise(window))
    low, middle = map(Lanes, arith.MulUIExtendedOp(m.value, w1.value).results)
    carried = Lanes(arith.MulUIExtendedOp(m.value, w2.value).high)
    sum_ = low + carried
    high = middle + m * w0 + sum_.below(low).resize(64)
    # high:sum_ is |x| 2/pi mod 4 in units of 2^-126: an integer n and a rest in [-1/2, 1/2).
    n = (high + (1 << 61)) >> 62
    r = _times_half_pi((high << 2) | (sum_ >> 62), sum_ << 2)
    negative = x < 0.0
    n = where(negative, n.like(0) - n, n).resize(x.width)
    r = where(exponent.eq(0x7FF), math.nan, where(negative, -r, r))
    return [r.resize(x.width).value, n.value]


# The first 1216 bits of 1/pi's binary fraction in 64-bit words, after one word of zeros.
_INVERSE_PI = """
    0000000000000000 517cc1b727220a94 fe13abe8fa9a6ee0 6db14acc9e21c820 ff28b1d5ef5de2b0
    db92371d2126e970 0324977504e8c90e 7f0ef58e5894d39f 74411afa975da242 74ce38135a2fbf20
    9cc8eb1cc1a99cfa 4e422fc5defc941d 8ffc4bffef02cc07 f79788c5ad05368f b69b3f6793e584db
    a7a31fb34f2ff516 ba93dd63f5f2f8bd 9e839cfbc5294975 35fdafd88fc6ae84 2b0198237e3db5d5
"""


def _select_window(words: Sequence[Lanes], start: Lanes, count: int) -> Sequence[Lanes]:
    """words[start : start + count] for a start known at run time, by a barrel shifter."""
    for level in reversed(range((len(words) - count).bit_length())):
        step = 1 << level
        bit = ((start >> level) & 1).ne(0)
        words = [
            where(bit, words[i + step], words[i]) if i + step < len(words) else words[i]
            for i in range(min(count + step - 1, len(words)))
        ]
    return words[:count]


def _times_half_pi(high: Lanes, low: Lanes) -> Lanes:
    """pi/2 * high:low, a signed fraction in units of 2^-128, with about one rounding to float64.

    Four 32-bit limbs convert exactly, so leading zeros left by cancellation cost nothing.
    """
    mask = (1 << 32) - 1
    limbs = (high.shift_signed(32), high & mask, low >> 32, low & mask)
    a, b, c, d = (
        limb.converted(arith.sitofp, "f64") * 2.0 ** (-32 * i) for i, limb in enumerate(limbs, 1)
    )
    leading = a + b
    trailing = (b - (leading - a)) + (c + d)
    fraction = leading + trailing
    trailing = trailing - (fraction - leading)
    half_pi, half_pi_rest, _ = _HALF_PI[64]
    result = fraction * half_pi
    error = fma(fraction, half_pi, -result)
    return result + (error + fma(fraction, half_pi_rest, trailing * half_pi))


# --- mod and max ---------------------------------------------------------------------------------


def _mod_float(_: DType, x: Lanes, y: Lanes) -> Lanes:
    """C's fmod."""
    mantissa, exponent = math.frexp(abs(known_number(y.value) or 0.0))
    if mantissa == 0.5 and abs(exponent - 1) < x.format.maxexp - 1:
        return _mod_power_of_two(x, exponent - 1)
    a, b = x.magnitude(), y.magnitude()
    valid = (a < math.inf) & (b > 0.0)
    rest = _mod_loop(where(valid, a, 0.0), where(valid, b, 1.0))
    return where(valid, rest.with_sign_of(x), math.nan)


def _mod_power_of_two(x: Lanes, exponent: int) -> Lanes:
    """x - trunc(x / 2^exponent) * 2^exponent, every step exact."""
    quotient = x if exponent == 0 else x * math.ldexp(1.0, -exponent)
    whole = Lanes(mlir_math.trunc(quotient.value))
    rest = x - (whole if exponent == 0 else whole * math.ldexp(1.0, exponent))
    if exponent < 0:  # a large finite x overflows the quotient, but then nothing is left of x
        rest = where(quotient.magnitude() < math.inf, rest, x * 0.0)
    return rest.with_sign_of(x)


def _mod_loop(a: Lanes, b: Lanes) -> Lanes:
    """a mod b for finite a >= 0 and b > 0, by exact partial remainders.

    Each turn subtracts trunc(a / B) * B, where B = b * 2^n is b moved up until the quotient has at
    most `digits` + 1 bits. Then the remainder is a multiple of B's last place and below B in
    magnitude, so the fma is exact; a quotient that was rounded up to the next integer leaves it
    negative, and B is added back. A turn removes `digits` bits; most often one is enough.
    """
    mantissa, bias = b.format.nmant, b.format.maxexp - 1
    digits, exponent = mantissa - 1, _endless_bits(b).shift_signed(mantissa)

    kind = a.value.type
    loop = scf.WhileOp([kind], [a.value])
    before, after = loop.before.blocks.append(kind), loop.after.blocks.append(kind)
    with ir.InsertionPoint(before):
        rest = Lanes(before.arguments[0])
        scf.ConditionOp(any_lane(rest >= b), [rest.value])
    with ir.InsertionPoint(after):
        rest = Lanes(after.arguments[0])
        n = (rest.bits() >> mantissa) - exponent - digits
        n = where(n > 0, n, 0)
        moved = b
        for part in (n >> 1, n - (n >> 1)):  # 2^n alone can overflow
            moved = moved * ((part + bias) << mantissa).as_float()
        left = fma(-Lanes(mlir_math.trunc((rest / moved).value)), moved, rest)
        left = where(left < 0.0, left + moved, left)
        scf.YieldOp([where(rest >= b, left, rest).value])
    return Lanes(loop.results[0])


def _mod_integer(dtype: DType, a: Lanes, b: Lanes) -> Lanes:
    """C's %, and 0 where the machine's division traps: by zero, and the minimum by -1."""
    signed = dtype.kind == "int"
    safe = where((b + 1).below(2) if signed else b.eq(0), 1, b)
    return Lanes((arith.remsi if signed else arith.remui)(a.value, safe.value))


def _max_float(_: DType, a: Lanes, b: Lanes) -> Lanes:
    """NaN if either is. Of two zeros, either: that halves the instructions on x86."""
    return Lanes(arith.maximumf(a.value, b.value, fastmath=arith.FastMathFlags.nsz))


def _max_integer(dtype: DType, a: Lanes, b: Lanes) -> Lanes:
    return Lanes((arith.maxsi if dtype.kind == "int" else arith.maxui)(a.value, b.value))


def _less_integer(dtype: DType, a: Lanes, b: Lanes) -> Lanes:
    return a < b if dtype.kind == "int" else a.below(b)


# --- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Body:
    """How one primitive is expanded for each kind of dtype; None where it is not defined.

    Each gets the dtype and the operands, `floats` in the format to compute in; `exact`: its result
    needs no rounding to go back to 16 bits. `bits` gets operands of any dtype, as integers.
    """

    floats: Callable[..., Lanes] | None = None
    integers: Callable[..., Lanes] | None = None
    booleans: Callable[..., Lanes] | None = None
    exact: bool = False
    bits: Callable[..., Lanes] | None = None


BODIES: dict[str, Body] = {
    "exp2": Body(_exp2),
    "log2": Body(_log2),
    "sin": Body(_sin),
    "sqrt": Body(lambda _, x: Lanes(mlir_math.sqrt(x.value))),
    "recip": Body(lambda _, x: x.like(1.0) / x),
    "div": Body(lambda _, a, b: a / b),
    "add": Body(lambda _, a, b: a + b, lambda _, a, b: a + b, lambda _, a, b: a | b),
    "mul": Body(lambda _, a, b: a * b, lambda _, a, b: a * b, lambda _, a, b: a & b),
    # of bools, x mod 1 is 0, and so is x mod 0
    "mod": Body(_mod_float, _mod_integer, lambda _, a, b: a.like(False), exact=True),
    "less_than": Body(lambda _, a, b: a < b, _less_integer, lambda _, a, b: (a ^ True) & b),
    "max": Body(_max_float, _max_integer, lambda _, a, b: a | b, exact=True),
    "select": Body(bits=where),  # x86 takes a select of bfloat16 vectors apart into branches
}


def emit(
    name: str, operands: Sequence[ir.Value], dtype: str, *, contract: bool = False
) -> ir.Value:
    """The result of one primitive on operands of this dtype, all scalars or vectors of one shape.

    `select` takes an i1 condition first; `less_than` gives i1, every other primitive `dtype`.
    `contract` lets LLVM fuse this primitive's float add or mul with its neighbours.
    """
    kind, body, lanes = as_dtype(dtype), BODIES[name], [Lanes(x) for x in operands]
    for position, x in enumerate(lanes):
        wanted = _ELEMENTS["bool" if body.bits is not None and position == 0 else dtype]
        if (x.element, x.shape) != (wanted, lanes[-1].shape):
            raise TypeError(
                f"{name}: operand {position} should hold {wanted} in the shape "
                f"{list(lanes[-1].shape)}, but is {x.value.type}"
            )
    if body.bits is not None:
        return body.bits(*(x.bits() for x in lanes)).reinterpret(lanes[-1].element).value
    kinds = {"float": body.floats, "bool": body.booleans}
    expand = kinds.get(kind.kind, body.integers)
    if expand is None:
        raise TypeError(f"{name}: not defined on {dtype}")
    result = expand(kind, *(_widen(x, dtype) for x in lanes))
    if not result.is_float:
        return result.value
    if contract and name in ("add", "mul"):
        flag = ir.Attribute.parse("#arith.fastmath<contract>")
        result.value.owner.attributes["fastmath"] = flag
    return _round(result, dtype, body.exact).value


# --- casts ---------------------------------------------------------------------------------------


def cast(value: ir.Value, source: str, target: str) -> ir.Value:
    """The value in another dtype.

    Float to float rounds to nearest even, integer to float too; float to integer truncates toward
    zero and saturates, NaN gives 0; integer to integer wraps; to bool is `!= 0` (NaN is true).
    """
    if source == target:
        return value
    x = _widen(Lanes(value), source)
    if target == "bool":
        return x.ne(0).value
    if x.is_float:
        return (_round if DTYPES[target].is_float else _to_integer)(x, target).value
    if DTYPES[target].is_float:
        return _from_integer(x, source, target).value
    return x.resize(DTYPES[target].bits, DTYPES[source].kind == "int").value


def _to_integer(x: Lanes, target: str) -> Lanes:
    """By hand, because arith.fptosi out of range is poison."""
    low, width = DTYPES[target].lowest, DTYPES[target].bits
    end = low + (1 << width)
    inside = (x > low) & (x < end)
    # 8 bits by way of 32, which is what the machines convert to
    number = where(inside, x, 0.0).converted(arith.fptosi, f"i{max(width, 32)}").resize(width)
    return where(x >= end, end - 1, where(x <= low, low, number))


def _from_integer(x: Lanes, source: str, target: str) -> Lanes:
    """A single rounding, though float16 and bfloat16 go by way of a wider format.

    float16: what float32 does not hold exactly is beyond float16's range anyway.
    bfloat16: by a float64 that holds the integer exactly or, for 64 bits, agrees with it in all but
    the lowest 12 bits, of which only "not all zero" matters to the rounding.
    """
    wide = "f64" if target == "float64" or (target == "bfloat16" and x.width >= 32) else "f32"
    if target == "bfloat16" and x.width == 64:
        rest = x & 0xFFF
        sticky = (x - rest) | where(rest.eq(0), rest, 0x800)
        x = where((x + (1 << 53)).below(1 << 54), x, sticky)
    op = arith.sitofp if DTYPES[source].kind == "int" else arith.uitofp
    return _round(x.converted(op, wide), target)


def bitcast(value: ir.Value, source: str, target: str) -> ir.Value:
    """The same bits as another dtype of the same width."""
    check_bitcast(DTYPES[source], DTYPES[target])
    return Lanes(value).reinterpret(_ELEMENTS[target]).value


def constant(value: float, dtype: str, shape: tuple[int, ...]) -> ir.Value:
    """A constant, the same in every lane; a scalar if the shape is ()."""
    return splat(value, _ELEMENTS[dtype], shape).value
