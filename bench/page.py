"""Tables in Markdown, and the places in a page of docs/ where a command writes them.

<!-- name -->
what the command wrote
<!-- end of name -->
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table, its header first."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    padded = [[c.ljust(w) for c, w in zip(line, widths, strict=True)] for line in lines]
    padded.insert(1, ["-" * w for w in widths])
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def cells(text: str) -> list[list[str]]:
    """The cells of a Markdown table, its header first."""
    lines = [line.strip().strip("|").split("|") for line in text.strip().splitlines()]
    return [[c.strip() for c in line] for i, line in enumerate(lines) if i != 1]


def section(page: str, name: str) -> str:
    """What stands between the marks `<!-- name -->` and `<!-- end of name -->`."""
    return page.split(f"<!-- {name} -->\n", 1)[1].split(f"\n<!-- end of {name} -->", 1)[0]


def with_section(page: str, name: str, text: str) -> str:
    """The page with something else there."""
    return page.replace(
        f"<!-- {name} -->\n{section(page, name)}\n<!-- end of {name} -->",
        f"<!-- {name} -->\n{text}\n<!-- end of {name} -->",
    )


def command(
    about: str,
    page: Path,
    parts: Mapping[str, Callable[[], str]],
    measures: Mapping[str, Callable[..., dict[str, Any]]],
    machine: Callable[[], str],
) -> int:
    """A command that measures the parts of a page, and prints or writes them; its exit status.

    With `--measure '["name", arguments...]'` it is one measure, in a process of its own, and prints
    its facts as JSON.
    """
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}")
    parser.add_argument("--write", action="store_true", help=f"into docs/{page.name}")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure, *arguments = json.loads(options.measure)
        print(json.dumps(measures[measure](*arguments)))
        return 0
    unknown = [part for part in options.parts if part not in parts]
    if unknown:
        parser.error(f"no part is called {unknown[0]}; there are {', '.join(parts)}")
    for part in options.parts or parts:
        text = f"Measured {machine()}\n\n{parts[part]()}"
        print(f"## {part}\n\n{text}\n", flush=True)
        if options.write:
            written = with_section(page.read_text(encoding="utf-8"), part, text)
            page.write_text(written, encoding="utf-8")
    return 0
