"""Regions: the pieces of a function that are optimised one at a time.

A function is cut where a single computed value is alive (between the layers of a network, say), so
that no fusion worth having crosses a cut. Equal regions, up to the names of values, have equal keys
and are solved once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

from mlir import ir

from ..dialect import ops
from .comprehend import REDUCTION_OF, static_shape
from .terms import postorder

LARGEST = 200  # operations of a region that was joined from smaller ones
LEAST = 24  # ... and of one that repeats: what is smaller is joined


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
        inputs = {v: f"i{n}" for n, v in enumerate(self.inputs)}
        return inputs | {op.results[0]: f"v{n}" for n, op in enumerate(self.operations)}

    @property
    def form(self) -> list[str]:
        """Equal for regions that do the same on tensors of other sizes."""
        return [f"{op.name} {[self.names[x] for x in op.operands]}" for op in self.operations]

    @cached_property
    def key(self) -> str:
        """Text that is equal for regions that differ in the names of values only."""
        lines = [f"{v.type} {v in self.prepared}" for v in self.inputs]
        for op, words in zip(self.operations, self.form, strict=True):
            attributes = {name: str(op.attributes[name]) for name in op.attributes}
            lines.append(f"{words} {attributes} {op.results[0].type}")
        return "\n".join(lines) + str([self.names[v] for v in self.outputs])


def partition(block: ir.Block, weights: set[ir.Value]) -> Iterator[Region]:
    """Cut a function's body into regions, in order."""
    body = _Body(block, weights)
    pieces = [(a, b) for a, b in pairwise([0, *body.cuts(), len(body.operations)]) if a < b]
    found = [body.region(a, b) for a, b in pieces]
    kept = [sum(prod(static_shape(v)) for v in region.outputs) for region in found]
    for first, last in _join([r.form for r in found], [b - a for a, b in pieces], kept):
        yield body.region(pieces[first][0], pieces[last][1])


class _Body:
    """The operations of a function's body, and what is known of their values."""

    def __init__(self, block: ir.Block, weights: set[ir.Value]):
        every = [op.operation for op in block.operations]
        self.operations = every[:-1]  # without the return
        self.position = {op.results[0]: n for n, op in enumerate(self.operations)}
        self.last_use = {v: n for n, op in enumerate(every) for v in op.operands}
        self.prepared = set(weights)  # depends on weights and constants alone
        self.heavy: set[ir.Value] = set()  # has a reduction somewhere in its definition
        constant: set[ir.Value] = set()
        spread: set[ir.Value] = set()
        for op in self.operations:
            value, name = op.results[0], ops.operation_name(op)
            if all(x in self.prepared for x in op.operands):
                self.prepared.add(value)
            if name in REDUCTION_OF or any(x in self.heavy for x in op.operands):
                self.heavy.add(value)
            if all(x in constant for x in op.operands):
                constant.add(value)
            elif name == "contiguous" and spreads(op):
                spread.add(value)
        # What each region makes again for itself instead of reading it from a buffer: what comes of
        # constants alone, and views that only spread a smaller tensor out. So where it is read,
        # its operands are.
        self.remade = constant | spread
        for op in reversed(self.operations):
            if op.results[0] in self.remade:
                for x in op.operands:
                    self.last_use[x] = max(self.last_use[x], self.last_use.get(op.results[0], -1))

    def cuts(self) -> Iterator[int]:
        """Positions between operations where exactly one computed value is alive.

        Only where it has several readers: a chain of single readers may still fuse.
        """
        computed = self.heavy - self.prepared
        alive: set[ir.Value] = set()
        left = Counter(v for op in self.operations for v in dict.fromkeys(op.operands))  # readers
        for n, op in enumerate(self.operations):
            left.subtract(dict.fromkeys(op.operands, 1))
            alive.update(computed.intersection(op.results))
            alive = {v for v in alive if self.last_use.get(v, -1) > n}
            if len(alive) == 1 and sum(left[v] for v in alive) > 1:
                yield n + 1

    def region(self, start: int, end: int) -> Region:
        """The region of the operations from `start` up to `end`."""
        piece = self._with_remade(start, end)
        values = [op.results[0] for op in piece]
        read = dict.fromkeys(x for op in piece for x in op.operands if x not in self.remade)
        inputs = [x for x in read if self.position.get(x, -1) < start]
        later = [v for v in values if self.last_use.get(v, -1) >= end]
        returned = len(self.operations)
        outputs = [v for v in later if v not in self.remade or self.last_use[v] == returned]
        known = self.prepared.intersection([*inputs, *values])
        return Region(tuple(piece), tuple(inputs), tuple(outputs), frozenset(known))

    def _with_remade(self, start: int, end: int) -> list[ir.Operation]:
        """The operations of a region, after those from before it that it makes again."""

        def remade(v: ir.Value) -> list[ir.Value]:
            read = self.operations[self.position[v]].operands
            return [x for x in read if x in self.remade and self.position[x] < start]

        piece = self.operations[start:end]
        needed = postorder([op.results[0] for op in piece], children=remade)
        before = [self.position[v] for v in needed if self.position[v] < start]
        return [*(self.operations[n] for n in before), *piece]


def _join(forms: list[list[str]], sizes: list[int], kept: list[int]) -> Iterator[tuple[int, int]]:
    """Join neighbouring pieces, as (first, last), up to the size that is still quick to search.

    A sequence of pieces that repeats (the layers of a network) becomes one region each time: it is
    solved once, if its sizes are the same too. It begins where the least is `kept` of the piece
    before. What does not repeat is joined greedily.
    """
    start = 0
    while start < len(forms):
        period, times = _repeat(forms, sizes, start)
        if times > 1:
            for n in range(times):
                yield start + n * period, start + (n + 1) * period - 1
            start += period * times
            continue
        end = start + 1
        while end < len(forms) and sum(sizes[start : end + 1]) <= LARGEST:
            period, times = _repeat(forms, sizes, end)
            if times > 1:
                begins = [n for n in range(end, end + period) if _repeat(forms, sizes, n)[1] > 1]
                begins = [n for n in begins if sum(sizes[start:n]) <= LARGEST]
                end = min(begins, key=lambda n: (kept[n - 1], -n))
                break
            end += 1
        yield start, end - 1
        start = end


def _repeat(forms: list[list[str]], sizes: list[int], start: int) -> tuple[int, int]:
    """The period and number of the repetition from `start` that covers the most pieces."""
    best = (1, 1)
    for period in range(1, (len(forms) - start) // 2 + 1):
        size = sum(sizes[start : start + period])
        if size > LARGEST:
            break
        unit, times = forms[start : start + period], 1
        while forms[start + times * period : start + (times + 1) * period] == unit:
            times += 1
        if size >= LEAST and times > 1 and times * period > best[0] * best[1]:
            best = (period, times)
    return best


def spreads(op: ir.Operation) -> bool:
    """Whether an operation's result has far more elements than all that it reads."""
    sources = sum(prod(static_shape(x)) for x in op.operands if isinstance(x.type, ir.ShapedType))
    return prod(static_shape(op.results[0])) > 3 * sources
