"""Regions: the pieces of a function that are optimised one at a time.

A function is cut where a single computed value is alive (between the layers of a network, say), so
that no fusion worth having crosses a cut. Equal regions, up to the names of values, have equal keys
and are solved once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from mlir import ir

from ..dialect import ops
from .comprehend import REDUCTION_OF


@dataclass(frozen=True)
class Region:
    """Consecutive operations, the values they read from before, and those read after them."""

    operations: tuple[ir.Operation, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    prepared: frozenset[ir.Value]  # values that depend on weights and constants alone

    @cached_property
    def names(self) -> dict[ir.Value, str]:
        """i0, i1, ... for the inputs and v0, v1, ... for the values, by position."""
        named = {v: f"i{n}" for n, v in enumerate(self.inputs)}
        named.update({op.results[0]: f"v{n}" for n, op in enumerate(self.operations)})
        return named

    @property
    def key(self) -> str:
        """Text that is equal for regions that differ in the names of values only."""
        number = self.names
        lines = [f"{v.type} {v in self.prepared}" for v in self.inputs]
        for op in self.operations:
            attributes = {name: str(op.attributes[name]) for name in op.attributes}
            operands = [number[x] for x in op.operands]
            lines.append(f"{op.name} {operands} {attributes} {op.results[0].type}")
        return "\n".join(lines) + str([number[v] for v in self.outputs])


def function_operations(block: ir.Block) -> list[ir.Operation]:
    """The operations of a function's body without its return."""
    return [op.operation for op in block.operations if op.operation.name != "func.return"]


def weight_only(block: ir.Block, weights: set[ir.Value]) -> set[ir.Value]:
    """The values that depend on weights and constants alone; they are computed before any call."""
    known = set(weights)
    for op in function_operations(block):
        if all(x in known for x in op.operands):
            known.update(op.results)
    return known


def partition(block: ir.Block, weights: set[ir.Value]) -> Iterator[Region]:
    """Cut a function's body into regions, in order."""
    operations = function_operations(block)
    returned = list(block.operations[len(block.operations) - 1].operands)
    prepared = weight_only(block, weights)
    position = {op.results[0]: n for n, op in enumerate(operations)}
    last_use = {v: n for n, op in enumerate(operations) for v in op.operands}
    last_use.update(dict.fromkeys(returned, len(operations)))
    heavy = _heavy(operations)
    start = 0
    for end in [*_cuts(operations, last_use, heavy - prepared), len(operations)]:
        piece = operations[start:end]
        if piece:
            yield _region(piece, start, end, position, last_use, prepared)
        start = end


def _heavy(operations: list[ir.Operation]) -> set[ir.Value]:
    """The values with a reduction somewhere in their definition."""
    heavy: set[ir.Value] = set()
    for op in operations:
        if ops.operation_name(op) in REDUCTION_OF or any(x in heavy for x in op.operands):
            heavy.update(op.results)
    return heavy


def _cuts(
    operations: list[ir.Operation], last_use: dict[ir.Value, int], heavy: set[ir.Value]
) -> list[int]:
    """Positions between operations where exactly one computed value is alive."""
    alive: set[ir.Value] = set()
    cuts: list[int] = []
    for n, op in enumerate(operations):
        alive = {v for v in alive if last_use[v] > n}
        if op.results[0] in heavy and last_use.get(op.results[0], -1) > n:
            alive.add(op.results[0])
        only = next(iter(alive)) if len(alive) == 1 else None
        # only where the value has several readers: a chain of single readers may still fuse
        if only is not None and _readers(operations, only, n) > 1:
            cuts.append(n + 1)
    return cuts


def _readers(operations: list[ir.Operation], value: ir.Value, after: int) -> int:
    return sum(value in list(op.operands) for op in operations[after + 1 :])


def _region(
    piece: list[ir.Operation],
    start: int,
    end: int,
    position: dict[ir.Value, int],
    last_use: dict[ir.Value, int],
    prepared: set[ir.Value],
) -> Region:
    piece = _with_constants(piece, start, position)
    inputs: dict[ir.Value, None] = {}
    for op in piece:
        for x in op.operands:
            if position.get(x, -1) < start and not _is_constant(x.owner):
                inputs[x] = None
    outputs = [op.results[0] for op in piece if last_use.get(op.results[0], -1) >= end]
    outputs = [v for v in outputs if not _is_constant(v.owner) or last_use[v] == len(position)]
    known = frozenset(v for v in [*inputs, *(op.results[0] for op in piece)] if v in prepared)
    return Region(tuple(piece), tuple(inputs), tuple(outputs), known)


def _is_constant(owner: object) -> bool:
    name = ops.operation_name(owner) if isinstance(owner, ir.Operation) else None
    return name in ("constant", "iota")


def _with_constants(
    piece: list[ir.Operation], start: int, position: dict[ir.Value, int]
) -> list[ir.Operation]:
    """A constant made before the region is made again in it, so that it is never a buffer."""
    before: dict[ir.Operation, None] = {}
    for op in piece:
        for x in op.operands:
            if position.get(x, start) < start and _is_constant(x.owner):
                before[x.owner] = None
    return [*before, *piece]
