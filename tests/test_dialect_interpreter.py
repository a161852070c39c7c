"""The interpreter against numpy and against Python's own arithmetic, for every primitive and dtype.

"own" precision rounds every result to its dtype, 16-bit floats once from float32; "high" keeps
floats in float64 (float64 in longdouble).
"""

import math

import numpy as np
import pytest
from dodeca.dialect import DTYPES, PRIMITIVES, ops
from dodeca.dialect.errors import ArgumentError, Error
from dodeca.dialect.interpreter import evaluate
from mlir import ir

FLOATS = [d for d in DTYPES.values() if d.is_float]
INTEGERS = [d for d in DTYPES.values() if d.kind in ("int", "uint")]
# what each primitive is, said again and apart from the table
NUMPY = {
    "exp2": np.exp2,
    "log2": np.log2,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "recip": lambda x: 1 / x,
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "mod": np.fmod,
    "less_than": lambda x, y: x < y,
}
OTHERS = ["sum_reduce", "max_reduce", "contiguous"]


def test_every_primitive_is_tested_here() -> None:
    assert set(PRIMITIVES) == {*NUMPY, *OTHERS}  # contiguous: test_dialect_views.py


def samples(element, seed: int) -> np.ndarray:
    """Values that break things: the extremes, the special ones, and some of every magnitude."""
    random = np.random.default_rng(seed)
    if element.kind == "bool":
        return random.integers(0, 2, 64).astype(bool)
    if not element.is_float:
        info = np.iinfo(element.numpy)
        special = [info.min, info.max, 0, 1, 2, 3, info.max - 1, info.min + 1]
        special += [-1, -2, -7] if element.kind == "int" else []
        drawn = random.integers(info.min, info.max, 200, element.numpy, endpoint=True)
        return np.concatenate([np.array(special, element.numpy), drawn, drawn // 7])
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 3.0, 1e-40, -6e-8, 6e4, 2e38]
    drawn = random.normal(size=200) * 2.0 ** random.integers(-12, 12, 200)
    with np.errstate(all="ignore"):
        return np.concatenate([special, drawn]).astype(element.numpy)


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal in dtype, shape and every value, the sign of zero included; a NaN equals a NaN."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected)
        return
    wide = [x.astype(np.longdouble) for x in (found, expected)]
    np.testing.assert_array_equal(*wide)
    signs = [np.signbit(x) | np.isnan(x) for x in wide]
    np.testing.assert_array_equal(*signs)


# --- elementwise --------------------------------------------------------------------------------


def apply(build, name: str, element, arrays: list[np.ndarray], precision: str) -> np.ndarray:
    types = [f"{arrays[0].size}x{element.mlir}"] * len(arrays)
    module = build(lambda *x: ops.elementwise(name, *x), *types)
    (result,) = evaluate(module, *arrays, precision=precision)
    return result


@pytest.mark.parametrize("precision", ["own", "high"])
@pytest.mark.parametrize("element", FLOATS, ids=str)
@pytest.mark.parametrize("name", NUMPY)
def test_floats(name, element, precision, build) -> None:
    arrays = [samples(element, seed) for seed in range(PRIMITIVES[name].arity or 0)]
    arrays = [x[np.random.default_rng(i).permutation(x.size)] for i, x in enumerate(arrays)]
    found = apply(build, name, element, arrays, precision)
    narrow = np.float32 if element.bits == 16 else element.numpy
    computed = element.wide if precision == "high" else narrow
    with np.errstate(all="ignore"):
        expected = NUMPY[name](*(x.astype(computed) for x in arrays))
        if name != "less_than":
            expected = expected.astype(element.wide if precision == "high" else element.numpy)
    assert_same(found, expected)


def wrap(value: int, element) -> int:
    """The integer that `value` is in the bits of the dtype."""
    value &= (1 << element.bits) - 1
    return (
        value - (1 << element.bits)
        if element.kind == "int" and value >> element.bits - 1
        else value
    )


def exact_mod(x: int, y: int) -> int:
    """C's remainder, in Python's integers."""
    if y == 0:
        return 0
    return abs(x) % abs(y) * (-1 if x < 0 else 1)


EXACT = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "mod": exact_mod,
    "less_than": lambda x, y: x < y,
}


@pytest.mark.parametrize("precision", ["own", "high"])
@pytest.mark.parametrize("element", INTEGERS, ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_integers(name, element, precision, build) -> None:
    """Integers wrap, and mod truncates: against Python's integers, which do neither."""
    line = samples(element, 0)[:40]
    x, y = (a.reshape(-1) for a in np.meshgrid(line, line))
    found = apply(build, name, element, [x, y], precision)
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    if name == "less_than":
        assert_same(found, np.array([a < b for a, b in pairs]))
    else:
        whole = [wrap(EXACT[name](a, b), element) for a, b in pairs]
        assert_same(found, np.array(whole, element.numpy))


@pytest.mark.parametrize("name", ["add", "mul", "less_than"])
def test_bools(name, build) -> None:
    x, y = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    found = apply(build, name, DTYPES["bool"], [x, y], "own")
    assert_same(found, {"add": x | y, "mul": x & y, "less_than": ~x & y}[name])


def test_16_bits_round_once(build) -> None:
    """bfloat16 adds in float32: rounding 1 + 2^-8 + 2^-16 once gives the value above, not 1."""
    bf16 = DTYPES["bfloat16"].numpy
    x, y = np.array([1.0], bf16), np.array([2**-8 + 2**-15], bf16)
    found = apply(build, "add", DTYPES["bfloat16"], [x, y], "own")
    assert float(found[0]) == 1 + 2**-7
    two = np.array([300.0], np.float16)  # 300 * 300 is no float16
    assert np.isinf(apply(build, "mul", DTYPES["float16"], [two, two], "own")[0])
    assert apply(build, "mul", DTYPES["float16"], [two, two], "high")[0] == 90000.0


# --- reductions ---------------------------------------------------------------------------------


def reduced(build, name: str, x: np.ndarray, axis: int, element, precision: str = "own"):
    shape = "".join(f"{n}x" for n in x.shape)
    module = build(lambda v: ops.reduce(name, v, axis), f"{shape}{element.mlir}")
    (result,) = evaluate(module, x, precision=precision)
    return result


@pytest.mark.parametrize("element", FLOATS, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_float_sums_are_in_index_order(element, axis, build) -> None:
    random = np.random.default_rng(axis)
    x = (random.normal(size=(5, 33, 4)) * 10.0 ** random.integers(-4, 4, (5, 33, 4))).astype(
        element.numpy
    )
    computed = np.float32 if element.bits == 16 else element.numpy
    total = np.zeros(x.sum(axis).shape, computed)
    for part in np.moveaxis(x, axis, 0):
        total = total + part.astype(computed)
    assert_same(reduced(build, "sum_reduce", x, axis, element), total.astype(element.numpy))


def test_the_order_of_a_sum_shows(build) -> None:
    """1e8 + 1 - 1e8 is 0 in float32 from the left; numpy's own sum of many would differ."""
    x = np.array([1e8, 1.0, -1e8, 1.0], np.float32)
    assert reduced(build, "sum_reduce", x, 0, DTYPES["float32"])[()] == 1.0
    assert reduced(build, "sum_reduce", x, 0, DTYPES["float32"], "high")[()] == 2.0
    many = np.full(70_000, 0.1, np.float32)
    assert reduced(build, "sum_reduce", many, 0, DTYPES["float32"])[()] != many.sum()


def test_16_bit_sums_round_once(build) -> None:
    """A float16 sum has float32 inside: 4096 times 1 passes 2048, where float16 would stop."""
    ones = np.ones(4096, np.float16)
    assert reduced(build, "sum_reduce", ones, 0, DTYPES["float16"])[()] == 4096


@pytest.mark.parametrize("element", INTEGERS, ids=str)
def test_integer_sums_wrap(element, build) -> None:
    x = samples(element, 3)
    expected = np.array(wrap(sum(x.tolist()), element), element.numpy)
    assert_same(reduced(build, "sum_reduce", x, 0, element), expected)


def test_bool_reductions_are_any(build) -> None:
    x = np.array([[0, 0, 1], [0, 1, 1]], bool)
    for name in ("sum_reduce", "max_reduce"):
        assert_same(reduced(build, name, x, 1, DTYPES["bool"]), np.array([True, True]))
        assert_same(reduced(build, name, x, 0, DTYPES["bool"]), np.array([False, True, True]))


@pytest.mark.parametrize("precision", ["own", "high"])
@pytest.mark.parametrize("element", DTYPES.values(), ids=str)
def test_maxima(element, precision, build) -> None:
    x = samples(element, 5)[:60].reshape(3, 5, 4)
    expected = np.empty((3, 4), element.wide if precision == "high" else element.numpy)
    for i, j in np.ndindex(3, 4):
        line = x[i, :, j].tolist()
        bad = any(v != v for v in line)
        expected[i, j] = float("nan") if bad else max(line)
    assert_same(reduced(build, "max_reduce", x, 1, element, precision), expected)


@pytest.mark.parametrize("element", FLOATS, ids=str)
def test_a_maximum_with_a_nan_is_nan(element, build) -> None:
    for at in range(3):
        x = np.array([1.0, np.inf, -np.inf], element.numpy)
        x[at] = np.nan
        assert np.isnan(reduced(build, "max_reduce", x, 0, element))


@pytest.mark.parametrize("precision", ["own", "high"])
@pytest.mark.parametrize("element", DTYPES.values(), ids=str)
def test_empty_reductions(element, precision, build) -> None:
    x = np.zeros((2, 0, 3), element.numpy)
    result = element.wide if precision == "high" else element.numpy
    for name, value in (("sum_reduce", 0), ("max_reduce", element.lowest)):
        found = reduced(build, name, x, 1, element, precision)
        assert_same(found, np.full((2, 3), value, result))


# --- what carries no arithmetic -----------------------------------------------------------------


def cast(build, x: np.ndarray, source, target, precision: str = "own") -> np.ndarray:
    shape = "".join(f"{n}x" for n in x.shape)
    module = build(lambda v: ops.cast(v, target), f"{shape}{source.mlir}")
    (result,) = evaluate(module, x, precision=precision)
    return result


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("precision", ["own", "high"])
def test_casts_to_integers_saturate(source, target, precision, build) -> None:
    info = np.iinfo(target.numpy)
    values = [0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 127.0, 128.0, 255.5, 256.0, -128.5, -129.0, 6e4]
    values += [np.inf, -np.inf, np.nan, 2.0**31, -(2.0**31), 2.0**63, -(2.0**63), 2.0**62, 1e30]
    with np.errstate(all="ignore"):
        x = np.array(values).astype(source.numpy)

    def exact(value: float) -> int:
        if value != value:
            return 0
        if math.isinf(value):
            return info.max if value > 0 else info.min
        return min(max(math.trunc(value), info.min), info.max)

    expected = np.array([exact(float(v)) for v in x], target.numpy)
    assert_same(cast(build, x, source, target, precision), expected)


@pytest.mark.parametrize("source", INTEGERS, ids=str)
@pytest.mark.parametrize("target", INTEGERS, ids=str)
def test_casts_between_integers_wrap(source, target, build) -> None:
    x = samples(source, 2)
    expected = np.array([wrap(v, target) for v in x.tolist()], target.numpy)
    assert_same(cast(build, x, source, target), expected)


def nearest(value, bits: int) -> float:
    """`value` rounded to `bits` significant bits, to even, in exact arithmetic."""
    mantissa, exponent = math.frexp(value)
    scaled = int(mantissa * 2**53)  # frexp of an int rounds: the callers' ints fit 53 bits
    down, rest = divmod(scaled, 1 << 53 - bits)
    half = 1 << 52 - bits
    up = rest > half or (rest == half and down % 2 == 1)
    return math.ldexp(down + up, exponent - bits)


@pytest.mark.parametrize("source", ["float64", "int64", "int32"])
@pytest.mark.parametrize(("target", "bits"), [("float32", 24), ("bfloat16", 8), ("float16", 11)])
def test_casts_to_fewer_bits_round_once(source, target, bits, build) -> None:
    """Beside the middle of two values, where rounding by way of a third type goes wrong."""
    base = 1 << 14 if target == "float16" else 1 << 29
    step = base >> bits - 1
    near = [base + k * step + step // 2 + d for k in range(4) for d in (-1, 0, 1)]
    if source == "float64":
        near += [v + d for v in near for d in (2.0**-20, -(2.0**-20))]
    x = np.array(near, DTYPES[source].numpy)
    found = cast(build, x, DTYPES[source], DTYPES[target])
    assert found.astype(np.float64).tolist() == [nearest(v, bits) for v in x.tolist()]


@pytest.mark.parametrize("source", DTYPES.values(), ids=str)
def test_casts_to_and_from_bool(source, build) -> None:
    x = samples(source, 1)
    assert_same(cast(build, x, source, DTYPES["bool"]), np.array([v != 0 for v in x.tolist()]))
    bits = np.array([True, False])
    assert_same(cast(build, bits, DTYPES["bool"], source), np.array([1, 0], source.numpy))


@pytest.mark.parametrize("precision", ["own", "high"])
def test_casts_between_floats(precision, build) -> None:
    x = np.array([1e300, -1e300, 1e-300, 0.1, np.nan, -0.0, np.inf], np.float64)
    with np.errstate(all="ignore"):
        expected = x.astype(np.float64 if precision == "high" else np.float32)
    if precision == "high":  # float32 is float64 inside: nothing is lost
        assert_same(cast(build, x, DTYPES["float64"], DTYPES["float32"], precision), expected)
    else:
        assert_same(cast(build, x, DTYPES["float64"], DTYPES["float32"]), expected)


@pytest.mark.parametrize("precision", ["own", "high"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2)])
def test_bitcast(shape, precision, build) -> None:
    sizes = "".join(f"{n}x" for n in shape)
    for source, target in (("float32", "int32"), ("bfloat16", "float16"), ("uint8", "int8")):
        a, b = DTYPES[source], DTYPES[target]
        x = np.full(shape, 200 if source == "uint8" else -1.5, a.numpy)
        module = build(lambda v, b=b: ops.bitcast(v, b), f"{sizes}{a.mlir}")
        (found,) = evaluate(module, x, precision=precision)
        expected = np.ndarray(shape, b.numpy, x.tobytes())
        assert_same(found, expected.astype(b.wide if precision == "high" else b.numpy))


@pytest.mark.parametrize("element", DTYPES)
def test_a_constant_is_the_same_in_every_place(element, build) -> None:
    module = build(lambda: ops.constant(1, element, (5, 31)))
    (found,) = evaluate(module)
    assert found.dtype == DTYPES[element].numpy and found.shape == (5, 31)
    assert np.all(found == 1)


@pytest.mark.parametrize("element", INTEGERS, ids=str)
def test_iota(element, build) -> None:
    module = build(lambda: ops.iota((2, 300), 1, element))
    expected = np.array([wrap(i, element) for i in range(300)], element.numpy)
    assert_same(evaluate(module)[0], np.stack([expected, expected]))
    module = build(lambda: ops.iota((3, 2), 0, element))
    assert_same(evaluate(module)[0], np.array([[0, 0], [1, 1], [2, 2]], element.numpy))


# --- the function around them -------------------------------------------------------------------

DYNAMIC = """
func.func @main(%x: tensor<?x?xf32>, %n: index) -> (tensor<?xi64>, tensor<?xi32>) {
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %columns = tensor.dim %x, %one : tensor<?x?xf32>
  %twice = arith.muli %columns, %two : index
  %more = arith.addi %twice, %n : index
  %0 = "dodeca.iota"(%more) {axis = 0 : i64} : (index) -> tensor<?xi64>
  %half = arith.floordivsi %n, %two : index
  %up = arith.ceildivsi %n, %two : index
  %rest = arith.remsi %n, %two : index
  %high = arith.maxsi %half, %up : index
  %low = arith.minsi %high, %columns : index
  %last = arith.subi %low, %rest : index
  %1 = "dodeca.iota"(%last) {axis = 0 : i64} : (index) -> tensor<?xi32>
  return %0, %1 : tensor<?xi64>, tensor<?xi32>
}"""


def test_sizes_are_computed(parse) -> None:
    first, second = evaluate(parse(DYNAMIC), np.zeros((5, 4), np.float32), 7)
    assert_same(first, np.arange(15))
    assert_same(second, np.arange(3, dtype=np.int32))


CALLS = """
func.func @main(%x: tensor<?xf32>) -> (tensor<?xf32>, tensor<?xf32>) {
  %0:2 = call @both(%x, %x) : (tensor<?xf32>, tensor<?xf32>) -> (tensor<?xf32>, tensor<?xf32>)
  return %0#0, %0#1 : tensor<?xf32>, tensor<?xf32>
}
func.func private @both(%x: tensor<?xf32>, %y: tensor<?xf32>) -> (tensor<?xf32>, tensor<?xf32>) {
  %0 = "dodeca.add"(%x, %y) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %1 = "dodeca.mul"(%0, %y) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %1, %0 : tensor<?xf32>, tensor<?xf32>
}"""


def test_calls_and_entries(parse) -> None:
    x = np.array([1, 2, 3], np.float32)
    product, total = evaluate(parse(CALLS), x)
    assert_same(product, 2 * x * x)
    assert_same(total, x + x)
    product, total = evaluate(parse(CALLS), x, 2 * x, entry="both")
    assert_same(product, 6 * x * x)
    assert_same(total, 3 * x)


def test_wrong_arguments(parse) -> None:
    module = parse(CALLS)
    with pytest.raises(ArgumentError, match="main takes 1 arrays, got 2"):
        evaluate(module, np.zeros(3), np.zeros(3))
    with pytest.raises(ArgumentError, match=r"argument 0 is \(3, 3\), expected tensor<\?xf32>"):
        evaluate(module, np.zeros((3, 3)))
    with pytest.raises(Error, match="no function 'other'; it has main, both"):
        evaluate(module, np.zeros(3), entry="other")
    with pytest.raises(Error, match=r"no func\.func with a body"):
        evaluate(parse(""))
    foreign = "func.func @f(%x: tensor<f32>) -> tensor<f32> { %0 = math.exp %x : tensor<f32> "
    with pytest.raises(Error, match=r"the interpreter does not know math\.exp"):
        evaluate(parse(f"{foreign} return %0 : tensor<f32> }}"), 1.0)


def test_high_precision_is_kept_from_end_to_end(build) -> None:
    """0.1 added ten times: float32 and float64 differ, and high precision does not round to f32."""

    def body(x: ir.Value) -> ir.Value:
        total = x
        for _ in range(9):
            total = ops.elementwise("add", total, x)
        return total

    module = build(body, "f32")
    (own,), (high,) = evaluate(module, 0.1), evaluate(module, 0.1, precision="high")
    assert own.dtype == np.float32
    assert own != np.float32(1)
    assert high.dtype == np.float64
    assert abs(high - 1) < 1e-15
