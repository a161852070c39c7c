"""Compiling and measuring candidates: each is checked first, then timed, alone on its device.

    with LocalWorkers(Tools(build, cases)) as measurer:
        built = measurer.build(candidates)               # in parallel, in order
        trials = measurer.measure(built)                 # one after the other
        trials = measurer.compare(built[:2], seconds=1)  # in turns, until the faster one is sure

`build` and `cases` are functions of a module: the runtime knows no compiler. With `LocalWorkers`,
what is compiled and what is run is in processes of their own, so a candidate that crashes, hangs or
eats all memory costs itself only; kernels run in a process in which nothing is compiled.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from ..dialect.errors import Error
from .driver import available_cores
from .program import Kernel, Program
from .timing import OVERTIME, agreed_arguments
from .trial import Built, Candidate, Task, Trial
from .worker import TRIES, Answer, Examiner, Limits, Request, Tools, Worker, carry_out, perform

__all__ = ["InProcess", "Limits", "LocalWorkers", "Measurer", "ProgramTrial", "Tools"]


@dataclass(frozen=True)
class ProgramTrial:
    """What running a whole program gave: as a `Trial`, of one call."""

    status: str
    seconds: float = math.inf
    noise: float = 0.0
    samples: int = 0
    message: str = ""


class Measurer(Protocol):
    """What a search measures with."""

    def build(self, candidates: Sequence[Candidate]) -> list[Built]:
        """Compile candidates, in parallel; the results are in order."""
        ...

    def measure(
        self, built: Sequence[Built], seconds: float = 0.05, limit: float = math.inf
    ) -> list[Trial]:
        """Check each candidate and time it for some seconds; in order.

        One that takes longer than `limit` seconds is not timed with care: it has one sample, and
        may have been checked in one case only, as its message then says.
        """
        ...

    def compare(self, built: Sequence[Built], seconds: float) -> list[Trial]:
        """Check candidates of one task and time them in turns, for some seconds in all.

        Ends sooner where the gap between the two fastest exceeds the sum of their noises.
        """
        ...

    def compare_programs(
        self, programs: Sequence[Program], seconds: float, threads: int | None = None
    ) -> list[ProgramTrial]:
        """Time calls of whole programs in turns, as `compare` does; their results are not checked.

        The programs take the same inputs and weights; arrays for these are made up, and shared.
        """
        ...

    def close(self) -> None:
        """End all processes."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


def _ended(answer: Answer) -> str:
    """How a request ended, as the status of a candidate."""
    return "crashed" if answer.status == "lost" else answer.status


class _Examination(ABC):
    """What all measurers on one machine do; how requests are carried out is for subclasses."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self._opened = (0, "")  # in which process which task is open
        self._used = 0  # the last process that ran a kernel
        self._anchors: dict[str, Kernel | str] = {}  # of tasks by key; or why there is none

    # --- for subclasses

    @abstractmethod
    def _compile(self, requests: Sequence[Request]) -> list[Answer]:
        """The answers to requests to compile, in order."""

    @abstractmethod
    def _examine(self, request: Request, tries: int = 1) -> Answer:
        """The answer to a request to run something."""

    @abstractmethod
    def _process(self) -> int:
        """The number of the process that examines; another one after it has ended."""

    @abstractmethod
    def _renew(self) -> None:
        """Go on in another process, for this one's memory may be damaged."""

    @abstractmethod
    def close(self) -> None:
        """End all processes."""

    # --- the interface

    def build(self, candidates: Sequence[Candidate]) -> list[Built]:
        """Compile candidates, in parallel; the results are in order."""
        seconds = self.limits.build_seconds
        answers = self._compile([Request("build", (one,), seconds) for one in candidates])
        return [
            Built(candidate, answer.value, _ended(answer), answer.message)
            for candidate, answer in zip(candidates, answers, strict=True)
        ]

    def measure(
        self, built: Sequence[Built], seconds: float = 0.05, limit: float = math.inf
    ) -> list[Trial]:
        """Check each candidate and time it for some seconds; in order."""
        trials: dict[int, Trial] = {}
        # the candidates of a task after each other, for its reference and its anchor are kept
        for number in sorted(range(len(built)), key=lambda n: built[n].candidate.task.key):
            one = built[number]
            trials[number] = (
                Trial(one.candidate, one.status, message=one.message)
                if one.kernel is None
                else self._measured(one, seconds, limit)
            )
        return [trials[number] for number in range(len(built))]

    def compare(self, built: Sequence[Built], seconds: float) -> list[Trial]:
        """Check candidates of one task and time them in turns, for some seconds in all."""
        ready = [one for one in built if one.kernel is not None]
        tasks = {one.candidate.task for one in ready}
        if len(tasks) > 1:
            raise Error(f"compare: expected candidates of one task, got {len(tasks)} tasks")
        trials: list[Trial] = []
        if ready and not self._open(ready[0].candidate.task):
            self._used = self._process()
            most = self.limits.run_seconds * len(ready) + OVERTIME * seconds
            answer = self._examine(Request("compare", (ready, seconds), most))
            trials = answer.value or []
        if not trials:  # whose fault that was shows when each is alone
            return self.measure(built, seconds / max(1, len(ready)))
        found = iter(map(self._noted, trials))
        return [
            Trial(one.candidate, one.status, message=one.message)
            if one.kernel is None
            else next(found)
            for one in built
        ]

    def compare_programs(
        self, programs: Sequence[Program], seconds: float, threads: int | None = None
    ) -> list[ProgramTrial]:
        """Time calls of whole programs in turns, as `compare` does; results are not checked."""
        if not programs:
            return []
        agreed_arguments(programs)
        most = self.limits.run_seconds * len(programs) + OVERTIME * seconds
        request = Request("compare_programs", (list(programs), seconds, threads), most)
        answer = self._examine(request, TRIES)
        if answer.status == "ok":
            return [ProgramTrial("ok", t.seconds, t.noise, t.samples) for t in answer.value]
        if len(programs) == 1:
            return [ProgramTrial(_ended(answer), message=answer.message)]
        share = seconds / len(programs)
        return [self.compare_programs([one], share, threads)[0] for one in programs]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- one candidate

    def _measured(self, built: Built, seconds: float, limit: float) -> Trial:
        """The trial of one candidate.

        One that crashes where others ran before is tried once more, in a new process: it may be
        them who damaged the memory.
        """
        candidate = built.candidate
        most = self.limits.run_seconds + OVERTIME * seconds
        trial = Trial(candidate, "crashed")
        for _ in range(TRIES):
            said = self._open(candidate.task)
            if said:
                return Trial(candidate, "failed", message=f"there is no reference: {said}")
            first = self._process() != self._used
            self._used = self._process()
            answer = self._examine(Request("measure", (built, seconds, limit), most))
            trial = answer.value or Trial(candidate, _ended(answer), message=answer.message)
            if answer.status != "lost" and (first or trial.status != "crashed"):
                break
        return self._noted(trial)

    def _open(self, task: Task) -> str:
        """Have the process make the task's reference and take its anchor; why it cannot."""
        kernel = self._anchor(task)
        answer = Answer("lost")
        for _ in range(TRIES):
            if self._opened == (self._process(), task.key):
                return ""
            answer = self._examine(Request("open", (task,), self.limits.build_seconds))
            if answer.status not in ("ok", "lost"):
                break
            if isinstance(kernel, Kernel) and answer.value is False:
                request = Request("take_anchor", (task, kernel), self.limits.run_seconds)
                answer = self._examine(request)
                ended = f"{answer.status}: {answer.message}"
                said = answer.value if answer.status == "ok" else ended
                if said and answer.status != "lost":
                    kernel = f"it is not right itself: {said}"
                    self._anchors[task.key] = kernel
                    self._renew()
                    continue
            if answer.status == "ok":
                self._opened = self._process(), task.key
        return f"{_ended(answer)}: {answer.message}"

    def _anchor(self, task: Task) -> Kernel | str:
        """The task's anchor, compiled once; or why there is none."""
        if task.key not in self._anchors:
            kept: Kernel | str = "the task names none"
            if task.anchor:
                (built,) = self.build([Candidate(task, task.anchor, math.inf)])
                kept = f"{built.status}: {built.message}"
                if built.kernel:  # its texts may be large, and nobody reads them
                    kept = replace(built.kernel, stages={}, llvm_ir="")
            self._anchors[task.key] = kept
        return self._anchors[task.key]

    def _noted(self, trial: Trial) -> Trial:
        """The trial with a note if there was no anchor to compare with."""
        task = trial.candidate.task
        anchor = self._anchors.get(task.key)
        if trial.status == "ok" and task.anchor and isinstance(anchor, str):
            notes = [trial.message, f"not compared with the anchor, {anchor}"]
            return replace(trial, message="; ".join(filter(None, notes)))
        return trial


class InProcess(_Examination):
    """Everything in this process: for debugging. A crash ends it, and limits do not hold."""

    def __init__(self, tools: Tools):
        super().__init__(Limits())
        self._examiner = Examiner(tools)

    def _compile(self, requests: Sequence[Request]) -> list[Answer]:
        return [perform(self._examiner, request) for request in requests]

    def _examine(self, request: Request, tries: int = 1) -> Answer:
        return perform(self._examiner, request)

    def _process(self) -> int:
        return 1  # the only one

    def _renew(self) -> None:
        """There is no other process."""

    def close(self) -> None:
        """There is nothing to end."""


class LocalWorkers(_Examination):
    """Processes on this machine: some to compile in, as many as there are cores, and one to run in.

    They begin with `with`, or when they are needed, and stay until `close`. Not for several threads
    at a time.
    """

    def __init__(self, tools: Tools, workers: int | None = None, limits: Limits | None = None):
        super().__init__(limits or Limits())
        count = available_cores() if workers is None else workers
        if count < 1:
            raise Error(f"workers: expected a number of at least 1, got {workers}")
        self._builders = [Worker(tools, self.limits) for _ in range(count)]
        self._runner = Worker(tools, self.limits)

    def __enter__(self) -> Self:
        for worker in (*self._builders, self._runner):
            worker.spawn()  # it takes a while until one has imported the compiler
        return self

    def _compile(self, requests: Sequence[Request]) -> list[Answer]:
        return carry_out(requests, self._builders)

    def _examine(self, request: Request, tries: int = 1) -> Answer:
        return carry_out([request], [self._runner], tries)[0]

    def _process(self) -> int:
        self._runner.spawn()
        return self._runner.generation

    def _renew(self) -> None:
        self._runner.kill()

    def close(self) -> None:
        """End all processes."""
        for worker in (*self._builders, self._runner):
            worker.kill()
