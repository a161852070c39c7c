"""What a search gains, what it costs, and what the next process has of it.

    python bench/tuning.py                       prints all tables
    python bench/tuning.py default minilm        prints these
    python bench/tuning.py --write               writes what it measured into docs/tuning.md

Each measure is a process of its own with a cache folder of its own. Programs that are compared run
in turns. Linux only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from cases import build
from page import ROOT, command, markdown
from peers import traced

PAGE = ROOT / "docs" / "tuning.md"
Facts = dict[str, Any]
SECONDS = 25.0  # of a search, but for MiniLM's
MODEL, MODEL_SECONDS = "minilm_1x128", 60.0
CASES = (
    "matmul_256x256x256",
    "matmul_512x512x512",
    "matmul_1024x1024x1024",
    "linear_1x768x3072",
    "mlp_128x384x1536",
    "softmax_4096x1024",
    "layernorm_4096x768",
    "gelu_4194304",
    "attention_12x512x64",
    "transpose_2048x2048",
    MODEL,
)
REPEATED = ("matmul_512x512x512", "softmax_4096x1024", "mlp_128x384x1536")


# --- measures, in a process of their own --------------------------------------------------------


def searched(case: str, seconds: float, seed: int = 0) -> Facts:
    """Search for a case; what the search says of itself, and how long all of it took."""
    import dodeca as dd

    function, arrays = traced(build(case))
    start = time.perf_counter()
    search = dd.Search(seconds=seconds, seed=seed, progress=False)
    exe = dd.compile(function, *arrays, search=search)
    took = time.perf_counter() - start
    return {**exe.program.report["search"], "took": took, "kernels": len(exe.kernels)}


def compiled(case: str, calls: int = 1) -> Facts:
    """Compile a case once or more often in this process; seconds to the first result of each."""
    import dodeca as dd

    function, arrays = traced(build(case))
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        dd.compile(function, *arrays)(*arrays)
        times.append(time.perf_counter() - start)
    return {"seconds": times, "egglog": "egglog.bindings" in sys.modules}


def in_turns(case: str, folders: list[str]) -> Facts:
    """What the winners of several searches take, in turns."""
    import dodeca as dd
    from dodeca.runtime.measurer import LocalWorkers
    from dodeca.tune import TOOLS

    function, arrays = traced(build(case))
    programs = []
    for folder in folders:
        os.environ["DODECA_CACHE"] = folder
        programs.append(dd.compile(function, *arrays).program)
    with LocalWorkers(TOOLS) as measurer:
        trials = measurer.compare_programs(programs, 10.0)
    same = programs[0].stages["kernels"] == programs[1].stages["kernels"]
    return {
        "seconds": [t.seconds for t in trials],
        "noise": [t.noise for t in trials],
        "same": same,
    }


MEASURES: dict[str, Callable[..., Facts]] = {
    "searched": searched,
    "compiled": compiled,
    "in_turns": in_turns,
}


def fresh(folder: str, measure: str, *arguments: Any) -> Facts:
    """What a measure gives in a new process with this cache folder."""
    start = time.perf_counter()
    found = subprocess.run(
        [sys.executable, __file__, "--measure", json.dumps([measure, *arguments])],
        env={**os.environ, "DODECA_CACHE": folder},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {**json.loads(found.stdout.splitlines()[-1]), "process": time.perf_counter() - start}


# --- the tables ---------------------------------------------------------------------------------


def default_part() -> str:
    """How far the cost model's choice is from the best that a search finds."""
    lines = [["case", "seconds", "candidates", "default ms", "searched ms", "ratio", "noise"]]
    ratios = []
    for case in CASES:
        seconds = MODEL_SECONDS if case == MODEL else SECONDS
        with tempfile.TemporaryDirectory() as folder:
            found = fresh(folder, "searched", case, seconds)
        best, default = found["milliseconds of a call"], found["without a search"]
        ratios.append(default / best)
        lines.append([
            f"`{case}`", f"{found['took']:.0f}", str(found["candidates"]), f"{default:.3g}",
            f"{best:.3g}", f"{ratios[-1]:.2f}", f"{100 * found['noise']:.0f} %",
        ])  # fmt: skip
        print(lines[-1], file=sys.stderr, flush=True)
    within = sum(ratio <= 1.3 for ratio in ratios)
    return f"{markdown(lines)}\n\nWithin 1.3 times: {within} of {len(ratios)}."


def minilm_part() -> str:
    """The search over a whole model, and what later processes have of it."""
    lines = [["what", "measured"]]
    with tempfile.TemporaryDirectory() as folder:
        cold = fresh(folder, "compiled", MODEL, 2)
        found = fresh(folder, "searched", MODEL, MODEL_SECONDS)
        warm = fresh(folder, "compiled", MODEL)
        first, second = cold["seconds"]
        lines += [
            ["compiled without a cache, to the first result", f"{first:.2f} s"],
            ["compiled again in the same process, to the result", f"{second:.3f} s"],
            ["ratio", f"{first / second:.0f}"],
            ["budget of the search", f"{MODEL_SECONDS:.0f} s"],
            ["it took", f"{found['took']:.1f} s"],
            ["candidates", str(found["candidates"])],
            ["a call before", f"{found['without a search']:.1f} ms"],
            ["a call after", f"{found['milliseconds of a call']:.1f} ms"],
            ["next process: from tracing to the first result", f"{warm['seconds'][0]:.3f} s"],
            ["next process: egglog was loaded", str(warm["egglog"]).lower()],
        ]
    return markdown(lines)


def repeat_part() -> str:
    """Two searches with different seeds: are their winners equally good?"""
    lines = [["case", "first ms", "second ms", "gap", "noise", "same schedules"]]
    for case in REPEATED:
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            for seed, folder in enumerate((one, other)):
                fresh(folder, "searched", case, SECONDS, seed)
            found = fresh(one, "in_turns", case, [one, other])
        a, b = found["seconds"]
        gap = abs(a - b) / min(a, b)
        lines.append([
            f"`{case}`", f"{a * 1e3:.3g}", f"{b * 1e3:.3g}", f"{100 * gap:.1f} %",
            f"{100 * sum(found['noise']):.1f} %", "yes" if found["same"] else "no",
        ])  # fmt: skip
    return markdown(lines)


PARTS: dict[str, Callable[[], str]] = {
    "default": default_part,
    "minilm": minilm_part,
    "repeat": repeat_part,
}


def machine() -> str:
    """Where and when the figures were measured."""
    from search import machine  # here, for it loads the compiler, and a measure looks at that

    return machine()


def main() -> int:
    """The command; its exit status."""
    return command(__doc__ or "", PAGE, PARTS, MEASURES, machine)


if __name__ == "__main__":
    sys.exit(main())
