"""`contiguous` as each of the movements that it stands for, against numpy doing the same."""

import itertools

import numpy as np
import pytest
from dodeca.dialect import DTYPES, ops
from dodeca.dialect.interpreter import evaluate
from dodeca.dialect.ops import context
from dodeca.dialect.verifier import verify
from dodeca.dialect.views import UNBOUNDED, View, bounds
from mlir import ir

X = np.arange(12, dtype=np.float32).reshape(3, 4) + 1
Y = -np.arange(6, dtype=np.float32).reshape(2, 3) - 1


def affine(text: str) -> ir.AffineMap:
    with context():
        return ir.AffineMapAttr(ir.Attribute.parse(f"affine_map<{text}>")).value


def typed(array: np.ndarray) -> str:
    names = {d.numpy: d.mlir for d in DTYPES.values()}
    return "".join(f"{n}x" for n in array.shape) + names[array.dtype]


def show(build, arrays, view: View, shape, indices=(), precision="own") -> np.ndarray:
    """What a view of these arrays, with these index arrays, gives."""
    arrays = [np.asarray(x) for x in arrays]
    indices = [np.asarray(x) for x in indices]

    def body(*values: ir.Value) -> ir.Value:
        sources, rest = values[: len(arrays)], values[len(arrays) :]
        return ops.contiguous(sources, view, shape, indices=rest)

    module = build(body, *map(typed, [*arrays, *indices]))
    verify(module)
    (found,) = evaluate(module, *arrays, *indices, precision=precision)
    assert found.shape == tuple(shape)
    return found


ONE_SOURCE = {
    "transpose": ("(d0, d1) -> (d1, d0)", 0, X.T),
    "broadcast in front": ("(d0, d1, d2) -> (d1, d2)", 0, np.broadcast_to(X, (2, 3, 4))),
    "broadcast behind": ("(d0, d1, d2) -> (d0, d1)", 0, np.repeat(X[:, :, None], 5, 2)),
    "slice": ("(d0, d1) -> (d0 + 1, d1 + 2)", 0, X[1:, 2:]),
    "slice with a step": ("(d0, d1) -> (d0 * 2, d1 * 3)", 0, X[::2, ::3]),
    "flip": ("(d0, d1) -> (2 - d0, 3 - d1)", 0, X[::-1, ::-1]),
    "one row": ("(d0) -> (1, d0)", 0, X[1]),
    "diagonal": ("(d0) -> (d0, d0)", 0, np.diagonal(X)),
    "pad": ("(d0, d1) -> (d0 - 1, d1 - 2)", 9, np.pad(X, ((1, 1), (2, 0)), constant_values=9)),
    "stretch": ("(d0, d1) -> (d0 floordiv 2, d1)", 0, np.repeat(X, 2, 0)),
    "repeat": ("(d0, d1) -> (d0 mod 3, d1)", 0, np.tile(X, (2, 1))),
    "flatten": ("(d0) -> (d0 floordiv 4, d0 mod 4)", 0, X.reshape(-1)),
    "reshape": (
        "(d0, d1) -> ((d0 * 6 + d1) floordiv 4, (d0 * 6 + d1) mod 4)",
        0,
        X.reshape(2, 6),
    ),
    "round up": ("(d0, d1) -> (d0 ceildiv 2, d1)", 0, X[[0, 1, 1, 2, 2]]),
    "wholly outside": ("(d0) -> (d0 + 3, d0)", -1, np.full(2, -1, np.float32)),
    "a scalar of it": ("() -> (2, 3)", 0, X[2, 3]),
    "nothing": ("(d0, d1) -> (d0, d1)", 0, X[:, :0]),
}


@pytest.mark.parametrize("precision", ["own", "high"])
@pytest.mark.parametrize("case", ONE_SOURCE)
def test_one_source(case, precision, build) -> None:
    text, fill, expected = ONE_SOURCE[case]
    found = show(build, [X], View((affine(text),), fill), expected.shape, precision=precision)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == (np.float64 if precision == "high" else np.float32)


@pytest.mark.parametrize("element", DTYPES.values(), ids=str)
def test_every_dtype_moves_unchanged(element, build) -> None:
    """Values and fill, the extremes included; NaN stays NaN."""
    low, high = (
        (-np.inf, np.nan)
        if element.is_float
        else (False, True)
        if element.kind == "bool"
        else (np.iinfo(element.numpy).min, np.iinfo(element.numpy).max)
    )
    x = np.array([low, 1, high], element.numpy)
    view = View((affine("(d0) -> (d0 - 1)"),), fill=high)
    found = show(build, [x], view, (5,))
    assert found.dtype == element.numpy
    expected = np.array([high, low, 1, high, high], element.numpy)
    wide = np.longdouble if element.is_float else element.numpy
    np.testing.assert_array_equal(found.astype(wide), expected.astype(wide))


def test_no_source(build) -> None:
    module = build(lambda: ops.contiguous([], View((), 3.5), (2, 2), element=DTYPES["float32"]))
    verify(module)
    np.testing.assert_array_equal(evaluate(module)[0], np.full((2, 2), 3.5, np.float32))


def test_concat(build) -> None:
    maps = (affine("(d0, d1) -> (d0, d1)"), affine("(d0, d1) -> (d0 - 3, d1)"))
    y = np.concatenate([Y, Y], 1)[:, :4]
    found = show(build, [X, y], View(maps), (5, 4))
    np.testing.assert_array_equal(found, np.concatenate([X, y]))


def test_the_first_source_wins(build) -> None:
    maps = (affine("(d0) -> (d0 - 2)"), affine("(d0) -> (d0)"))
    a, b = np.array([1, 2, 3]), np.array([10, 20, 30, 40])
    np.testing.assert_array_equal(
        show(build, [a, b], View(maps, fill=-1), (7,)), [10, 20, 1, 2, 3, -1, -1]
    )


def test_domains(build) -> None:
    """A place outside the domain falls to the next source, though the first could be read there."""
    same = affine("(d0, d1) -> (d0, d1)")
    triangle = affine("(d0, d1) -> (d0 - d1)")
    band = affine("(d0, d1) -> (d1 - d0, d0 - d1 + 1)")
    found = show(build, [X, -X], View((same, same), domains=(triangle, band), fill=5), (3, 4))
    i, j = np.indices((3, 4))
    expected = np.where(j <= i, X, np.where((j >= i) & (j <= i + 1), -X, np.float32(5)))
    np.testing.assert_array_equal(found, expected)


def test_select(build) -> None:
    """`where(c, x, y)`, with NaN and infinity on the side that is not taken."""
    condition = np.array([True, False, True, False])
    x = np.array([1, np.nan, -np.inf, np.inf], np.float32)
    y = np.array([np.nan, 2, np.inf, -0.0], np.float32)
    same = affine("(d0)[s0] -> (d0)")
    view = View(
        (same, same),
        domains=(affine("(d0)[s0] -> (s0 - 1)"), affine("(d0)[s0] -> (0)")),
        index_maps=(affine("(d0) -> (d0)"),),
    )
    found = show(build, [x, y], view, (4,), [condition])
    assert found.tobytes() == np.where(condition, x, y).tobytes()


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.int8, np.uint8])
def test_gather(kind, build) -> None:
    """Rows by number, twice and in any order; numbers outside give the fill, none wraps."""
    rows = np.array([2, 0, 2, 3, 100, 0 if kind == np.uint8 else -1], kind)
    view = View(
        (affine("(d0, d1)[s0] -> (s0, d1)"),), 7.0, index_maps=(affine("(d0, d1) -> (d0)"),)
    )
    found = show(build, [X], view, (6, 4), [rows])
    for row, number in zip(found, rows.tolist(), strict=True):
        inside = 0 <= number < 3
        np.testing.assert_array_equal(row, X[number] if inside else np.full(4, 7, np.float32))


def test_gather_far_outside(build) -> None:
    """Numbers beyond 32 bits are not cut to something inside."""
    far = np.array([2**32, 2**40 + 1, -(2**63), 2**63 - 1, 1])
    view = View((affine("(d0)[s0] -> (s0)"),), -1, index_maps=(affine("(d0) -> (d0)"),))
    found = show(build, [np.array([10, 20])], view, (5,), [far])
    np.testing.assert_array_equal(found, [-1, -1, -1, -1, 20])


def test_two_indices(build) -> None:
    """`x[i, j]`, one index along each axis of the result, and one that is a scalar."""
    i, j = np.array([0, 2, 1]), np.array([3, 3, 0, 5])
    view = View(
        (affine("(d0, d1)[s0, s1] -> (s0, s1)"),),
        index_maps=(affine("(d0, d1) -> (d0)"), affine("(d0, d1) -> (d1)")),
    )
    expected = np.where(j < 4, X[np.ix_(i, np.minimum(j, 3))], 0)
    np.testing.assert_array_equal(show(build, [X], view, (3, 4), [i, j]), expected)
    view = View((affine("(d0)[s0] -> (s0, d0 + s0)"),), -1.0, index_maps=(affine("(d0) -> ()"),))
    np.testing.assert_array_equal(show(build, [X], view, (4,), [np.int64(1)]), [6, 7, 8, -1])


def test_empty_sources(build) -> None:
    empty = np.zeros((0, 4), np.float32)
    view = View((affine("(d0, d1) -> (d0, d1)"), affine("(d0, d1) -> (d0, d1)")), 2.0)
    np.testing.assert_array_equal(show(build, [empty, X], view, (3, 4)), X)
    np.testing.assert_array_equal(show(build, [empty, empty], view, (1, 1)), [[2]])


def test_dynamic_flip_and_pad(build) -> None:
    """Sizes that come from tensor.dim are symbols of the maps, after those of the indices."""
    text = """
    #flip = affine_map<(d0, d1)[s0, s1] -> (s0 - 1 - d0, d1 - 1)>
    func.func @main(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
      %0 = arith.constant 0 : index
      %1 = arith.constant 1 : index
      %2 = arith.constant 2 : index
      %rows = tensor.dim %x, %0 : tensor<?x?xf32>
      %columns = tensor.dim %x, %1 : tensor<?x?xf32>
      %wide = arith.addi %columns, %2 : index
      %r = "dodeca.contiguous"(%x, %rows, %wide) {maps = [#flip], fill = 5.0 : f32,
        operandSegmentSizes = array<i32: 1, 0, 0, 0, 2>}
        : (tensor<?x?xf32>, index, index) -> tensor<?x?xf32>
      return %r : tensor<?x?xf32>
    }"""
    with context(), ir.Location.unknown():
        module = ir.Module.parse(text)
    verify(module)
    for x in (X, Y, X[:1], X[:, :0]):
        expected = np.pad(x[::-1], ((0, 0), (1, 1)), constant_values=5)
        np.testing.assert_array_equal(evaluate(module, x)[0], expected)


def test_dynamic_gather(build) -> None:
    """The symbols of an index come first, then the extents."""
    with context():
        view = View(
            (affine("(d0, d1)[s0, s1] -> (s0, s1 - 1 - d0 + d1)"),),
            fill=-1.0,
            index_maps=(affine("(d0, d1) -> (d0)"),),
        )

    def body(x, i, n):
        return ops.contiguous([x], view, (None, 2), indices=[i], extents=[n])

    module = build(body, "3x4xf32", "?xi64", "index")
    (found,) = evaluate(module, X, np.array([2, 0, 1]), 3)
    expected = [[X[2, 2], X[2, 3]], [X[0, 1], X[0, 2]], [X[1, 0], X[1, 1]]]
    np.testing.assert_array_equal(found, expected)


# --- intervals ----------------------------------------------------------------------------------

EXPRESSIONS = [
    "d0 + d1 * 3 - 5",
    "d0 * -2 + 7",
    "d0 floordiv 3",
    "(d0 - 4) floordiv 3",
    "(d0 - 4) ceildiv 3",
    "d0 mod 4",
    "(d0 - 9) mod 4",
    "(d0 * 5 + d1) mod 7 - d1",
    "(d0 + d1) floordiv 2 * 3 - (d0 mod 2) * 4",
]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_bounds_hold_every_value(text) -> None:
    """Interval arithmetic may be wide, never narrow; for one use of each index it is exact."""
    expr = affine(f"(d0, d1) -> ({text})").results[0]
    low, high = bounds(expr, [(0, 6), (0, 2)])
    python = text.replace("floordiv", "//").replace("mod", "%")
    python = python.replace("(d0 - 4) ceildiv 3", "-(-(d0 - 4) // 3)")
    values = [eval(python, {"d0": a, "d1": b}) for a, b in itertools.product(range(7), range(3))]
    assert low <= min(values)
    assert high >= max(values)
    if text.count("d0") == 1 and text.count("d1") <= 1 and "mod 7" not in text:
        assert (low, high) == (min(values), max(values))


def test_bounds_of_what_is_not_known() -> None:
    expr = affine("(d0)[s0] -> (d0 + s0)").results[0]
    assert bounds(expr, [(0, 3)]) == UNBOUNDED
    assert bounds(affine("(d0) -> (d0 * 0 + 2)").results[0], [(0, float("inf"))]) == (2, 2)
    assert bounds(affine("(d0) -> (d0 mod 8)").results[0], [(0, float("inf"))]) == (0, 7)
