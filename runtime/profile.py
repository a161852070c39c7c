"""What each launch of a plan takes on this CPU or on a GPU, beside what the cost model predicted.

exe.profile(x, repeats=20)                # prints as a table
exe.profile(x).launches[0].ratio          # measured by predicted
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Any

from .program import Program

_HEADER = ("kernel", "predicted us", "measured us", "ratio", "what it does")


@dataclass(frozen=True)
class LaunchProfile:
    """One launch of a plan. `predicted` is 0 where the cost model was not asked."""

    kernel: str
    fused: tuple[str, ...]  # what the kernel does, in words
    predicted: float  # seconds
    measured: float  # seconds, the median of the repeats

    @property
    def ratio(self) -> float:
        """Measured by predicted: above 1 it was slower than predicted; NaN if unknown."""
        return self.measured / self.predicted if self.predicted else float("nan")


@dataclass(frozen=True)
class Profile:
    """The launches of a call in order, and its result. Prints as a table with a total.

    On a CPU a launch is timed from Python: what it takes to start it and to wait for all threads
    counts. On a GPU it is timed by the device, and nothing of its data is in the cache.
    """

    launches: tuple[LaunchProfile, ...]
    threads: int
    repeats: int
    result: Any = field(default=None, repr=False, compare=False)
    device: str = ""  # a GPU's name

    @property
    def predicted(self) -> float:
        """The sum over the launches, in seconds."""
        return sum(launch.predicted for launch in self.launches)

    @property
    def measured(self) -> float:
        """The sum over the launches, in seconds."""
        return sum(launch.measured for launch in self.launches)

    @property
    def ratios(self) -> list[float]:
        """The ratios of the launches whose prediction is known."""
        return [launch.ratio for launch in self.launches if launch.predicted]

    @property
    def geometric_mean(self) -> float:
        """The geometric mean of the ratios; NaN if there are none."""
        ratios = self.ratios
        return exp(sum(map(log, ratios)) / len(ratios)) if ratios else float("nan")

    def __str__(self) -> str:
        ratios = self.ratios
        known = len(ratios) == len(self.launches)
        whole = LaunchProfile("total", (), self.predicted if known else 0.0, self.measured)
        lines = [_HEADER, *map(_cells, [*self.launches, whole])]
        widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADER))]
        text = [_line(line, widths) for line in lines]
        if ratios:
            text.append(
                f"ratios: geometric mean {self.geometric_mean:.2f}, "
                f"least {min(ratios):.2f}, largest {max(ratios):.2f}"
            )
        where = f"on {self.device}" if self.device else f"threads: {self.threads}"
        text.append(f"medians over {self.repeats} repeats, {where}")
        return "\n".join(text)


def _cells(launch: LaunchProfile) -> tuple[str, ...]:
    known = bool(launch.predicted)
    return (
        launch.kernel,
        f"{launch.predicted * 1e6:.1f}" if known else "-",
        f"{launch.measured * 1e6:.1f}",
        f"{launch.ratio:.2f}" if known else "-",
        ", ".join(launch.fused),
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Names to the left, numbers to the right."""
    first, *numbers, last = zip(cells, widths, strict=True)
    parts = [first[0].ljust(first[1]), *(c.rjust(w) for c, w in numbers), last[0]]
    return "  ".join(parts).rstrip()


def profiled(
    program: Program,
    measured: Sequence[float],
    threads: int,
    repeats: int,
    result: Any,
    device: str = "",
) -> Profile:
    """The profile of a program's plan, given the seconds of each launch."""
    launches = (
        LaunchProfile(launch.kernel, program.kernels[launch.kernel].fused, launch.predicted, took)
        for launch, took in zip(program.plan, measured, strict=True)
    )
    return Profile(tuple(launches), threads, repeats, result, device)
