"""What is asked about: the terms of a program's results, and those of the kernels it becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from mlir import ir

from ..dialect.errors import ArgumentError, Error
from ..dialect.ops import NAME, WEIGHT, entry_function, named_arguments
from ..fusion import fuse, rename_buffers
from ..pass_pipeline import build_pipeline
from ..passes import terms
from ..passes.comprehend import Comprehension
from ..passes.extract import splittable
from ..passes.panels import Chosen
from ..passes.regions import Region
from ..passes.terms import Term
from ..runtime.device import find_target
from ..trace import Graph, trace
from .equality import Pair, Question, explained
from .wording import Derivation, Explanation, Result

Program = Callable[..., Any] | Graph | Term
LARGEST = 160  # operations of a program of which it is told what it becomes


def graph_of(program: Any, specs: Sequence[Any]) -> Graph:
    """The graph of a function or of a Graph; ArgumentError or Error where there is none."""
    if isinstance(program, Term):
        raise ArgumentError("explain: a term is compared with another program; give that too")
    if isinstance(program, Graph) and specs:
        raise ArgumentError("explain: a Graph has its specs; leave them out")
    graph = program if isinstance(program, Graph) else trace(program, *specs)
    if graph.dims:
        raise Error(f"explain: {graph.dims[0]} must be a number; give specs without Dims")
    return graph


def question(pairs: Iterable[Pair], precision: str) -> Question:
    """Whether terms are equal, where the axes may be split that the compiler would try to split."""
    asked = Question(tuple(pairs), precision)
    return replace(asked, splits=tuple(splittable(asked.roots, find_target("cpu"))))


def about(program: Program, specs: Sequence[Any], precision: str) -> Question:
    """What the rules make of a program: its results, each compared with itself."""
    found = [program] if isinstance(program, Term) else results(graph_of(program, specs))
    return question(((t, t) for t in dict.fromkeys(found)), precision)


def pairs_of(a: Program, b: Program, specs: Sequence[Any]) -> tuple[Pair, ...]:
    """The results of two programs, one by one, on the same buffers; Error where they differ in what
    they take or give."""
    if isinstance(a, Term) and isinstance(b, Term):
        return ((a, b),)
    if isinstance(a, Term) or (isinstance(b, Graph) and not isinstance(a, Graph)):
        return tuple((x, y) for y, x in pairs_of(b, a, specs))
    first = graph_of(a, specs if isinstance(b, Graph) or not isinstance(a, Graph) else ())
    if isinstance(b, Term):
        found, kinds = [b], [len(results(first)), 1]
    else:
        second = graph_of(b, () if isinstance(b, Graph) else specs or first.inputs)
        takes = [[(s.shape, s.dtype) for s in g.inputs] for g in (first, second)]
        if takes[0] != takes[1]:
            said = [", ".join(map(str, g.inputs)) or "nothing" for g in (first, second)]
            raise Error(f"explain: one program takes {said[0]}, the other {said[1]}")
        found, kinds = results(second, _names_like(first, second)), [_kinds(first), _kinds(second)]
    if kinds[0] != kinds[1]:
        raise Error(f"explain: the results are {kinds[0]} in one program, {kinds[1]} in the other")
    return tuple(zip(results(first), found, strict=True))


def _body(module: ir.Module) -> tuple[ir.Block, list[ir.Value]]:
    """The first function's body, and what it returns."""
    block = entry_function(module.operation).regions[0].blocks[0]
    return block, list(block.operations[len(block.operations) - 1].operands)


def _kinds(graph: Graph) -> str:
    """The types of the results."""
    return ", ".join(str(x.type) for x in _body(graph.module)[1])


def results(graph: Graph, names: Sequence[str] | None = None) -> list[Term]:
    """The element of each result; the buffers are the arguments, under these names."""
    block, returned = _body(graph.module)
    buffers = dict(zip(block.arguments, names or _names(graph), strict=True))
    return list(map(Comprehension(buffers.get).whole, returned))


def _names(graph: Graph) -> list[str]:
    """A name for each argument, those of the program where it has some, each once."""
    function = entry_function(graph.module.operation)
    given = named_arguments(function, NAME) | named_arguments(function, WEIGHT)
    found: list[str] = []
    for n in range(len(function.regions[0].blocks[0].arguments)):
        name = given.get(n, f"a{n}")
        found.append(name if name not in found else f"{name}_{n}")
    return found


def _names_like(first: Graph, second: Graph) -> list[str]:
    """The names of the second's arguments: inputs are the first's; weights are, where equal."""
    names, count = _names(first), len(first.inputs)
    weights = dict(zip(names[count:], first.weights.values(), strict=False))
    found = names[:count]
    for name, array in zip(_names(second)[count:], second.weights.values(), strict=False):
        same = (n for n, w in weights.items() if w.dtype == array.dtype)
        found.append(next((n for n in same if np.array_equal(weights[n], array)), f"{name}'"))
    return found + _names(second)[len(found) :]


# --- what a program becomes ---------------------------------------------------------------------


def derivation(graph: Graph, precision: str) -> Derivation:
    """How what each kernel stores follows from the program; Error if the program is large."""
    with graph.module.context, ir.Location.unknown():
        module = ir.Module.parse(str(graph.module))
        build_pipeline("dodeca-simplify", module.context).run(module)
        block, _ = _body(module)
        if len(block.operations) > LARGEST:
            raise Error(
                f"explain: the program has {len(block.operations)} operations; what is derived is "
                f"told of programs of at most {LARGEST}: take a part of it"
            )
        fused = fuse(module.operation, find_target("cpu"), precision)
        names: dict[ir.Value, str] = dict(zip(block.arguments, _names(graph), strict=True))
        calls = _calls(fused.module)
        regions = [_Kernels(region, chosen, names, calls) for region, chosen in fused.chosen]
        return Derivation({n: e for kernels in regions for n, e in kernels.derived(precision)})


def _calls(module: ir.Module) -> Iterator[str]:
    """The names of the kernels in the order of their calls, each once."""
    times: dict[str, int] = {}
    for op in _body(module)[0].operations:
        if op.operation.name == "func.call":
            name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            times[name] = times.get(name, 0) + 1
            yield name if times[name] == 1 else f"{name}.{times[name]}"


class _Kernels:
    """The kernels of a region, or their results, if there are several. The buffer that one stores
    has its name."""

    def __init__(
        self,
        region: Region,
        chosen: Sequence[Chosen],
        names: dict[ir.Value, str],
        calls: Iterator[str],
    ):
        """`names` are those of buffers from before the region; its own are added."""
        buffers = {v: names[v] for v in region.inputs}
        self.early = frozenset(names[v] for v in region.inputs if v in region.prepared)
        self.whole = Comprehension(buffers.get)
        self.chosen: dict[str, Chosen] = {}
        self.terms: dict[str, Term] = {}
        self.values: dict[str, ir.Value] = {}
        renamed = {region.names[v]: name for v, name in buffers.items()}
        values = {name: v for v, name in region.names.items()}
        for kernel, call in zip(chosen, calls, strict=False):
            for n, part in enumerate(kernel.parts or (kernel,)):
                name = renamed[part.name] = f"{call}#{n}" if kernel.parts else call
                term = part.term if kernel.schedule.fold else terms.plain(part.term)
                self.chosen[name], self.terms[name] = part, rename_buffers(term, renamed)
                if part.name in values:
                    self.values[name] = values[part.name]
                    names[values[part.name]] = name

    def derived(self, precision: str) -> Iterator[tuple[str, Explanation]]:
        """Why each kernel stores what the program has as a value.

        Some store none, but a part of what the rules made of the value of a later kernel: what made
        it are the steps for that value.
        """
        naive = {name: self.whole.whole(value) for name, value in self.values.items()}
        splits = tuple(splittable(list(naive.values()), find_target("cpu")))
        told: set[str] = set()
        for name, value in naive.items():
            parts: dict[Term, Term] = {}
            term = self._inlined(self.terms[name], parts)
            stored = [t for t in terms.postorder([term]) if _buffer(t) in self.values]
            equal = tuple(
                (t, self.whole.element(self.values[t.attr[0]], t.attr[1])) for t in stored
            )
            asked = Question(((value, term),), precision, equal, splits, self.early)
            found = explained(asked, {t: load.text for load, t in parts.items()})
            for load in parts:
                if load.attr[0] not in told:
                    told.add(load.attr[0])
                    held = Result(load.text, found.shared[load.text], found.equal, reader=name)
                    yield load.attr[0], replace(found, results=(held,))
            yield name, found

    def _inlined(self, root: Term, parts: dict[Term, Term]) -> Term:
        """A term in which what is loaded is computed, unless it is a value; `parts` gets that."""
        for load in terms.postorder([root]):
            name = _buffer(load)
            if name in self.chosen and name not in self.values:
                places = dict(zip(self.chosen[name].axes, load.attr[1], strict=True))
                parts[load] = self._inlined(terms.at(self.terms[name], places), parts)
        return terms.at(root, {}, parts)


def _buffer(x: Term) -> str:
    """The buffer that a load reads; of other terms, none."""
    return x.attr[0] if x.op == "load" else ""
