"""Terms: comprehensions over named axes. A term is a scalar expression with free axes.

    matmul          sum(r0, load(a, [d0, r0]) * load(b, [r0, d1]))
    broadcast       an axis that does not occur
    a view          gone: it is an index expression inside a load

Terms are interned, so equal terms are one object and a dictionary memoises on identity. The
constructor `term` puts operands in canonical order and applies the exact laws that need no search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from hashlib import blake2b
from math import prod
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import ml_dtypes
import numpy as np

from ..dialect import DTYPES, PRIMITIVES, DType
from ..dialect.errors import CompileError
from ..dialect.interpreter import convert, primitive
from .index import Axis, Datum, Expr, of_axis, of_term, substitute

N = TypeVar("N")
LARGEST_TABLE = 1024
REDUCTIONS = {"sum": "sum_reduce", "max": "max_reduce"}
# sums with their own loop (see `reduction`), and how many operands each has
ROLLING = {"roll": 2, "part": 2, "spread": 1, "tilt": 2, "scatter": 3}
FOLDS = {**dict.fromkeys(REDUCTIONS, 1), **ROLLING}  # the ops that bind an axis


class Term:
    """One node. `op` is a primitive's name or one of load, index, nonneg, table, const, cast,
    bitcast, select, div, larger, results, or a fold: sum, max, roll, spread, tilt. `attr` is what
    the op needs besides `args`:

    load: (buffer name, index expressions, shape); index, nonneg: an expression; table: (values,
    expression); const: its canonical text; a fold: its axis; results: the rank of each.
    """

    def __init__(self, op: str, args: tuple[Term, ...], attr: Any, dtype: DType):
        self.op, self.args, self.attr, self.dtype = op, args, attr, dtype
        axes = frozenset[Axis]().union(*(part.axes for part in (*args, *self.indices)))
        self.axes = axes - {attr} if op in FOLDS else axes
        # the operands, and the terms that index expressions read
        data = (term for expr in self.indices for term in expr.data)
        self.children: tuple[Term, ...] = tuple(dict.fromkeys((*args, *data)))
        self.folds: bool = op in FOLDS or any(c.folds for c in self.children)  # or one inside does

    @property
    def indices(self) -> tuple[Expr, ...]:
        """The index expressions in `attr`."""
        if self.op == "load":
            return self.attr[1]
        if self.op == "table":
            return (self.attr[1],)
        return (self.attr,) if self.op in ("index", "nonneg") else ()

    @cached_property
    def outside(self) -> int:
        """How many coordinates of a load may lie outside its buffer, and are kept inside."""
        _, index, shape = self.attr
        return sum(e.range[0] < 0 or e.range[1] >= n for e, n in zip(index, shape, strict=True))

    @property
    def value(self) -> Any:
        """The number of a `const`."""
        assert self.op == "const"
        return parse_constant(self.attr, self.dtype)

    @cached_property
    def loads(self) -> list[Term]:
        """The loads in it, in order."""
        return [t for t in postorder([self]) if t.op == "load"]

    @cached_property
    def digest(self) -> str:
        """A hash of the structure, the same in every process: a canonical order and name."""
        attr = f"{self.attr[0]}{list(map(str, self.indices))}" if self.op == "load" else self.attr
        words = [self.op, self.dtype.name, str(attr), *(a.digest for a in self.args)]
        return blake2b("|".join(words).encode(), digest_size=10).hexdigest()

    @cached_property
    def text(self) -> str:
        """One line for people; it repeats shared parts."""
        if self.op == "const":
            return f"{self.attr}:{self.dtype.mlir}"
        if self.op == "load":
            return f"{self.attr[0]}[{', '.join(map(str, self.attr[1]))}]"
        words = [str(self.attr)] if self.op in ("index", "nonneg", "table", *FOLDS) else []
        words += [a.text for a in self.args]
        kind = f".{self.dtype.mlir}" if self.op in ("cast", "bitcast", "index") else ""
        return f"{self.op}{kind}({', '.join(words)})"

    def __add__(self, other: Term) -> Term:
        return apply("add", self, other)

    def __mul__(self, other: Term) -> Term:
        return apply("mul", self, other)

    def __sub__(self, other: Term) -> Term:
        return self + other * constant(-1, other.dtype)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text if len(self.text) < 200 else self.text[:197] + "..."


_INTERNED: WeakValueDictionary[tuple, Term] = WeakValueDictionary()


def _intern(op: str, args: tuple[Term, ...], attr: Any, dtype: DType) -> Term:
    key = (op, args, attr, dtype.name)
    found = _INTERNED.get(key)
    if found is None:
        found = _INTERNED[key] = Term(op, args, attr, dtype)
    return found


# --- constructors -------------------------------------------------------------------------------


def constant(value: Any, dtype: DType) -> Term:
    """A scalar constant, rounded to its dtype."""
    with np.errstate(all="ignore"):
        exact = np.asarray(value).astype(dtype.numpy)
    text = float(exact).hex() if dtype.is_float else str(int(exact))  # every NaN is "nan"
    return _intern("const", (), text, dtype)


def parse_constant(text: str, dtype: DType) -> Any:
    """The number in a constant's canonical text."""
    if dtype.is_float:
        return float.fromhex(text)
    return bool(int(text)) if dtype.kind == "bool" else int(text)


def load(buffer: str, index: tuple[Expr, ...], shape: tuple[int, ...], dtype: DType) -> Term:
    """The element of a buffer at an index; an index outside it reads some element of it."""
    return _intern("load", (), (buffer, index, shape), dtype)


def table(values: np.ndarray, expr: Expr, dtype: DType) -> Term:
    """An element of a small constant array, by its row-major position."""
    if values.size > LARGEST_TABLE:
        raise CompileError(
            f"a constant of {values.size} elements is compiled into code; pass it as a weight (an "
            f"argument with dodeca.weight) or keep it to {LARGEST_TABLE} elements"
        )
    if not expr.parts:
        return constant(values.reshape(-1)[expr.constant], dtype)
    texts = tuple(constant(v, dtype).attr for v in values.reshape(-1))
    return _intern("table", (), (texts, expr), dtype)


def index(expr: Expr, dtype: DType) -> Term:
    """The value of an index expression."""
    plain = Expr(expr.constant, tuple(p for p in expr.parts if not isinstance(p[0], Datum)))
    value = _intern("index", (), plain, dtype) if plain.parts else constant(plain.constant, dtype)
    for atom, c in expr.parts:
        if isinstance(atom, Datum):
            value = value + cast(atom.term, dtype) * constant(c, dtype)
    return value


def nonneg(expr: Expr) -> Term:
    """Whether an index expression is 0 or more."""
    low, high = expr.range
    if low >= 0 or high < 0:
        return constant(low >= 0, DTYPES["bool"])
    for datum in expr.data:  # the condition of a select: s0 - 1 >= 0
        if datum.dtype.kind == "bool" and expr == of_term(datum) + -1:
            return datum
    return _intern("nonneg", (), expr, DTYPES["bool"])


def inside(expr: Expr, size: int) -> Term:
    """Whether an index expression is a place along a dimension of this size."""
    return nonneg(expr) * nonneg(expr * -1 + (size - 1))


def identity(op: str, dtype: DType) -> Any:
    """What an empty fold gives: 0, or of a `max` the lowest value."""
    neutral = PRIMITIVES[REDUCTIONS.get(op, "sum_reduce")].identity
    return dtype.lowest if neutral is None else neutral


def reduction(op: str, axis: Axis, *args: Term) -> Term:
    """`sum` or `max` of a term over an axis, or a sum that one loop computes in another way than by
    adding up each of its values.

    Where the terms depend on a fold over the same axis, the loop keeps both:
    roll(x, w): sum(j, exp2(x - max(j, x)) * w); part(x, w): the same, or 0 if the maximum is -inf;
    spread(x): sum(j, (x - mean) * (x - mean)), where mean is sum(j, x) / n; tilt(x, w): sum(j, (x -
    mean) * w). Where the maximum so far moves from m
    to m', what was added up is multiplied by exp2(m - m'); where the mean moves, what was added up
    is corrected by its distance (Welford, Technometrics 4 (1962) 419).

    scatter(i, y, d): sum(j, y where i == d), for all places d at once: each y is added at i.
    """
    dtype = args[:2][-1].dtype
    if axis.size == 0:
        return constant(identity(op, dtype), dtype)
    return _intern(op, args, axis, dtype)


def is_set(most: Term) -> Term:
    """Whether a maximum is above -inf."""
    return apply("less_than", constant(float("-inf"), most.dtype), most)


def unrolled(x: Term) -> Term:
    """The sum that a rolling one stands for."""
    value, dtype = x.args[0], x.args[0].dtype
    if x.op == "scatter":
        _, weight, place = x.args
        either = apply("less_than", value, place) + apply("less_than", place, value)
        same = apply("less_than", either, constant(True, DTYPES["bool"]))
        return reduction("sum", x.attr, cast(same, x.dtype) * weight)
    if x.op == "part":
        whole = unrolled(reduction("roll", x.attr, *x.args))
        most = reduction("max", x.attr, value)
        return select(is_set(most), whole, constant(0, whole.dtype))
    if x.op == "roll":
        factor = apply("exp2", value - reduction("max", x.attr, value))
    else:
        total = reduction("sum", x.attr, value)
        factor = value + total * constant(-1 / x.attr.size, dtype)
    weight = factor if x.op == "spread" else x.args[1]
    return reduction("sum", x.attr, factor * weight)


def results(values: Sequence[tuple[Term, int]]) -> Term:
    """What a kernel with several results computes: each over the first axes, so many, of it."""
    found, ranks = zip(*values, strict=True)
    return _intern("results", found, ranks, found[0].dtype) if len(values) > 1 else found[0]


def outcomes(root: Term, rank: int) -> list[tuple[Term, int]]:
    """The results of a kernel over so many axes, and the rank of each."""
    if root.op == "results":
        return list(zip(root.args, root.attr, strict=True))
    return [(root, rank)]


def cast(x: Term, dtype: DType) -> Term:
    """A term's value in another dtype."""
    if x.dtype == dtype:
        return x
    if x.op == "const":
        value = np.asarray(x.value, x.dtype.numpy)
        return constant(convert(value, value.dtype, dtype.numpy), dtype)
    if x.op == "cast" and x.args[0].dtype == dtype and widens(dtype, x.dtype):
        return x.args[0]
    return _narrow_quotient(x, dtype) or _intern("cast", (x,), None, dtype)


def widens(source: DType, target: DType) -> bool:
    """Whether every value of `source` is one of `target`: casting there and back is exact."""
    rounds = source.name == "int64" and target.is_float  # numpy takes float64 for wide enough
    return np.can_cast(source.numpy, target.numpy) and not rounds


def _narrow_quotient(x: Term, dtype: DType) -> Term | None:
    """cast(cast64(a) * recip(cast64(b))) = a / b, correctly rounded, where a and b are of `dtype`.

    A float64 product with a rounded reciprocal is within 2^-51.4 of a/b, while a/b is at least
    2^-49 away, relatively, from every midpoint between two float32 numbers: rounding it to float32
    (or narrower) gives the rounded quotient.
    """
    wide = x.op == "mul" and x.dtype.name == "float64" and dtype.is_float and dtype.bits < 64
    for factor, inverse in (x.args, x.args[::-1]) if wide else ():
        if inverse.op == "recip":
            a, b = _narrowed(factor, dtype), _narrowed(inverse.args[0], dtype)
            if a is not None and b is not None:
                return _intern("div", (a, b), None, dtype)
    return None


def _narrowed(x: Term, dtype: DType) -> Term | None:
    """The term of `dtype` that `x` is the exact widening of, if there is one."""
    if x.op not in ("cast", "const"):
        return None
    narrow = cast(x, dtype)
    return narrow if cast(narrow, x.dtype) is x else None


def select(condition: Term, a: Term, b: Term) -> Term:
    """`a` where the condition holds, else `b`."""
    if condition.op == "const":
        return a if condition.value else b
    if a.op == b.op == "const" and a.dtype.kind == "bool" and a.value and not b.value:
        return condition
    a = a.args[1] if a.op == "select" and a.args[0] is condition else a
    return a if a is b else _intern("select", (condition, a, b), None, a.dtype)


def bitcast(x: Term, dtype: DType) -> Term:
    """A term's bits read as another dtype."""
    return x if x.dtype == dtype else _intern("bitcast", (x,), None, dtype)


def apply(op: str, *args: Term) -> Term:
    """A unary or binary primitive, `div` or `larger` (the maximum of two numbers).

    Constants fold; commutative operands are ordered.
    """
    if op in ("div", "larger"):
        return _intern(op, args, None, args[0].dtype)
    row = PRIMITIVES[op]
    kind = args[0].dtype
    result = DTYPES["bool"] if row.gives_bool else kind
    for x, y in (args, args[::-1]) if row.commutative else ():
        if y.op == "const" and y.value == row.identity and not (op == "add" and kind.is_float):
            return x
        if y.op == "const" and not y.value and op == "mul" and kind.name == "bool":
            return y
    if all(a.op == "const" for a in args):
        arrays = [np.asarray(a.value, a.dtype.numpy).reshape(1) for a in args]
        with np.errstate(all="ignore"):
            return constant(primitive(op, kind, arrays)[0], result)
    if op == "less_than" and (order := _order(*args)) is not None:
        return order
    if row.commutative and args[1].digest < args[0].digest:
        args = (args[1], args[0])
    return _intern(op, args, None, result)


def make(op: str, args: Sequence[Term], attr: Any, dtype: DType) -> Term:
    """An operation on terms, whichever it is: `attr` is a fold's axis or the ranks of results, and
    `dtype` what a cast gives."""
    if op in FOLDS:
        return reduction(op, attr, *args)
    if op in ("cast", "bitcast"):
        return (cast if op == "cast" else bitcast)(args[0], dtype)
    if op == "results":
        return results(list(zip(args, attr, strict=True)))
    return select(*args) if op == "select" else apply(op, *args)


def _order(x: Term, y: Term) -> Term | None:
    """x < y of two positions, or of a condition on one (x < True is its opposite), as `nonneg`."""
    if x.op == "nonneg" and y.op == "const" and y.value is True:
        return nonneg(x.attr * -1 + -1)
    low, high = _position(x), _position(y)
    return None if low is None or high is None else nonneg(high - low + -1)


def _position(x: Term) -> Expr | None:
    """The expression of an integer term that is a position and fits its dtype."""
    if x.dtype.kind not in ("int", "uint") or x.op not in ("const", "index"):
        return None
    expr, limits = of_term(x), np.iinfo(x.dtype.numpy)
    low, high = expr.range
    return expr if limits.min <= low and high <= limits.max else None


def rebuild(
    x: Term, children: Mapping[Term, Term], axes: Mapping[Axis, Expr] = MappingProxyType({})
) -> Term:
    """`x` with its children replaced by their entries in `children`, and axes in its indices."""
    if not axes and all(children.get(c, c) is c for c in x.children):
        return x
    args = tuple(children.get(a, a) for a in x.args)

    def moved(expr: Expr) -> Expr:
        return substitute(expr, axes, lambda t: children.get(t, t)) if axes or expr.data else expr

    indices = tuple(map(moved, x.indices))
    if x.op == "load":
        return load(x.attr[0], indices, x.attr[2], x.dtype)
    if x.op == "table":
        return _intern("table", (), (x.attr[0], *indices), x.dtype)
    if x.op in ("index", "nonneg"):
        return index(indices[0], x.dtype) if x.op == "index" else nonneg(indices[0])
    return x if x.op == "const" else make(x.op, args, x.attr, x.dtype)


def at(root: Term, axes: Mapping[Axis, Expr], known: Mapping[Term, Term] | None = None) -> Term:
    """`root` with free axes replaced by index expressions, and the terms in `known` by others."""
    made: dict[Term, Term] = dict(known or {})
    moving = frozenset(axes)

    def ends(x: Term) -> bool:
        return x in made or not (known or x.axes & moving)

    for x in postorder([root], ends):
        if x.op in FOLDS and x.attr in axes:  # its own axis is another of the same name
            others = {a: e for a, e in axes.items() if a != x.attr}
            made[x] = rebuild(x, {a: at(a, others, known) for a in x.args})
        else:
            made[x] = rebuild(x, made, axes)
    return made.get(root, root)


def factors(x: Term) -> dict[Term, float]:
    """A term as a sum of others, each by a number; the maximum of c * y, c > 0, is c * max(y)."""
    if x.op == "add":
        a, b = map(factors, x.args)
        return {t: a.get(t, 0.0) + b.get(t, 0.0) for t in (*a, *b)}
    if x.op == "mul" and any(a.op == "const" for a in x.args):
        number, other = sorted(x.args, key=lambda a: a.op != "const")
        return {t: n * number.value for t, n in factors(other).items()}
    inside = list(factors(x.args[0]).items()) if x.op == "max" else []
    if len(inside) == 1 and inside[0][1] > 0:
        return {reduction("max", x.attr, inside[0][0]): inside[0][1]}
    return {x: 1.0}


def rewrite(root: Term, change: Callable[[Term], Term]) -> Term:
    """`root` with every part of it changed, operands first."""
    made: dict[Term, Term] = {}
    for x in postorder([root]):
        made[x] = change(rebuild(x, made))
    return made[root]


def postorder(
    roots: Iterable[N],
    ends: Callable[[N], bool] | None = None,
    children: Callable[[N], Iterable[N]] = attrgetter("children"),
) -> list[N]:
    """All that is below the roots once, children before parents; none where the walk `ends`."""
    seen: set[N] = set()
    order: list[N] = []
    stack: list[N | None] = [*reversed([*roots])]
    while stack:
        x = stack.pop()
        if x is None:  # all below the one before is in order
            order.append(stack.pop())  # pyright: ignore[reportArgumentType]
        elif x not in seen and not (ends and ends(x)):
            seen.add(x)
            stack += x, None, *[*children(x)][::-1]
    return order


# --- rolling sums -------------------------------------------------------------------------------


def plain(root: Term) -> Term:
    """`root` with the sum that each rolling one in it stands for."""
    return rewrite(root, lambda x: unrolled(x) if x.op in ROLLING else x)


def rolled(root: Term) -> Term:
    """The inverse of `plain`: every sum that has the form of a rolling one is one."""

    def roll(x: Term) -> Term:
        guesses = list(_guesses(x))
        whole = plain(x) if guesses else x
        return next((guess for guess in guesses if plain(guess) is whole), x)

    return rewrite(root, roll)


def _guesses(x: Term) -> Iterator[Term]:
    """Rolling sums that a term may be, by its shape."""
    if x.op == "select" and x.args[1].op == "roll":
        yield reduction("part", x.args[1].attr, *x.args[1].args)
    if x.op != "sum" or not x.dtype.is_float:
        return
    body, one = x.args[0], constant(1, x.dtype)
    scatter = scattered(x)
    if scatter is not None:
        yield scatter
    factors = [(body, one)]
    factors += [body.args, body.args[::-1]] if body.op == "mul" else []
    for factor, weight in factors:
        difference = factor.args[0] if factor.op == "exp2" else factor
        for value in difference.args if difference.op == "add" else ():
            centred = "spread" if factor is weight else "tilt"
            op = "roll" if factor.op == "exp2" else centred
            yield reduction(op, x.attr, *(value, weight)[: ROLLING[op]])


# --- picking ------------------------------------------------------------------------------------


def picked(x: Term) -> Term | None:
    """sum(j, (i = j) * y) as y at j = i, or 0 where no j is i; None for another sum.

    The condition is a factor (cast to a number) or chooses between y and 0; i does not depend on j.
    """
    for place, position, rest in _chosen(x):
        if position.attr == of_axis(x.attr) and x.attr not in place.axes:
            there, other = of_term(place), constant(0, x.dtype)
            return select(inside(there, x.attr.size), at(rest, {x.attr: there}), other)
    return None


def scattered(x: Term) -> Term | None:
    """sum(j, (i = d) * y) as a `scatter`: i depends on j, and d is a position that does not."""
    for place, position, rest in _chosen(x):
        still = len(position.axes) == 1 and x.attr not in position.axes
        if still and x.attr in place.axes:
            return reduction("scatter", x.attr, place, rest, position)
    return None


def _chosen(x: Term) -> Iterator[tuple[Term, Term, Term]]:
    """Every i, position d and y of which a term is sum(j, (i = d) * y)."""
    for condition, rest in _choices(x.args[0]) if x.op == "sum" else ():
        for place, position in _equal(condition):
            if position.op == "index":
                yield place, position, rest


def _choices(body: Term) -> Iterator[tuple[Term, Term]]:
    """Conditions without which a term is 0, and the term where they hold."""
    if body.op == "select" and body.args[2].op == "const" and body.args[2].value == 0:
        yield body.args[0], body.args[1]
    if body.op == "cast" and body.args[0].dtype.kind == "bool":
        yield body.args[0], constant(1, body.dtype)
    if body.op == "mul":
        for part, other in (body.args, body.args[::-1]):
            yield from ((c, rest * other) for c, rest in _choices(part))


def _equal(condition: Term) -> Iterator[tuple[Term, Term]]:
    """Both orders of x and y, where a condition is x = y: not (x < y or y < x)."""
    if condition.op == "less_than" and condition.args[1].op == "const":
        either = condition.args[0]
        if either.op == "add" and all(a.op == "less_than" for a in either.args):
            first, second = either.args
            if second.args == first.args[::-1]:
                yield from ((x, y) for x, y in (first.args, second.args))


# --- sums of sums -------------------------------------------------------------------------------


def swaps(x: Term) -> Iterator[tuple[Axis, Axis]]:
    """The axes j and k of sum(j, a * sum(k, b * c)), where b does not depend on j and sum(k, b *
    sum(j, a * c)) is less work."""
    outer = _factors(x.args[0]) if x.op == "sum" else []
    for inner in (f for f in outer if f.op == "sum"):
        a = [f for f in outer if f is not inner]
        b = [f for f in _factors(inner.args[0]) if x.attr not in f.axes]
        c = [f for f in _factors(inner.args[0]) if x.attr in f.axes]
        if b and c and not any(inner.attr in f.axes for f in a):
            before = _points(b + c) + _points([*a, inner])
            if _points(a + c) + _points(a + b + c) // x.attr.size < before:
                yield x.attr, inner.attr


def _factors(x: Term) -> list[Term]:
    return [f for a in x.args for f in _factors(a)] if x.op == "mul" else [x]


def _points(found: list[Term]) -> int:
    return prod(a.size for a in frozenset().union(*(x.axes for x in found)))


# --- exponents ----------------------------------------------------------------------------------


def joined_power(x: Term) -> Term | None:
    """exp2(a) * exp2(b) as exp2(a + b), where parts of a and b cancel; None if nothing does.

    What cancels may leave one rounding of the largest coefficient.
    """
    if x.op != "mul" or any(a.op != "exp2" for a in x.args):
        return None
    found = [factors(a.args[0]) for a in x.args]
    parts = {t: [each.get(t, 0.0) for each in found] for each in found for t in each}
    last = float(ml_dtypes.finfo(x.dtype.numpy).eps)
    kept = {t: sum(c) for t, c in parts.items() if abs(sum(c)) > last * max(map(abs, c))}
    if len(kept) == len(parts) or not kept:
        return None
    scale = max(map(abs, kept.values()))
    scaled = [t * constant(c / scale, x.dtype) for t, c in kept.items()]
    return apply("exp2", reduce(Term.__add__, scaled) * constant(scale, x.dtype))
