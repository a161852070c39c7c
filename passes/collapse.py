"""Axes of a kernel taken as one with the next: tiles fit one long axis better than two short ones.

    sum(r0, x[d0, d1, r0] * w[r0, d2])            7 rows of 7 places      x: 7 x 7 x 320
    sum(r0, x[d1, r0] * w[r0, d2])                49 places               x: 49 x 320
    sum(r0, x[d1 / 7, d1 % 7 + r0] * w[r0, d2])   where the loads need both

A schedule tells it: it has no tile for an axis that is one with the next.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from ..dialect.errors import CompileError
from . import terms
from .index import Axis, of_axis
from .terms import Term, postorder

SHORT = 32  # places of an axis that tiles may fit badly
Kernel = tuple[Term, tuple[Axis, ...]]


@lru_cache(4096)
def forms(root: Term, axes: tuple[Axis, ...]) -> tuple[Kernel, ...]:
    """A kernel with as few axes as its loads allow; and with one less, if it reads windows of short
    rows."""
    found, known = [(root, axes)], [(n, _places(root, axes, n)) for n in range(1, len(axes))]
    for n, places in known:
        if places is not None and None not in places.values():
            return forms(*_joined(root, axes, n, places))
    for n, places in known:
        if places and axes[n].size < SHORT and root.folds:
            found.append(_joined(root, axes, n, places))
    return tuple(found)


@lru_cache(4096)
def shaped(root: Term, axes: tuple[Axis, ...], names: tuple[str, ...]) -> Kernel:
    """A kernel with the axes of these names; CompileError if there is no such form of it."""
    while n := next((n for n, a in enumerate(axes, 1) if a.name not in names), 0):
        places = _places(root, axes, n) if n < len(axes) else None
        if places is None:
            known = ", ".join(a.name for a in axes)
            raise CompileError(f"no form of a kernel over {known} has the axes {', '.join(names)}")
        root, axes = _joined(root, axes, n, places)
    return root, axes


def _places(root: Term, axes: tuple[Axis, ...], n: int) -> dict[str, int | None] | None:
    """Where each buffer has the axes before and after place `n` in all loads (see `_place`); None
    if they cannot be one, as a result lacks the second or it has no places."""
    parts, found = postorder([root]), dict[str, int | None]()
    split = any(rank == n for _, rank in terms.outcomes(root, len(axes)))
    if split or not axes[n].size or any(t.op == "scatter" for t in parts):
        return None
    for t in (t for t in parts if t.indices):
        name, place = t.attr[0] if t.op == "load" else "", _place(t, axes[n - 1 : n + 1])
        if found.setdefault(name, place) != place:
            found[name] = None
    return found


def _place(t: Term, pair: tuple[Axis, ...]) -> int | None:
    """Where a load has two axes, as whole dimensions of its buffer, one behind the other: at -1 if
    it has none of them, at None if it has them in another way."""
    read = [i for i, e in enumerate(t.indices) if not e.own_axes.isdisjoint(pair)]
    if len(read) != 2 or t.op != "load":
        return None if read else -1
    here = t.indices[read[0] : read[1] + 1] == tuple(map(of_axis, pair))
    return read[0] if here and t.attr[2][read[1]] == pair[1].size else None


def _joined(root: Term, axes: tuple[Axis, ...], n: int, places: dict[str, int | None]) -> Kernel:
    """The kernel with its axes before and after place `n` as one, of the name of the second, from
    where buffers have them (`_places`)."""
    outer, inner = axes[n - 1 : n + 1]
    both, known = Axis(inner.name, outer.size * inner.size), dict[Term, Term]()
    for t in postorder([root]):
        first = places.get(t.attr[0], -1) if t.op == "load" else None
        if first is not None and first >= 0:
            (name, index, shape), after = t.attr, first + 2
            index = (*index[:first], of_axis(both), *index[after:])
            shape = (*shape[:first], prod(shape[first:after]), *shape[after:])
            known[t] = terms.load(name, index, shape, t.dtype)
    apart = {outer: of_axis(both) // inner.size, inner: of_axis(both) % inner.size}
    values = [
        (terms.at(t, apart, known), rank - (rank > n))
        for t, rank in terms.outcomes(root, len(axes))
    ]
    return terms.results(values), (*axes[: n - 1], both, *axes[n + 1 :])
