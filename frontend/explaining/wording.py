"""The answers, as data and as text, and the texts of terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..dialect import DTYPES
from ..passes import terms
from ..passes.terms import Term
from .closure import COMMUTATIVE, Made

if TYPE_CHECKING:  # it imports the e-graph, which the first question does
    from .equality import Numbers

SHOWN = 12  # places of one kind that are printed

# --- the answers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """An instance of a rule's law: `after` is `before`, rewritten once at its root."""

    rule: str
    law: str
    kind: str  # "exact", "reassociating" or "approximate"
    when: str  # the law's conditions
    iteration: int | None  # None: no search was needed
    before: str
    after: str

    def __str__(self) -> str:
        when = f", where {self.when}" if self.when else ""
        time = "without search" if self.iteration is None else f"iteration {self.iteration}"
        head = f"{self.rule} ({self.kind}, {time}): {self.law}{when}"
        return f"{head}\n     {self.before}\n  -> {self.after}"


@dataclass(frozen=True)
class Result:
    """A result of two programs, whether it is proved to be the same, and else where they part.

    Of a kernel: a value of the program, and what is computed; or, where the kernel stores no value
    of the program but what rules made of one, the load of it in its `reader`, and what it holds.
    """

    left: str
    right: str
    equal: bool
    renamed: bool = False  # the right one's axes of reductions have got other names
    parting: tuple[str, str] | None = None
    reader: str | None = None

    def __str__(self) -> str:
        sign = "equals" if self.equal else "is not proved equal to"
        sign += ", with other names for its axes" if self.renamed else ""
        if self.reader:
            sign = f"is no value of the program, but made by the rules for {self.reader}:"
        lines = [f"     {self.left}", f"  {sign}", f"     {self.right}"]
        if self.parting:
            lines += ["  they part at", *(f"     {text}" for text in self.parting)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Explanation:
    """Whether the e-graph proves results equal, and by which steps.

    `rules` is a least set: without any one of them the e-graph does not prove it. `shared` has the
    names of parts that the texts repeat. `report` says what the search did.
    """

    results: tuple[Result, ...]
    steps: tuple[Step, ...]
    rules: tuple[str, ...]
    shared: Mapping[str, str]
    report: Mapping[str, Any]

    @property
    def equal(self) -> bool:
        """Whether all results are proved equal."""
        return all(r.equal for r in self.results)

    def __str__(self) -> str:
        lines = [self._verdict()]
        for n, r in enumerate(self.results):
            name = f" {n}" if len(self.results) > 1 else ""
            lines += ["", f"result{name}", str(r)]
        for n, step in enumerate(self.steps, 1):
            lines += ["", f"{n}. {step}"]
        if "commute" in self.rules:
            lines += ["", "Operands of + and * are in no order here (commute)."]
        return "\n".join(lines + _where(self.shared))

    def _verdict(self) -> str:
        nodes, times = self.report["nodes"], self.report["iterations"]
        said = f"{count(nodes, 'node')} after {count(times, 'iteration')}"
        said = f"the search ended with {said}: {self.report['stopped']}"
        if not self.equal:
            return f"not proved equal; {said}"
        if not self.rules:
            return "equal as they stand: one term"
        return f"equal by {count(len(self.rules), 'rule')} ({', '.join(self.rules)}); {said}"


@dataclass(frozen=True)
class Derivation:
    """How what the kernels of a program store follows from the program, kernel by kernel."""

    kernels: Mapping[str, Explanation]

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules of all kernels, each once."""
        return tuple(dict.fromkeys(rule for e in self.kernels.values() for rule in e.rules))

    def __str__(self) -> str:
        return "\n\n".join(f"kernel {name}: {e}" for name, e in self.kernels.items())


@dataclass(frozen=True)
class Place:
    """A term of a rule's shape. `tries` has what the law's names stand for there, and the
    conditions that do not hold then; none where the rule applies."""

    term: str
    tries: tuple[tuple[Mapping[str, str], tuple[str, ...]], ...]

    def __str__(self) -> str:
        lines = [self.term]
        for names, failing in self.tries:
            given = ", ".join(f"{name} = {text}" for name, text in names.items())
            fails = " and ".join(f'"{text}" does not hold' for text in failing)
            lines.append(f"     {given}" + (f": {fails}" if fails else ""))
        return "\n".join(lines)


@dataclass(frozen=True)
class WhyNot:
    """Where a rule applied, and where a condition stopped it."""

    rule: str
    law: str
    verdict: str
    fired: tuple[Place, ...] = ()
    blocked: tuple[Place, ...] = ()
    shared: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.rule}: {self.law}", self.verdict]
        for title, places in (("applied at", self.fired), ("stopped at", self.blocked)):
            for n, place in enumerate(places[:SHOWN], 1):
                lines += ["", f"{title}, {n} of {len(places)}: {place}"]
            if len(places) > SHOWN:
                lines += ["", f"and {len(places) - SHOWN} places more"]
        return "\n".join(lines + _where(self.shared))


def count(n: int, what: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _where(shared: Mapping[str, str]) -> list[str]:
    """The lines that say what the names of parts stand for."""
    return ["", "where", *(f"  {name} = {text}" for name, text in shared.items())] if shared else []


# --- the texts of terms -------------------------------------------------------------------------

SUM, PRODUCT, ATOM = 1, 2, 3  # how tightly a text holds together
LONG, SHORT = 56, 16


class Words:
    """The texts of terms; what is repeated and long gets a name, S0, S1, ..., if it has none."""

    def __init__(self, numbers: Numbers, shown: Iterable[int], names: Mapping[int, str]):
        self.numbers, self.made = numbers, numbers.pool.made
        self.shared: dict[str, str] = {}
        self._texts: dict[int, str] = {}
        self._inside: dict[int, tuple[str, int]] = {}  # as an operand
        every = numbers.pool.below(shown)
        uses = Counter(c for n in every for c in set(self.made[n].below))
        axes = {str(x) for n in every for x in self.made[n].data if _is_axis(x)}
        self._sizes = Counter(axis.partition(":")[0] for axis in axes)
        for n in every:
            text, tight = self._text(self.made[n])
            self._texts[n] = text
            long = len(text) > (SHORT if uses[n] > 1 else LONG)
            if n in names or (uses[n] and long and self._negated(n) is None):
                text, tight = names.get(n, f"S{len(self.shared)}"), ATOM
                self.shared[text] = self._texts[n]
            self._inside[n] = text, tight

    def of(self, n: int) -> str:
        """The text of a term."""
        return self._texts[n]

    def named(self, n: int) -> str:
        """The text of a term, or its name if it has got one."""
        return self._inside[n][0]

    def data(self, x: Any) -> str:
        """The text of an axis, with its size where another axis has the same name, or a number."""
        if _is_axis(x):
            name, _, _ = str(x).partition(":")
            return name if self._sizes[name] < 2 else str(x)
        return f"{x:.7g}" if isinstance(x, float) else str(x)

    def _text(self, made: Made) -> tuple[str, int]:
        """A node's text, and how tightly it holds together."""
        plain = [self._inside[c][0] for c in made.below]
        plain = sorted(plain) if made.op in COMMUTATIVE else plain  # the same in every text
        if made.op == "leaf":
            return self._leaf(self.numbers.terms[int(made.data[0])]), ATOM
        if made.op == "real":
            value = float.fromhex(made.data[1])
            rounded = terms.constant(value, DTYPES[made.data[0]]).value
            return self.data(value) if value == rounded else f"{value!r}", ATOM
        if made.op == "sum_of":
            for a, b in (made.below, made.below[::-1]):
                taken = self._negated(b)
                if taken is not None:
                    return f"{self._part(a, PRODUCT)} - {self._part(taken, PRODUCT)}", SUM
            return " + ".join(sorted(self._part(n, PRODUCT) for n in made.below)), SUM
        if made.op == "product_of":
            return " * ".join(sorted(self._part(n, ATOM) for n in made.below)), PRODUCT
        if made.op == "cut":
            return f"{self._part(made.below[0], ATOM)}[{self.data(made.data[0])}]", ATOM
        if made.data[:1] == ("div",):
            return " / ".join(self._part(n, ATOM) for n in made.below), PRODUCT
        if made.op in ("apply1", "apply2"):
            return f"{made.data[0].replace(':', '.')}({', '.join(plain)})", ATOM
        words = [*map(self.data, made.data), *plain]
        return f"{made.op.removesuffix('_over')}({', '.join(words)})", ATOM

    def _part(self, n: int, least: int) -> str:
        """An operand that must hold together as tightly as `least`."""
        text, tight = self._inside[n]
        return text if tight >= least else f"({text})"

    def _negated(self, n: int) -> int | None:
        """x, of x * -1."""
        made = self.made[n]
        for x, c in (made.below, made.below[::-1]) if made.op == "product_of" else ():
            minus = self.made[c]
            if minus.op == "real" and float.fromhex(minus.data[1]) == -1:
                return x
        return None

    def _leaf(self, t: Term) -> str:
        """A leaf's text; data in its index as text too, where terms print a hash."""
        if t.op == "const":
            return self.data(t.value)
        text = {"index": str(t.attr), "nonneg": f"({t.attr} >= 0)"}.get(t.op, t.text)
        for read in t.children:
            text = text.replace(f"<{read.digest}>", self._inside[self.numbers.add(read)][0])
        return text


def _is_axis(x: Any) -> bool:
    name, _, size = str(x).rpartition(":")
    return bool(name) and size.isdigit()
