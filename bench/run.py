"""Time dodeca beside other libraries, one process each, interleaved round by round.

    python bench/run.py --cases matmul_256x256x256 minilm_1x128 --peers dodeca torch --threads 2

While a peer is timed the others' processes are stopped, for the idle threads of some of them spin.
Every result is checked against numpy's in float64 first. Prints the median time of each case and
the ratio of dodeca's to the best peer's, from batches of calls in which the machine was not busy
with something else; `--output` also writes them as JSON. The exit status is 1 if a peer failed or
a result was wrong. POSIX only.
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
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from cases import CASES, build, reference
from dodeca.runtime.driver import waited_seconds
from peers import PEERS, Run

TOLERANCE = 1e-4  # the largest error, relative to the reference's largest magnitude
BATCH = 0.02  # seconds of calls that are kept or dropped together
BUSY = 0.03  # the share of a batch that our threads may wait for a core
ENOUGH = 3  # quiet batches that make a figure
LONGEST = 30.0  # seconds that a case may take to get them from a busy machine
PATIENCE = 600.0  # seconds for an answer, compiling included
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_TUNING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # a user's settings would favour or hurt numpy


# --- the process of a peer ----------------------------------------------------------------------


def serve(name: str, threads: int) -> None:
    """Answer requests, a JSON object a line, until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    peer, run = PEERS[name](threads), None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "case" in request:
                run = None  # the last case's memory goes first
                start = time.perf_counter()
                run = peer.prepare(build(request["case"]))
                result = run()
                answer: dict[str, Any] = {"first": time.perf_counter() - start}
                np.save(request["save"], peer.to_numpy(result))
            else:
                assert run is not None
                answer = {"batches": sample(run, request["seconds"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        print(json.dumps(answer), file=answers, flush=True)


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
    """A peer's process, which is stopped unless it works for an answer."""

    def __init__(self, name: str, threads: int):
        self.name = name
        environment = {k: v for k, v in os.environ.items() if k not in _TUNING}
        environment |= dict.fromkeys(_POOLS, str(threads))
        environment.setdefault("DODECA_CACHE", "off")  # what is compiled now, and not once tuned
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", name, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer; one with an `error` where the process ended or took too long."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.send_signal(signal.SIGCONT)
            print(json.dumps(request), file=self.process.stdin, flush=True)
            if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
                self.process.kill()
                return {"error": f"no answer in {PATIENCE:.0f} s"}
            line = self.process.stdout.readline()
            self.process.send_signal(signal.SIGSTOP)
        except BrokenPipeError:
            line = ""
        return json.loads(line) if line else {"error": f"process ended ({self.process.wait()})"}


def measure(name: str, workers: Sequence[Worker], rounds: int, seconds: float) -> dict[str, Any]:
    """The case's results: for each peer an error, or the median and what else is known."""
    expected = reference(build(name))
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for worker in workers:
            file = Path(folder) / f"{worker.name}.npy"
            found[worker.name] = worker.ask(case=name, save=str(file))
            if "error" not in found[worker.name]:
                found[worker.name] |= compare(np.load(file), expected)
    live = [w for w in workers if "error" not in found[w.name]]
    batches: dict[str, list[Any]] = {w.name: [] for w in live}
    done, end = 0, time.monotonic() + LONGEST
    while done < rounds or (time.monotonic() < end and not all(map(enough, batches.values()))):
        for worker in live:
            wait_until_idle(end)
            batches[worker.name] += worker.ask(seconds=seconds).get("batches", [])
        done += 1
    for peer, taken in batches.items():
        found[peer] |= summary(taken)
    return {"case": name, "peers": found}


def quiet(batches: Sequence[Any]) -> list[list[float]]:
    """The times of the batches in which the process had the cores that it wanted."""
    return [times for share, times in batches if share <= BUSY]


def enough(batches: Sequence[Any]) -> bool:
    """Whether the quiet batches make a figure."""
    return len(quiet(batches)) >= ENOUGH


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


def summary(batches: Sequence[Any]) -> dict[str, Any]:
    """The median and the least time; `busy` where there are too few quiet batches to choose."""
    kept = quiet(batches)
    busy = not enough(batches)
    samples = [t for times in ([t for _, t in batches] if busy else kept) for t in times]
    if not samples:
        return {"error": "ended while it was timed"}
    return {
        "median": statistics.median(samples),
        "least": min(samples),
        "samples": len(samples),
        "busy": busy,
    }


def compare(result: np.ndarray, expected: np.ndarray) -> dict[str, Any]:
    """How far a result is off; `error` if that is too far."""
    if result.shape != expected.shape:
        return {"error": f"shape {result.shape}, expected {expected.shape}"}
    a, b = result.astype(np.float64), expected
    difference = float(np.abs(a - b).max())
    cosine = float((a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b)))
    facts: dict[str, Any] = {"difference": difference, "cosine": cosine}
    if not difference <= TOLERANCE * np.abs(b).max():  # a NaN is wrong too
        facts["error"] = f"wrong by {difference:.1e}"
    return facts


def table(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """A Markdown table: medians in ms, dodeca's ratio to the best peer, dodeca's difference.

    A star means that others used the cores nearly all the time, so the figure is too high.
    """
    header = ["case", *(f"{name} ms" for name in names), "ratio", "difference"]
    lines = [header, ["---"] + ["---:"] * (len(header) - 1)]
    for row in rows:
        peers = row["peers"]
        medians = {n: peers[n]["median"] for n in names if "median" in peers[n]}
        marks = {n: "*" if peers[n].get("busy") else "" for n in names}
        cells = [f"{medians[n] * 1e3:.3f}{marks[n]}" if n in medians else "failed" for n in names]
        others = {median: n for n, median in medians.items() if n != "dodeca"}
        ratio, difference = "", ""
        if "dodeca" in medians:
            difference = f"{peers['dodeca']['difference']:.1e}"
            if others:
                best = min(others)
                star = marks["dodeca"] or marks[others[best]]
                ratio = f"{medians['dodeca'] / best:.2f}{star}"
        lines.append([row["case"], *cells, ratio, difference])
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def chosen_peers(wanted: Sequence[str] | None) -> list[str]:
    """The peers to run: those asked for, or all; without those that are not installed."""
    found = []
    for name in wanted or PEERS:
        missing = [module for module in PEERS[name].modules if find_spec(module) is None]
        if missing:
            print(f"{name}: left out, {', '.join(missing)} not installed", file=sys.stderr)
        else:
            found.append(name)
    return found


def main() -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="NAME")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), help="default: all installed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="a peer's time in a round")
    parser.add_argument("--output", type=Path, help="write all figures as JSON")
    parser.add_argument("--serve", choices=list(PEERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.threads)
        return 0
    for name in options.cases:
        build(name)  # a wrong name ends here
    names = chosen_peers(options.peers)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no stopped process stays
    workers = [Worker(name, options.threads) for name in names]
    rows: list[dict[str, Any]] = []
    try:
        for name in options.cases:
            print(f"{name} ...", file=sys.stderr, flush=True)
            rows.append(measure(name, workers, options.rounds, options.seconds))
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
    print(table(rows, names))
    found = [(row["case"], peer, facts) for row in rows for peer, facts in row["peers"].items()]
    failures = [(case, peer, facts["error"]) for case, peer, facts in found if "error" in facts]
    for case, peer, error in failures:
        print(f"{case}: {peer}: {error}")
    if options.output:
        facts = {
            "threads": options.threads,
            "versions": {n: version(n) for n in names},
            "rows": rows,
        }
        options.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
