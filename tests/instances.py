"""Instances of the rewrite rules, made from what the rules declare: `rules.TABLE`.

Both sides of a rewrite are egglog expressions with variables. They are read as trees; a variable of
sort Node becomes a buffer, with the axes that it is under unless a guard says otherwise, the others
become axes, constants and names that the guards allow. The two terms can then be run by the
interpreter, and given to the e-graph.

    >>> hoist = next(rule for rule in TABLE if rule.name == "hoist_sum")
    >>> made = instance(hoist.rewrites[0], "float32")
    >>> made.left, made.right
    (sum(r0, mul(x[d0], y[d0, r0])), mul(x[d0], sum(r0, y[d0, r0])))

An instance can also be made so that one guard, and no other, does not hold. The program writes the
table in docs/rules.md.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np
from dodeca.decompose import Decomposer
from dodeca.dialect import DTYPES, DType
from dodeca.dialect.interpreter import evaluate
from dodeca.dialect.ops import context
from dodeca.explaining import laws
from dodeca.passes import terms
from dodeca.passes.egraph import Budget, Saturated, saturate
from dodeca.passes.index import Axis, axis_order, of_axis
from dodeca.passes.rules import TABLE, Rewrite, Rule
from dodeca.passes.terms import Term
from ml_dtypes import finfo
from mlir import ir
from mlir.dialects import func

# --- rewrites as trees --------------------------------------------------------------------------


@dataclass(frozen=True)
class Var:
    """A variable: a Node, an Axis, an f64, a String or a Set of axes."""

    name: str
    sort: str


@dataclass(frozen=True)
class Call:
    """An operation of `rules.Node`, or what a fact says; "=" is an equation."""

    op: str
    args: tuple[Tree, ...]


Tree = Var | Call | float | str


# what egglog's words are here
OPS = {"sum_of": "__add__", "product_of": "__mul__", "+": "__add__", "*": "__mul__"}
OPS |= {"abs": "__abs__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}
OPS |= {"set-contains": "contains", "set-not-contains": "not_contains"}


def read(text: str) -> list[Tree]:
    """Terms and facts in egglog's words as trees."""

    def tree(found: Any) -> Tree:
        if isinstance(found, laws.Var):
            return Var(*found)
        if isinstance(found, laws.Call):
            return Call(OPS.get(found.op, found.op), tuple(map(tree, found.args)))
        return found

    return list(map(tree, laws.parsed(text)))


def walk(tree: Tree) -> Iterator[Tree]:
    """The tree and every part of it."""
    yield tree
    if isinstance(tree, Call):
        for arg in tree.args:
            yield from walk(arg)


def _op(tree: Tree) -> str:
    return tree.op if isinstance(tree, Call) else ""


def variables(*trees: Tree, sort: str = "Node") -> list[Var]:
    """The variables of a sort, in order."""
    found = [v for t in trees for v in walk(t) if isinstance(v, Var) and v.sort == sort]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Pattern:
    """A rewrite as trees. `facts` say where it is found, `guards` what must hold there, by text."""

    found: Tree
    made: Tree
    facts: tuple[Call, ...]
    guards: tuple[tuple[str, Call], ...]
    meaning: Mapping[str, Tree]  # of variables that an equation defines

    @property
    def trees(self) -> tuple[Tree, ...]:
        """All that is said about terms."""
        return (self.found, self.made, *self.facts, *(g for _, g in self.guards))

    @cached_property
    def ops(self) -> frozenset[str]:
        return frozenset(t.op for tree in self.trees for t in walk(tree) if isinstance(t, Call))

    def scope(self, leaf: Var) -> set[str]:
        """The axes that bind something around a variable, where the rewrite is found."""

        def around(tree: Tree) -> set[str]:
            if not isinstance(tree, Call) or leaf not in walk(tree):
                return set()
            axes = {a.name for a in tree.args if isinstance(a, Var) and a.sort == "Axis"}
            return axes.union(*map(around, tree.args))

        return set().union(*map(around, (self.found, *self.facts)))


def pattern(rewrite: Rewrite) -> Pattern:
    """The trees of a rewrite, with variables that stand for a shape replaced by it."""
    shape = [fact for text in rewrite.shape for fact in read(text)]
    guards = [(text, fact) for text, facts in rewrite.guards.items() for fact in read(facts)]
    meaning: dict[str, Tree] = {}
    for fact in (*shape, *(g for _, g in guards)):
        assert isinstance(fact, Call)
        if fact.op == "=":
            name, tree = fact.args if isinstance(fact.args[0], Var) else fact.args[::-1]
            assert isinstance(name, Var), f"neither side of an equation is a variable: {fact}"
            meaning[name.name] = tree

    def whole(tree: Any) -> Any:
        if isinstance(tree, Var) and tree.sort == "Node" and tree.name in meaning:
            return whole(meaning[tree.name])
        return Call(tree.op, tuple(map(whole, tree.args))) if isinstance(tree, Call) else tree

    said = [whole(f) for f in shape if f.op != "="]
    asked = [(text, whole(g)) for text, g in guards if g.op != "="]
    known = {name: whole(tree) for name, tree in meaning.items()}
    return Pattern(
        whole(meaning["w"]), whole(*read(rewrite.made)), tuple(said), tuple(asked), known
    )


# --- instances ----------------------------------------------------------------------------------

ROWS = 96  # a third each: ordinary numbers, edges (infinities, NaN, zeros), extremes
ROW = Axis("d0", ROWS)
SIZES = ((7, 5), (1, 1), (0, 5), (7, 0))  # of the first axis, and of any other
PARTS = {7: (2, 3), 1: (1, 1), 0: (0, 3), 64: (8, 8)}  # of an axis that splits
VARIANTS = 4
UNARY, BINARY = ("exp2", "recip", "sqrt"), ("div", "mod", "less_than")
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "__lt__": operator.lt,
    "__le__": operator.le,
    "__gt__": operator.gt,
    "__ge__": operator.ge,
}
ARITHMETIC: dict[str, Callable[..., float]] = {
    "__add__": operator.add,
    "__sub__": operator.sub,
    "__mul__": operator.mul,
    "__truediv__": operator.truediv,
    "__neg__": operator.neg,
    "__abs__": operator.abs,
}
LIMITS: dict[str, Callable[[Any], float]] = {  # of a dtype, as `egraph.saturate` states them
    "rounding": lambda info: float(info.eps) * 0.501,
    "smallest": lambda info: float(info.smallest_normal),
    "largest": lambda info: float(info.max),
}
FLOATS = tuple(name for name, kind in DTYPES.items() if kind.is_float)
INTEGERS = tuple(name for name, kind in DTYPES.items() if kind.kind in ("int", "uint"))
FLOAT_OPS = {"real", "apply1", "apply2", *terms.ROLLING}
OF_TERMS = {"__add__": "add", "__mul__": "mul", "sum_over": "sum", "max_over": "max"}


class NoInstance(Exception):
    """The guards of a rewrite do not hold for this dtype, these sizes and these constants."""


def dtypes(rule: Pattern) -> tuple[str, ...]:
    """The dtypes that a rewrite can be about."""
    if "integer" in rule.ops:
        return INTEGERS
    return FLOATS if rule.ops & FLOAT_OPS else (*FLOATS, *INTEGERS, "bool")


@dataclass(frozen=True)
class Instance:
    """A rewrite with values for its variables. Terms are as written: no operands are reordered."""

    rule: Pattern
    dtype: DType
    values: Mapping[str, Any]
    splits: Mapping[Axis, tuple[Axis, Axis]]
    early: frozenset[str]  # the buffers that are weights
    extreme: bool = False  # whether it has the smallest or the largest constants

    def number(self, tree: Tree) -> float:
        """The value of an f64 expression."""
        if isinstance(tree, Var):
            defined = tree.name in self.rule.meaning
            return self.number(self.rule.meaning[tree.name]) if defined else self.values[tree.name]
        if not isinstance(tree, Call):
            return float(tree)
        if tree.op == "size":
            return float(self.axis(tree.args[0]).size)
        if tree.op == "limit":
            name, dtype = map(self.name, tree.args)
            return LIMITS[name](finfo(DTYPES[dtype].numpy))
        return ARITHMETIC[tree.op](*map(self.number, tree.args))

    def axis(self, tree: Tree) -> Axis:
        assert isinstance(tree, Var)
        return self.values[tree.name]

    def name(self, tree: Tree) -> str:
        return self.values[tree.name] if isinstance(tree, Var) else str(tree)

    def term(self, tree: Tree) -> Term:
        """The term that a tree stands for."""
        if isinstance(tree, Var):
            return self.values[tree.name]
        assert isinstance(tree, Call)
        op, args = tree.op, tree.args
        if op == "real":
            return terms.constant(self.number(args[1]), DTYPES[self.name(args[0])])
        if op in ("apply1", "apply2"):
            return terms.apply(self.name(args[0]), *map(self.term, args[1:]))
        if op == "cut":
            return terms.at(self.term(args[0]), self.place(self.axis(args[1])))
        if op in ("__add__", "__mul__"):
            return _as_written(OF_TERMS[op], *map(self.term, args))
        if op in ("sum_over", "max_over"):
            return _as_written(OF_TERMS[op], self.term(args[1]), attr=self.axis(args[0]))
        if op == "contract":
            body = _as_written("mul", *map(self.term, args[1:]))
            return _as_written("sum", body, attr=self.axis(args[0]))
        if op in terms.ROLLING:
            return terms.reduction(op, self.axis(args[0]), *map(self.term, args[1:]))
        assert op == "select", f"tests/instances.py must be told how to make a term of {op}"
        return terms.select(*map(self.term, args))

    def place(self, axis: Axis) -> dict:
        outer, inner = self.splits[axis]
        return {axis: of_axis(outer) * inner.size + of_axis(inner)}

    @property
    def split_axis(self) -> Axis | None:
        """Where the rewrite is about an axis that was split: that axis."""
        found = self.rule.found
        return self.axis(found.args[1]) if _op(found) == "cut" else None

    @cached_property
    def left(self) -> Term:
        """What is found, as a term; of a `cut`, a sum over what is cut."""
        axis, found = self.split_axis, self.rule.found
        if axis is None or not isinstance(found, Call):
            return terms.plain(self.term(found))
        return _as_written("sum", terms.plain(self.term(found.args[0])), attr=axis)

    @cached_property
    def right(self) -> Term:
        """What is made, as a term; of a `cut`, the sums over the axis's parts."""
        made = terms.plain(self.term(self.rule.made))
        if self.split_axis is None:
            return made
        outer, inner = self.splits[self.split_axis]
        return _as_written("sum", _as_written("sum", made, attr=inner), attr=outer)

    @property
    def renames(self) -> bool:
        """Whether what is made names a way to compute the sum that is found."""
        return _op(self.rule.made) in NAMED

    @property
    def around(self) -> list[Term]:
        """Terms that the left side stands in, so that the rewrite's facts hold."""
        found = []
        for fact in self.rule.facts:
            if fact.op == "factor_in":
                found.append(_as_written("sum", self.left, attr=self.axis(fact.args[0])))
            elif fact.op == "exponent":
                found.append(terms.apply("exp2", self.left))
            elif fact.op == "swaps":
                found.append(_chain(*(self.axis(a) for a in fact.args)))
            else:
                known = f"tests/instances.py must be told where {fact.op} holds"
                assert fact.op in ("splits", "early"), known
        return found

    def run(self, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Both sides' values, by the interpreter; of a `cut`, those of what the sums add."""
        if self.split_axis is None:
            axes = axis_order(self.left.axes | self.right.axes | {ROW})
            return run(self.left, arrays, axes), run(self.right, arrays, axes)
        parts, made = self.splits[self.split_axis], self.right.args[0].args[0]
        body = self.left.args[0]
        axes = axis_order((body.axes | made.axes | {ROW}) - {self.split_axis, *parts})
        whole = run(body, arrays, (*axes, self.split_axis))
        split = whole.reshape(*whole.shape[:-1], *(p.size for p in parts))
        return split, run(made, arrays, (*axes, *parts))


def _chain(outer: Axis, inner: Axis) -> Term:
    """sum(outer, x * sum(inner, a * b)) as of (A B) x, where A has many rows."""
    rows = Axis("d9", 64)

    def leaf(name: str, *axes: Axis) -> Term:
        shape = tuple(a.size for a in axes)
        return terms.load(name, tuple(map(of_axis, axes)), shape, DTYPES["float32"])

    product = terms.reduction("sum", inner, leaf("sa", rows, inner) * leaf("sb", inner, outer))
    return terms.reduction("sum", outer, leaf("sx", outer) * product)


def _as_written(op: str, *args: Term, attr: Any = None) -> Term:
    """A term whose operands keep their order, and that may be over an empty axis."""
    return terms._intern(op, args, attr, args[0].dtype)


def instance(
    rewrite: Rewrite | Pattern,
    dtype: str,
    sizes: tuple[int, int] = SIZES[0],
    variant: int = 0,
    broken: int | None = None,
) -> Instance:
    """An instance for a dtype. Of the guards only the one at `broken`, if any, does not hold.

    `variant` chooses constants and operations: plain ones, such that round, small and large ones.
    """
    rule = rewrite if isinstance(rewrite, Pattern) else pattern(rewrite)
    text, wrong = rule.guards[broken] if broken is not None else ("", None)
    op = wrong.op if wrong else ""
    if op == "integer":
        dtype = "float32"
    kind = DTYPES[dtype]
    values: dict[str, Any] = {}
    splits = _name_axes(rule, sizes, values)
    if op == "!=":  # an axis that splits, or a part of one, stays as it is
        kept = {*splits, *(p for pair in splits.values() for p in pair)}
        one, other = (a.name for a in wrong.args)
        one, other = (other, one) if values[other] in kept else (one, other)
        values[other] = values[one]
    if op in COMPARED and not _constants(rule, wrong):
        empty = next(t for t in map(rule.meaning.get, _names(wrong)) if t).args[0].name
        values[empty] = Axis(values[empty].name, 0)
    _name_operations(rule, dtype, variant, values)
    early = [f.args[0].name for f in (*rule.facts, *(g for _, g in rule.guards)) if f.op == "early"]
    if op == "early":
        early.remove(wrong.args[0].name)
    _make_leaves(rule, kind, wrong, values)
    made = Instance(rule, kind, values, splits, frozenset(early))
    for constants in _choices(rule, made, variant, wrong):
        chosen = replace(made, values=values | constants, extreme=bool(constants) and variant > 1)
        if _holds(chosen, wrong):
            return chosen
    raise NoInstance(f"{dtype} {sizes} {variant} {text}")


def _names(tree: Tree) -> list[str]:
    return [v.name for v in walk(tree) if isinstance(v, Var)]


def _name_axes(rule: Pattern, sizes: tuple[int, int], values: dict) -> dict:
    """Values for axis variables, and how the axes split."""
    divided = {f.args[0].name: f.args[1:] for f in rule.facts if f.op == "splits"}
    cuts = [t for tree in rule.trees for t in walk(tree) if isinstance(t, Call) and t.op == "cut"]
    for t in cuts:
        divided.setdefault(t.args[1].name, (Var("outer", "Axis"), Var("inner", "Axis")))
    parts = {p.name for pair in divided.values() for p in pair}
    whole = [v.name for v in variables(*rule.trees, sort="Axis") if v.name not in parts]
    whole.sort(key=lambda name: name not in divided)  # what splits has the first size
    splits = {}
    for n, name in enumerate(whole):
        size = sizes[n > 0]
        if name in divided:
            outer, inner = (Axis(f"r{10 + 2 * n + i}", p) for i, p in enumerate(PARTS[size]))
            values.update({divided[name][0].name: outer, divided[name][1].name: inner})
            size = outer.size * inner.size
            splits[Axis(f"r{n}", size)] = (outer, inner)
        values[name] = Axis(f"r{n}", size)
    return splits


def _name_operations(rule: Pattern, dtype: str, variant: int, values: dict) -> None:
    for tree in rule.trees:
        for t in walk(tree):
            if isinstance(t, Call) and t.args and isinstance(t.args[0], Var):
                choices = {"real": (dtype,), "apply1": UNARY, "apply2": BINARY}.get(t.op)
                if choices and t.args[0].sort == "String":
                    values[t.args[0].name] = choices[variant % len(choices)]


def _make_leaves(rule: Pattern, dtype: DType, wrong: Call | None, values: dict) -> None:
    """A buffer for each variable of sort Node, over the axes that it must or may depend on."""
    conditions = {
        t.args[0]
        for tree in rule.trees
        for t in walk(tree)
        if isinstance(t, Call) and t.op == "select"
    }
    for leaf in variables(*rule.trees):
        scope = rule.scope(leaf)
        for _, guard in rule.guards:
            if guard.op in ("contains", "not_contains"):
                about, axis = rule.meaning[guard.args[0].name].args[0], guard.args[1].name
                if about == leaf:
                    depends = (guard.op == "contains") != (guard is wrong)
                    scope = scope | {axis} if depends else scope - {axis}
        axes = axis_order(frozenset({ROW, *(values[name] for name in scope)}))
        kind = DTYPES["bool"] if leaf in conditions else dtype
        shape = tuple(a.size for a in axes)
        values[leaf.name] = terms.load(leaf.name, tuple(map(of_axis, axes)), shape, kind)


def _constants(rule: Pattern, *trees: Tree) -> list[str]:
    return [v.name for v in variables(*trees, sort="f64") if v.name not in rule.meaning]


def _choices(
    rule: Pattern, made: Instance, variant: int, wrong: Call | None
) -> Iterator[dict[str, float]]:
    """Values for the constants; first those that differ from each other."""
    names = _constants(rule, *rule.trees)
    sizes = [v.size for v in made.values.values() if isinstance(v, Axis) and v.size]
    inverse = [sign / n for n in sizes for sign in (-1.0, 1.0)]
    plain = [1.5, -0.75, 0.5, *inverse]
    near = [0.1, -0.3, 3.3, *(i * (1 + off) for off in (9e-7, 5e-8) for i in inverse)]
    ends = _extremes(made.dtype)
    pool = [*plain, *near, 0.0, *ends] if wrong else (plain, near, ends, ends[1:])[variant]
    if made.dtype.is_float:
        pool = [terms.constant(c, made.dtype).value for c in pool]
    for chosen in sorted(product(pool, repeat=len(names)), key=lambda c: -len(set(c))):
        yield dict(zip(names, chosen, strict=True))


def _extremes(dtype: DType) -> list[float]:
    if not dtype.is_float:
        info = np.iinfo(dtype.numpy) if dtype.kind != "bool" else None
        return [info.min, info.max] if info else [0, 1]
    info = finfo(dtype.numpy)
    largest, least = float(info.max), float(info.smallest_subnormal)
    return [least, largest, -largest, -least]


def _holds(made: Instance, wrong: Call | None) -> bool:
    """Whether the guards about numbers hold, and the wrong one does not."""
    for _, guard in made.rule.guards:
        if guard.op in COMPARED:
            said = COMPARED[guard.op](*map(made.number, guard.args))
            if said == (guard is wrong):
                return False
        else:
            known = ("contains", "not_contains", "integer", "early", "!=")
            assert guard.op in known, f"tests/instances.py must be told what {guard.op} asks for"
    return True


# --- values -------------------------------------------------------------------------------------

Arrays = dict[str, np.ndarray]


def run(term: Term, arrays: Mapping[str, np.ndarray], axes: tuple[Axis, ...]) -> np.ndarray:
    """The interpreter's value of a term over these axes."""
    loads = {t.attr[0]: t for t in terms.postorder([term]) if t.op == "load"}
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        kinds = [
            f"tensor<{''.join(f'{n}x' for n in t.attr[2])}{t.dtype.mlir}>" for t in loads.values()
        ]
        with ir.InsertionPoint(module.body):

            @func.FuncOp.from_py_func(*map(ir.Type.parse, kinds), name="main")
            def main(*arguments):
                return Decomposer(dict(zip(loads, arguments, strict=True))).tensor(term, axes)

    return evaluate(module, *(arrays[name] for name in loads))[0]


def draw(roots: list[Term], seed: int = 0) -> Arrays:
    """Arrays for the buffers of terms: by thirds of the rows ordinary, at edges, and extreme.

    A row at the edges has few different numbers, so that not all of its results are NaN.
    """
    rng = np.random.default_rng(seed)
    found: Arrays = {}
    for t in terms.postorder(roots):
        if t.op != "load" or t.attr[0] in found:
            continue
        shape, third = t.attr[2], ROWS // 3
        if t.dtype.is_float:
            values = rng.standard_normal(shape)
            edges = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -2.0, 0.5]
            extremes = [*edges, *_extremes(t.dtype), 1e30, -1e30, 0.1, 1e-30, 1e4]
        else:
            values = rng.integers(-(2**63), 2**63, shape, dtype=np.int64)
            edges = extremes = [0, 1, -1, *_extremes(t.dtype)]
        for row in range(third, shape[0]):
            few = rng.choice(edges if row < 2 * third else extremes, 3)
            mixed = rng.random(shape[1:]) < 0.7
            values[row] = np.where(mixed, rng.choice(few, shape[1:]), values[row])
        with np.errstate(all="ignore"):
            found[t.attr[0]] = values.astype(t.dtype.numpy)
    return found


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether arrays are equal to the bit; any NaN equals any other."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.dtype.kind in "iub":
        return np.array_equal(x, y)
    nan = np.isnan(x) & np.isnan(y)
    bits = np.dtype(f"u{x.dtype.itemsize}")
    return bool(
        np.all(nan | (np.ascontiguousarray(x).view(bits) == np.ascontiguousarray(y).view(bits)))
    )


CLASSES = ("finite", "inf", "-inf", "NaN")


def kinds(x: np.ndarray, y: np.ndarray) -> set[str]:
    """How two arrays differ beyond rounding: "finite and inf", "inf and NaN", ..."""

    def classes(v: np.ndarray) -> np.ndarray:
        v = v.astype(np.float64)
        return np.where(np.isnan(v), 3, np.where(np.isinf(v), np.where(v > 0, 1, 2), 0))

    pairs = {tuple(sorted(p)) for p in zip(classes(x).flat, classes(y).flat, strict=True)}
    spoken = {(CLASSES[a].strip("-"), CLASSES[b].strip("-")) for a, b in pairs if a != b}
    return {" and ".join(p) if p[0] != p[1] else "inf and -inf" for p in spoken}


def rounding(x: np.ndarray, y: np.ndarray, least: float = 0.0) -> float:
    """The largest difference of finite numbers, in units of eps of the larger one (or `least`)."""
    wide = [v.astype(np.float64) for v in (x, y)]
    finite = np.isfinite(wide[0]) & np.isfinite(wide[1])
    a, b = (v[finite] for v in wide)
    if not a.size:
        return 0.0
    scale = np.maximum(np.maximum(abs(a), abs(b)), least or np.finfo(np.float64).tiny)
    return float(np.max(abs(a - b) / scale) / float(finfo(x.dtype).eps))


# --- proofs -------------------------------------------------------------------------------------


# These have no term of their own: they are ways to compute a sum.
NAMED = ("contract", *terms.ROLLING)


def prove(made: Instance, precision: str = "fast", without: tuple[str, ...] = ()) -> bool:
    """Whether the e-graph puts both sides into one class.

    Where what is made is a way to compute a sum, its node is looked for in the left side's class.
    """
    roots = [made.left, made.right, *made.around]
    splits = [(axis, *parts) for axis, parts in made.splits.items()]
    graph = saturate(roots, [], precision, Budget(), without, splits=splits, early=made.early)
    here = graph.class_of[made.left]
    if made.renames:
        return here == _find(graph, made, made.rule.made)
    return here == graph.class_of[made.right]


def _find(graph: Saturated, made: Instance, tree: Tree) -> str | None:
    """The class that holds a tree, if one does."""
    if isinstance(tree, Var) or (isinstance(tree, Call) and tree.op == "cut"):
        return graph.class_of.get(made.term(tree))
    assert isinstance(tree, Call)
    if tree.op == "real":
        number = made.term(tree)
        found = graph.classes.items()
        return next((w for w, nodes in found if number in [n.template for n in nodes]), None)
    nodes = [t for t in tree.args if not (isinstance(t, Var) and t.sort == "Axis")]
    below = tuple(_find(graph, made, t) for t in nodes)
    op = OF_TERMS.get(tree.op, tree.op)
    if op in ("add", "mul", "contract"):  # in no order
        below = tuple(sorted(below, key=str))
    axis = made.axis(tree.args[0]) if len(nodes) < len(tree.args) else None
    for where, found in graph.classes.items():
        if any((n.op, n.children, n.attr) == (op, below, axis) for n in found):
            return where
    return None


# --- the table in docs/rules.md -----------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[1] / "docs" / "rules.md"
COLUMNS = ("name", "law", "class", "where", "good for", "rounding", "beyond rounding")
MANY = (64, 64)
GOOD_FOR = {  # what each law gains
    "view": "no data is moved",
    "fold": "",
    "unit": "",
    "widen": "",
    "excess": "one pass over what would be rounded in between",
    "branches": "",
    "quotient": "one division instead of float64 arithmetic",
    "position": "blocks of an axis where a condition fails are passed over",
    "fusion": "no buffer between producer and consumer; read backwards: compute once, load often",
    "pick": "a row is read by its index; the other rows count as finite, as 0 * inf is NaN",
    "scatter": "each y is touched once; y counts as finite, as 0 * inf is NaN",
    "powers": "an exponential in two parts is one",
    "commute": "the other laws are stated in one order",
    "float": "x can leave the sum",
    "difference": "a weighted sum of differences",
    "weights": "products of weights are computed once",
    "hoist_sum": "one product instead of one for each j",
    "hoist_max": "one product instead of one for each j; a scale becomes part of a score",
    "max_of_still": "no loop",
    "contraction": "fused multiply-add, matrix instructions",
    "factor": "one product instead of two",
    "divide": "the divisor can leave the sum",
    "negate": "a difference stays one",
    "scales": "one product instead of two",
    "scale_exponent": "exp2((x - y) * c) is a difference of scaled numbers",
    "rolling": (
        "one pass: where the maximum so far moves from m to m', what was added up is multiplied by "
        "exp2(m - m')"
    ),
    "centred": "one pass: where the mean so far moves, what was added up is corrected",
    "split": "parts run at the same time, or have factors that leave them",
    "split_roll": "parts run at the same time; one whose scores are all -inf adds 0",
    "cut_still": "what split needs",
    "cut": "what split needs; leaves are cut when they are put in",
    "cut_fold": "what split needs",
    "distribute": "u can leave its sum",
    "exchange": "(A B) x = A (B x)",
}


@dataclass(frozen=True)
class Result:
    """The values of both sides of an instance, on `draw`'s arrays."""

    made: Instance
    left: np.ndarray
    right: np.ndarray


def instances(shape: Pattern, dtype: str) -> Iterator[Instance]:
    """The instances of a rewrite for a dtype: all sizes and constants that its guards allow."""
    several = len(variables(*shape.trees, sort="Axis")) > 1
    choices = _constants(shape, *shape.trees) or variables(*shape.trees, sort="String")
    for sizes in SIZES if several else SIZES[:3]:
        for variant in range(VARIANTS if choices else 1):
            with suppress(NoInstance):
                yield instance(shape, dtype, sizes, variant)


@cache
def results(name: str, number: int, dtype: str) -> list[Result]:
    """What the instances of a rule's rewrite give."""
    rule = next(rule for rule in TABLE if rule.name == name)
    found = instances(pattern(rule.rewrites[number]), dtype)
    return [Result(made, *made.run(draw([made.left, made.right]))) for made in found]


def sums(rewrite: Rewrite) -> list[Result]:
    """Longer sums of positive float32 numbers."""
    found = []
    for variant in range(2):
        with suppress(NoInstance):
            made = instance(rewrite, "float32", MANY, variant)
            rng = np.random.default_rng(0)
            arrays = {
                name: a if a.dtype == bool else rng.uniform(0.5, 2, a.shape).astype(a.dtype)
                for name, a in draw([made.left, made.right]).items()
            }
            found.append(Result(made, *made.run(arrays)))
    return found


def differences(rule: Rule) -> tuple[str, str]:
    """How the sides of a rule's rewrites differ: by rounding, and beyond."""
    if rule.kind == "exact":
        return "none", "none"
    if not rule.rewrites:
        return "not measured", "not measured"
    eps, found, renames = 0.0, set[str](), False
    for n, rewrite in enumerate(rule.rewrites):
        shape = pattern(rewrite)
        for dtype in set(dtypes(shape)) & set(FLOATS):
            for r in results(rule.name, n, dtype):
                found |= kinds(r.left, r.right)
        renames |= _op(shape.made) in NAMED and _op(shape.found) not in NAMED
        eps = max(eps, *(rounding(r.left, r.right) for r in sums(rewrite)))
    by = [f"{2 ** ceil(log2(eps))} eps"] if eps else []
    by += ["the loop"] if renames else []
    return ", ".join(by) or "none seen", ", ".join(sorted(found)) or "none seen"


def page() -> str:
    """The text of docs/rules.md: what stands there, with the table as it must be."""
    rows = [COLUMNS, tuple("---" for _ in COLUMNS)]
    for rule in TABLE:
        laws = "<br>".join(f"`{law.strip()}`" for law in rule.law.split(";"))
        where = rule.when.replace("; ", "<br>") or "everywhere"
        rows.append((rule.name, laws, rule.kind, where, GOOD_FOR[rule.name], *differences(rule)))
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return PAGE.read_text().partition(f"| {COLUMNS[0]} |")[0] + table


if __name__ == "__main__":
    with warnings.catch_warnings(action="ignore"):
        PAGE.write_text(page())
