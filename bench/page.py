"""Tables in Markdown, and the places in a page of docs/ where a command writes them.

<!-- name -->
what the command wrote
<!-- end of name -->
"""

from __future__ import annotations

from collections.abc import Sequence


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
