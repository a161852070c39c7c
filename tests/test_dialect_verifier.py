"""What the verifier and the builders say about operations that are wrong, and where.

tests/lit/verify_*.mlir have one case for every rule; here are the Python interfaces to the same.
"""

import pytest
from dodeca.dialect import DTYPES, PRIMITIVES, ops
from dodeca.dialect.errors import DtypeError, Error, ShapeError, VerifyError
from dodeca.dialect.ops import TensorType, context
from dodeca.dialect.verifier import place, verify
from dodeca.dialect.views import View
from mlir import ir

WRONG = """func.func @f(%x: tensor<2x3xf32>, %y: tensor<3xf32>) {
  %0 = "dodeca.add"(%x, %y) : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  %1 = "dodeca.exp2"(%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %2 = "dodeca.sum_reduce"(%1) {axis = 2 : i64} : (tensor<2x3xf32>) -> tensor<2xf32>
  return
}"""


def test_every_finding_with_its_place(parse) -> None:
    with pytest.raises(VerifyError) as error:
        verify(parse(WRONG))
    assert error.value.diagnostics == [
        ("-:2:8", "add: operand 0 is tensor<2x3xf32>, operand 1 is tensor<3xf32>"),
        ("-:4:10", "sum_reduce: axis 2 is outside tensor<2x3xf32>, which has rank 2"),
    ]
    assert str(error.value).splitlines()[0] == (
        "-:2:8: error: add: operand 0 is tensor<2x3xf32>, operand 1 is tensor<3xf32>"
    )


def test_verifying_an_operation_looks_inside_only(parse) -> None:
    module = parse(WRONG)
    block = module.body.operations[0].regions[0].blocks[0]
    verify(block.operations[1])
    with pytest.raises(VerifyError, match="add: operand 0"):
        verify(block.operations[0])


def test_places() -> None:
    """A location leads to a file through names, fusion and calls."""
    with context():
        file = ir.Location.file("model.py", 12, 3)
        name = ir.Location.name("layer")
        known = [
            file,
            ir.Location.name("layer", file),
            ir.Location.fused([name, file]),
            ir.Location.callsite(file, [ir.Location.file("other.py", 1, 1)]),
        ]
        assert [place(x) for x in known] == ["model.py:12:3"] * 4
        assert place(name) == '"layer"'
        assert place(ir.Location.unknown()) == "unknown"


def kind(text: str) -> TensorType:
    with context():
        return TensorType.of(ir.Type.parse(f"tensor<{text}>"))


INFERRED = [
    ("exp2", ["2x3xf16"], {}, "2x3xf16"),
    ("add", ["?x3xi8", "2x?xi8"], {}, "2x3xi8"),
    ("less_than", ["4xbf16", "4xbf16"], {}, "4xi1"),
    ("sum_reduce", ["2x3x4xi64"], {"axis": 1}, "2x4xi64"),
    ("max_reduce", ["?xi1"], {"axis": 0}, "i1"),
]


@pytest.mark.parametrize(("name", "operands", "attributes", "result"), INFERRED)
def test_infer(name, operands, attributes, result) -> None:
    assert ops.infer(name, [kind(x) for x in operands], **attributes) == kind(result)


REFUSED = [
    ("add", ["2x3xf32", "3xf32"], {}, ShapeError, "operand 0 is tensor<2x3xf32>, operand 1"),
    ("add", ["3xf32", "3xf16"], {}, DtypeError, "operand 0 is float32, operand 1 is float16"),
    ("mod", ["3xi1", "3xi1"], {}, DtypeError, "operand 0 is bool; it takes float32"),
    ("max_reduce", ["3xf32"], {"axis": 1}, ShapeError, "axis 1 is outside tensor<3xf32>"),
    ("max_reduce", ["3xf32"], {"axis": -1}, ShapeError, "axis -1 is outside tensor<3xf32>"),
]


@pytest.mark.parametrize(("name", "operands", "attributes", "error", "message"), REFUSED)
def test_infer_refuses(name, operands, attributes, error, message) -> None:
    with pytest.raises(error, match=f"^{name}: .*{message}"):
        ops.infer(name, [kind(x) for x in operands], **attributes)


@pytest.mark.parametrize("row", PRIMITIVES.values(), ids=lambda row: row.name)
@pytest.mark.parametrize("element", DTYPES.values(), ids=str)
def test_dtypes_are_those_of_the_table(row, element) -> None:
    """A primitive takes a dtype if its row has the kind, and names those it takes if not."""
    if row.form == "view":
        return
    operands = [TensorType((4,), element)] * (row.arity or 1)
    if element.kind in row.kinds:
        assert ops.infer(row.name, operands, axis=0)
    else:
        with pytest.raises(DtypeError, match=f"{row.name}: operand 0 is {element}; it takes"):
            ops.infer(row.name, operands, axis=0)


def test_types_that_are_none() -> None:
    with context():
        with pytest.raises(DtypeError, match="expected a ranked tensor, got vector<4xf32>"):
            TensorType.of(ir.Type.parse("vector<4xf32>"))
        with pytest.raises(DtypeError, match="element type ui16 of tensor<4xui16> is not one of"):
            TensorType.of(ir.Type.parse("tensor<4xui16>"))
        with pytest.raises(DtypeError, match="expected a ranked tensor, got tensor<\\*xf32>"):
            TensorType.of(ir.Type.parse("tensor<*xf32>"))


def test_a_type_prints_as_mlir_does() -> None:
    with context(), ir.Location.unknown():
        for text in ("tensor<f32>", "tensor<2x?xbf16>", "tensor<0xui8>", "tensor<?x?xi1>"):
            found = TensorType.of(ir.Type.parse(text))
            assert str(found) == text == str(found.mlir)


def test_builders_refuse_what_the_verifier_would(build) -> None:
    with context():
        same = ir.AffineMap.get_identity(1)
    cases = [
        (lambda x: ops.contiguous([x], View(()), (4,)), ShapeError, "1 sources, but 0 maps"),
        (
            lambda x: ops.contiguous([x] * 3, View((same,) * 3), (4,)),
            ShapeError,
            "at most 2 source",
        ),
        (lambda x: ops.contiguous([x], View((same,)), (None,)), ShapeError, "0 extents are given"),
        (
            lambda x: ops.constant([1, 2], "int8", (3,)),
            ShapeError,
            r"the array is \(2,\), the shap",
        ),
        (lambda x: ops.iota((3,), 1), ShapeError, "axis 1 is outside tensor<3xi64>"),
        (lambda x: ops.iota((3,), 0, "float32"), DtypeError, "iota: gives integers, not float32"),
        (lambda x: ops.bitcast(x, "int8"), DtypeError, "float32 and int8 have no common bit"),
        (lambda x: ops.cast(x, "int9"), DtypeError, "unknown dtype 'int9'; dodeca has float32"),
    ]
    for body, error, message in cases:
        with pytest.raises(error, match=message):
            build(body, "4xf32")
        assert issubclass(error, Error)
