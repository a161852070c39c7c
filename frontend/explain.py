"""Why programs are equal, why a rule did nothing, and what the e-graph looks like.

    >>> print(dd.explain(lambda x, w: dd.sum(x * w), lambda x, w: w * dd.sum(x), spec, scalar))
    >>> print(dd.why_not("hoist_sum", lambda a, b: a @ b, dd.spec((4, 8)), dd.spec((8, 4))))
    $ python -m dodeca.explain one.mlir other.mlir

How the answers are found is in `explaining`, which is imported by the first question.
"""

from __future__ import annotations

from . import bindings as bindings  # before what needs MLIR: it says what is missing

# isort: split

import argparse
import json
import os
import sys
import warnings
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlir import ir

from .diagnostics import Source, collected
from .dialect.errors import ArgumentError, Error, ParseError
from .dialect.ops import context
from .explaining.wording import Derivation, Explanation, WhyNot
from .passes.terms import Term
from .trace import Graph, Spec

if TYPE_CHECKING:
    from .explaining.equality import Pair, Question
    from .explaining.programs import Program
    from .passes.egraph import ENode, Split
    from .passes.rules import Rule

# `python -m dodeca.explain` runs this file a second time, and that is meant.
warnings.filterwarnings("ignore", ".*dodeca.explain.* found in sys.modules", RuntimeWarning)

LARGEST_PICTURE = 300  # nodes


def explain(a: Program, *more: Any, precision: str = "fast") -> Explanation | Derivation:
    """Why two programs are equal: `explain(a, b, *specs)`. What one becomes: `explain(a, *specs)`.

    A program is a function, traced with the specs, or a Graph, or a term of `dodeca.passes.terms`
    (of the element of the one result, at the axes d0, d1, ...; buffers have the inputs' names).
    With one program, the Derivation of each kernel that the compiler chooses for the CPU.

    ArgumentError for a precision that is neither "fast" nor "strict", for one term alone, or specs
    beside a Graph; Error if the programs do not take or give the same, have Dims, or, of one
    program, if it has more than 160 operations.
    """
    _check_precision(precision)
    from .explaining import equality, programs

    if not more or not _is_program(more[0]):
        return programs.derivation(programs.graph_of(a, more), precision)
    pairs = programs.pairs_of(a, more[0], more[1:])
    return equality.explained(programs.question(pairs, precision))


def explain_terms(
    naive: Term,
    chosen: Term,
    precision: str = "fast",
    equal: Sequence[Pair] = (),
    splits: Collection[Split] = (),
    early: Collection[str] = (),
) -> Explanation:
    """Why the e-graph may replace a term by another one, which may have rolling sums.

    `equal`, `splits` and `early` are those of `passes.egraph.saturate`: loads of buffers and what
    these hold, axes that may be split, buffers that are known before any call. ArgumentError for
    a precision that is neither "fast" nor "strict".
    """
    _check_precision(precision)
    from .explaining.equality import Question, explained

    pairs = ((naive, chosen),)
    return explained(Question(pairs, precision, tuple(equal), tuple(splits), early))


def why_not(rule: str, program: Program, *specs: Any, precision: str = "fast") -> WhyNot:
    """Where a rule of `passes/rules.py` applies in a program, and which of its conditions stop it.

    Every place is looked at, those too that only other rules make. Error for an unknown rule or a
    program with Dims; ArgumentError for a wrong precision, or specs beside a Graph.
    """
    _check_precision(precision)
    row = _rule(rule)
    from .explaining import conditions, programs

    return conditions.look(row, programs.about(program, specs, precision))


def egraph_picture(
    program: Program, *specs: Any, path: str | Path | None = None, precision: str = "fast"
) -> str:
    """The saturated e-graph as DOT text: a box for each node, around it the class that it is in.

    With `path` the text is written there as well. Error if the e-graph has more than 300 nodes, for
    a program with Dims, or where the file cannot be written; ArgumentError for a wrong precision,
    or specs beside a Graph.
    """
    _check_precision(precision)
    from .explaining import programs

    text = _dot(programs.about(program, specs, precision))
    if path is not None:
        _write(Path(path), text)
    return text


def _rule(name: str) -> Rule:
    from .passes.rules import TABLE

    known = {row.name: row for row in TABLE}
    if name not in known:
        close = get_close_matches(name, known, 3) or list(known)
        raise Error(f"there is no rule {name!r}; did you mean {', '.join(close)}?")
    return known[name]


def _check_precision(precision: str) -> None:
    if precision not in ("fast", "strict"):
        raise ArgumentError(f"explain: precision is fast or strict, not {precision!r}")


def _is_program(x: Any) -> bool:
    return isinstance(x, Graph | Term) or (callable(x) and not isinstance(x, Spec))


# --- a picture ----------------------------------------------------------------------------------


def _dot(question: Question) -> str:
    """The saturated e-graph, its classes numbered from the results on; Error if it is large."""
    from .explaining.equality import Search

    found = Search(question).final
    size = sum(map(len, found.classes.values()))
    if size > LARGEST_PICTURE:
        raise Error(
            f"the e-graph has {size} nodes, and a picture of more than {LARGEST_PICTURE} shows "
            "nothing; take a smaller part of the program, or precision='strict'"
        )
    results = [found.class_of[t] for t in question.roots]
    number: dict[str, int] = {}
    todo = results[::-1]
    while todo:
        where = todo.pop()
        if where not in number:
            number[where] = len(number)
            todo += [c for n in reversed(found.classes[where]) for c in reversed(n.children)]
    lines = ["digraph egraph {", "  compound=true;", "  node [shape=box, fontname=monospace];"]
    arrows = []
    for where, c in number.items():
        style = "solid" if where in results else "dashed"
        lines.append(f"  subgraph cluster_{c} {{ style={style};")
        for i, node in enumerate(found.classes[where]):
            lines.append(f"    n{c}_{i} [label={json.dumps(_label(node), ensure_ascii=False)}];")
            for position, child in enumerate(node.children):
                to = number[child]
                label = f", label={position}" if len(node.children) > 1 else ""
                arrows.append(f"  n{c}_{i} -> n{to}_0 [lhead=cluster_{to}{label}];")
        lines.append("  }")
    return "\n".join([*lines, *arrows, "}"]) + "\n"


def _label(node: ENode) -> str:
    if node.template is not None:
        return f"{node.template.value:.7g}" if node.op == "const" else node.template.text
    return node.op if node.attr is None else f"{node.op} {node.attr}"


def _write(path: Path, text: str) -> None:
    """Write a file, so that it changes as a whole or stays as it was."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise Error(f"cannot write {path}: {error.strerror}") from None


# --- the command --------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is that of dodeca-opt: 1 for a bad file, 2 for bad usage."""
    from . import opt

    options = _options(arguments)
    try:
        if options.why_not:
            _rule(options.why_not)
        sources = [opt._read(name) for name in options.inputs]
    except Error as error:
        return _complain(error, 2)
    try:
        graphs = [graph for source in sources if (graph := _parsed(source)) is not None]
        if len(graphs) < len(sources):
            return 1
        print(_answer(options, graphs), flush=True)
    except Error as error:
        return _complain(error, 1)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dodeca.explain",
        description="Says why two programs are equal, or what the kernels of one are derived by.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("inputs", nargs="+", metavar="FILE", help="MLIR of one program or two; - is standard input")
    add("--precision", choices=["fast", "strict"], default="fast", help="which rules may be used")
    add("--why-not", metavar="RULE", help="where a rule applies, and what stops it")
    add("--picture", metavar="FILE", help="write the e-graph as DOT; - is the standard output")
    options = parser.parse_args(arguments)
    if options.why_not and options.picture:
        parser.error("--why-not and --picture are two questions; ask one")
    if len(options.inputs) > (1 if options.why_not or options.picture else 2):
        parser.error("too many programs")
    return options


def _parsed(source: Source) -> Graph | None:
    """The program of a file; what is wrong with it is printed, with its line."""
    from .opt import _printer
    from .pass_pipeline import check_module

    with context(), ir.Location.unknown(), collected(context(), source, _printer(source)):
        try:
            module = ir.Module.parse(source.text)
        except ir.MLIRError:  # pyright: ignore[reportAttributeAccessIssue]  # not in stubs
            return None
        if not check_module(module.operation):
            return None
    try:
        return Graph.from_mlir(f"{module}\n")
    except ParseError as error:
        raise ParseError(str(error).replace("<text>", source.name)) from None


def _answer(options: argparse.Namespace, graphs: Sequence[Graph]) -> str:
    precision = options.precision
    if options.why_not:
        return str(why_not(options.why_not, *graphs, precision=precision))
    if options.picture:
        path = None if options.picture == "-" else options.picture
        text = egraph_picture(*graphs, path=path, precision=precision)
        return text.rstrip() if path is None else f"wrote {path}"
    return str(explain(*graphs, precision=precision))


def _complain(error: Error, status: int) -> int:
    print(f"dodeca.explain: {error}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
