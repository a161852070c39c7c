"""Regions: the pieces of a function that are optimised one at a time.

A function is cut where a single computed value is alive (between the layers of a network, say), so
that no fusion worth having crosses a cut. Equal regions, up to the names of values, have equal keys
and are solved once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

from mlir import ir

from ..dialect import ops
from .comprehend import REDUCTION_OF, maker, static_shape

LARGEST = 160  # operations of a region that was joined from smaller ones


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
    position: dict[ir.Value, int] = {op.results[0]: n for n, op in enumerate(operations)}
    last_use = {v: n for n, op in enumerate(operations) for v in op.operands}
    last_use.update(dict.fromkeys(returned, len(operations)))
    heavy = _heavy(operations)
    remade = _remade(operations)
    for op in reversed(operations):
        if op in remade:  # where its result is read, it is made again, and its operands are read
            for x in op.operands:
                last_use[x] = max(last_use[x], last_use.get(op.results[0], -1))
    edges = [0, *_cuts(operations, last_use, heavy - prepared), len(operations)]

    def region(start: int, end: int) -> Region:
        piece = operations[start:end]
        return _region(piece, start, end, position, last_use, prepared, remade)

    pieces = [(a, b) for a, b in pairwise(edges) if a < b]
    keys = [region(a, b).key for a, b in pieces]
    for first, last in _join(keys, [b - a for a, b in pieces]):
        yield region(pieces[first][0], pieces[last][1])


def _join(keys: list[str], sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Join neighbouring pieces, as (first, last), up to the size that is still quick to search.

    A sequence of pieces that repeats (the layers of a network) becomes one region each time, so
    that it is solved once; what does not repeat is joined greedily.
    """
    start = 0
    while start < len(keys):
        period, times = _repeat(keys, sizes, start)
        if times > 1:
            for n in range(times):
                yield start + n * period, start + (n + 1) * period - 1
            start += period * times
            continue
        end, total = start + 1, sizes[start]
        while end < len(keys) and _repeat(keys, sizes, end)[1] == 1:
            if total + sizes[end] > LARGEST:
                break
            total += sizes[end]
            end += 1
        yield start, end - 1
        start = end


def _repeat(keys: list[str], sizes: list[int], start: int) -> tuple[int, int]:
    """The period and number of the repetition from `start` that covers the most pieces."""
    best = (1, 1)
    for period in range(1, (len(keys) - start) // 2 + 1):
        if sum(sizes[start : start + period]) > LARGEST:
            break
        unit, times = keys[start : start + period], 1
        while keys[start + times * period : start + (times + 1) * period] == unit:
            times += 1
        if times > 1 and times * period > best[0] * best[1]:
            best = (period, times)
    return best


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
    remade: set[ir.Operation],
) -> Region:
    piece = _with_remade(piece, start, position, remade)
    inputs: dict[ir.Value, None] = {}
    for op in piece:
        for x in op.operands:
            if position.get(x, -1) < start and maker(x) not in remade:
                inputs[x] = None
    outputs = [op.results[0] for op in piece if last_use.get(op.results[0], -1) >= end]
    outputs = [v for v in outputs if maker(v) not in remade or last_use[v] == len(position)]
    known = frozenset(v for v in [*inputs, *(op.results[0] for op in piece)] if v in prepared)
    return Region(tuple(piece), tuple(inputs), tuple(outputs), known)


def _remade(operations: Iterable[ir.Operation]) -> set[ir.Operation]:
    """What each region makes again for itself instead of reading it from a buffer: what comes of
    constants alone, and views that only spread a smaller tensor out."""
    constant: set[ir.Operation] = set()
    spread: set[ir.Operation] = set()
    for op in operations:
        if all(maker(x) in constant for x in op.operands):
            constant.add(op)
        elif ops.operation_name(op) == "contiguous" and spreads(op):
            spread.add(op)
    return constant | spread


def spreads(op: ir.Operation) -> bool:
    """Whether an operation's result has more elements than all that it reads."""
    sources = sum(prod(static_shape(x)) for x in op.operands if isinstance(x.type, ir.ShapedType))
    return prod(static_shape(op.results[0])) > sources


def _with_remade(
    piece: list[ir.Operation], start: int, position: dict[ir.Value, int], remade: set[ir.Operation]
) -> list[ir.Operation]:
    """The region's operations, after those from before it that it makes again."""
    before: dict[ir.Operation, None] = {}

    def need(op: ir.Operation) -> None:
        for x in op.operands:
            made = maker(x)
            if made is None or made not in remade or position[x] >= start or made in before:
                continue
            need(made)
            before[made] = None

    for op in piece:
        need(op)
    return [*before, *piece]
