"""Which reductions' loops each part of a term stands in, and which reductions share a loop.

sum(r0, x[d0, r0] * w[r0]), max(r0, x[d0, r0])     one loop over r0, and x is loaded once in it
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from .terms import FOLDS, REDUCTIONS, Term, postorder

Around = tuple[Term, ...]  # reductions that something stands in, outermost first


@lru_cache(4096)
def standing(root: Term) -> list[tuple[Around, Term]]:
    """Every part of a term, operands first, with the reductions in whose loops it stands.

    It stands in no more of them than its axes ask for, and is there once for each place.
    """
    found: list[tuple[Around, Term]] = []
    seen: set[tuple[Around, Term]] = set()
    stack: list[tuple[Around, Term, bool]] = [((), root, False)]
    while stack:
        around, x, done = stack.pop()
        while not done and around and around[-1].attr not in x.axes:
            around = around[:-1]
        if done:
            found.append((around, x))
        elif (around, x) not in seen:
            seen.add((around, x))
            stack.append((around, x, True))
            inside = (*around, x) if x.op in FOLDS else around
            stack.extend((inside, c, False) for c in reversed(x.children))
    return found


@lru_cache(4096)
def joint(root: Term) -> dict[Term, Around]:
    """For each reduction those that share its loop: over the same axis, at the same place, of
    operands with the same axes, and none needs another's result."""
    places: dict[Term, list[Around]] = {}
    for around, x in standing(root):
        if x.op in REDUCTIONS:
            places.setdefault(x, []).append(around)
    groups: dict[Any, list[list[Term]]] = {}
    made: dict[Term, list[Term]] = {}
    first = {fold: min(found, key=len) for fold, found in places.items()}
    for fold in sorted(first, key=lambda f: len(first[f])):
        below = postorder(list(fold.args))
        around = tuple(made[f][0] for f in first[fold])
        key: Any = (around, fold.attr, fold.axes, fold.args[0].axes)
        alike = any(a.folds for a in fold.args), paired(fold)
        key = (*key, alike) if len(places[fold]) == 1 else fold
        for group in groups.setdefault(key, []):
            if not any(f in below for f in group):
                break
        else:
            group = []
            groups[key].append(group)
        group.append(fold)
        made[fold] = group
    return {fold: tuple(group) for fold, group in made.items()}


@cache
def paired(fold: Term) -> bool:
    """Whether it sums products of integers of at most 16 bits: processors add up two of them in one
    instruction."""
    body = fold.args[0]
    if (fold.op, body.op, body.dtype.name) != ("sum", "mul", "int32"):
        return False
    narrow = [x.args[0].dtype for x in body.args if x.op == "cast" and fold.attr in x.axes]
    return len([kind for kind in narrow if not kind.is_float and kind.bits <= 16]) == 2


@lru_cache(4096)
def spread(root: Term, vector: str | None) -> frozenset[Term]:
    """The loads that lack an axis which that has that they are part of: one element of theirs goes
    with a whole vector."""
    loads = [(x, around[-1:]) for around, x in standing(root) if x.op == "load"]
    beside = ((x, y.args[0]) for x, around in loads for y in around if not paired(y))
    lacking = [(x, y.axes - x.axes) for x, y in (*beside, *((x, root) for x, a in loads if not a))]
    return frozenset(x for x, axes in lacking if vector in {a.name for a in axes})


def goes_on(fold: Term, root: Term) -> bool:
    """Whether the reduction inside another, as in sum(i, sum(j, x)), may start from what the outer
    one has so far: then both have one accumulator."""
    together, body = joint(root), fold.args[0]
    alone = len(together[fold]) == len(together.get(body, ())) == 1
    return alone and fold.op == body.op and fold.attr in body.axes and body.attr.size > 0
