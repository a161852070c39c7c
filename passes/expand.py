"""Arithmetic bodies of the primitives, in ops that no target turns into a call.

In: SSA values, scalars or n-D `vector<...>`, and the dtype's name. Out: arith, math and vector ops
at the current insertion point, and scf ops where a rare slow path deserves a branch. Of `math` only
`fma`, `trunc` and `sqrt` appear: on x86 with FMA, NVPTX and AMDGPU each becomes instructions, as
long as `convert-math-to-llvm` runs before `convert-gpu-to-nvvm`/`-rocdl`, which would call libdevice
and ocml (and on NVPTX `keep_sqrt` between the two). Nothing needs libm, compiler-rt, libdevice or
ocml:

    with ir.InsertionPoint(block), ir.Location.unknown():
        score = expand.emit("mul", [query, key], "float32", contract=True)
        weight = expand.emit("exp2", [score], "float32")
        half = expand.cast(weight, "float32", "bfloat16")

float16 and bfloat16 are computed in float32 and rounded once. Integers are signless here; the dtype
tells the sign. `ULP` is the largest error, in units in the last place of the result, measured for
each expansion against numpy in float64 (float32: every 7th float) and mpmath (float64).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, scf, vector
from mlir.dialects import math as mlir_math

# Measured maxima, rounded up. Ops that are not listed are correctly rounded or exact.
ULP = {
    ("exp2", "float32"): 0.81,
    ("log2", "float32"): 1.30,
    ("sin", "float32"): 1.30,
    ("exp2", "float64"): 0.85,
    ("log2", "float64"): 1.30,
    ("sin", "float64"): 1.30,
    **{(name, dtype): 0.51 for name in ("exp2", "log2", "sin") for dtype in ("float16", "bfloat16")},
}

_ELEMENTS: dict[str, Callable[[], ir.Type]] = {
    "float32": ir.F32Type.get,
    "float16": ir.F16Type.get,
    "bfloat16": ir.BF16Type.get,
    "float64": ir.F64Type.get,
    "int8": lambda: ir.IntegerType.get_signless(8),
    "uint8": lambda: ir.IntegerType.get_signless(8),
    "int32": lambda: ir.IntegerType.get_signless(32),
    "int64": lambda: ir.IntegerType.get_signless(64),
    "bool": lambda: ir.IntegerType.get_signless(1),
}
_WIDTH = {"float32": 32, "float16": 16, "bfloat16": 16, "float64": 64, "bool": 1}
_WIDTH |= {"int8": 8, "uint8": 8, "int32": 32, "int64": 64}
_FLOATS = ("float32", "float16", "bfloat16", "float64")
_INTEGERS = ("int8", "uint8", "int32", "int64")


# --- values with operators -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Lanes:
    """An SSA value with Python operators, so that an expansion reads like its formula.

    A plain number beside it becomes a constant of its type. Comparisons are signed, and false on
    NaN except `ne`; `>>` is logical.
    """

    value: ir.Value

    @property
    def element(self) -> ir.Type:
        kind = self.value.type
        return kind.element_type if isinstance(kind, ir.VectorType) else kind

    @property
    def shape(self) -> tuple[int, ...]:
        kind = self.value.type
        return tuple(kind.shape) if isinstance(kind, ir.VectorType) else ()

    @property
    def is_float(self) -> bool:
        return not isinstance(self.element, ir.IntegerType)

    @property
    def width(self) -> int:
        kind = self.element
        return ir.FloatType(kind).width if self.is_float else ir.IntegerType(kind).width

    def like(self, number: Lanes | float) -> Lanes:
        return number if isinstance(number, Lanes) else _constant(number, self.element, self.shape)

    def typed(self, element: ir.Type) -> ir.Type:
        """The type of as many lanes of another element."""
        return ir.VectorType.get(self.shape, element) if self.shape else element

    def __add__(self, other: Lanes | float) -> Lanes:
        op = arith.addf if self.is_float else arith.addi
        return Lanes(op(self.value, self.like(other).value))

    def __sub__(self, other: Lanes | float) -> Lanes:
        op = arith.subf if self.is_float else arith.subi
        return Lanes(op(self.value, self.like(other).value))

    def __mul__(self, other: Lanes | float) -> Lanes:
        op = arith.mulf if self.is_float else arith.muli
        return Lanes(op(self.value, self.like(other).value))

    def __truediv__(self, other: Lanes | float) -> Lanes:
        return Lanes(arith.divf(self.value, self.like(other).value))

    def __neg__(self) -> Lanes:
        return Lanes(arith.negf(self.value))

    def __and__(self, other: Lanes | int) -> Lanes:
        return Lanes(arith.andi(self.value, self.like(other).value))

    def __or__(self, other: Lanes | int) -> Lanes:
        return Lanes(arith.ori(self.value, self.like(other).value))

    def __xor__(self, other: Lanes | int) -> Lanes:
        return Lanes(arith.xori(self.value, self.like(other).value))

    def __lshift__(self, other: Lanes | int) -> Lanes:
        return Lanes(arith.shli(self.value, self.like(other).value))

    def __rshift__(self, other: Lanes | int) -> Lanes:
        return Lanes(arith.shrui(self.value, self.like(other).value))

    def shift_signed(self, places: int) -> Lanes:
        return Lanes(arith.shrsi(self.value, self.like(places).value))

    def _compare(self, floats: int, integers: int, other: Lanes | float) -> Lanes:
        op, predicate = (arith.cmpf, floats) if self.is_float else (arith.cmpi, integers)
        return Lanes(op(predicate, self.value, self.like(other).value))

    def __lt__(self, other: Lanes | float) -> Lanes:
        return self._compare(arith.CmpFPredicate.OLT, arith.CmpIPredicate.slt, other)

    def __le__(self, other: Lanes | float) -> Lanes:
        return self._compare(arith.CmpFPredicate.OLE, arith.CmpIPredicate.sle, other)

    def __gt__(self, other: Lanes | float) -> Lanes:
        return self._compare(arith.CmpFPredicate.OGT, arith.CmpIPredicate.sgt, other)

    def __ge__(self, other: Lanes | float) -> Lanes:
        return self._compare(arith.CmpFPredicate.OGE, arith.CmpIPredicate.sge, other)

    def eq(self, other: Lanes | float) -> Lanes:
        return self._compare(arith.CmpFPredicate.OEQ, arith.CmpIPredicate.eq, other)

    def ne(self, other: Lanes | float) -> Lanes:
        return self._compare(arith.CmpFPredicate.UNE, arith.CmpIPredicate.ne, other)

    def below(self, other: Lanes | int) -> Lanes:
        """Unsigned <."""
        return self._compare(-1, arith.CmpIPredicate.ult, other)

    def reinterpret(self, element: ir.Type) -> Lanes:
        if element == self.element:
            return self
        return Lanes(arith.bitcast(self.typed(element), self.value))

    def bits(self) -> Lanes:
        return self.reinterpret(ir.IntegerType.get_signless(self.width))

    def as_float(self) -> Lanes:
        return self.reinterpret(ir.F32Type.get() if self.width == 32 else ir.F64Type.get())

    def magnitude(self) -> Lanes:
        """|x| of a float."""
        return (self.bits() & ((1 << (self.width - 1)) - 1)).reinterpret(self.element)

    def resize(self, width: int, signed: bool) -> Lanes:
        """The integer with more or fewer bits; new ones repeat the sign if signed."""
        if width == self.width:
            return self
        op = arith.trunci if width < self.width else arith.extsi if signed else arith.extui
        return Lanes(op(self.typed(ir.IntegerType.get_signless(width)), self.value))

    def converted(self, op: Callable[..., ir.Value], element: ir.Type) -> Lanes:
        """One of arith's float or integer conversions."""
        return Lanes(op(self.typed(element), self.value))


def where(condition: Lanes, yes: Lanes | float, no: Lanes | float) -> Lanes:
    """Lanewise select; at most one of the branches is a plain number."""
    if isinstance(yes, Lanes):
        no = yes.like(no)
    else:
        assert isinstance(no, Lanes)
        yes = no.like(yes)
    return Lanes(arith.select(condition.value, yes.value, no.value))


def fma(a: Lanes, b: Lanes | float, c: Lanes | float) -> Lanes:
    """a * b + c, rounded once."""
    return Lanes(mlir_math.fma(a.value, a.like(b).value, a.like(c).value))


def horner(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    """The polynomial with these coefficients, lowest power first, by fused multiply-adds."""
    result = x.like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result


def _constant(number: float, element: ir.Type, shape: Sequence[int]) -> Lanes:
    attribute: ir.Attribute
    if isinstance(element, ir.IntegerType):
        width = ir.IntegerType(element).width
        wrapped = int(number) & ((1 << width) - 1)
        signed = wrapped - (1 << width) if wrapped >> (width - 1) and width > 1 else wrapped
        attribute = ir.IntegerAttr.get(element, signed)
    else:
        attribute = ir.FloatAttr.get(element, float(number))
    if not shape:
        return Lanes(arith.ConstantOp(element, attribute).result)
    kind = ir.VectorType.get(shape, element)
    splat = ir.DenseElementsAttr.get_splat(kind, attribute)
    return Lanes(arith.ConstantOp(kind, splat).result)


def _splat_of(value: ir.Value) -> float | None:
    """The number that every lane of the value is known to be, if it is a constant."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    if owner.name == "vector.broadcast":
        return _splat_of(owner.operands[0])
    if owner.name != "arith.constant":
        return None
    attribute = owner.attributes["value"]
    if isinstance(attribute, ir.DenseElementsAttr):
        dense = ir.DenseElementsAttr(attribute)
        if not dense.is_splat:
            return None
        attribute = dense.get_splat_value()
    return attribute.value if isinstance(attribute, ir.FloatAttr) else None


def _flat(value: ir.Value) -> ir.Value:
    """The same vector in one dimension."""
    return _shaped(value, [math.prod(ir.VectorType(value.type).shape)])


def _shaped(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """The same vector in this shape."""
    kind = ir.VectorType.get(shape, ir.VectorType(value.type).element_type)
    return value if kind == value.type else vector.shape_cast(kind, value)


def _any(condition: Lanes) -> ir.Value:
    if not condition.shape:
        return condition.value
    return vector.reduction(
        condition.element, vector.CombiningKind.OR, _flat(condition.value)
    )


# --- float formats -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """A binary format of IEEE 754 that expansions compute in."""

    width: int
    mantissa: int

    @property
    def bias(self) -> int:
        return (1 << (self.width - self.mantissa - 2)) - 1

    @property
    def sign(self) -> int:
        return 1 << (self.width - 1)

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return math.ldexp(1.0, 1 - self.bias)

    @property
    def magic(self) -> float:
        """Added to a small number, rounds it to an integer that stands in the low mantissa bits."""
        return 1.5 * math.ldexp(1.0, self.mantissa)


FLOAT32 = Format(32, 23)
FLOAT64 = Format(64, 52)


def _format(dtype: str) -> Format:
    """The format that a float dtype computes in."""
    return FLOAT64 if dtype == "float64" else FLOAT32


def _widen(x: Lanes, dtype: str) -> Lanes:
    """float16 and bfloat16 as float32, exactly; the rest as it is.

    By integers for bfloat16: arith.extf and truncf on it become library calls on some targets.
    """
    if dtype == "bfloat16":
        return (x.bits().resize(32, signed=False) << 16).as_float()
    if dtype == "float16":
        return x.converted(arith.extf, ir.F32Type.get())
    return x


def _narrow(x: Lanes, dtype: str, exact: bool = False) -> Lanes:
    """float32 rounded to nearest even as float16 or bfloat16; the rest as it is."""
    if dtype == "float16":
        return x.converted(arith.truncf, ir.F16Type.get())
    if dtype != "bfloat16":
        return x
    bits = x.bits()
    top = bits >> 16
    if not exact:
        rounded = (bits + ((top & 1) + 0x7FFF)) >> 16
        top = where(x.ne(x), top | 0x40, rounded)  # a NaN stays one, and quiet
    return top.resize(16, signed=False).reinterpret(ir.BF16Type.get())


def _to_odd_float32(x: Lanes) -> Lanes:
    """float64 as float32, where an inexact result has an odd last bit.

    Rounding this to 22 bits or fewer gives what rounding the float64 at once would have given
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd", 2008).
    """
    nearest = x.converted(arith.truncf, ir.F32Type.get())
    back = nearest.converted(arith.extf, ir.F64Type.get())
    inexact = (back < x) | (back > x)
    outward = (back.magnitude() > x.magnitude()).resize(32, signed=False)
    odd = (nearest.bits() - outward) | 1
    return where(inexact, odd, nearest.bits()).as_float()


# --- exp2, log2, sin -----------------------------------------------------------------------------
#
# Coefficients: weighted minimax fits (Remez exchange in mpmath, 45 digits) on the stated interval,
# weighted for relative error; then rounded to the format one after another, lowest power first, with
# the rest fitted again after each. The bound in each comment is that of the rounded polynomial.

_EXP2 = {  # (2^f - 1) / f on [-1/2, 1/2]; 1 + f * this is within 2^-28.3 and 2^-57.7
    FLOAT32: (0.6931472, 0.24022648, 0.0555036, 0.009618506, 0.0013390807, 0.00015326454),
    FLOAT64: (
        0.6931471805599453, 0.24022650695910108, 0.05550410866482172, 0.009618129107601597,
        0.0013333558146546706, 0.00015403530449046904, 1.525273363340118e-05,
        1.3215438831116483e-06, 1.0178160323724941e-07, 7.073233654000935e-09,
        4.4388180814375725e-10,
    ),
}  # fmt: skip

_LOG2 = {  # log2(1 + f) / f on [sqrt(1/2) - 1, sqrt(2) - 1], within 2^-25.0 and 2^-55.7
    FLOAT32: (
        1.442695, -0.7213474, 0.48090896, -0.36070073, 0.28795388, -0.23901352, 0.2154763,
        -0.20678179, 0.12583649,
    ),
    FLOAT64: (
        1.4426950408889634, -0.7213475204444817, 0.48089834696301015, -0.3606737602222028,
        0.2885390081736125, -0.2404491734983708, 0.2060992918826532, -0.18033687796857548,
        0.16029943362029783, -0.14426962842293747, 0.13115463383630632, -0.12022075301898823,
        0.11096206776840868, -0.10311427134163405, 0.09644568094261267, -0.08963317268590436,
        0.08190675762085177, -0.08100861570546206, 0.09284556059135916, -0.08751775951126861,
        0.039432638692560175,
    ),
}  # fmt: skip

_SIN = {  # (sin r / r - 1) / r^2 in powers of r^2 on |r| <= 0.79 and 0.7855: 2^-32.4 and 2^-57.8
    FLOAT32: (-0.16666667, 0.008333379, -0.00019853014, 2.8314842e-06),
    FLOAT64: (
        -0.1666666666666663, 0.00833333333332184, -0.00019841269829358406, 2.7557313538427074e-06,
        -2.505073436924566e-08, 1.589543180777454e-10,
    ),
}  # fmt: skip

_COS = {  # (cos r - 1) / r^2 in powers of r^2 on the same intervals: 2^-32.8 and 2^-63.9
    FLOAT32: (-0.5, 0.041666646, -0.0013887304, 2.44312e-05),
    FLOAT64: (
        -0.5, 0.041666666666666595, -0.0013888888888873338, 2.480158728899754e-05,
        -2.7557314215331105e-07, 2.087570512086567e-09, -1.1358733132080553e-11,
    ),
}  # fmt: skip

_HALF_PI = {  # pi / 2 as a sum of three floats
    FLOAT32: (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    FLOAT64: (math.pi / 2, 6.123233995736766e-17, -1.4973849048591698e-33),
}
_NEAR = {FLOAT32: 2.0**17, FLOAT64: 2.0**31}  # |x| up to which three parts of pi / 2 are enough


def _exp2(f: Format, x: Lanes) -> Lanes:
    """2^x: 2^fraction by a polynomial, times 2^n in two steps so that it underflows gradually.

    n is read, shifted by `split` + bias, from the bits of x + magic. One factor is
    2^min(n + split, 0); the other, 2^max(n, -split), is added into the polynomial's exponent field.
    The offsets of both left there cancel modulo the field and the sign bit above it because the
    polynomial carries the factor `scale`.
    """
    split = (f.bias + 1) // 2
    scale = -math.ldexp(1.0, f.bias + 2 - split)
    magic = f.magic + split + f.bias
    x = where(x > f.bias + 1, f.bias + 1, x)
    x = where(x < -f.bias - f.mantissa - 1, -f.bias - f.mantissa - 1, x)
    shifted = x + magic
    fraction = x - (shifted - magic)
    power = horner(fraction, [scale, *(scale * c for c in _EXP2[f])])
    exponent = shifted.bits() << f.mantissa
    one = exponent.like(f.bias << f.mantissa).value
    low = Lanes(arith.minui(exponent.value, one)).as_float()
    high = (power.bits() + Lanes(arith.maxui(exponent.value, one))).as_float()
    return high * low


def _log2(f: Format, x: Lanes) -> Lanes:
    """e + log2(1 + fraction) with x = 2^e (1 + fraction), 1 + fraction in [sqrt(1/2), sqrt(2))."""
    lifted = (x * math.ldexp(1.0, f.mantissa)).bits() - (f.mantissa << f.mantissa)
    bits = where(x < f.tiny, lifted, x.bits())  # a subnormal gets an exponent field below 1
    root = x.like(math.sqrt(0.5)).bits()
    exponent = (bits - root).shift_signed(f.mantissa)
    fraction = (bits - (exponent << f.mantissa)).as_float() - 1.0
    whole = exponent.resize(32, signed=True).converted(arith.sitofp, x.element)
    first, *rest = _LOG2[f]
    # The leading term apart from the others, and `whole` last: each saves half an ulp.
    tail = fraction * (fraction * horner(fraction, rest))
    result = fma(fraction, first, tail) + whole
    result = where(x < math.inf, result, x)
    return where(x > 0.0, result, where(x.eq(0.0), -math.inf, x.like(math.nan)))


def _sin(f: Format, x: Lanes, far: bool = True) -> Lanes:
    """sin x = ±sin r or ±cos r with x = n pi/2 + r; `far`: some finite x may be beyond _NEAR.

    Near: n pi/2 is subtracted in three parts (Cody and Waite); the first difference is exact, and
    the error of the second is kept, so that r is rounded once.
    """
    high, middle, low = _HALF_PI[f]
    shifted = fma(x, 2.0 / math.pi, f.magic)
    n = shifted - f.magic
    rest = fma(n, -high, x)
    part = n * -middle
    near = rest + part
    error = (part - (near - rest)) + fma(n, -middle, -part)
    r, quadrant = near + fma(n, -low, error), shifted.bits()
    if far:
        r, quadrant = _with_far_lanes(f, x, r, quadrant)

    odd = (quadrant << (f.width - 1)) < 0
    sign = (quadrant << (f.width - 2)) & f.sign
    square = r * r
    leading = (where(odd, 1.0, r).bits() ^ sign).as_float()
    series = where(odd, horner(square, _COS[f]), horner(square, _SIN[f]))
    result = fma(leading * square, series, leading)
    return where(x.eq(0.0), x, result)  # the sums above lost the sign of -0.0


def _with_far_lanes(f: Format, x: Lanes, *near: Lanes) -> list[Lanes]:
    """`near`, r and the quadrant, with the lanes where |x| > _NEAR reduced anew, one by one.

    In a branch: such arguments are rare, and one scalar body serves a tile of any size.
    """
    far = x.magnitude() > _NEAR[f]
    branch = scf.IfOp(_any(far), [lanes.value.type for lanes in near], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        scf.YieldOp(_reduce_far_lanes(f, x, near) if x.shape else _reduce_far(f, x))
    with ir.InsertionPoint(branch.else_block):
        scf.YieldOp([lanes.value for lanes in near])
    return [Lanes(result) for result in branch.results]


def _reduce_far_lanes(f: Format, x: Lanes, near: Sequence[Lanes]) -> list[ir.Value]:
    flat_x = _flat(x.value)
    start, stop, step = (arith.constant(ir.IndexType.get(), i) for i in (0, math.prod(x.shape), 1))
    loop = scf.ForOp(start, stop, step, [_flat(lanes.value) for lanes in near])
    with ir.InsertionPoint(loop.body):
        lane, reduced = [loop.induction_variable], list(loop.inner_iter_args)
        dynamic = [ir.ShapedType.get_dynamic_size()]
        one = Lanes(vector.extract(flat_x, lane, dynamic))
        far = one.magnitude() > _NEAR[f]
        branch = scf.IfOp(far.value, [value.type for value in reduced], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            pairs = zip(_reduce_far(f, one), reduced, strict=True)
            scf.YieldOp([vector.insert(new, old, lane, dynamic) for new, old in pairs])
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp(reduced)
        scf.YieldOp(branch.results)
    return [_shaped(result, x.shape) for result in loop.results]


def _inverse_pi_words(count: int) -> list[int]:
    """The first bits of 1/pi's binary fraction in 64-bit words, after one word of zeros."""
    guard = 64
    one = 1 << (64 * count + guard)

    def arctan_inverse(n: int) -> int:
        term, total, k = one // n, 0, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term, k = term // (n * n), k + 2
        return total

    pi = 4 * (4 * arctan_inverse(5) - arctan_inverse(239))  # Machin, 1706
    fraction = (one * one // pi) >> guard
    return [0, *(fraction >> (64 * i) & (2**64 - 1) for i in reversed(range(count)))]


def _reduce_far(f: Format, x: Lanes) -> list[ir.Value]:
    """r and n, mod 4, with x = n pi/2 + r, for one finite |x| > _NEAR; r is NaN for an infinity.

    Payne and Hanek ("Radian reduction for trigonometric functions", 1983) in 64-bit integers: with
    |x| = m 2^k, only 192 bits of 1/pi matter for |x| 2/pi mod 4, and which ones k tells. They are
    picked by selects, since a table would need memory.
    """
    wide = x if f is FLOAT64 else x.converted(arith.extf, ir.F64Type.get())
    exponent = (wide.bits() >> 52) & 0x7FF
    m = (wide.bits() & ((1 << 52) - 1)) | (1 << 52)
    # Where the window starts: at 2^-127 times a power of two that makes its first bit worth 2 pi.
    first = FLOAT64.bias - 11
    last = FLOAT64.bias + f.bias + 1 - first
    words = [m.like(word) for word in _inverse_pi_words(last // 64 + 3)]
    start = exponent - first
    window = _select_window(words, start >> 6, 4)
    shift = start & 63
    w0, w1, w2 = (  # a shift by 64 is poison, hence two
        (a << shift) | ((b >> 1) >> (m.like(63) - shift))
        for a, b in zip(window[:3], window[1:], strict=True)
    )
    middle = arith.MulUIExtendedOp(m.value, w1.value).results
    bottom = arith.MulUIExtendedOp(m.value, w2.value).results
    low = Lanes(middle[0]) + Lanes(bottom[1])
    carry = low.below(Lanes(middle[0])).resize(64, signed=False)
    high = Lanes(middle[1]) + m * w0 + carry
    # high:low is |x| 2/pi mod 4 in units of 2^-126: an integer n and a rest in [-1/2, 1/2).
    n = (high + (1 << 61)) >> 62
    r = _times_half_pi((high << 2) | (low >> 62), low << 2)
    negative = x < 0.0
    n = where(negative, n.like(0) - n, n).resize(f.width, signed=False)
    r = where(exponent.eq(0x7FF), math.nan, where(negative, -r, r))
    return [(r if f is FLOAT64 else r.converted(arith.truncf, ir.F32Type.get())).value, n.value]


def _select_window(words: Sequence[Lanes], start: Lanes, count: int) -> list[Lanes]:
    """words[start : start + count] for a start known at run time, by a barrel shifter."""
    last = len(words) - count
    for level in reversed(range(last.bit_length())):
        step = 1 << level
        bit = ((start >> level) & 1).ne(0)
        needed = min(count + step - 1, len(words))
        words = [
            where(bit, words[i + step], words[i]) if i + step < len(words) else words[i]
            for i in range(needed)
        ]
    return list(words[:count])


def _times_half_pi(high: Lanes, low: Lanes) -> Lanes:
    """pi/2 * (high:low as a signed fraction, in units of 2^-128), rounded about once to float64.

    Four 32-bit limbs convert exactly, so leading zeros left by cancellation cost nothing.
    """
    mask = (1 << 32) - 1
    limbs = (high.shift_signed(32), high & mask, low >> 32, low & mask)
    a, b, c, d = (
        limb.converted(arith.sitofp, ir.F64Type.get()) * 2.0 ** (-32 * (i + 1))
        for i, limb in enumerate(limbs)
    )
    leading = a + b
    trailing = (b - (leading - a)) + (c + d)
    fraction = leading + trailing
    trailing = trailing - (fraction - leading)
    half_pi, half_pi_rest, _ = _HALF_PI[FLOAT64]
    result = fraction * half_pi
    error = fma(fraction, half_pi, -result)
    return result + (error + fma(fraction, half_pi_rest, trailing * half_pi))


# --- the other floats ----------------------------------------------------------------------------


def _mod_float(f: Format, x: Lanes, y: Lanes, divisor: float | None) -> Lanes:
    """C's fmod. `divisor` is y's value where it is a known constant."""
    if divisor is not None and divisor and math.frexp(abs(divisor))[0] == 0.5:
        exponent = math.frexp(divisor)[1] - 1
        if abs(exponent) < f.bias:
            return _mod_power_of_two(f, x, exponent)
    infinite = x.like(math.inf)
    a, b = x.magnitude(), y.magnitude()
    valid = (a < infinite) & (b > 0.0)
    rest = _mod_loop(f, where(valid, a, 0.0), where(valid, b, 1.0))
    signed = (rest.bits() | (x.bits() & f.sign)).as_float()
    return where(valid, signed, math.nan)


def _mod_power_of_two(f: Format, x: Lanes, exponent: int) -> Lanes:
    """x mod 2^exponent = x - trunc(x / 2^exponent) * 2^exponent, every step exact."""
    quotient = x if exponent == 0 else x * math.ldexp(1.0, -exponent)
    whole = Lanes(mlir_math.trunc(quotient.value))
    rest = x - (whole if exponent == 0 else whole * math.ldexp(1.0, exponent))
    if exponent < 0:  # the quotient of a large finite x overflows, but then nothing is left of x
        rest = where(quotient.magnitude() < math.inf, rest, x * 0.0)
    return (rest.bits() | (x.bits() & f.sign)).as_float()


def _mod_loop(f: Format, a: Lanes, b: Lanes) -> Lanes:
    """a mod b for finite a >= 0 and b > 0, by exact partial remainders.

    Each turn subtracts trunc(a / B) * B, where B = b * 2^n is b moved up until the quotient has at
    most `digits` + 1 bits. Then the remainder is a multiple of B's last place below 2B in
    magnitude, so the fma is exact; a quotient rounded up to the next integer leaves it negative and
    B is added back. A turn removes `digits` bits, and the usual case is one turn.
    """
    digits = f.mantissa - 1
    small = b < f.tiny
    normal = where(small, b * math.ldexp(1.0, f.mantissa), b)
    exponent = normal.bits() >> f.mantissa
    exponent = where(small, exponent - f.mantissa, exponent)

    loop = scf.WhileOp([a.value.type], [a.value])
    before = loop.before.blocks.append(a.value.type)
    with ir.InsertionPoint(before):
        (argument,) = before.arguments
        scf.ConditionOp(_any(Lanes(argument) >= b), [argument])
    after = loop.after.blocks.append(a.value.type)
    with ir.InsertionPoint(after):
        rest = Lanes(after.arguments[0])
        n = (rest.bits() >> f.mantissa) - exponent - digits
        n = where(n > 0, n, 0)
        half = n >> 1  # 2^n alone can overflow
        factors = (((part + f.bias) << f.mantissa).as_float() for part in (half, n - half))
        moved = b
        for factor in factors:
            moved = moved * factor
        quotient = Lanes(mlir_math.trunc((rest / moved).value))
        left = fma(-quotient, moved, rest)
        left = where(left < 0.0, left + moved, left)
        scf.YieldOp([where(rest >= b, left, rest).value])
    return Lanes(loop.results[0])


def _max_float(a: Lanes, b: Lanes) -> Lanes:
    """NaN if either is. Of two zeros either: that is one instruction less on most targets."""
    nsz = arith.FastMathFlags.nsz
    return Lanes(arith.maximumf(a.value, b.value, fastmath=nsz))


# --- integers ------------------------------------------------------------------------------------


def _mod_integer(signed: bool, a: Lanes, b: Lanes) -> Lanes:
    """C's %, and 0 where the machine's division traps: by zero, and the minimum by -1."""
    safe = where((b + 1).below(2) if signed else b.eq(0), 1, b)
    op = arith.remsi if signed else arith.remui
    return Lanes(op(a.value, safe.value))


def _less_integer(signed: bool, a: Lanes, b: Lanes) -> Lanes:
    return a < b if signed else a.below(b)


def _max_integer(signed: bool, a: Lanes, b: Lanes) -> Lanes:
    op = arith.maxsi if signed else arith.maxui
    return Lanes(op(a.value, b.value))


# --- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Body:
    """How one primitive is expanded for each kind of dtype; None where it is not defined.

    `floats` gets the format and operands of that format, `integers` whether they are signed and the
    operands. `exact`: a float result needs no rounding when it goes back to 16 bits.
    """

    arity: int
    floats: Callable[..., Lanes] | None = None
    integers: Callable[..., Lanes] | None = None
    booleans: Callable[..., Lanes] | None = None
    exact: bool = False


BODIES: dict[str, Body] = {
    "exp2": Body(1, floats=_exp2),
    "log2": Body(1, floats=_log2),
    "sin": Body(1, floats=_sin),
    "sqrt": Body(1, floats=lambda f, x: Lanes(mlir_math.sqrt(x.value))),
    "recip": Body(1, floats=lambda f, x: x.like(1.0) / x),
    "div": Body(2, floats=lambda f, a, b: a / b),
    "add": Body(
        2,
        floats=lambda f, a, b: a + b,
        integers=lambda signed, a, b: a + b,
        booleans=lambda a, b: a | b,
    ),
    "mul": Body(
        2,
        floats=lambda f, a, b: a * b,
        integers=lambda signed, a, b: a * b,
        booleans=lambda a, b: a & b,
    ),
    "mod": Body(
        2,
        floats=_mod_float,
        integers=_mod_integer,
        booleans=lambda a, b: a.like(False),  # x mod 1 and x mod 0
        exact=True,
    ),
    "less_than": Body(
        2,
        floats=lambda f, a, b: a < b,
        integers=_less_integer,
        booleans=lambda a, b: (a ^ True) & b,
    ),
    "max": Body(
        2,
        floats=lambda f, a, b: _max_float(a, b),
        integers=_max_integer,
        booleans=lambda a, b: a | b,
        exact=True,
    ),
    "select": Body(
        3,
        floats=lambda f, condition, a, b: where(condition, a, b),
        integers=lambda signed, condition, a, b: where(condition, a, b),
        booleans=where,
        exact=True,
    ),
}


def emit(
    name: str, operands: Sequence[ir.Value], dtype: str, *, contract: bool = False
) -> ir.Value:
    """The result of one primitive on operands of this dtype, all scalars or vectors of one shape.

    `select` takes an i1 condition first; `less_than` gives i1, every other primitive `dtype`.
    `contract` lets LLVM fuse this primitive's float add or mul with its neighbours.
    """
    body = BODIES.get(name)
    if body is None:
        raise ValueError(f"{name!r} is not a primitive; expected one of {', '.join(BODIES)}")
    _check_operands(name, body, operands, dtype)
    lanes = [Lanes(operand) for operand in operands]
    if dtype not in _FLOATS:
        expand = body.booleans if dtype == "bool" else body.integers
        if expand is None:
            raise TypeError(f"{name}: not defined on {dtype}")
        if dtype == "bool":
            return expand(*lanes).value
        return expand(dtype != "uint8", *lanes).value
    if body.floats is None:
        raise TypeError(f"{name}: not defined on {dtype}")
    if name == "select":
        return where(*lanes).value
    result = _expand_float(name, body, lanes, dtype)
    if contract and name in ("add", "mul"):
        flag = ir.Attribute.parse("#arith.fastmath<contract>")
        result.value.owner.attributes["fastmath"] = flag
    if name == "less_than":
        return result.value
    return _narrow(result, dtype, body.exact).value


def _expand_float(name: str, body: Body, lanes: Sequence[Lanes], dtype: str) -> Lanes:
    assert body.floats is not None
    f = _format(dtype)
    wide = [_widen(x, dtype) for x in lanes]
    if name == "mod":  # the constant is seen before widening hides it
        return body.floats(f, *wide, _splat_of(lanes[1].value))
    if name == "sin":
        return body.floats(f, *wide, dtype != "float16")
    return body.floats(f, *wide)


def _check_operands(name: str, body: Body, operands: Sequence[ir.Value], dtype: str) -> None:
    if dtype not in _ELEMENTS:
        raise ValueError(f"{name}: unknown dtype {dtype!r}; expected one of {', '.join(_ELEMENTS)}")
    if len(operands) != body.arity:
        raise TypeError(f"{name}: expected {body.arity} operands, got {len(operands)}")
    for position, operand in enumerate(operands):
        wanted = "bool" if name == "select" and position == 0 else dtype
        lanes = Lanes(operand)
        if lanes.element != _ELEMENTS[wanted]():
            raise TypeError(
                f"{name}: operand {position} should hold {wanted} ({_ELEMENTS[wanted]()}), "
                f"but is {operand.type}"
            )
        if lanes.shape != Lanes(operands[-1]).shape:
            raise TypeError(f"{name}: operand shapes differ: {[str(o.type) for o in operands]}")


# --- casts ---------------------------------------------------------------------------------------


def cast(value: ir.Value, source: str, target: str) -> ir.Value:
    """The value in another dtype.

    Float to float rounds to nearest even, integer to float too; float to integer truncates toward
    zero and saturates, NaN gives 0; integer to integer wraps; to bool is `!= 0` (NaN is true).
    """
    x = Lanes(value)
    if source == target:
        return value
    if target == "bool":
        return _widen(x, source).ne(0).value
    if source in _FLOATS:
        wide = _widen(x, source)
        return (_cast_floats(wide, target) if target in _FLOATS else _to_int(wide, target)).value
    if target not in _FLOATS:
        return x.resize(_WIDTH[target], signed=source not in ("bool", "uint8")).value
    return _from_int(x, source, target).value


def _cast_floats(x: Lanes, target: str) -> Lanes:
    if target == "float64":
        return x if x.width == 64 else x.converted(arith.extf, ir.F64Type.get())
    if x.width == 32:
        return _narrow(x, target)
    if target == "float32":
        return x.converted(arith.truncf, ir.F32Type.get())
    return _narrow(_to_odd_float32(x), target)


def _to_int(x: Lanes, target: str) -> Lanes:
    """By hand, because arith.fptosi out of range is poison."""
    width, signed = _WIDTH[target], target != "uint8"
    low = -(1 << (width - 1)) if signed else 0
    high = (1 << (width - 1)) - 1 if signed else (1 << width) - 1
    inside = (x > float(low)) & (x < float(high + 1))
    # Through 32 bits also for 8: that is what the machines convert to.
    number = where(inside, x, 0.0).converted(
        arith.fptosi, ir.IntegerType.get_signless(max(width, 32))
    )
    number = where(x >= float(high + 1), high, number.resize(width, signed))
    return where(x <= float(low), low, number)


def _from_int(x: Lanes, source: str, target: str) -> Lanes:
    """A single rounding, though float16 and bfloat16 go by way of a wider format.

    float16: what float32 does not hold exactly is beyond float16's range anyway.
    bfloat16: by a float64 that holds the integer exactly, or for 64 bits, agrees with it in all but
    the lowest 12 bits, of which only "not all zero" matters to the rounding.
    """
    if target == "bfloat16" and source in ("int32", "int64"):
        if source == "int64":
            rest = x & 0xFFF
            sticky = (x - rest) | where(rest.eq(0), x.like(0), 0x800)
            large = (x + (1 << 53)).below(1 << 54)
            x = where(large, x, sticky)
        return _cast_floats(x.converted(arith.sitofp, ir.F64Type.get()), target)
    wide = ir.F64Type.get() if target == "float64" else ir.F32Type.get()
    op = arith.uitofp if source in ("bool", "uint8") else arith.sitofp
    return _narrow(x.converted(op, wide), target)


def bitcast(value: ir.Value, source: str, target: str) -> ir.Value:
    """The same bits as another dtype of the same width."""
    if _WIDTH[source] != _WIDTH[target]:
        raise TypeError(
            f"bitcast: {source} has {_WIDTH[source]} bits and {target} has {_WIDTH[target]}"
        )
    return Lanes(value).reinterpret(_ELEMENTS[target]()).value


def constant(value: float, dtype: str, shape: tuple[int, ...]) -> ir.Value:
    """A constant, the same in every lane; a scalar if the shape is ()."""
    return _constant(value, _ELEMENTS[dtype](), shape).value


def identity(name: str, dtype: str) -> float:
    """The value that an empty `sum_reduce` or `max_reduce` has."""
    if name not in ("sum_reduce", "max_reduce"):
        raise ValueError(f"{name!r} is not a reduction; expected sum_reduce or max_reduce")
    if dtype == "bool":
        return False
    if dtype in _FLOATS:
        return 0.0 if name == "sum_reduce" else -math.inf
    if name == "sum_reduce" or dtype == "uint8":
        return 0
    return -(1 << (_WIDTH[dtype] - 1))


# --- lowering ------------------------------------------------------------------------------------


def keep_sqrt(module: ir.Operation) -> None:
    """Rewrites, in place, each `llvm.intr.sqrt x` as `llvm.call_intrinsic "llvm.sqrt"(x)`.

    They mean the same, but `convert-gpu-to-nvvm` refuses the first, so that it may be sure that
    every square root has become a call to libdevice. Goes between `convert-math-to-llvm` and it.
    """
    found: list[ir.Operation] = []

    def collect(op: ir.Operation) -> ir.WalkResult:
        if op.name == "llvm.intr.sqrt":
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.walk(collect)
    for op in found:
        with ir.InsertionPoint(op), op.location:
            call = ir.Operation.create(
                "llvm.call_intrinsic",
                results=[op.results[0].type],
                operands=list(op.operands),
                attributes={
                    "intrin": ir.StringAttr.get("llvm.sqrt"),
                    "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0]),
                    "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
                },
            )
        op.results[0].replace_all_uses_with(call.results[0])
        op.erase()
