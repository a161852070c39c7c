"""Index expressions: which element of a buffer a term reads, as integers over named axes.

An expression is kept in one canonical form, a constant plus integer multiples of atoms; an atom is
an axis, a floor division of an expression by a constant, or the value of a term (a data-dependent
index). `x mod c` is `x - c * (x // c)`, so that a reshape and its inverse cancel by themselves:

    >>> i = of_axis(Axis("d0", 4)); j = of_axis(Axis("d1", 8))
    >>> str((i * 8 + j) // 8), str((i * 8 + j) % 8)
    ('d0', 'd1')
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from mlir import ir

from ..dialect.views import fold

if TYPE_CHECKING:
    from .terms import Term


class Axis(NamedTuple):
    """A named axis and its size. Output axes are d0, d1, ...; reduction axes are r0, r1, ..."""

    name: str
    size: int

    def __str__(self) -> str:
        return self.name


def axis_order(axes: frozenset[Axis]) -> tuple[Axis, ...]:
    """Output axes by position, then reduction axes by number: the dimensions of a part's tensor."""

    return tuple(sorted(axes, key=lambda a: (a.name[0], int(re.sub(r"\D", "", a.name)))))


class Quotient(NamedTuple):
    """The atom `expr // divisor`, rounded down; the divisor is positive."""

    expr: Expr
    divisor: int

    def __str__(self) -> str:
        return f"({self.expr})//{self.divisor}"


class Datum(NamedTuple):
    """The atom that is the value of an integer or bool term."""

    term: Term

    def __str__(self) -> str:
        return f"<{self.term.digest}>"


Atom = Axis | Quotient | Datum


@dataclass(frozen=True)
class Expr:
    """constant + sum of coefficient * atom, the atoms in order of their text."""

    constant: int
    parts: tuple[tuple[Atom, int], ...] = ()

    def __add__(self, other: Expr | int) -> Expr:
        if isinstance(other, int):
            return Expr(self.constant + other, self.parts)
        return _combine(self.constant + other.constant, [*self.parts, *other.parts])

    def __mul__(self, factor: int) -> Expr:
        if factor == 0:
            return Expr(0)
        return Expr(self.constant * factor, tuple((a, c * factor) for a, c in self.parts))

    def __sub__(self, other: Expr) -> Expr:
        return self + other * -1

    def __floordiv__(self, divisor: int) -> Expr:
        """Rounded down, for a positive divisor."""
        if divisor == 1:
            return self
        whole = [(a, c // divisor) for a, c in self.parts if c % divisor == 0]
        rest = [(a, c) for a, c in self.parts if c % divisor]
        outside = _combine(self.constant // divisor, whole)
        inside = Expr(self.constant % divisor, tuple(rest))
        low, high = inside.range
        if low // divisor == high // divisor:
            return outside + low // divisor
        units = {gcd(divisor, c) for _, c in rest}
        for unit in sorted({gcd(*units), *units} - {1}):  # (unit*x + y) // (unit*n)
            small = Expr(inside.constant % unit, tuple((a, c) for a, c in rest if c % unit))
            if small.range[0] >= 0 and small.range[1] < unit:  # = x // n, where 0 <= y < unit
                large = tuple((a, c // unit) for a, c in rest if c % unit == 0)
                return outside + Expr(inside.constant // unit, large) // (divisor // unit)
        if inside.constant == 0 and len(rest) == 1 and rest[0][1] == 1:
            atom = rest[0][0]
            if isinstance(atom, Quotient):
                return outside + atom.expr // (atom.divisor * divisor)
        return outside + Expr(0, ((Quotient(inside, divisor), 1),))

    def __mod__(self, divisor: int) -> Expr:
        """The remainder of the division, between 0 and divisor - 1."""
        return self - self // divisor * divisor

    @cached_property
    def axes(self) -> frozenset[Axis]:
        """The axes that the value depends on, through data as well."""
        return self.own_axes.union(*(term.axes for term in self.data))

    @cached_property
    def own_axes(self) -> frozenset[Axis]:
        """The axes that occur outside of data."""
        return frozenset(atom for atom in self._leaves if isinstance(atom, Axis))

    @cached_property
    def data(self) -> tuple[Term, ...]:
        """The terms whose values it reads."""
        return tuple(atom.term for atom in self._leaves if isinstance(atom, Datum))

    @cached_property
    def _leaves(self) -> tuple[Atom, ...]:
        """The axes and data that it reads, those inside quotients too; each once."""
        inside = (a.expr._leaves if isinstance(a, Quotient) else (a,) for a, _ in self.parts)
        return tuple(dict.fromkeys(chain.from_iterable(inside)))

    @cached_property
    def range(self) -> tuple[int, int]:
        """The least interval that interval arithmetic finds; remainders are recognised."""
        parts = dict(self.parts)
        ranges = [(self.constant, self.constant)]
        for atom, _ in self.parts:
            if not isinstance(atom, Quotient) or parts[atom] % atom.divisor:
                continue
            scale = -parts[atom] // atom.divisor
            if all(_is_part(k * scale, parts.get(a, 0)) for a, k in atom.expr.parts):
                # scale * (e - divisor * (e // divisor)) = scale * (e mod divisor)
                del parts[atom]
                for a, k in atom.expr.parts:
                    parts[a] = parts.get(a, 0) - k * scale
                shift = -atom.expr.constant * scale
                ranges.append((shift, shift + (atom.divisor - 1) * scale))
        for atom, c in parts.items():
            low, high = _atom_range(atom)
            ranges.append((low * c, high * c))
        return sum(map(min, ranges)), sum(map(max, ranges))

    @cached_property
    def _text(self) -> str:
        words = [str(a) if c == 1 else f"{c}*{a}" for a, c in self.parts]
        if self.constant or not words:
            words.append(str(self.constant))
        return " + ".join(words)

    def __hash__(self) -> int:
        return hash(self._text)  # a string keeps its hash

    def __str__(self) -> str:
        return self._text

    def coefficient(self, axis: Axis) -> int | None:
        """The factor of `axis` if the value is linear in it, None if it also occurs elsewhere."""
        return None if axis in self._hidden else dict(self.parts).get(axis, 0)

    @cached_property
    def _hidden(self) -> frozenset[Axis]:
        """The axes inside quotients and data."""
        return Expr(0, tuple(part for part in self.parts if not isinstance(part[0], Axis))).axes


def _combine(constant: int, parts: Iterable[tuple[Atom, int]]) -> Expr:
    total: dict[Atom, int] = {}
    for atom, c in parts:
        total[atom] = total.get(atom, 0) + c
    kept = sorted(((a, c) for a, c in total.items() if c), key=lambda part: str(part[0]))
    return Expr(constant, tuple(kept))


def of_axis(axis: Axis) -> Expr:
    """The position along an axis; an axis of size 1 has only position 0."""
    return Expr(0, ((axis, 1),)) if axis.size != 1 else Expr(0)


def of_term(term: Term) -> Expr:
    """The value of an integer or bool term."""
    if term.op == "index":
        return term.attr
    if term.op == "const":
        return Expr(int(term.value))
    return Expr(0, ((Datum(term), 1),))


def _is_part(need: int, have: int) -> bool:
    """Whether a coefficient can be taken out of another without changing the sign of the rest."""
    return min(0, have) <= need <= max(0, have)


def _atom_range(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Axis):
        return 0, max(0, atom.size - 1)
    if isinstance(atom, Quotient):
        low, high = atom.expr.range
        return low // atom.divisor, high // atom.divisor
    return (0, 1) if atom.term.dtype.kind == "bool" else (-(2**62), 2**62)


def substitute(
    expr: Expr, axes: Mapping[Axis, Expr], data: Callable[[Term], Term] = lambda term: term
) -> Expr:
    """`expr` with each axis replaced, and each datum's term mapped by `data`."""
    total = Expr(expr.constant)
    for atom, c in expr.parts:
        if isinstance(atom, Axis):
            piece = axes.get(atom, Expr(0, ((atom, 1),)))
        elif isinstance(atom, Quotient):
            piece = substitute(atom.expr, axes, data) // atom.divisor
        else:
            piece = of_term(data(atom.term))
        total = total + piece * c
    return total


def from_affine(
    affine: ir.AffineMap, dims: Sequence[Expr], symbols: Sequence[Expr]
) -> tuple[Expr, ...]:
    """The results of an MLIR affine map at given dimensions and symbols."""
    return tuple(Expr(0) + fold(e, dims, symbols) for e in affine.results)
