"""What a run of the benchmark says: a table, and notes on who could not run what.

Rows are `{"case": name, "peers": {peer: facts}}`. Facts have a `median` and `least` in seconds, the
`difference` from the reference, and `busy` and `fresh` where those hold; or `wrong` with what was
wrong, or `cannot` with why the peer cannot run the case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from goals import goal_of

Row = dict[str, Any]
NONE, WRONG = "-", "wrong"
NAMED = 3  # cases that a note names one by one


def medians(row: Row) -> dict[str, float]:
    """The seconds of the peers that have some."""
    return {name: facts["median"] for name, facts in row["peers"].items() if "median" in facts}


def best_peer(row: Row) -> str | None:
    """The fastest but dodeca."""
    others = {name: t for name, t in medians(row).items() if name != "dodeca"}
    return min(others, key=others.__getitem__) if others else None


def best_ratio(row: Row) -> float | None:
    """dodeca's median by the best peer's."""
    times, best = medians(row), best_peer(row)
    return times["dodeca"] / times[best] if best and "dodeca" in times else None


def short(ratio: float) -> str:
    """A ratio with two decimals, or two digits where it is small."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """A Markdown table: medians in ms, dodeca's ratio to the best peer, its goal, its difference.

    A star means that others used the cores nearly all the time, so the figure is too high.
    """
    header = ["case", *names, "best peer", "ratio", "goal", "verdict", "difference"]
    lines = [header, ["---"] + ["---:"] * len(names) + ["---", "---:", "---", "---", "---:"]]
    for row in rows:
        times = {name: _time(row["peers"].get(name, {"cannot": ""})) for name in names}
        lines.append([row["case"], *times.values(), *_judged(row)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def _time(facts: dict[str, Any]) -> str:
    if "median" not in facts:
        return WRONG if "wrong" in facts else NONE
    ms = facts["median"] * 1e3
    marks = "*" * bool(facts.get("busy")) + "°" * bool(facts.get("fresh"))
    return f"{ms:.{3 if ms < 100 else 1}f}{marks}"


def uncertain(row: Row) -> str:
    """A star where the ratio is of a figure that was measured while others used the cores."""
    names = ("dodeca", best_peer(row))
    return "*" * any(row["peers"].get(name, {}).get("busy", False) for name in names)


def verdict(row: Row) -> str:
    """Whether the row meets its goal; nothing where there is none, or nothing to compare."""
    goal = goal_of(row["case"])
    return goal.verdict(medians(row)) if goal else ""


def _judged(row: Row) -> list[str]:
    """The last cells of a row."""
    ratio, found = best_ratio(row), verdict(row)
    difference = row["peers"].get("dodeca", {}).get("difference")
    return [
        best_peer(row) or "",
        "" if ratio is None else f"{short(ratio)}{uncertain(row)}",
        str(goal_of(row["case"]) or ""),
        f"{found}{uncertain(row)}" if found else "",
        "" if difference is None else f"{difference:.1e}",
    ]


def summary(rows: Sequence[Row]) -> str:
    """How many goals are met, in a line; nothing where none was tried."""
    judged = [row for row in rows if verdict(row)]
    found = [verdict(row) for row in judged]
    if not judged:
        return ""
    nearly = f", {found.count('nearly')} nearly" if "nearly" in found else ""
    busy = sum(bool(uncertain(row)) for row in judged)
    doubt = f" The machine was busy in {busy} of them (*)." if busy else ""
    return f"Goals met: {found.count('met')} of {len(judged)}{nearly}.{doubt}"


def notes(rows: Sequence[Row]) -> list[str]:
    """Who could not run what and why, and what was wrong; equal reasons of a peer are one line."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for peer, facts in row["peers"].items():
            why = facts.get("wrong") or facts.get("cannot")
            if why:
                reasons.setdefault((peer, why), []).append(row["case"])
    lines = []
    for (peer, why), cases in reasons.items():
        more = f" and {len(cases) - NAMED} more" if len(cases) > NAMED else ""
        lines.append(f"{peer}: {', '.join(cases[:NAMED])}{more}: {why}")
    return lines


def failed(rows: Sequence[Row]) -> bool:
    """Whether a result was wrong, or dodeca could not run a case."""
    return any(
        "wrong" in facts or (peer == "dodeca" and "cannot" in facts)
        for row in rows
        for peer, facts in row["peers"].items()
    )
