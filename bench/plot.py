"""A picture of a run: dodeca's time by the best peer's for each case, and by each peer's.

>>> draw(rows, Path("ratios.png"), "AMD EPYC, 2 threads")

Needs matplotlib (`pip install 'dodeca[bench]'`). Rows are those of report.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from goals import goal_of
from report import Row, best_peer, best_ratio, medians, short, uncertain, verdict

COLOURS = {"met": "#2b8a3e", "nearly": "#e8a33d", "missed": "#c92a2a", "": "#7a869a"}
WORDS = {
    "met": "goal met",
    "nearly": "goal nearly met",
    "missed": "goal missed",
    "": "no goal",
}


def missing() -> str:
    """What to install before drawing; nothing where matplotlib is here."""
    return "" if find_spec("matplotlib") else "--plot needs matplotlib: pip install matplotlib"


def peer_ratios(rows: Sequence[Row]) -> dict[str, tuple[float, int]]:
    """For each peer the geometric mean of dodeca's time by its, and over how many cases."""
    found: dict[str, list[float]] = {}
    for row in rows:
        times = medians(row)
        for name, seconds in times.items():
            if name != "dodeca" and "dodeca" in times:
                found.setdefault(name, []).append(times["dodeca"] / seconds)
    return {name: (geometric_mean(ratios), len(ratios)) for name, ratios in found.items()}


def draw(rows: Sequence[Row], file: Path, machine: str) -> None:
    """Write the picture; nothing to draw is an error."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = [row for row in rows if best_ratio(row) is not None]
    if not drawn:
        raise SystemExit("--plot: no case ran in dodeca and in another peer")
    peers = peer_ratios(rows)
    sizes = len(drawn), len(peers)
    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(9, 2.6 + 0.3 * sum(sizes)), height_ratios=sizes, layout="constrained"
    )
    _draw_cases(above, drawn)
    _draw_peers(below, peers)
    figure.suptitle(f"dodeca's time by another's; left of 1 dodeca is faster\n{machine}", size=11)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _draw_cases(axes: Any, rows: Sequence[Row]) -> None:
    """A bar for each case, with its goal as a mark."""
    seen: dict[str, Any] = {}
    for place, row in enumerate(rows):
        ratio, goal = best_ratio(row), goal_of(row["case"])
        assert ratio is not None
        found, text = verdict(row), f"{best_peer(row)} {short(ratio)}{uncertain(row)}"
        seen[found] = _bar(axes, place, ratio, COLOURS[found], text)
        if goal and not goal.of:
            axes.plot([goal.most] * 2, [place - 0.42, place + 0.42], color="black", linewidth=2)
    _finish(
        axes,
        [row["case"] for row in rows],
        "by the best peer's, named at the bar; black marks are goals, * a busy machine",
    )
    handles, words = zip(*((seen[v], WORDS[v]) for v in WORDS if v in seen), strict=True)
    axes.legend(handles, words, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False)


def _draw_peers(axes: Any, peers: dict[str, tuple[float, int]]) -> None:
    for place, (mean, count) in enumerate(peers.values()):
        _bar(axes, place, mean, "#3b6ea5", f"{short(mean)} ({count} case{'s' * (count > 1)})")
    _finish(axes, list(peers), "by each peer's, geometric mean over the cases that both run")


def _bar(axes: Any, place: int, ratio: float, colour: str, text: str) -> Any:
    """From 1 to the ratio; the text on the side where it points."""
    bar = axes.barh(place, ratio - 1, left=1, height=0.7, color=colour)
    axes.annotate(
        text,
        (ratio, place),
        xytext=(4 if ratio >= 1 else -4, 0),
        textcoords="offset points",
        ha="left" if ratio >= 1 else "right",
        va="center",
        size=8,
    )
    return bar


def _finish(axes: Any, labels: Sequence[str], caption: str) -> None:
    """A logarithmic axis with room for the texts, in plain numbers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.8) / 2, max(high, 1.25) * 2)
    low, high = axes.get_xlim()
    ticks = [t for d in range(-6, 7) for t in (10.0**d, 2 * 10.0**d, 5 * 10.0**d)]
    axes.xaxis.set_major_locator(FixedLocator([t for t in ticks if low <= t <= high]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(range(len(labels)), labels, size=8)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.set_xlabel(caption, size=9)
