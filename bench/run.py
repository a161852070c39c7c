"""Time dodeca beside other libraries, one process each, interleaved round by round.

    python bench/run.py                                             all cases, all peers
    python bench/run.py --cases softmax_128x1000 --peers dodeca torch
    python bench/run.py --search 30 --plot ratios.png --output results.json

While a peer is timed the others' processes are stopped, for the idle threads of some of them spin.
Every result is checked against numpy's in float64 first. Prints the median time of each case, the
ratio of dodeca's to the best peer's and whether that meets its goal (goals.py), from batches of
calls in which the machine was not busy with something else; `--output` also writes them as JSON.
The exit status is 1 if a result was wrong or dodeca could not run a case. POSIX only.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import plot
from cases import CASES, MODELS, Case, build, compare, reference
from ceilings import ceilings
from dodeca.runtime.driver import waited_seconds
from dodeca.runtime.identity import device_in_words, identity
from networks import FOLDER, MissingWeights
from peers import PEERS, Dodeca, Peer, Run, Unsupported
from report import failed, notes, summary, table

BATCH = 0.02  # seconds of calls that are kept or dropped together
BUSY = 0.03  # the share of a batch that our threads may wait for a core
ENOUGH = 3  # quiet batches that make a figure
SLOW = 10.0  # who takes so many times the least is timed in the first round only
PATIENCE = 600.0  # seconds for an answer, compiling included
SEARCH, MODEL_SEARCH = 60.0, 300.0  # seconds that a search may take for a case, and for a model
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_TUNING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # a user's settings would favour or hurt numpy


# --- the process of a peer ----------------------------------------------------------------------


def serve(name: str, threads: int, search: float, preallocated: bool) -> None:
    """Answer requests, a JSON object a line, until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    peer = make_peer(name, threads, search)
    run: Run | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "case" in request:
                run = None  # the last case's memory goes first
                start = time.perf_counter()
                run, fresh = prepared(peer, build(request["case"]), preallocated)
                result = peer.to_numpy(run())
                answer: dict[str, Any] = {"first": time.perf_counter() - start}
                answer |= {"dtype": result.dtype.name, "fresh": fresh}
                np.save(request["save"], saved(result))
            else:
                assert run is not None
                answer = {"batches": sample(run, request["seconds"])}
        except Unsupported as error:
            answer = {"cannot": str(error)}
        except Exception as error:
            answer = {"cannot": f"{type(error).__name__}: {error}".strip().splitlines()[0][:120]}
        print(json.dumps(answer), file=answers, flush=True)


def make_peer(name: str, threads: int, search: float) -> Peer:
    """The peer of this name; only dodeca has a search."""
    if PEERS[name] is Dodeca:
        return Dodeca(threads, lambda case: search_seconds(case, search))
    return PEERS[name](threads)


def search_seconds(case: Case, seconds: float) -> float:
    """The budget of a search for a case: a model gets as many times more as it may."""
    return seconds * (MODEL_SEARCH / SEARCH if case.operation in MODELS else 1)


def prepared(peer: Peer, case: Case, preallocated: bool) -> tuple[Run, bool]:
    """A run of the case, and whether it gives a fresh array where one made before was asked for."""
    if preallocated:
        try:
            return peer.prepare_into(case), False
        except Unsupported:
            return peer.prepare(case), True
    return peer.prepare(case), False


def saved(result: np.ndarray) -> np.ndarray:
    """What numpy's files can hold: bfloat16 as float32."""
    return result.astype(np.float32) if result.dtype == ml_dtypes.bfloat16 else result


def sample(run: Run, seconds: float) -> list[tuple[float, list[float]]]:
    """Batches of calls, one after the other for some seconds; the first call is not counted.

    A batch has the share of its time in which a thread of ours waited for a core, and its times.
    """
    run()
    batches, end = [], time.perf_counter() + seconds
    while not batches or time.perf_counter() < end:
        times: list[float] = []
        waited, begin = waited_seconds(), time.perf_counter()
        while not times or time.perf_counter() - begin < BATCH:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        share = (waited_seconds() - waited) / (time.perf_counter() - begin)
        batches.append((share, times))
    return batches


# --- the driver ---------------------------------------------------------------------------------


class Worker:
    """A peer's process, which is stopped unless it works for an answer; a new one if it ended."""

    def __init__(self, name: str, options: argparse.Namespace):
        self.name = name
        self.environment = {k: v for k, v in os.environ.items() if k not in _TUNING}
        self.environment |= dict.fromkeys(_POOLS, str(options.threads))
        if not options.search:  # what is compiled now, and not once tuned
            self.environment.setdefault("DODECA_CACHE", "off")
        arguments = [f"--threads={options.threads}", f"--search={options.search}"]
        arguments += ["--preallocated"] * options.preallocated
        self.command = [sys.executable, __file__, "--serve", name, *arguments]
        self.process: subprocess.Popen[str] | None = None

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer; one that it `cannot` where the process ended or took too long."""
        if self.process is None:
            self.process = self.started()
        assert self.process.stdin and self.process.stdout
        try:
            self.process.send_signal(signal.SIGCONT)
            print(json.dumps(request), file=self.process.stdin, flush=True)
            if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
                self.end()
                return {"cannot": f"no answer in {PATIENCE:.0f} s"}
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"cannot": f"its process ended ({self.end()})"}
        self.process.send_signal(signal.SIGSTOP)
        return json.loads(line)

    def started(self) -> subprocess.Popen[str]:
        """A new process."""
        return subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self.environment,
        )

    def end(self) -> int:
        """End the process; its exit status."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.kill()
        process.communicate()  # closes the pipes
        return process.returncode


def measure(name: str, workers: Sequence[Worker], options: argparse.Namespace) -> dict[str, Any]:
    """The case's results: for each peer the median and what else is known, or what went wrong."""
    case = build(name)
    expected = reference(case)
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for worker in workers:
            file = Path(folder) / "result.npy"
            facts = worker.ask(case=name, save=str(file))
            if "cannot" not in facts:
                facts |= compare(np.load(file), expected, facts.pop("dtype"), case.dtype)
            found[worker.name] = facts
    live = [w for w in workers if not {"cannot", "wrong"} & set(found[w.name])]
    batches: dict[str, list[Any]] = {w.name: [] for w in live}
    done, end = 0, time.monotonic() + options.longest
    while done < options.rounds or (
        time.monotonic() < end and not all(enough(batches[w.name]) for w in live)
    ):
        for worker in live:
            wait_until_idle(end)
            batches[worker.name] += worker.ask(seconds=options.seconds).get("batches", [])
        done += 1
        live = [worker for worker in live if worker.name not in slow(batches)]
    for peer, taken in batches.items():
        found[peer] |= summarise(taken, 1 if peer in slow(batches) else ENOUGH)
    return {"case": name, "peers": found}


def slow(batches: dict[str, list[Any]]) -> set[str]:
    """Those whose least time is many times the least of all; dodeca never."""
    least = {n: min((t for _, ts in b for t in ts), default=0.0) for n, b in batches.items()}
    fastest = min(least.values(), default=0.0)
    return {name for name, t in least.items() if t > SLOW * fastest and name != "dodeca"}


def quiet(batches: Sequence[Any]) -> list[list[float]]:
    """The times of the batches in which the process had the cores that it wanted."""
    return [times for share, times in batches if share <= BUSY]


def enough(batches: Sequence[Any], least: int = ENOUGH) -> bool:
    """Whether the quiet batches make a figure."""
    return len(quiet(batches)) >= least


def wait_until_idle(end: float) -> None:
    """Wait until nobody else uses the cores, or until this time (on Linux; else not at all)."""
    while time.monotonic() < end and Path("/proc/stat").is_file():
        before = core_times()
        time.sleep(0.05)
        spent = [b - a for a, b in zip(before, core_times(), strict=True)]
        if sum(spent[3:5]) >= 0.85 * sum(spent):  # idle, and waiting for a disk
            return


def core_times() -> list[int]:
    """What all cores did since the start of the machine, in ticks, by kind."""
    return [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]


def summarise(batches: Sequence[Any], least: int = ENOUGH) -> dict[str, Any]:
    """The median and the least time; `busy` where there are too few quiet batches to choose."""
    kept = quiet(batches)
    busy = not enough(batches, least)
    samples = [t for times in ([t for _, t in batches] if busy else kept) for t in times]
    if not samples:
        return {"cannot": "ended while it was timed"}
    return {
        "median": statistics.median(samples),
        "least": min(samples),
        "samples": len(samples),
        "busy": busy,
    }


def chosen_peers(wanted: Sequence[str] | None) -> list[str]:
    """The peers to run: those asked for, or all; without those that lack something."""
    found = []
    for name in wanted or PEERS:
        lacking = PEERS[name].lacks()
        if lacking:
            print(f"{name}: left out, it lacks {' and '.join(lacking)}", file=sys.stderr)
        else:
            found.append(name)
    return found


def chosen_cases(wanted: Sequence[str] | None, usual: Sequence[str] = ()) -> list[str]:
    """The cases to run: those asked for, or all of the `usual` ones whose weights are installed.

    SystemExit for a wrong name, and for one that was asked for whose weights are not.
    """
    found = []
    for name in wanted or usual or CASES:
        try:
            build(name)
        except MissingWeights as error:
            if wanted:
                raise SystemExit(f"{name}: {error}") from None
            print(f"{name}: left out: {error}", file=sys.stderr)
        else:
            found.append(name)
    return found


def about(names: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Where, when and how the figures come about."""
    peak = ceilings(options.threads)
    return {
        "machine": device_in_words(identity("cpu", options.threads)),
        "date": time.strftime("%d %B %Y"),
        "threads": options.threads,
        "ceilings": peak,
        "search": options.search,
        "preallocated": options.preallocated,
        "versions": {name: found for name in names if (found := peer_version(name))},
    }


def peer_version(name: str) -> str:
    """The version of a peer's package; nothing where it has none of that name."""
    names = {"torch-sdpa": "torch", "iree": "iree-base-compiler"}
    try:
        return "" if name.startswith("inductor") else version(names.get(name, name))
    except PackageNotFoundError:
        return ""


def in_words(facts: dict[str, Any]) -> str:
    """What stands above the table."""
    searched = "the cost model's choice, no search"
    if facts["search"]:
        models = facts["search"] * MODEL_SEARCH / SEARCH
        searched = f"after a search of {facts['search']:g} s a case, {models:g} s a model"
    outputs = "fresh arrays, as users call each library"
    if facts["preallocated"]:
        outputs = "arrays made before where a library takes them, fresh ones where marked °"
    peak = ", ".join(f"{value:.3g} {unit}" for unit, value in facts["ceilings"].items())
    versions = ", ".join(f"{name} {found}" for name, found in facts["versions"].items())
    return "\n".join([
        f"{facts['date']}: {facts['machine']}; at most {peak}.",
        f"{versions}.",
        f"Medians of calls from Python, ms. dodeca: {searched}. Results: {outputs}.",
    ])  # fmt: skip


def main() -> int:
    """The command; its exit status."""
    options = parsed()
    if options.serve:
        serve(options.serve, options.threads, options.search, options.preallocated)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = folder
        if options.search:  # the search keeps there what it found, for this run only
            os.environ["DODECA_CACHE"] = str(Path(folder) / "cache")
        return bench(options)


def parsed() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), help="default: all installed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="a peer's time in a round")
    text = "seconds that a case may take beyond its rounds, to get its figures from a busy machine"
    parser.add_argument("--longest", type=float, default=30.0, metavar="SECONDS", help=text)
    text = f"of a search by dodeca for each case, at most {SEARCH:g}; five times that for a model"
    parser.add_argument("--search", type=float, default=0.0, metavar="SECONDS", help=text)
    text = "results go into arrays made before, where a library takes them"
    parser.add_argument("--preallocated", action="store_true", help=text)
    parser.add_argument("--output", type=Path, help="write all figures as JSON")
    parser.add_argument("--plot", type=Path, help="write a picture of the ratios as PNG")
    parser.add_argument("--serve", choices=list(PEERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not 0 <= options.search <= SEARCH:
        parser.error(f"--search takes 0 to {SEARCH:g} seconds")
    if options.plot and (lacking := plot.missing()):
        parser.error(lacking)
    return options


def bench(options: argparse.Namespace) -> int:
    """Measure and report; the exit status."""
    cases = chosen_cases(options.cases)
    names = chosen_peers(options.peers)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no stopped process stays
    facts = about(names, options)
    workers = [Worker(name, options) for name in names]
    rows: list[dict[str, Any]] = []
    try:
        for name in cases:
            print(f"{name} ...", file=sys.stderr, flush=True)
            rows.append(measure(name, workers, options))
    finally:
        for worker in workers:
            worker.end()
    parts = [in_words(facts), table(rows, names), summary(rows), "\n".join(notes(rows))]
    print("\n\n".join(part for part in parts if part))
    if options.output:
        text = json.dumps({**facts, "rows": rows}, indent=1)
        options.output.write_text(text + "\n", encoding="utf-8")
    if options.plot:
        plot.draw(rows, options.plot, f"{facts['machine']}, {facts['date']}")
    return int(failed(rows))


if __name__ == "__main__":
    sys.exit(main())
