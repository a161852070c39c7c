"""The table of rewrite rules. A row is a law, the conditions under which it holds, and its class;
what stands there is what runs: laws and conditions are told to egglog by `_rewrite`, `CONDITIONS`.

`exact` rules give the same bits; `reassociating` ones change the order of rounding (and may turn an
overflow into a finite number or the other way round); `approximate` ones hold for finite numbers
only, or to a few last places. A precision policy chooses classes.

In a law x, y, z, u, v are terms, j, k, o, i axes, c and d finite constants, and x[j] is x where the
axis j is given by the two that it is split into. Laws that need no search are applied when a term
is built (views are absorbed by `comprehend`, constants folded by `terms`) or joined at the start;
they stand here so that this table is the whole list.

    >>> [rule.name for rule in active("strict") if rule.kind == "exact"][:2]
    ['view', 'fold']
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, cached_property, reduce

from .terms import FOLDS

# The variables of laws and facts, by their sort; `free_x` holds the axes that x depends on.
SORTS = {**dict.fromkeys("xyzuvw", "Node"), **dict.fromkeys("jkoi", "Axis"), "key": "String"}
SORTS |= dict.fromkeys(("a", "b", "length", "least", "most"), "f64")
# The operations of nodes, and variables for what they take; x[j] is x where its axis j is given by
# the two that it splits into. Some have another name in egglog.
OPERANDS = {"add": "x y", "mul": "x y", "apply1": "key x", "apply2": "key x y", "select": "x y z"}
OPERANDS |= {op: " ".join("jxyz"[: n + 1]) for op, n in FOLDS.items()}
OPERANDS |= {"contract": "j x y", "cut": "x j"}
EGGLOG = {"add": "sum_of", "mul": "product_of", "sum": "sum_over", "max": "max_over"}

SCHEMA = """
(sort Axis) (sort Axes (Set Axis)) (sort Node) (sort Nodes (Vec Node))
(ruleset analysis) (ruleset known)      ; what follows of a fact, and what is known at the start
(constructor axis (String) Axis)
(constructor named (i64) Node)         ; the class of a term that was put in
(constructor leaf (String Nodes) Node) ; a term without operands, and what its index reads
(constructor real (String f64) Node)   ; of a dtype
(function free (Node) Axes :merge (set-intersect old new)) ; equal terms depend on what all do
(function size (Axis) f64 :merge new)
(function limit (String String) f64 :merge new) ; rounding, smallest and largest of a dtype
(relation integer (Node))         ; integers wrap, so their sums may be reordered exactly
(relation early (Node))           ; computed from weights alone, before any call
(relation factor_in (Axis Node))  ; a factor, or part of one, of what is summed
(relation splits (Axis Axis Axis)) ; an axis, and its outer and inner part
(relation swaps (Axis Axis))      ; an outer and an inner one, the other way round is less work
(relation exponent (Node))        ; what exp2 is taken of
"""


def _node(op: str, *args: str) -> str:
    """A node in egglog's words."""
    return f"({EGGLOG.get(op, op)} {' '.join(args)})"


@dataclass(frozen=True)
class Rewrite:
    """Where `shape` is found, as w, and every guard holds, w equals `made`: in egglog's words."""

    shape: tuple[str, ...]
    made: str
    guards: dict[str, str]  # by what they ask for


@dataclass(frozen=True)
class Rule:
    """One row: laws under common conditions, both separated by semicolons."""

    name: str
    law: str
    kind: str  # "exact", "reassociating" or "approximate"
    when: str = ""
    searched: bool = True  # by the e-graph; else applied when a term is built, or at the start

    @cached_property
    def rewrites(self) -> tuple[Rewrite, ...]:
        """What egglog searches for."""
        laws = self.law.split("; ") if self.searched else []
        return tuple(_rewrite(law, self.when) for law in laws)

    @cached_property
    def ruleset(self) -> str:
        """What egglog is told: a ruleset, and its rules, which are named after the row."""
        told = f"(ruleset {self.name}_laws)"
        for n, rewrite in enumerate(self.rewrites):
            facts = " ".join((*rewrite.shape, *rewrite.guards.values()))
            named = f':ruleset {self.name}_laws :name "{self.name} {n}"'
            told += f"(rule ({facts}) ((union w {rewrite.made})) {named})"
        return told


def _rewrite(law: str, when: str) -> Rewrite:
    left, _, right = law.partition(" = ")
    shape, guards = [f"(= w {_text(left)})"], {}
    for text in filter(None, when.split("; ")):
        found = [(c, re.fullmatch(pattern, text)) for pattern, c in CONDITIONS.items()]
        (is_guard, facts), match = next((c, m) for c, m in found if m)
        said = facts.format(*(_text(part) for part in match.groups()))
        if is_guard:
            guards[text] = said
        else:
            shape.append(said)
    return Rewrite(tuple(shape), _text(right), guards)


# What a condition says, whether it is a guard (else it is part of the shape), and egglog's facts.
CONDITIONS: dict[str, tuple[bool, str]] = {
    r"(\w) does not depend on (\w)": (
        True, "(= free_{0} (free {0})) (set-not-contains free_{0} {1})"
    ),
    r"(\w) depends on (\w)": (True, "(= free_{0} (free {0})) (set-contains free_{0} {1})"),
    r"(\w) is a weight": (True, "(early {0})"),
    r"they are integers": (True, "(integer w)"),
    r"c > 0": (True, "(> a 0.0)"),
    r"(\w) is not empty": (True, "(= length (size {0})) (> length 0.0)"),
    r"(\w) is not (\w)": (True, "(!= {0} {1})"),
    r"c is -1 / the places of (\w)": (
        True, '(= length (size {0})) (= least (limit "rounding" key)) '
        "(<= (abs (+ (* a length) 1.0)) least)"
    ),
    r"c \* d is a normal number": (
        True, '(= least (limit "smallest" key)) (= most (limit "largest" key)) '
        "(>= (abs (* a b)) least) (<= (abs (* a b)) most)"
    ),
    r"in a sum over (\w)": (False, "(factor_in {0} w)"),
    r"in an exponent": (False, "(exponent w)"),
    r"(\w) before (\w) is less work": (False, "(swaps {1} {0})"),
    r"(\w) splits into (\w) and (\w)": (False, "(splits {0} {1} {2})"),
    r"(\w) is (\w [+*] \w)": (False, "(= {0} {1})"),
}  # fmt: skip


def _text(law: str) -> str:
    """A side of a law in egglog's words."""
    return _told(ast.parse(law.strip(), mode="eval").body)


def _told(tree: ast.AST) -> str:
    if isinstance(tree, ast.Name):
        return {"c": "(real key a)", "d": "(real key b)", "op": "key"}.get(tree.id, tree.id)
    if isinstance(tree, ast.UnaryOp | ast.Constant):  # -1 or 1
        return f"(real key {float(ast.literal_eval(tree))})"
    if isinstance(tree, ast.Subscript):
        return _node("cut", _told(tree.value), _told(tree.slice))
    if isinstance(tree, ast.BinOp):
        if ast.unparse(tree) == "c * d":
            return "(real key (* a b))"
        left, right = _told(tree.left), _told(tree.right)
        if isinstance(tree.op, ast.Sub):
            return _node("add", left, _node("mul", right, "(real key -1.0)"))
        if isinstance(tree.op, ast.Div):
            return _node("apply2", '"div"', left, right)
        return _node("mul" if isinstance(tree.op, ast.Mult) else "add", left, right)
    assert isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)
    name, args = tree.func.id, [_told(t) for t in tree.args]
    if name in OPERANDS:
        return _node(name, *args)
    return _node(f"apply{len(args)}", "key" if name == "op" else f'"{name}"', *args)


EXACT, REASSOCIATING, APPROXIMATE = "exact", "reassociating", "approximate"

TABLE: list[Rule] = [
    Rule("view", "load(view(t, m), p) = load(t, m(p))", EXACT, searched=False),
    Rule("fold", "op(c, d) = e", EXACT, "operands are constants", searched=False),
    Rule(
        "unit", "x * 1 = x; x + 0 = x", EXACT, "x + 0 for integers: -0.0 + 0 is 0", searched=False,
    ),
    Rule("widen", "narrow(wide(x)) = x", EXACT, "every narrow value is a wide one", searched=False),
    Rule("excess", "wide(narrow(x)) = x", APPROXIMATE, "narrow: 16-bit floats", searched=False),
    Rule("branches", "select(c, x, x) = x; select(c, true, false) = c", EXACT, searched=False),
    Rule(
        "quotient", "cast(cast64(x) * recip(cast64(y))) = x / y", EXACT,
        "x and y are of the result's dtype, which is narrower than float64", searched=False,
    ),
    Rule(
        "position", "i < j = (0 <= j - i - 1); (0 <= i) < true = (0 <= -i - 1)", EXACT,
        "i and j are positions that their dtype can hold", searched=False,
    ),
    Rule(
        "fusion", "load(compute(t), p) = t(p)", EXACT,
        "a reduction inside t is finished: t is a whole term", searched=False,
    ),
    Rule(
        "pick", "sum(j, (i == j) * y) = y at j = i, or 0 where no j is i", APPROXIMATE,
        "i does not depend on j", searched=False,
    ),
    Rule(
        "scatter", "sum(j, (i == d) * y) = y added at i, for each j", APPROXIMATE,
        "i depends on j, and d is a position that does not", searched=False,
    ),
    Rule(
        "powers", "exp2(x) * exp2(y) = exp2(x + y)", REASSOCIATING,
        "x + y is simpler: parts of them cancel", searched=False,
    ),
    Rule("commute", "x * y = y * x; x + y = y + x", EXACT),
    Rule(
        "float", "(x * y) * z = x * (y * z)", REASSOCIATING,
        "in a sum over j; x does not depend on j",
    ),
    Rule(
        "difference", "(x * y) * z = x * (y * z)", REASSOCIATING,
        "in a sum over j; x is u + v; v does not depend on j",
    ),
    Rule(
        "weights", "(x * y) * z = x * (y * z)", REASSOCIATING,
        "in a sum over j; y is a weight; z is a weight",
    ),
    Rule("hoist_sum", "sum(j, x * y) = x * sum(j, y)", REASSOCIATING, "x does not depend on j"),
    Rule(
        "hoist_max", "max(j, x * c) = max(j, x) * c; max(j, x) * c = max(j, x * c)", EXACT, "c > 0",
    ),
    Rule("max_of_still", "max(j, x) = x", EXACT, "x does not depend on j; j is not empty"),
    Rule(
        "contraction", "sum(j, x * y) = contract(j, x, y)", REASSOCIATING,
        "x depends on j; y depends on j",
    ),
    Rule("factor", "x * y + x * z = x * (y + z)", EXACT, "they are integers"),
    Rule("divide", "x / y = x * recip(y)", REASSOCIATING, "in a sum over j"),
    Rule("negate", "(x * -1) * c = (x * c) * -1", EXACT),
    Rule("scales", "(x * c) * d = x * (c * d)", REASSOCIATING, "c * d is a normal number"),
    Rule("scale_exponent", "(x + y) * c = x * c + y * c", REASSOCIATING, "in an exponent"),
    Rule(
        "rolling",
        "sum(j, exp2(x - max(j, x)) * y) = roll(j, x, y); "
        "sum(j, exp2(x - max(j, x))) = roll(j, x, 1)", REASSOCIATING,
    ),
    Rule(
        "centred",
        "sum(j, (x + sum(j, x) * c) * (x + sum(j, x) * c)) = spread(j, x); "
        "sum(j, (x + sum(j, x) * c) * y) = tilt(j, x, y)", REASSOCIATING,
        "c is -1 / the places of j",
    ),
    Rule(
        "split", "sum(j, x) = sum(o, sum(i, x[j])); max(j, x) = max(o, max(i, x[j]))",
        REASSOCIATING, "j splits into o and i; x does not depend on o; x does not depend on i",
    ),
    Rule(
        "split_roll", "roll(j, x, y) = roll(o, max(i, x[j]), part(i, x[j], y[j]))", REASSOCIATING,
        "j splits into o and i; x does not depend on o; x does not depend on i; "
        "y does not depend on o; y does not depend on i",
    ),
    Rule("cut_still", "x[j] = x", EXACT, "x does not depend on j"),
    Rule(
        "cut",
        "(x + y)[j] = x[j] + y[j]; (x * y)[j] = x[j] * y[j]; op(x)[j] = op(x[j]); "
        "op(x, y)[j] = op(x[j], y[j]); select(x, y, z)[j] = select(x[j], y[j], z[j])", EXACT,
    ),
    Rule(
        "cut_fold", "sum(k, x)[j] = sum(k, x[j]); max(k, x)[j] = max(k, x[j])", EXACT,
        "j splits into o and i; j is not k; k is not o; k is not i",
    ),
    Rule(
        "distribute", "sum(j, (x + y) * z) = sum(j, x * z) + sum(j, y * z)", REASSOCIATING,
        "x is u * v; u does not depend on j; v depends on j; y depends on j",
    ),
    Rule(
        "exchange", "sum(j, x * sum(k, y)) = sum(k, sum(j, x * y))", REASSOCIATING,
        "x does not depend on k; k before j is less work",
    ),
]  # fmt: skip


def active(precision: str) -> list[Rule]:
    """The rules that a precision policy allows: "strict" only the exact ones, "fast" all."""
    return [rule for rule in TABLE if precision == "fast" or rule.kind == "exact"]


def searched(precision: str, without: Collection[str] = ()) -> dict[str, Rule]:
    """Those of them that the e-graph searches for, by name."""
    return {r.name: r for r in active(precision) if r.rewrites and r.name not in without}


def _follows(op: str) -> tuple[str, str]:
    """The axes of an operation's node are those of what it takes, but for its own."""
    names = OPERANDS[op].split()
    below = [name for name in names if SORTS[name] == "Node"]
    facts = [f"(= w {_node(op, *names)})", *(f"(= free_{x} (free {x}))" for x in below)]
    axes = reduce("(set-union {} {})".format, (f"free_{x}" for x in below))
    return " ".join(facts), f"(set (free w) {f'(set-remove {axes} j)' if 'j' in names else axes})"


@cache
def declarations() -> str:
    """What every e-graph is told: its sorts and functions, and how facts about a term follow from
    its operands, or from where it stands."""
    sorts = {op: " ".join(SORTS[name] for name in names.split()) for op, names in OPERANDS.items()}
    told = [f"(constructor {EGGLOG.get(op, op)} ({takes}) Node)" for op, takes in sorts.items()]
    follows = [_follows(op) for op in OPERANDS if op != "cut"]
    follows += [
        ("(= w (real key a))", "(set (free w) (set-empty))"),
        (f"(= w {_text('exp2(x)')})", "(exponent x)"),
        (f"(= w {_text('sum(j, x)')})", "(factor_in j x)"),
        (f"(factor_in j w) (= w {_text('x * y')})", "(factor_in j x)"),
        (f"(factor_in j w) (= w {_text('x + y')})", "(factor_in j x)"),
        (f"(= w {_text('x * y')}) (early x) (early y)", "(early w)"),
    ]
    rows = [f"(rule ({f}) ({t}) :ruleset analysis)" for f, t in follows]
    return "\n".join([SCHEMA, *told, *rows])
