"""Layouts: in which order a buffer between two kernels keeps its axes.

In: the kernels of all regions. Out: the same kernels, where a buffer's last axis may be another,
and some of which read panels (`panels`). What a call is given and gives back stays as it is.

    t[c, y, x] = ...     sum(r0, t[r0, d1, d2] * w[d0, r0])     a step of r0 is far
    t[y, x, c] = ...     sum(r0, t[d1, d2, r0] * w[d0, r0])     and here to the neighbour
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from mlir import ir

from . import cost, terms
from .index import Axis, of_axis
from .loops import standing
from .panels import Chosen, packed
from .regions import Region
from .targets import Target
from .terms import Term

Buffer = ir.Value | tuple[int, str]  # a value of the function, or a region's own by its name
Order = tuple[int, ...]  # of a buffer's dimensions
Program = list[tuple[Region, list[Chosen]]]  # the kernels of each region


@dataclass
class Layouts:
    """The kernels of a program, and the order of the dimensions of each buffer that has another."""

    chosen: Program
    fixed: Collection[ir.Value]
    target: Target
    strict: bool
    orders: dict[Buffer, Order] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.makers: dict[Buffer, tuple[int, Chosen]] = {}
        self.readers: dict[Buffer, list[tuple[int, Chosen]]] = {}
        self.early = [
            {region.names[v] for v in region.inputs if v in region.prepared}.union(
                name for kernel in kernels if kernel.free for name in kernel.names
            )
            for region, kernels in self.chosen
        ]
        self.of_name = [{n: v for v, n in region.names.items()} for region, _ in self.chosen]
        for n, kernel in self._kernels():
            for name in kernel.reads:
                self.readers.setdefault(self._buffer(n, name), []).append((n, kernel))
            if not kernel.parts:
                self.makers[self._buffer(n, kernel.name)] = n, kernel

    def _kernels(self) -> Iterator[tuple[int, Chosen]]:
        for n, (_, kernels) in enumerate(self.chosen):
            yield from ((n, kernel) for kernel in kernels)

    def _buffer(self, n: int, name: str) -> Buffer:
        return self.of_name[n].get(name, (n, name))

    def search(self) -> None:
        """Find orders: all that some reader wants at once, if that pays; then one at a time."""
        if self.target.is_gpu:
            return
        wanted: dict[Buffer, Order] = {}
        for n, kernel in self._kernels():
            for name, order in _wanted(self._packed(n, kernel, {})):
                buffer = self._buffer(n, name)
                if buffer in self.makers and buffer not in self.fixed:
                    wanted.setdefault(buffer, order)
        if wanted and self._gain(wanted) > 0:
            self.orders |= wanted
        movable = [b for b, (_, k) in self.makers.items() if b not in self.fixed and not k.free]
        for buffer in movable:
            n, maker = self.makers[buffer]
            same = [o for o in wanted.values() if len(o) == len(maker.axes)]
            read = [b for b in (self._buffer(n, name) for name in maker.reads) if b in movable]
            for order in dict.fromkeys([*same, *(tuple(sorted(o)) for o in same)]):
                alike = [b for b in read if len(self.makers[b][1].axes) == len(order)]
                for change in ({buffer: order}, dict.fromkeys([buffer, *alike], order)):
                    if self._gain(change) > 0:
                        self.orders |= change

    def _gain(self, change: dict[Buffer, Order]) -> float:
        """The seconds that other orders of some buffers save."""
        touched = [pair for buffer in change for pair in self.readers.get(buffer, [])]
        touched = dict.fromkeys([*touched, *(self.makers[buffer] for buffer in change)])
        before = sum(self._packed(n, kernel, {}).total for n, kernel in touched)
        return before - sum(self._packed(n, kernel, change).total for n, kernel in touched)

    def _packed(self, n: int, kernel: Chosen, change: dict[Buffer, Order]) -> Chosen:
        orders = {**self.orders, **change}
        buffers = {name: self._buffer(n, name) for name in [*kernel.reads, *kernel.names]}
        found = tuple((name, orders[b]) for name, b in buffers.items() if b in orders)
        moved = _moved(kernel, found, self.target, self.strict)
        return packed(moved, self.early[n], self.target, self.strict)

    def kernels(self) -> Program:
        """The kernels of each region with these orders, behind the copies that they read."""
        found = []
        for n, (region, kernels) in enumerate(self.chosen):
            made: dict[str, Chosen] = {}
            for kernel in kernels:
                way = self._packed(n, kernel, {})
                made |= {k.name: k for k in (*way.copies, way)}
            found.append((region, list(made.values())))
        return found


@lru_cache(4096)
def _moved(
    kernel: Chosen, moves: tuple[tuple[str, Order], ...], target: Target, strict: bool
) -> Chosen:
    """A kernel that reads and stores buffers of these orders, with its best schedule."""
    orders = dict(moves)
    if not orders:
        return kernel

    def reordered(x: Term) -> Term:
        order = orders.get(x.attr[0]) if x.op == "load" else None
        if order is None:
            return x
        name, index, shape = x.attr
        index, shape = (tuple(parts[i] for i in order) for parts in (index, shape))
        return terms.load(name, index, shape, x.dtype)

    term, axes = terms.rewrite(kernel.term, reordered), kernel.axes
    if kernel.name in orders:
        old = [axes[i] for i in orders[kernel.name]]
        axes = tuple(Axis(f"d{i}", a.size) for i, a in enumerate(old))
        term = terms.at(term, {a: of_axis(d) for a, d in zip(old, axes, strict=True)})
    seconds, schedule = cost.cheapest(term, axes, target, strict)
    seconds = 0.0 if kernel.free else seconds
    return replace(kernel, axes=axes, term=term, schedule=schedule, seconds=seconds)


def _wanted(kernel: Chosen) -> Iterator[tuple[str, Order]]:
    """Buffers that the innermost loops of a kernel walk through along an axis that is not last."""
    for around, x in standing(kernel.term):
        if x.op != "load" or kernel.schedule.fold:
            continue
        name, index, _ = x.attr
        folded = [fold.attr for fold in around if fold.attr in x.axes]
        places = [i for i, e in enumerate(index) if any(e.coefficient(a) for a in folded[-1:])]
        if len(places) == 1 and places[0] < len(index) - 1:
            vector = [a for a in kernel.axes if a.name == kernel.schedule.vector]
            if len(folded) > 1 or not any(e.coefficient(a) for a in vector for e in index[-1:]):
                last = places[0]
                yield name, (*(i for i in range(len(index)) if i != last), last)
