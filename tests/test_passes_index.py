"""Index expressions against brute force: whatever is simplified, the value at each point stays."""

from itertools import product
from operator import floordiv, mod

import pytest
from dodeca.passes.index import Axis, Expr, Quotient, of_axis, substitute
from hypothesis import given
from hypothesis import strategies as st

AXES = (Axis("d0", 4), Axis("d1", 6), Axis("r0", 5))


def value(expr: Expr, at: dict[Axis, int]) -> int:
    total = expr.constant
    for atom, c in expr.parts:
        if isinstance(atom, Quotient):
            total += c * (value(atom.expr, at) // atom.divisor)
        else:
            assert isinstance(atom, Axis)
            total += c * at[atom]
    return total


def points() -> list[dict[Axis, int]]:
    return [dict(zip(AXES, p, strict=True)) for p in product(*(range(a.size) for a in AXES))]


@st.composite
def formulas(draw: st.DrawFn, depth: int = 3):
    """A pair: the simplified expression, and a function that computes it by its definition."""
    if depth == 0 or draw(st.booleans()):
        axis = draw(st.sampled_from(AXES))
        return of_axis(axis), lambda at: at[axis]
    kind = draw(st.sampled_from(["add", "scale", "shift", "floordiv", "mod"]))
    left, by_left = draw(formulas(depth=depth - 1))
    if kind == "add":
        right, by_right = draw(formulas(depth=depth - 1))
        return left + right, lambda at: by_left(at) + by_right(at)
    if kind in ("scale", "shift"):
        n = draw(st.integers(-7, 7))
        if kind == "scale":
            return left * n, lambda at: by_left(at) * n
        return left + n, lambda at: by_left(at) + n
    n = draw(st.integers(1, 9))
    if kind == "floordiv":
        return floordiv(left, n), lambda at: by_left(at) // n
    return mod(left, n), lambda at: by_left(at) % n


@given(formulas())
def test_simplified_expressions_keep_their_values_and_lie_in_their_range(pair) -> None:
    expr, definition = pair
    low, high = expr.range
    for at in points():
        assert value(expr, at) == definition(at)
        assert low <= definition(at) <= high


def test_quotients_inside_quotients_lie_in_their_range() -> None:
    """Two that were once too narrow, or an error."""
    a, b = Axis("d0", 8), Axis("d1", 3)
    half = of_axis(a) // 2
    nested = of_axis(a) * -2 + half * 4 + of_axis(b) * 2 + (half + of_axis(b)) // 3 * -6
    assert nested.range == (-8, 4)
    half = of_axis(Axis("d0", 4)) // 2
    low, high = (half + 1 + (half + 1) // 2 * -2).range
    assert low <= 0 and high >= 1


@given(formulas(), formulas())
def test_substitution_is_composition(outer, inner) -> None:
    expr, definition = outer
    replacement, by_replacement = inner
    axis = AXES[0]
    moved = substitute(expr, {axis: replacement})
    for at in points():
        there = {**at, axis: by_replacement(at)}
        if 0 <= there[axis] < axis.size:  # ranges were used on the assumption that it is
            assert value(moved, at) == definition(there)


def test_a_reshape_and_its_inverse_cancel() -> None:
    i, j = of_axis(AXES[0]), of_axis(AXES[1])
    flat = i * 6 + j
    assert floordiv(flat, 6) == i
    assert mod(flat, 6) == j
    assert floordiv(flat, 6) * 6 + mod(flat, 6) == flat
    assert floordiv(floordiv(flat, 2), 3) == i


def test_an_axis_of_one_is_zero() -> None:
    assert of_axis(Axis("d0", 1)) == Expr(0)


@pytest.mark.parametrize("size", [3, 4])
def test_the_range_of_a_remainder_is_tight(size: int) -> None:
    r = of_axis(Axis("r0", 100))
    assert mod(r, size).range == (0, size - 1)
    assert floordiv(mod(r, size), size) == Expr(0)
