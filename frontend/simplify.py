"""`dodeca-simplify`: removes operations that nothing reads, and repeated ones.

Upstream's `cse` and `canonicalize` leave the dialect alone: operations that IRDL defines have no
traits, so MLIR must suppose that they have effects. They have none; nor has what computes sizes.

    %0 = "dodeca.add"(%x, %y)                     %0 = "dodeca.add"(%x, %y)
    %1 = "dodeca.add"(%y, %x)              →      %2 = "dodeca.mul"(%0, %0)
    %2 = "dodeca.mul"(%0, %1)                     return %2
    %3 = "dodeca.exp2"(%x)
    return %2
"""

from __future__ import annotations

from typing import Any

from mlir import ir

from .dialect.ops import operation_name
from .dialect.primitives import PRIMITIVES
from .dialect.verifier import walk


def simplify(module: ir.Operation) -> None:
    """Merge equal operations in every block, then erase what nothing reads."""
    blocks = [block for op in walk(module) for region in op.regions for block in region.blocks]
    for block in blocks:
        _merge_equal(block)
    for block in blocks:
        _erase_dead(block)


def is_pure(op: ir.Operation) -> bool:
    """Whether the operation only computes its results from its operands."""
    dialect = op.name.partition(".")[0]
    return dialect in ("dodeca", "arith") or op.name == "tensor.dim"


def _merge_equal(block: ir.Block) -> None:
    first: dict[Any, ir.Operation] = {}
    order: dict[ir.Value, int] = {}  # names each value in a key, in the order of appearance
    for view in list(block.operations):
        op = view.operation
        if not is_pure(op):
            continue
        key = _key(op, order)
        if key not in first:
            first[key] = op
            continue
        for old, new in zip(op.results, first[key].results, strict=True):
            old.replace_all_uses_with(new)
        op.erase()


def _key(op: ir.Operation, order: dict[ir.Value, int]) -> Any:
    """Equal for operations that compute the same: a commutative one takes either order."""
    operands = [order.setdefault(value, len(order)) for value in op.operands]
    row = PRIMITIVES.get(operation_name(op) or "")
    if row is not None and row.commutative:
        operands.sort()
    attributes = tuple(sorted((name, op.attributes[name]) for name in op.attributes))
    return op.name, tuple(operands), attributes, tuple(result.type for result in op.results)


def _erase_dead(block: ir.Block) -> None:
    for view in reversed(list(block.operations)):
        op = view.operation
        if is_pure(op) and not any(True for result in op.results for _ in result.uses):
            op.erase()
