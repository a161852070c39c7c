"""Panels: an operand of a sum, copied once into the order in which a kernel's loops read it.

    sum(r0, a[d0, r0] * b[r0, d1])                   of b 16 neighbours, then those a row on, ...
    sum(r0, a[d0, r0] * p[d1 / 16, r0, d1 % 16])     16 neighbours, then the next, ...

The copy is a kernel of its own, and is made once and for all where it depends on weights alone.
(Goto and van de Geijn, Anatomy of high-performance matrix multiplication, 2008, pack at each call.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from ..dialect import DTYPES
from . import cost, terms
from .collapse import forms
from .index import Axis, of_axis
from .loops import paired, standing
from .schedule import Schedule, lanes_for, schedules
from .targets import Target
from .terms import Term

WIDTHS = (2, 4, 8)  # vectors side by side in a panel


@dataclass(frozen=True)
class Chosen:
    """One kernel: it stores `term` at every point of `axes` into the buffer `name`.

    Or, of several that run as one, each result over the first of the axes.
    """

    name: str
    axes: tuple[Axis, ...]
    term: Term
    schedule: Schedule
    seconds: float
    free: bool
    parts: tuple[Chosen, ...] = ()  # the kernels of the results, if there are several
    copies: tuple[Chosen, ...] = ()  # kernels that make the panels which it reads

    @property
    def names(self) -> list[str]:
        """The buffers that it stores."""
        return [part.name for part in self.parts] or [self.name]

    @property
    def total(self) -> float:
        """Its seconds and those of the copies."""
        return self.seconds + sum(copy.seconds for copy in self.copies)

    @cached_property
    def reads(self) -> list[str]:
        """The buffers that it loads, in order of first use."""
        return list(dict.fromkeys(t.attr[0] for t in self.term.loads))


def packed(kernel: Chosen, early: Collection[str], target: Target, strict: bool) -> Chosen:
    """The kernel with the panels that pay; `early` are the buffers that are there before a call."""
    if kernel.free or kernel.schedule.fold or target.is_gpu:
        return kernel
    there = frozenset(name for name in kernel.reads if name in early)
    return min(_ways(kernel, there, target, strict), key=lambda way: way.total)


@lru_cache(4096)
def _ways(
    kernel: Chosen, early: frozenset[str], target: Target, strict: bool
) -> tuple[Chosen, ...]:
    """The kernel as it is, and with panels of each width along each axis."""
    found, plain = [kernel], terms.plain(kernel.term)
    lanes = lanes_for(plain, target)
    for vector in kernel.axes:
        loads = list(_packable(plain, kernel.axes, vector, early))
        ways: list[Schedule] = []  # along the vector axis: the same for panels of every width
        for width in (n * lanes for n in WIDTHS if loads and vector.size % (n * lanes) == 0):
            known, copies = dict[Term, Term](), list[Chosen]()
            for read, copied, folded in loads:
                outer = sorted((a for a in kernel.axes if a in read.axes), key=vector.__eq__)
                free = copied.loads[0].attr[0] in early
                copy, new = _copy(copied, (*outer, *folded), vector, width, free, target, strict)
                known[read] = terms.cast(new, read.dtype)
                copies.append(copy)
            term = terms.at(plain, {}, known)
            every = () if ways else forms(term, kernel.axes)
            ways += [s for form, axes in every for s in schedules(axes, form, target, strict)]
            wide = [s for s in ways if (s.vector, s.tile(vector)) == (vector.name, width)]
            options = [(cost.estimate(term, kernel.axes, s, target), s) for s in wide]
            for taken, schedule in sorted(options, key=lambda pair: pair[0])[:1]:
                made = {"term": term, "schedule": schedule, "seconds": taken}
                found.append(replace(kernel, **made, copies=tuple(copies)))
    return tuple(found)


def _packable(
    root: Term, axes: tuple[Axis, ...], vector: Axis, early: Collection[str]
) -> Iterator[tuple[Term, Term, list[Axis]]]:
    """The loads along `vector` inside sums that are read more than once, or are there early; what
    is copied of each; and the axes of the loops around it, the innermost last.

    Of bytes that are multiplied in pairs, both operands are, and widened: what is there early not.
    """
    for around, x in standing(root):
        folded = [fold.attr for fold in around if fold.attr in x.axes]
        load = x.args[0] if x.op == "cast" else x
        if load.op != "load" or load.children or not folded:
            continue
        widens = paired(around[-1]) and load.dtype.bits == 8 and load.attr[0] not in early
        if widens and x is not load:
            yield x, terms.cast(load, DTYPES["int16"]), folded
        if widens or x is not load or vector not in x.axes:
            continue
        every = (*axes, *(fold.attr for fold in around))
        if x.attr[0] in early or any(a not in x.axes for a in every if a.size > 1):
            yield x, x, folded


def _copy(
    copied: Term,
    order: tuple[Axis, ...],
    vector: Axis,
    width: int,
    free: bool,
    target: Target,
    strict: bool,
) -> tuple[Chosen, Term]:
    """The kernel that copies an operand, its axes in this order, the vector's in panels; and how it
    is read then."""
    index = [of_axis(a) // width if a is vector else of_axis(a) for a in order]
    index += [of_axis(vector) % width] if vector in order else []
    axes = tuple(Axis(f"d{i}", e.range[1] + 1) for i, e in enumerate(index))
    places = {a: of_axis(d) for a, d in zip(order, axes, strict=False)}
    if vector in order:
        places[vector] = places[vector] * width + of_axis(axes[-1])
    term, shape = terms.at(copied, places), tuple(a.size for a in axes)
    taken, schedule = cost.cheapest(term, axes, target, strict)
    name = f"p{term.digest}_{'x'.join(map(str, shape))}"
    new = terms.load(name, tuple(index), shape, copied.dtype)
    return Chosen(name, axes, term, schedule, 0.0 if free else taken, free), new
