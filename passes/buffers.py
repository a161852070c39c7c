"""Which values of a region may be buffers: those that are worth a choice, and no more.

In: the values that a program names, and the e-graph, which knows others. Out: candidates, each
before those that need it. Extraction chooses among them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import TypeVar

from ..dialect import DType
from . import terms
from .cost import INSTRUCTIONS
from .egraph import BINDERS, ENode, Saturated
from .index import Axis, axis_order, of_axis
from .terms import postorder

QUICK = 3.0  # instructions of an operation that a reduction's loop does on the side
W = TypeVar("W")


@dataclass(frozen=True)
class Candidate:
    """A value that may be a buffer: its name and axes, the class of the e-graph that computes it,
    and the values that read it."""

    name: str
    axes: tuple[Axis, ...]
    where: str
    dtype: DType
    users: tuple[str, ...] = ()
    folds: bool = False  # a reduction is the last thing that is done
    free: bool = False  # computed from weights alone, before any call

    @property
    def points(self) -> int:
        """The number of its elements."""
        return prod(a.size for a in self.axes)


def derived_candidates(
    graph: Saturated, values: dict[str, Candidate], free: frozenset[str], largest: int
) -> dict[str, Candidate]:
    """The values, and the reductions that only the e-graph knows, each before those that need it.

    A class with a reduction and no load of a buffer gets a buffer over its axes, and its load.
    """
    axes, dtypes = graph.axes, graph.dtypes
    early = graph.follow(
        False, lambda n, b: (n.loaded is None or n.loaded in free) and all(b), lambda a, b: a or b
    )
    found: dict[str, Candidate] = {}
    seen: set[str] = set()

    def below(where: str) -> list[str]:
        return [child for node in graph.classes[where] for child in node.children]

    for value in values.values():
        for where in postorder([value.where], seen.__contains__, below):
            seen.add(where)
            nodes, over = graph.classes[where], axes[where]
            made = any(n.op in BINDERS for n in nodes) and all(n.loaded is None for n in nodes)
            if not made or not over or prod(a.size for a in over) > largest:
                continue
            name, order = f"w{len(found)}", axis_order(over)
            order = tuple(sorted(order, key=lambda a: a.name[0] == "d"))  # parts one after another
            dtype = dtypes[where]
            assert dtype is not None
            found[name] = Candidate(name, order, where, dtype, free=early[where], folds=True)
            place, shape = tuple(map(of_axis, order)), tuple(a.size for a in order)
            nodes.append(ENode("load", (), terms.load(name, place, shape, dtype)))
        found[value.name] = value
    return found


def overtaken(
    reads: Iterable[tuple[W, W, str]],
    places: Mapping[str, Collection[W]],
    outputs: Sequence[str],
    sizes: Mapping[str, int],
    folding: Collection[str],
) -> dict[str, str]:
    """Values from which every way on leads, element by element, to one other that is no larger.

    This other may be a buffer as well, and spares the work in between. But what is `folding` goes
    only for one that is quickly computed from it: a loop of its own may be faster. `reads` are a
    reader, what it reads, and its op; `places` are where a value stands.
    """
    after: dict[W, set[W]] = {}
    ends = {where for name in outputs for where in places[name]}
    slow: set[W] = set()
    for reader, where, op in reads:
        after.setdefault(where, set()).add(reader)
        if op in BINDERS or op == "load":
            ends.add(where)
        elif INSTRUCTIONS.get(op, 1.0) > QUICK:
            slow.add(where)
    instead = _passed(folding, after, ends | slow, places, sizes)
    kept = {last(instead, name) for name in folding}
    others = [name for name in places if name not in kept and name not in instead]
    return instead | _passed(others, after, ends, places, sizes)


def last(instead: Mapping[str, str], name: str) -> str:
    """The value that takes another's place in the end."""
    while name in instead:
        name = instead[name]
    return name


def _passed(
    names: Collection[str],
    after: Mapping[W, set[W]],
    ends: set[W],
    places: Mapping[str, Collection[W]],
    sizes: Mapping[str, int],
) -> dict[str, str]:
    """For each of the names another value, no larger, that stands on every way to an end."""
    every = dict.fromkeys([*after, *(r for found in after.values() for r in found), *ends])
    bit = {where: 1 << n for n, where in enumerate(every)}
    met = dict.fromkeys(bit, (1 << len(bit)) - 1)
    before: dict[W, int] = {}
    while met != before:
        before = dict(met)
        for where, own in reversed(bit.items()):
            ways_on = [] if where in ends else [met[reader] for reader in after.get(where, ())]
            met[where] = own | (reduce(int.__and__, ways_on) if ways_on else 0)
    there = {name: sum(bit.get(w, 0) for w in found) for name, found in places.items()}
    instead: dict[str, str] = {}
    for name in names:
        ways = [met[w] & ~bit[w] for w in places[name] if w in bit]
        for other, size in sizes.items() if ways else ():
            if size <= sizes[name] and all(there[other] & way for way in ways):
                instead[name] = other
                break
    return instead


def useful(
    graph: Saturated, values: dict[str, Candidate], outputs: Sequence[str]
) -> dict[str, Candidate]:
    """The values without those that are overtaken, which give way to the others."""
    places: dict[str, list[str]] = {name: [] for name in values}
    reads: list[tuple[str, str, str]] = []
    for where, nodes in graph.classes.items():
        for name in places.keys() & {n.loaded for n in nodes}:
            places[name].append(where)
        reads += [(where, child, n.op) for n in nodes for child in n.children]
    sizes = {name: 0 if value.free else value.points for name, value in values.items()}
    folding = [name for name, value in values.items() if value.folds]
    instead = overtaken(reads, places, outputs, sizes, folding)
    for nodes in graph.classes.values():
        nodes[:] = [n for n in nodes if n.loaded not in instead]
    folds = {last(instead, name) for name in folding}
    kept: dict[str, Candidate] = {}
    for name, value in values.items():
        if name not in instead:
            users = dict.fromkeys(last(instead, user) for user in value.users)
            others = tuple(user for user in users if user != name)
            kept[name] = replace(value, users=others, folds=name in folds)
    return kept
