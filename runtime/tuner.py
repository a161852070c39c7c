"""The search over schedules: what to try next, under a budget, for all kernels of a program.

In: tasks, each with its space of schedules and its weight (how often a call launches the kernel).
Out: what was measured. Each round takes the task from which most can be expected, and of its space
the schedules that seem fastest: by the cost model, with a correction that is learned from what was
measured so far (ridge regression on the schedules' features; for search of this kind see Ansor,
Zheng et al., OSDI 2020), and some at random. New ones are mutations and crosses of the best.

    tuner = Tuner([Work(task, space, weight)], measurer, Budget(seconds=60), seed=0)
    outcome = tuner.run()
    tuner.works[0].best                    # the fastest trial

What is proposed depends on the seed and on what was measured, never on the number of workers. An
interruption (Ctrl-C) ends the search, and what was learned stays.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .measurer import Measurer
from .space import Space, from_json, to_json
from .trial import BUGS, Built, Candidate, Task, Trial

BATCH = 8  # candidates of a round: a constant, so that the number of workers decides nothing
PARENTS = 4  # the best of a task, which new schedules are made from
POOL = 48  # schedules that are ranked for a batch
RANDOM = 0.25  # the part of a batch that is not the best ranked
SEEDS = 4  # of the schedules that are known beforehand, so many are tried first
PATIENCE = 4  # rounds of each task without gain, after which a search without a budget ends
GAIN = 0.02  # what counts as a gain
DECAY = 0.6  # what a round without gain leaves of the hope for more
GIVE_UP = 4.0  # a candidate so many times slower than the best is not measured with care
CHALLENGERS = 2  # run in turns with a champion at a time
MEASURING = 0.02  # seconds that a candidate is timed; what seems fast is timed again
DUEL = 0.15  # seconds that they run
FINAL = 0.6  # the same at the end
NEAR = 1.1  # times a champion's seconds: those that then run in turns with it once more
INTERRUPTED = "interrupted"
FINISHING = 0.06  # the part of the seconds that is kept for finalists


@dataclass(frozen=True)
class Budget:
    """What a search may spend: seconds until it ends, candidates that are measured; None: no limit.

    Without any limit it ends when no task has gained for some rounds.
    """

    seconds: float | None = None
    candidates: int | None = None


@dataclass
class Work:
    """A task in the search. `weight` is how many launches of it a call of the program has."""

    task: Task
    space: Space
    weight: float
    trials: dict[str, Trial] = field(default_factory=dict)  # by schedule
    idle: int = 0  # rounds since the last gain
    exhausted: bool = False  # whether there is nothing left to try
    waiting: list[str] = field(default_factory=list)  # schedules to try before any other
    champion: Built | None = None  # the fastest, by running in turns with those before it

    @property
    def good(self) -> list[Trial]:
        """The right candidates, the fastest first."""
        good = [t for t in self.trials.values() if t.status == "ok"]
        return sorted(good, key=lambda t: (t.seconds, t.candidate.schedule))

    @property
    def best(self) -> Trial | None:
        """The trial of the champion; of the fastest that is known, where there is no champion."""
        if self.champion is not None:
            return self.trials[self.champion.candidate.schedule]
        return next(iter(self.good), None)

    @property
    def launch(self) -> float:
        """Seconds of a launch, as far as is known."""
        best = self.best
        return best.seconds if best else self.space.predict(self.space.default)

    @property
    def seconds(self) -> float:
        """What the task takes of a call, as far as is known."""
        return self.weight * self.launch

    @property
    def hope(self) -> float:
        """What may be gained by another round; 0 if the whole space was tried."""
        return 0.0 if self.exhausted else self.seconds * DECAY**self.idle


@dataclass(frozen=True)
class Outcome:
    """What a search did. `tried` counts what was compiled for it, whatever came of it."""

    tried: int
    stopped: str  # why it ended
    seconds: float
    best: float  # seconds of a call, the sum over its launches
    bugs: tuple[Trial, ...]


class Correction:
    """What measured times say of predicted ones: a factor for each schedule, by its features."""

    def __init__(self, strength: float = 1.0):
        self._strength = strength
        self._rows: list[np.ndarray] = []
        self._wanted: list[float] = []
        self._weights: np.ndarray | None = None

    def add(self, features: np.ndarray, predicted: float, measured: float) -> None:
        """Learn from one measurement."""
        self._rows.append(np.append(features, 1.0))
        self._wanted.append(math.log(measured / predicted))
        self._weights = None

    def factor(self, features: np.ndarray) -> float:
        """What to multiply a prediction by; 1 as long as too little is known."""
        if len(self._rows) < 8:
            return 1.0
        if self._weights is None:
            rows = np.array(self._rows)
            self._scale = np.abs(rows).max(axis=0) + 1e-9
            rows = rows / self._scale
            left = rows.T @ rows + self._strength * np.eye(rows.shape[1])
            self._weights = np.linalg.solve(left, rows.T @ np.array(self._wanted))
        return float(np.exp(np.clip(np.append(features, 1.0) / self._scale @ self._weights, -3, 3)))


class Tuner:
    """One search. `on_trials` is called with what each round measured, before the next begins."""

    def __init__(
        self,
        works: Sequence[Work],
        measurer: Measurer,
        budget: Budget,
        seed: int = 0,
        *,
        on_trials: Callable[[Work, list[Trial]], None] = lambda work, trials: None,
        started: float | None = None,
    ):
        self.works = list(works)
        self.measurer = measurer
        self.budget = budget
        self.rng = np.random.default_rng(seed)
        self.tried = 0
        self.bugs: list[Trial] = []
        self.correction = Correction()
        self._on_trials = on_trials
        self._started = time.monotonic() if started is None else started
        self._slowest_round = 0.0
        for work in self.works:
            for trial in work.trials.values():  # known from earlier searches
                self._learn(work, trial)
            known = sorted(work.space.known, key=lambda s: (work.space.predict(s), to_json(s)))
            first = [to_json(s) for s in [work.space.default, *known][: SEEDS + 1]]
            best = [t.candidate.schedule for t in work.good[:CHALLENGERS]]  # they run again
            fresh = [text for text in first if text not in work.trials]
            work.waiting = list(dict.fromkeys([*best, *fresh]))

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    @property
    def seconds(self) -> float:
        """What a call of the program takes with the best of every task."""
        return sum(work.seconds for work in self.works)

    def run(self) -> Outcome:
        """Search until the budget is spent or nothing more is hoped for."""
        try:
            stopped = self._rounds()
            self._finish()
        except KeyboardInterrupt:
            stopped = INTERRUPTED
        return Outcome(self.tried, stopped, self.elapsed, self.seconds, tuple(self.bugs))

    def _rounds(self) -> str:
        while True:
            if self.budget.candidates is not None and self.tried >= self.budget.candidates:
                return f"budget of {self.budget.candidates} candidates"
            if self.budget.seconds is not None:
                searching = self.budget.seconds * (1 - FINISHING)
                if self.elapsed + self._slowest_round > searching:
                    return f"budget of {self.budget.seconds:g} seconds"
            work = max(self.works, key=lambda w: w.hope, default=None)
            if work is None or not work.hope:
                return "every schedule was tried"
            endless = self.budget == Budget() and not work.waiting
            if endless and all(w.idle >= PATIENCE for w in self.works if w.hope):
                return "no task gained any more"
            start = time.monotonic()
            work.exhausted = not self._round(work)
            self._slowest_round = max(0.9 * self._slowest_round, time.monotonic() - start)

    def _round(self, work: Work) -> int:
        """Try a batch of schedules of one task; how many."""
        room = BATCH if self.budget.candidates is None else self.budget.candidates - self.tried
        batch = self._propose(work, min(BATCH, room))
        candidates = [
            Candidate(work.task, text, work.space.predict(from_json(text))) for text in batch
        ]
        before = work.best
        limit = GIVE_UP * before.seconds if before else math.inf
        built = self.measurer.build(candidates)
        trials = self.measurer.measure(built, MEASURING, limit)
        self.tried += len(trials)
        self._note(work, trials)
        for trial in trials:
            self._learn(work, trial)
        gained = self._challenge(work, built)
        work.idle = 0 if gained else work.idle + 1
        return len(batch)

    def _note(self, work: Work, trials: list[Trial]) -> None:
        """Remember what was measured of a task, the bugs too."""
        for trial in trials:
            work.trials[trial.candidate.schedule] = trial
            if trial.status in BUGS:
                self.bugs.append(trial)
        self._on_trials(work, trials)

    def _challenge(self, work: Work, built: Sequence[Built]) -> bool:
        """Run those that seem faster than the champion in turns with it; whether one is."""
        seconds = {b.candidate.schedule: work.trials[b.candidate.schedule].seconds for b in built}
        ranked = sorted(built, key=lambda b: seconds[b.candidate.schedule])
        champion = work.champion
        if champion is None:
            right = (b for b in ranked if math.isfinite(seconds[b.candidate.schedule]))
            work.champion = next(right, None)
            return work.champion is not None
        least = work.trials[champion.candidate.schedule].seconds
        faster = [b for b in ranked if seconds[b.candidate.schedule] < least]
        if not faster:
            return False
        self._in_turns(work, [champion, *faster[:CHALLENGERS]], DUEL, GAIN)
        return work.champion not in (None, champion)

    def _in_turns(self, work: Work, built: Sequence[Built], seconds: float, gain: float) -> None:
        """Run the champion, the first of these, in turns with others; one that gains becomes it.

        Where none is right this time, there is no champion any more.
        """
        trials = self.measurer.compare(built, seconds)
        self._note(work, trials)
        first = min(range(len(trials)), key=lambda n: trials[n].seconds)
        if trials[first].status != "ok":
            work.champion = None
        elif trials[first].seconds < trials[0].seconds * (1 - gain):
            work.champion = built[first]

    def _learn(self, work: Work, trial: Trial) -> None:
        if trial.status == "ok" and trial.candidate.predicted > 0:
            features = work.space.features(from_json(trial.candidate.schedule))
            self.correction.add(features, trial.candidate.predicted, trial.seconds)

    def _propose(self, work: Work, count: int) -> list[str]:
        """Schedules of a task that were not tried yet, at most `count`."""
        if work.waiting:
            batch, work.waiting = work.waiting[:count], work.waiting[count:]
            return batch
        pool = [text for text in self._pool(work) if text not in work.trials]
        ranked = sorted(pool, key=lambda text: (self._expected(work, text), text))
        best = ranked[: count - int(RANDOM * count)]
        rest = ranked[len(best) :]
        others = self.rng.permutation(len(rest))[: count - len(best)]
        return best + [rest[i] for i in others]

    def _pool(self, work: Work) -> Iterable[str]:
        """New schedules, from the best and at random; each once."""
        parents = [from_json(t.candidate.schedule) for t in work.good[:PARENTS]]
        parents = parents or [work.space.default]
        made = []
        for n in range(POOL):
            one, other = (parents[self.rng.integers(len(parents))] for _ in range(2))
            if n % 4 == 0:
                made.append(work.space.sample(self.rng))
            elif n % 4 == 1 and one != other:
                made.append(work.space.cross(one, other, self.rng))
            else:
                made.append(work.space.mutate(one, self.rng))
        return dict.fromkeys(to_json(schedule) for schedule in made)

    def _expected(self, work: Work, text: str) -> float:
        schedule = from_json(text)
        return work.space.predict(schedule) * self.correction.factor(work.space.features(schedule))

    def _finish(self) -> None:
        """Run the champion of each task once more with those near it, the heaviest tasks first."""
        for work in sorted(self.works, key=lambda w: -w.seconds):
            best = work.best
            if work.champion is None or best is None:
                continue
            near = [
                t.candidate for t in work.good if t.seconds <= best.seconds * NEAR and t is not best
            ]
            seconds = FINAL
            if self.budget.seconds is not None:
                seconds = min(FINAL, (self.budget.seconds - self.elapsed) / 4)
            if seconds < DUEL:
                return
            if near:
                others = self.measurer.build(near[:CHALLENGERS])
                self._in_turns(work, [work.champion, *others], seconds, 0.0)
