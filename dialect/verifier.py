"""The verifier: every rule of the dialect that IRDL cannot state, checked with located findings.

>>> verify(module)            # VerifyError lists file:line:column and what is wrong
"""

from __future__ import annotations

from collections.abc import Iterator

from mlir import ir

from . import ops
from .errors import Error, VerifyError
from .ops import TensorType
from .primitives import PRIMITIVES


def verify(operation: ir.Operation | ir.OpView | ir.Module) -> None:
    """Raise VerifyError with every finding in `operation` and what it holds."""
    root = operation.operation
    findings = [(place(op.location), message) for op, message in findings_in(root)]
    if findings:
        raise VerifyError(findings)


def findings_in(root: ir.Operation) -> Iterator[tuple[ir.Operation, str]]:
    """Every operation of the dialect below `root` that breaks a rule, with what is wrong."""
    for op in walk(root):
        try:
            _check(op)
        except (Error, ValueError, KeyError, TypeError) as error:
            yield op, str(error)


def walk(root: ir.Operation) -> list[ir.Operation]:
    """The operations below `root`, in order."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.append(op)
        return ir.WalkResult.ADVANCE

    root.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def place(location: ir.Location) -> str:
    """`file:line:column` of a location, for a message; what it prints as if it has no file."""
    found = file_location(location)
    if found is None:
        return str(location).removeprefix("loc(").removesuffix(")")
    return f"{found.filename}:{found.start_line}:{found.start_col}"


def file_location(location: ir.Location) -> ir.Location | None:
    """The place in a file that a location, perhaps fused, named or of a call, leads to."""
    if location.is_a_file():
        return location
    parts: list[ir.Location] = []
    if location.is_a_name():
        parts = [location.child_loc]
    elif location.is_a_callsite():
        parts = [location.callee, location.caller]
    elif location.is_a_fused():
        parts = list(location.locations)
    return next((found for part in parts if (found := file_location(part))), None)


def _check(op: ir.Operation) -> None:
    name = ops.operation_name(op)
    if name is None:
        return
    result = TensorType.of(op.results[0])
    operands = [TensorType.of(x) for x in op.operands if not isinstance(x.type, ir.IndexType)]
    if name == "contiguous":
        ops.check_view(*ops.read_view(op), result)
        fill = op.attributes["fill"]
        if str(fill.type) != result.dtype.mlir:
            raise Error(f"{name}: the fill is {fill.type}, the result {result}")
    elif name in PRIMITIVES:
        axis = ops.read_axis(op) if PRIMITIVES[name].form == "reduce" else -1
        _check_result(name, result, ops.infer(name, operands, axis))
    elif name == "constant":
        value = op.attributes["value"]
        if not isinstance(value, ir.DenseElementsAttr):
            raise Error(f"constant: value must be dense elements, got {value}")
        if result != TensorType.of(value.type):
            raise Error(f"constant: the result is {result}, expected {TensorType.of(value.type)}")
    elif name == "iota":
        ops.check_iota(result, ops.read_axis(op), len(list(op.operands)))
    else:
        if name == "bitcast":
            ops.check_bitcast(operands[0].dtype, result.dtype)
        _check_result(name, result, TensorType(operands[0].shape, result.dtype))


def _check_result(name: str, found: TensorType, expected: TensorType) -> None:
    if found.dtype != expected.dtype or not ops.compatible(found.shape, expected.shape):
        raise Error(f"{name}: the result is {found}, expected {expected}")
