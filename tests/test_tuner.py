"""The search's strategy, on real spaces of schedules, with a measurer that makes its figures up."""

import hashlib
import time
from dataclasses import replace

import dodeca as dd
import numpy as np
import pytest
from dodeca.fusion import fuse
from dodeca.kernel_tasks import space_of, tasks_of
from dodeca.pipeline import Clock, simplified
from dodeca.runtime.device import find_target
from dodeca.runtime.measurer import LocalWorkers
from dodeca.runtime.space import from_json, to_json
from dodeca.runtime.trial import Built, Trial
from dodeca.runtime.tuner import BATCH, Budget, Correction, Tuner, Work
from dodeca.tune import TOOLS
from mlir import ir


class Pretended:
    """A measurer whose seconds depend on the schedule alone, and whose work takes no time.

    A kernel is faster the nearer the product of its tiles is to 24; a few schedules are wrong.
    """

    def __init__(self, wrong=0.0, interrupt_at=None, seconds=0.0, real=None):
        self.wrong, self.interrupt_at, self.seconds = wrong, interrupt_at, seconds
        self.real = real  # compiles
        self.asked = []  # batches of schedules
        self.binaries = []

    def build(self, candidates):
        self.asked.append([c.schedule for c in candidates])
        if self.real is not None:
            built = self.real.build(candidates)
            self.binaries += [b.kernel.binary for b in built]
            return built
        return [Built(c, None) for c in candidates]

    def measure(self, built, seconds=0.05, limit=float("inf")):
        if self.interrupt_at is not None and len(self.asked) > self.interrupt_at:
            raise KeyboardInterrupt
        time.sleep(self.seconds)
        return [self.trial(b.candidate) for b in built]

    def trial(self, candidate):
        text = candidate.schedule
        draw = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32
        if draw < self.wrong:
            return Trial(candidate, "wrong", message="made up")
        return Trial(candidate, "ok", cost(text), 0.01, 5)

    def compare(self, built, seconds):
        return [self.trial(b.candidate) for b in built]


def cost(text):
    size = np.prod([n for _, n in from_json(text).tiles])
    return 1e-5 * (1 + abs(np.log2(size / 24.0)))


@pytest.fixture(scope="module")
def tasks():
    graph = dd.trace(lambda x, w: dd.softmax(dd.relu(x @ w)), dd.spec((64, 96)), dd.spec((96, 128)))
    target = find_target("cpu")
    with graph.module.context, ir.Location.unknown():
        work = simplified(graph.module, Clock())
        fused = fuse(work.operation, target, "fast")
        found = tasks_of(fused.module, target, "fast", 2)
    return [task for task in found if task is not None]


def works(tasks):
    return [Work(task, space_of(task), 1.0) for task in tasks]


def search(tasks, measurer, budget, seed=0, **more):
    tuner = Tuner(works(tasks), measurer, budget, seed, **more)
    return tuner, tuner.run()


def test_it_finds_what_is_fast(tasks):
    tuner, outcome = search(tasks, Pretended(), Budget(candidates=240))
    for work in tuner.works:
        default = cost(to_json(work.space.default))
        assert work.best.seconds <= min(default, 1.5e-5), work.best
    assert outcome.tried <= 240 and not outcome.bugs


def test_it_is_better_than_chance(tasks):
    """Of the same number of schedules drawn at random, the best is worse."""
    task = tasks[0]
    tuner, outcome = search([task], Pretended(), Budget(candidates=80))
    rng, space = np.random.default_rng(0), space_of(task)
    drawn = sorted(cost(to_json(space.sample(rng))) for _ in range(outcome.tried))
    found = sorted(cost(schedule) for schedule in tuner.works[0].trials)
    assert np.median(found) < np.median(drawn)


def test_the_same_seed_gives_the_same_candidates(tasks):
    asked = []
    for seed in (3, 3, 4):
        measurer = Pretended()
        search(tasks, measurer, Budget(candidates=100), seed)
        asked.append(measurer.asked)
    assert asked[0] == asked[1] != asked[2]


def test_the_number_of_workers_decides_nothing(tasks):
    """The same candidates, compiled to the same bytes, by one worker and by two."""
    seen = []
    for workers in (1, 2):
        with LocalWorkers(TOOLS, workers) as real:
            measurer = Pretended(real=real)
            search(tasks[:1], measurer, Budget(candidates=16))
        seen.append((measurer.asked, measurer.binaries))
    assert seen[0] == seen[1] and len(seen[0][1]) >= 16


def test_no_candidate_is_tried_twice_and_the_default_comes_first(tasks):
    measurer = Pretended()
    tuner, outcome = search(tasks[:1], measurer, Budget(candidates=100))
    asked = [schedule for batch in measurer.asked for schedule in batch]
    measured = asked[: outcome.tried]
    assert len(set(measured)) == len(measured)
    assert measured[0] == to_json(tuner.works[0].space.default)
    assert all(len(batch) <= BATCH for batch in measurer.asked)


def test_a_wrong_candidate_is_never_chosen(tasks):
    tuner, outcome = search(tasks, Pretended(wrong=0.5), Budget(candidates=120))
    assert outcome.bugs
    wrong = {trial.candidate.schedule for trial in outcome.bugs}
    for work in tuner.works:
        assert work.best is not None and work.best.candidate.schedule not in wrong
    assert all(trial.message == "made up" for trial in outcome.bugs)


class Fragile(Pretended):
    """What was right alone crashes when candidates run in turns."""

    def compare(self, built, seconds):
        return [Trial(b.candidate, "crashed", message="made up") for b in built]


def test_a_champion_that_crashes_in_turns_is_none(tasks):
    tuner, outcome = search(tasks, Fragile(), Budget(candidates=60))
    assert outcome.tried == 60 and outcome.bugs
    for work in tuner.works:
        assert work.best is None or work.best.status == "ok"


def test_budgets_end_the_search(tasks):
    _, by_count = search(tasks, Pretended(), Budget(candidates=10))
    assert by_count.tried == 10 and "10 candidates" in by_count.stopped
    start = time.monotonic()
    _, by_time = search(tasks, Pretended(seconds=0.05), Budget(seconds=1.0))
    assert time.monotonic() - start < 1.5 and "1 seconds" in by_time.stopped
    _, by_hope = search(tasks[:1], Pretended(), Budget())
    assert by_hope.stopped == "no task gained any more"


def test_an_interruption_keeps_what_was_learned(tasks):
    kept = []
    tuner, outcome = search(
        tasks,
        Pretended(interrupt_at=4),
        Budget(seconds=60),
        on_trials=lambda work, trials: kept.extend(trials),
    )
    assert outcome.stopped == "interrupted"
    assert 0 < outcome.tried == len(kept)
    assert any(work.best is not None for work in tuner.works)


def test_what_is_known_is_not_tried_again(tasks):
    first, _ = search(tasks[:1], Pretended(), Budget(candidates=40))
    again = works(tasks[:1])
    again[0].trials.update(first.works[0].trials)
    measurer = Pretended()
    tuner = Tuner(again, measurer, Budget(candidates=20), 1)
    tuner.run()
    asked = {schedule for batch in measurer.asked[:2] for schedule in batch}
    best = {trial.candidate.schedule for trial in first.works[0].good[:2]}
    assert asked & first.works[0].trials.keys() == best  # these run again, and no other
    assert tuner.works[0].best.seconds <= first.works[0].best.seconds


def test_the_heavier_task_gets_more(tasks):
    if len(tasks) < 2:
        tasks = [tasks[0], replace(tasks[0], key="other")]
    given = works(tasks[:2])
    given[0].weight = 100.0
    tuner = Tuner(given, Pretended(), Budget(candidates=60))
    tuner.run()
    heavy, light = (len(work.trials) for work in tuner.works)
    assert heavy > light


def test_the_correction_learns_what_the_cost_model_misses():
    rng = np.random.default_rng(0)
    correction = Correction()
    assert correction.factor(np.ones(4)) == 1
    for _ in range(60):
        features = rng.uniform(0, 4, 4)
        correction.add(features, 1e-5, 1e-5 * 2 ** (0.5 * features[1] - 1))
    for _ in range(10):
        features = rng.uniform(0, 4, 4)
        assert np.isclose(correction.factor(features), 2 ** (0.5 * features[1] - 1), rtol=0.25)
