"""Random graphs under random schedules, against the interpreter.

`python tests/fuzz_schedules.py 10000 1` draws 10,000 pairs of a kernel and a schedule: graphs from
seed 1 on, cut into kernels by the compiler, each kernel under schedules of its space. Every pair is
compiled the usual way, run on inputs that are hard to get right, and compared. A pair that fails,
crashes or hangs is told with the command that repeats it, and costs the run nothing else.

    --target cuda:sm_80    a GPU's kernels, simulated        --workers 2    processes
    --repeat '{"seed": 1, "graph": 0, "kernel": 2, "schedule": ...}'        one pair

On the CPU every buffer lies beside a page that cannot be touched, once at its end and once at its
start, inputs cannot be written, and the bytes around a result must stay as they are.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

PAIRS = 25  # of a graph, where its kernels have as many schedules
LIMIT = 300  # seconds for a pair
START = 300  # ... for a process to begin


@dataclass(frozen=True)
class Pair:
    """A kernel of a graph and a schedule: what a repeated run is told."""

    seed: int
    graph: int
    kernel: int
    schedule: str

    @property
    def text(self) -> str:
        return json.dumps(self.__dict__, separators=(",", ":"))


@dataclass(frozen=True)
class Job:
    """So many pairs from a seed, but for the first ones, which were tried."""

    seed: int
    count: int
    target: str
    done: int = 0


def run_job(job: Job) -> Iterator[tuple[str, str]]:
    """("graph", which), then for each pair ("pair", its text) and ("result", what is wrong)."""
    from fuzz_kernels import draw_schedules, draw_subjects  # not in the process that waits

    made, number = 0, -1
    while made < job.count:
        number += 1
        yield "graph", f"seed {job.seed}, graph {number}"
        kernels, rng = draw_subjects(job.seed, number, job.target)
        for n, schedule in draw_schedules(kernels, rng, min(PAIRS, job.count - made)):
            made += 1
            if made > job.done:
                yield "pair", Pair(job.seed, number, n, schedule).text
                yield "result", kernels[n].judge(schedule)


# --- processes ----------------------------------------------------------------------------------


def work(connection: Connection) -> None:
    """Runs jobs until there are no more, or nobody who gives them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        connection.send(("ready", ""))
        while (job := connection.recv()) is not None:
            _send_events(connection, job)


def _send_events(connection: Connection, job: Job) -> None:
    events = run_job(job)
    while True:
        try:
            event = next(events, ("end", ""))
        except Exception as error:  # in drawing a graph or in the search for its kernels
            event = ("broken", f"{type(error).__name__}: {error}")
        connection.send(event)
        if event[0] in ("end", "broken"):
            return


@dataclass
class Worker:
    """A process, its job, and what it said last."""

    process: Any = None
    connection: Any = None
    job: Job | None = None
    ready: bool = False
    graph: str = ""
    pair: str = ""
    since: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.connection, other = spawn.Pipe()
        self.process = spawn.Process(target=work, args=(other,), daemon=True)
        self.process.start()
        self.ready = False
        other.close()

    def give(self, job: Job | None) -> None:
        if self.process is None and job is not None:
            self.start()
        self.job, self.since, self.pair = job, time.monotonic(), ""
        if self.process is not None:
            with suppress(BrokenPipeError, ConnectionResetError):  # that it ended is heard later
                self.connection.send(job)

    def stop(self) -> str:
        """End the process at once; how it had ended, in words."""
        self.process.join(1)
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        self.connection.close()
        self.process = None
        if code is None:
            return f"took more than {LIMIT} seconds"
        return f"crashed: {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


class Run:
    """A run of the fuzz: jobs, workers, and what came of them."""

    def __init__(self, count: int, seed: int, target: str, workers: int):
        self.count, self.target = count, target
        self.jobs = [
            Job(seed + n, min(PAIRS, count - n * PAIRS), target) for n in range(-(-count // PAIRS))
        ][::-1]
        self.workers = [Worker() for _ in range(workers)]
        self.start = time.monotonic()
        self.graphs: set[str] = set()
        self.pairs = self.wrong = self.broken = 0  # broken: graphs without any pairs

    def run(self) -> int:
        """Run all jobs; how many pairs and graphs failed."""
        for worker in self.workers:
            worker.give(self.jobs.pop() if self.jobs else None)
        while busy := [w for w in self.workers if w.job is not None]:
            ready = wait([w.connection for w in busy], timeout=1.0)
            for worker in busy:
                if worker.connection in ready:
                    self._heard(worker)
                elif time.monotonic() - worker.since > (LIMIT if worker.ready else START):
                    self._lost(worker)
        for worker in self.workers:
            if worker.process is not None:  # it has no more to do, and ends
                worker.stop()
        took = time.monotonic() - self.start
        print(
            f"\r{self.pairs} pairs of {len(self.graphs)} graphs on {self.target}: "
            f"{self.pairs - self.wrong} agree, {self.wrong} do not; {self.broken} graphs without "
            f"kernels; {took:.0f} seconds, {self.pairs / max(took, 1e-9):.1f} pairs a second"
        )
        return self.wrong + self.broken

    def _heard(self, worker: Worker) -> None:
        try:
            kind, text = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            self._lost(worker)
            return
        worker.since = time.monotonic()
        assert worker.job is not None
        if kind == "ready":
            worker.ready = True
        elif kind == "graph":
            self.graphs.add(text)
            worker.graph, worker.pair = text, ""
        elif kind == "pair":
            worker.pair = text
        elif kind == "result":
            self._count(worker, text)
        else:
            if kind == "broken":
                self._tell(f"{worker.graph}: {text}", "")
            worker.give(self.jobs.pop() if self.jobs else None)

    def _count(self, worker: Worker, fault: str) -> None:
        assert worker.job is not None
        self.pairs += 1
        job = worker.job
        worker.job = Job(job.seed, job.count, job.target, job.done + 1)
        if fault:
            self._tell(fault, worker.pair)
        if self.pairs % 5 == 0:
            print(
                f"\r{self.pairs}/{self.count} pairs, {len(self.graphs)} graphs, {self.wrong} wrong",
                end="", flush=True,
            )  # fmt: skip

    def _lost(self, worker: Worker) -> None:
        """A process that ended or hangs: its pair failed, and another goes on behind it."""
        how = worker.stop()
        if worker.pair:
            self._count(worker, how)
            worker.give(worker.job)
        else:
            self._tell(f"{worker.graph}: {how}", "")
            worker.give(self.jobs.pop() if self.jobs else None)

    def _tell(self, fault: str, pair: str) -> None:
        print(f"\n{fault}")
        if not pair:
            self.broken += 1
        else:
            self.wrong += 1
            print(f"repeat: python {sys.argv[0]} --target {self.target} --repeat '{pair}'")


def repeat(text: str, target: str) -> str:
    """Try one pair again, in this process."""
    from fuzz_kernels import draw_subjects

    pair = Pair(**json.loads(text))
    kernels, _ = draw_subjects(pair.seed, pair.graph, target)
    return kernels[pair.kernel].judge(pair.schedule)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=100)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", metavar="PAIR")
    given = parser.parse_args()
    if given.repeat:
        fault = repeat(given.repeat, given.target)
        print(fault or "agrees")
        return int(bool(fault))
    return int(Run(given.count, given.seed, given.target, given.workers).run() > 0)


if __name__ == "__main__":
    sys.exit(main())
