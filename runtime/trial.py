"""What a search hands to a measurer, and what comes back: plain data that any process can be sent.

task = Task(key, source, "cpu", "fast", threads=2, cold=(True, False, False))
built, = measurer.build([Candidate(task, schedule, predicted=1.2e-5)])
trial, = measurer.measure([built])
trial.status, trial.seconds          # "ok", 1.4e-05
"""

from __future__ import annotations

from dataclasses import dataclass

from .program import Kernel

# Why a candidate was not timed, or that it was.
STATUSES = {
    "ok": "it agrees with the reference and was timed",
    "failed": "the compiler refused it",
    "wrong": "its result differs from the reference: a bug of the compiler",
    "crashed": "its process ended while it was compiled or run",
    "hung": "it did not end within the time limit",
}
BUGS = ("wrong", "crashed", "hung")  # what is kept with a reproducer


@dataclass(frozen=True)
class Task:
    """One kernel whose schedule is looked for."""

    key: str  # a hash of all that follows
    source: str  # the kernel's function in the dodeca dialect, without a schedule
    target: str
    precision: str
    threads: int
    cold: tuple[bool, ...]  # of each argument: is it out of the caches when the kernel starts
    anchor: str = ""  # the schedule whose results all others are compared with; "": none

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.source.partition("@")[2].partition("(")[0]


@dataclass(frozen=True)
class Candidate:
    """A way to run a task's kernel. `schedule` is its fields as JSON, in one canonical form."""

    task: Task
    schedule: str
    predicted: float  # seconds, by the cost model


@dataclass(frozen=True)
class Built:
    """What compiling a candidate gave: a kernel, or why there is none."""

    candidate: Candidate
    kernel: Kernel | None
    status: str = "ok"  # "ok", "failed", "crashed" or "hung"
    message: str = ""


@dataclass(frozen=True)
class Trial:
    """What running a candidate gave. `seconds` is infinite unless `status` is "ok"."""

    candidate: Candidate
    status: str
    seconds: float = float("inf")  # of one launch, the median
    noise: float = 0.0  # half the width of the middle half of the samples, as a part of the median
    samples: int = 0
    message: str = ""
