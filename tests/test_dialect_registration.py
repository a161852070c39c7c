"""MLIR's operations are those of the table, and what is printed reads back the same."""

import numpy as np
import pytest
from dodeca.dialect import DTYPES, PRIMITIVES, ops
from dodeca.dialect.ops import TensorType, context
from dodeca.dialect.verifier import verify
from dodeca.dialect.views import View
from mlir import ir

TABLE = [(p, d) for p in PRIMITIVES.values() for d in DTYPES.values() if d.kind in p.kinds]


def identity(rank: int) -> ir.AffineMap:
    return ir.AffineMap.get_identity(rank)


def test_the_twelve_primitives() -> None:
    names = "exp2 log2 sin sqrt recip add mul mod less_than sum_reduce max_reduce contiguous"
    assert list(PRIMITIVES) == names.split()


@pytest.mark.parametrize(("row", "element"), TABLE, ids=lambda x: x.name)
@pytest.mark.parametrize("shape", ["2x3", "?x3"])
def test_round_trip(row, element, shape, build, parse) -> None:
    def body(*x: ir.Value) -> ir.Value:
        if row.form == "view":
            return ops.contiguous([x[0]], View((identity(2),)), (2, 3))
        if row.form == "reduce":
            return ops.reduce(row.name, x[0], 1)
        return ops.elementwise(row.name, *x)

    module = build(body, *[f"{shape}x{element.mlir}"] * (row.arity or 1))
    verify(module)
    text = str(module)
    assert f'"dodeca.{row.name}"' in text
    again = parse(text)
    verify(again)
    assert str(again) == text
    assert str(parse(again.operation.get_asm(print_generic_op_form=True))) == text


@pytest.mark.parametrize("element", DTYPES.values(), ids=str)
@pytest.mark.parametrize("size", [1, 3, 200])  # MLIR prints many elements as bytes
def test_constants_keep_every_bit(element, size, build, parse) -> None:
    random = np.random.default_rng(size)
    width = element.numpy.itemsize
    if element.kind == "bool":
        array = random.integers(0, 2, size).astype(bool)
    else:
        array = random.integers(0, 256, size * width, np.uint8).view(element.numpy)
        array = np.where(np.isnan(array.astype(np.float64)), np.zeros_like(array), array)
    module = build(lambda: ops.constant(array, element, (size,)))
    for found in (module, parse(str(module))):
        verify(found)
        operation = found.body.operations[0].regions[0].blocks[0].operations[0]
        read = ops.read_array(operation.attributes["value"])
        assert read.dtype == element.numpy
        assert read.tobytes() == array.tobytes()


@pytest.mark.parametrize("element", DTYPES.values(), ids=str)
def test_odd_constants(element, build) -> None:
    """Empty ones, scalars spread over a shape, and the extremes."""
    values = {"float": [np.inf, -np.inf, np.nan, -0.0], "bool": [True, False]}.get(element.kind)
    if values is None:
        info = np.iinfo(element.numpy)
        values = [info.min, info.max]

    def body() -> list[ir.Value]:
        empty = ops.constant(np.zeros((0, 3)), element, (0, 3))
        return [empty, *(ops.constant(v, element, (2, 2)) for v in values)]

    module = build(body)
    made = list(module.body.operations[0].regions[0].blocks[0].operations)[:-1]
    empty, *spread = [ops.read_array(op.attributes["value"]) for op in made]
    assert empty.shape == (0, 3)
    for value, array in zip(values, spread, strict=True):
        expected = np.full((2, 2), value, element.numpy)
        if value != value:
            assert np.isnan(array).all()
        else:
            assert array.tobytes() == expected.tobytes()


def test_unknown_operations_do_not_parse(parse) -> None:
    with pytest.raises(ir.MLIRError, match=r"unregistered operation 'dodeca\.relu'"):
        parse(
            'func.func @f(%x: tensor<4xf32>) { "dodeca.relu"(%x) : (tensor<4xf32>) -> () return }'
        )


def test_reading_a_view_back(build) -> None:
    """`read_view` gives what `contiguous` was made from."""
    with context():
        dims = [ir.AffineDimExpr.get(i) for i in range(2)]
        symbols = [ir.AffineSymbolExpr.get(i) for i in range(3)]
        view = View(
            maps=(
                ir.AffineMap.get(2, 3, [symbols[0], dims[1]]),
                ir.AffineMap.get(2, 3, [dims[0] - symbols[2]]),
            ),
            fill=7,
            domains=(ir.AffineMap.get(2, 3, [symbols[1] - 1]), ir.AffineMap.get(2, 3, [dims[0]])),
            index_maps=(ir.AffineMap.get(2, 0, [dims[0]]), ir.AffineMap.get(2, 0, [])),
        )

    def body(*v: ir.Value) -> ir.Value:
        return ops.contiguous(v[:2], view, (5, None), indices=v[2:4], extents=v[4:])

    module = build(body, "9x4xi8", "4xi8", "5xi32", "i1", "index")
    block = module.body.operations[0].regions[0].blocks[0]
    found, roles = ops.read_view(block.operations[0].operation)
    assert found == view
    assert roles.sources == list(block.arguments[:2])
    assert roles.indices == list(block.arguments[2:4])
    assert roles.extents == [block.arguments[4]]
    assert TensorType.of(block.operations[0].results[0]) == ((5, None), DTYPES["int8"])
