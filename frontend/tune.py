"""From a graph to its fastest program, by measuring: the search that `compile(search=...)` runs.

    program = tune(module, "embed", find_target("cpu"), "fast", 2, Search(seconds=60), database)

The e-graph gives a few programs, each a choice of kernels. The schedules of all their kernels are
searched together (`runtime/tuner.py`); every region then takes the kernels that are fastest by what
was measured, and that program is run in turns with the one that the cost model chose. The faster
one is kept. What was measured goes to the tuning database as it comes.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mlir import ir

from .compile import Search
from .dialect.errors import CompileError, ParseError
from .fusion import Fused, assemble, candidates
from .kernel_tasks import build, reference_cases, space_of, tasks_of
from .passes.panels import Chosen
from .passes.regions import Region
from .passes.targets import Target
from .pipeline import Clock, compile_kernels, simplified
from .program_cache import chosen_module, graph_key
from .progress import Progress
from .reproducer import write_reproducer
from .runtime.database import Choice, Database, Key, Part
from .runtime.identity import compiler_version, identity, is_this_machine
from .runtime.measurer import LocalWorkers, Measurer, ProgramTrial, Tools
from .runtime.program import Kernel, Program
from .runtime.space import from_json, to_json
from .runtime.trial import BUGS, Candidate, Task, Trial
from .runtime.tuner import INTERRUPTED, Budget, Outcome, Tuner, Work

PROGRAMS = 4  # choices of kernels whose schedules are searched
SLOWER = 1.5  # those predicted to be so many times slower than the best are left out
FINALE = 3.0  # seconds for the last comparison, of whole programs
PREDICTED_PART = 0.02  # of a region's time: as much may be predicted where others were measured
A_KERNEL = 0.1  # seconds that compiling a kernel for the last programs takes, about
TOOLS = Tools(build, reference_cases)
Pairs = list[tuple[Chosen, Task | None]]  # of a region: its kernels, each with its task


def tune(
    module: ir.Module,
    name: str,
    target: Target,
    precision: str,
    threads: int,
    search: Search,
    database: Database,
) -> Program:
    """The fastest right program that a search finds within its budget; at least the default one.

    `name` is the user's name of the graph. An interruption ends the search with the best so far.
    A candidate that was wrong is told of in a warning, with the file that repeats it.
    """
    started, clock = time.monotonic(), Clock()
    with module.context, ir.Location.unknown(), start_measurer(search) as measurer:
        device = device_of(measurer, target, threads)
        records = _Records(database, target, precision, device)
        work = simplified(module, clock)
        found = candidates(work.operation, target, precision, (), PROGRAMS)
        clock.mark("fuse")
        programs = _Programs(found, target, precision, threads)
        works = programs.works()
        for one in works.values():
            one.trials.update(records.known(one))
        outcome = _searched([*works.values()], measurer, search, records, started)
        clock.mark("search")
        _tell_bugs(outcome, records)
        fastest = programs.fastest(works)
        final = [assemble(work.operation, programs.scheduled(fastest, works)).module]
        if not programs.default_is_wrong(works):
            final.append(found[0].module)
        key, source = graph_key(str(module), target, precision, device), str(module)
        earlier = database.choice(key)
        if earlier is not None:
            final.append(chosen_module(earlier.kernels, module))
        final = list({str(one): one for one in final}.values())
        kernels: dict[str, Kernel] = {}
        compiled = [
            compile_kernels(m, source, target, precision, clock, {}, kernels) for m in final
        ]
        timed = _compared(measurer, compiled, outcome, threads)
    order = sorted(range(len(timed)), key=lambda n: timed[n].seconds)
    program, best = compiled[order[0]], timed[order[0]]
    second = timed[order[1]] if len(order) > 1 else ProgramTrial("ok", 0.0)
    default = next((t for m, t in zip(final, timed, strict=False) if m is found[0].module), best)
    budget = outcome.seconds if outcome.stopped == INTERRUPTED else search.seconds
    database.choose(
        Choice(
            key=key,
            name=name,
            kernels=program.stages["kernels"],
            seconds=best.seconds,
            noise=best.noise,
            runner_up=second.seconds,
            runner_up_noise=second.noise,
            candidates=outcome.tried,
            budget=budget or outcome.seconds,
            samples=best.samples,
            parts=records.parts(fastest, works),
        )
    )
    facts = {
        "candidates": outcome.tried,
        "seconds": outcome.seconds,
        "ended": outcome.stopped,
        "milliseconds of a call": best.seconds * 1e3,
        "noise": best.noise,
        "without a search": default.seconds * 1e3,
        "wrong candidates": len(outcome.bugs),
    }
    report = {"precision": precision, "regions": found[0].regions, "search": facts}
    return replace(program, report={**program.report, **report})


def _searched(
    works: list[Work], measurer: Measurer, search: Search, records: _Records, started: float
) -> Outcome:
    """Search under the budget, less what is needed for whole programs; the works have the rest."""
    reserve = FINALE + A_KERNEL * sum(work.weight >= 1 for work in works)
    seconds = None if search.seconds is None else max(0.0, search.seconds - reserve)
    budget = Budget(seconds, search.candidates)
    with Progress(search, started) as progress:

        def on_trials(one: Work, trials: list[Trial]) -> None:
            records.add(one.task, trials)
            progress.show(tuner)

        tuner = Tuner(works, measurer, budget, search.seed, on_trials=on_trials, started=started)
        return tuner.run()


def start_measurer(search: Search) -> Measurer:
    """Where candidates are compiled and run: workers here, or a Ray cluster."""
    if search.cluster is not None:
        from .runtime.cluster import RayCluster

        return RayCluster(TOOLS, search.cluster)
    return LocalWorkers(TOOLS, search.workers)


def device_of(measurer: Measurer, target: Target, threads: int) -> str:
    """The device that a measurer's figures are of: this machine, or that of a cluster's nodes."""
    device = getattr(measurer, "device", None)
    if device is not None and not is_this_machine(target.name, device):
        return device
    return identity(target.name, threads)


# --- programs and their tasks -------------------------------------------------------------------


class _Programs:
    """The programs of a search: of each, region by region, the kernels and their tasks."""

    def __init__(self, fused: list[Fused], target: Target, precision: str, threads: int):
        seconds = [sum(k.seconds for k in _kernels(one) if not k.free) for one in fused]
        self.fused = [
            one for one, taken in zip(fused, seconds, strict=True) if taken <= SLOWER * seconds[0]
        ]
        self.regions: list[list[Pairs]] = []
        for one in self.fused:
            tasks = iter(tasks_of(one.module, target, precision, threads))
            self.regions.append([[(k, next(tasks)) for k in ks] for _, ks in one.chosen])

    def works(self) -> dict[Task, Work]:
        """The work of each task. What only other programs than the first have weighs less."""
        weights: dict[Task, float] = {}
        for n, program in enumerate(self.regions):
            count: dict[Task, float] = {}
            for _, task in (pair for pairs in program for pair in pairs):
                if task is not None:
                    count[task] = count.get(task, 0.0) + 1.0
            for task, launches in count.items():
                weights.setdefault(task, launches if n == 0 else 0.5 * launches)
        return {task: Work(task, space_of(task), weight) for task, weight in weights.items()}

    def fastest(self, works: dict[Task, Work]) -> list[Pairs]:
        """For each region the kernels of the program that has the fastest there."""
        chosen = []
        for first, *others in zip(*self.regions, strict=True):
            known = [pairs for pairs in others if _is_measured(pairs, works)]
            chosen.append(min([first, *known], key=lambda pairs: _seconds(pairs, works)))
        return chosen

    def scheduled(
        self, chosen: list[Pairs], works: dict[Task, Work]
    ) -> list[tuple[Region, list[Chosen]]]:
        """Each region with these kernels, in the best schedules of their tasks."""
        regions = [region for region, _ in self.fused[0].chosen]
        return [
            (region, [_scheduled(kernel, task, works) for kernel, task in pairs])
            for region, pairs in zip(regions, chosen, strict=True)
        ]

    def default_is_wrong(self, works: dict[Task, Work]) -> bool:
        """Whether a kernel of the first program was wrong, with the schedule that it has."""
        return any(
            (trial := works[task].trials.get(to_json(kernel.schedule))) and trial.status in BUGS
            for pairs in self.regions[0]
            for kernel, task in pairs
            if task is not None
        )


def _kernels(fused: Fused) -> Iterator[Chosen]:
    return (kernel for _, kernels in fused.chosen for kernel in kernels)


def _seconds(pairs: Pairs, works: dict[Task, Work]) -> float:
    """What the kernels of a region take: as measured, where they were."""
    return sum(works[task].launch for _, task in pairs if task is not None)


def _is_measured(pairs: Pairs, works: dict[Task, Work]) -> bool:
    """Whether nearly all of what a region takes was measured, not predicted."""
    found = [works[task] for task in {task for _, task in pairs} if task is not None]
    unknown = sum(work.launch for work in found if work.best is None)
    return unknown <= PREDICTED_PART * sum(work.launch for work in found)


def _scheduled(kernel: Chosen, task: Task | None, works: dict[Task, Work]) -> Chosen:
    """The kernel with the best schedule of its task; CompileError where all were wrong."""
    if task is None:
        return kernel
    best = works[task].best
    if best is None:
        own = works[task].trials.get(to_json(kernel.schedule))
        if own is not None and own.status in BUGS:
            raise CompileError(f"no right code was found for {task.name}: {own.message}")
        return kernel
    schedule = from_json(best.candidate.schedule)
    return replace(kernel, schedule=schedule, seconds=best.candidate.predicted)


# --- what is kept and told ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Records:
    """The trials of kernels in the database."""

    database: Database
    target: Target
    precision: str
    device: str

    def key(self, task: Task) -> Key:
        arguments = task.source.partition("(")[2].partition(" {\n")[0][:1000]
        version = compiler_version()
        return Key(task.key, arguments, self.precision, self.target.name, self.device, version)

    def known(self, work: Work) -> dict[str, Trial]:
        """What earlier searches measured of a task, by schedule."""
        found = {}
        for row in self.database.trials(self.key(work.task)):
            try:
                legal = not work.space.legal(from_json(row.schedule))
            except ParseError:
                legal = False
            if legal:
                candidate = Candidate(work.task, row.schedule, row.predicted)
                found[row.schedule] = Trial(
                    candidate, row.status, row.seconds, row.noise, row.samples
                )
        return found

    def parts(self, chosen: list[Pairs], works: dict[Task, Work]) -> tuple[Part, ...]:
        """What is known of the kernels of a choice, each task once."""
        found = []
        tasks = dict.fromkeys(task for pairs in chosen for _, task in pairs)
        for task in (task for task in tasks if task is not None):
            key, best = self.key(task), works[task].best
            if best is not None:
                known = (best.seconds, best.noise, best.samples, len(works[task].trials))
                found.append(Part(task.name, key.graph, key.arguments, *known))
        return tuple(found)

    def add(self, task: Task, trials: list[Trial]) -> None:
        """Keep what was measured."""
        rows = [
            (t.candidate.schedule, t.status, t.seconds, t.noise, t.samples, t.candidate.predicted)
            for t in trials
        ]
        self.database.add_trials(self.key(task), rows)


def _compared(
    measurer: Measurer, programs: list[Program], outcome: Outcome, threads: int
) -> list[ProgramTrial]:
    """The programs in turns. After an interruption, or where none can be run, the first counts."""
    unknown = [ProgramTrial("ok", outcome.best)]
    if outcome.stopped == INTERRUPTED:
        return unknown
    try:
        found = measurer.compare_programs(programs, FINALE, threads)
    except KeyboardInterrupt:
        return unknown
    return found if any(one.status == "ok" for one in found) else unknown


def _tell_bugs(outcome: Outcome, records: _Records) -> None:
    """Keep each bug that a search met, and warn of them."""
    paths = []
    for trial in outcome.bugs:
        path = write_reproducer(trial)
        records.database.add_bug(
            records.key(trial.candidate.task),
            trial.candidate.schedule,
            trial.status,
            trial.message,
            str(path),
        )
        paths.append(f"{trial.status}: dodeca check {path}")
    if paths:
        text = "\n  ".join(paths[:10])
        warnings.warn(
            f"{len(paths)} candidates of the search were not right and were not used; "
            f"these are bugs of the compiler:\n  {text}",
            RuntimeWarning,
            stacklevel=2,
        )
