"""Which rules each derivation needs: leave one out, derive again, and see whether the limits hold.

    python bench/ablation.py attention softmax     prints the table's rows for these
    python bench/ablation.py --write               all rows, into docs/derivations.md

The derivations are those of tests/derivations.py. Kernels are chosen, not compiled. A rule that
never matched on the way is not tried: without it nothing would change.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from derivations import DERIVATIONS, Plan, derive, failures, limits  # noqa: E402
from dodeca.dialect.errors import Error  # noqa: E402
from dodeca.passes.rules import TABLE  # noqa: E402
from page import cells, markdown, section, with_section  # noqa: E402, F401

PAGE = ROOT / "docs" / "derivations.md"
NEEDED, UNNEEDED = "●", "·"
SEARCHED = [rule.name for rule in TABLE if rule.rewrites]
BUILT_IN = [rule.name for rule in TABLE if not rule.rewrites]


@dataclass(frozen=True)
class Row:
    """One derivation: the limits that it breaks with all rules, and a mark for each rule."""

    name: str
    broken: dict[str, str]
    marks: dict[str, str]  # by rule; none for a rule that never matched


def ablate(name: str) -> Row:
    """Derive with all rules, then without each that matched."""
    row = DERIVATIONS[name]
    graphs = {size: row.graph(size) for size in (row.n, 2 * row.n)}
    fired: set[str] = set()

    def plan(size: int) -> Plan:
        found = derive(graphs[size])
        fired.update(found.fired)
        return found

    broken = failures(row, plan)
    marks = {}
    for rule in SEARCHED:
        if rule in fired:
            marks[rule] = UNNEEDED if broken or _holds(name, graphs, rule) else NEEDED
    return Row(name, broken, marks)


def _holds(name: str, graphs: dict, rule: str) -> bool:
    """Whether a derivation keeps its limits without a rule."""
    try:
        return not failures(
            DERIVATIONS[name], lambda size: derive(graphs[size], without=frozenset({rule}))
        )
    except Error:  # no kernels at all
        return False


def ablate_all(names: Sequence[str], processes: int) -> Iterable[Row]:
    """The rows of these derivations, in order."""
    if processes == 1:
        yield from map(ablate, names)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(ablate, names)


# --- the page -----------------------------------------------------------------------------------


def catalogue() -> str:
    """All derivations with what they become and their limits, as a Markdown table."""
    lines = [["derivation", "becomes", "limits"]]
    for name, row in DERIVATIONS.items():
        lines.append([f"`{name}`", row.becomes, "; ".join(limits(row).values())])
    return markdown(lines)


def table(rows: Sequence[Row]) -> str:
    """Derivations by rules, as a Markdown table; the last row counts."""
    lines = [["derivation", "derived", *SEARCHED]]
    for row in rows:
        state = "yes" if not row.broken else f"no: {', '.join(row.broken)}"
        lines.append([f"`{row.name}`", state, *(row.marks.get(rule, "") for rule in SEARCHED)])
    derived = sum(not row.broken for row in rows)
    counts = [sum(row.marks.get(rule) == NEEDED for row in rows) for rule in SEARCHED]
    lines.append(["needed by", f"{derived} of {len(rows)}", *map(str, counts)])
    return markdown(lines)


def built_in() -> str:
    """The rules that cannot be left out, as a sentence."""
    return f"Always there, for they are laws of building a term: {', '.join(BUILT_IN)}."


def main() -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in DERIVATIONS]
    if unknown:
        parser.error(f"no derivation is called {unknown[0]}; there are {', '.join(DERIVATIONS)}")
    if options.write and options.names:
        parser.error("--write is for all derivations: give no names")
    rows = []
    for row in ablate_all(options.names or list(DERIVATIONS), options.processes):
        print(f"{row.name}: {row.broken or 'derived'}", file=sys.stderr, flush=True)
        rows.append(row)
    print(table(rows))
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        for name, text in (
            ("catalogue", catalogue()),
            ("ablation", table(rows)),
            ("built in", built_in()),
        ):
            page = with_section(page, name, text)
        PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
