"""What the search costs and whether it is right about costs: each measure in a process of its own.

    python bench/search.py                       prints all tables
    python bench/search.py depth memory          prints these
    python bench/search.py --write               writes what it measured into docs/search.md

The programs are those of layers.py. A column `cpu s` has the processor time of the process, which
other processes on a busy machine do not lengthen; `s` has what the clock said. Linux only.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dodeca as dd
import numpy as np
from dodeca.dialect.ops import WEIGHT, entry_function, named_arguments
from dodeca.fusion import candidates, fuse
from dodeca.pass_pipeline import build_pipeline
from dodeca.passes import fuse as fusing
from dodeca.passes.regions import partition
from dodeca.runtime.device import cpu_identity, find_target
from layers import build, draw
from mlir import ir
from page import ROOT, command, markdown

PAGE = ROOT / "docs" / "search.md"
Facts = dict[str, Any]

ATTENTION, BERT, LLAMA = "attention_12x512x64", "bert_128x384x12x1536", "llama_128x576x9x3x1536"
LAYERS = (1, 2, 4, 8, 16, 32)
DISTINCT = "distinct_{}x128x256x8"
IDENTICAL = "identical_{}x128x384x12x1536"
EQUAL = 12
SEEDS = 20
PROFILED = (
    "matmul_128x384x1536",
    "matmul_512x512x512",
    "mlp_128x384x1536",
    "softmax_4096x1024",
    "layernorm_4096x768",
    "transpose_2048x2048",
    ATTENTION,
    BERT,
    LLAMA,
)
LONG = ("attention_12x2048x64", "attention_12x8192x64")
MEGA = 1e6  # a megabyte here is 10^6 bytes
PATIENCE = 3600.0  # seconds for one process


# --- what a process measures --------------------------------------------------------------------


def search(name: str) -> Facts:
    """The search for one program: saturation, then the whole of `fuse`."""
    graph = build(name)
    with graph.module.context, ir.Location.unknown():
        module = simplified(graph)
        clock, processor = time.perf_counter(), time.process_time()
        fused = fuse(module.operation, find_target("cpu"), "fast")
        seconds = time.perf_counter() - clock
        cpu = time.process_time() - processor
    solved = [region for region in fused.regions if not region["reused"]]
    rules: dict[str, list[float]] = {}
    for region in solved:
        for rule, matches in region["matches"].items():
            row = rules.setdefault(rule, [0, 0.0])
            row[0] += matches
            row[1] += region["rule seconds"][rule]
    return {
        "operations": sum(region["operations"] for region in fused.regions),
        "regions": len(fused.regions),
        "solved": len(solved),
        "nodes": sum(region["nodes"] for region in solved),
        "iterations": max((region["iterations"] for region in solved), default=0),
        "stopped": sorted({region["stopped"] for region in solved}),
        "sets": sum(region["sets tried"] for region in solved),
        "kernels": sum(region["kernels"] for region in fused.regions),
        "rules": rules,
        "saturation": sum(region["seconds"] for region in solved),
        "seconds": seconds,
        "cpu": cpu,
        "peak": peak_bytes(),
    }


def saturation(name: str) -> Facts:
    """The nodes of a program's e-graphs, without choosing kernels from them."""
    graph = build(name)
    with graph.module.context, ir.Location.unknown(), patch.object(fusing, "Extractor"):
        module = simplified(graph)  # a name of its own: what follows lives as long as it does
        function = entry_function(module.operation)
        block = function.regions[0].blocks[0]
        weights = {block.arguments[i] for i in named_arguments(function, WEIGHT)}
        regions = {region.key: region for region in partition(block, weights)}
        solved = [
            fusing._solve(region, find_target("cpu"), "fast", (), 1, frozenset())[1]
            for region in regions.values()
        ]
    return {"solved": len(solved), "nodes": sum(report["nodes"] for report in solved)}


def digests(*names: str) -> Facts:
    """For each program the SHA-256 of its four best programs and of its kernels' assembly."""
    found = {}
    for name in names:
        graph = build(name)
        with graph.module.context, ir.Location.unknown():
            best = candidates(simplified(graph).operation, find_target("cpu"), "fast", (), 4)
            texts = [str(fused.module) for fused in best]
        texts.append(dd.compile(graph, threads=2).ir("text"))
        found[name] = sha256("\n".join(texts).encode()).hexdigest()
    return found


def profile(name: str, repeats: int) -> Facts:
    """What each kernel of a program takes, beside what was predicted."""
    graph = build(name)
    found = dd.compile(graph, threads=2).profile(*draw(graph), repeats=repeats)
    return {
        "launches": [
            [x.kernel, len(x.fused), x.predicted, x.measured, x.ratio] for x in found.launches
        ],
        "predicted": found.predicted,
        "measured": found.measured,
        "mean": found.geometric_mean,
        "least": min(found.ratios),
        "largest": max(found.ratios),
    }


def memory(name: str) -> Facts:
    """What calls of an attention take, in bytes and in seconds, and how far the result is off."""
    graph = build(name)
    exe = dd.compile(graph, threads=2)
    arrays = draw(graph)
    before, compiling = status("VmRSS"), peak_bytes()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is there
    result = exe(*arrays)
    peak = peak_bytes()
    times = []
    for _ in range(2):
        start = time.perf_counter()
        exe(*arrays, out=result)
        times.append(time.perf_counter() - start)
    inputs = sum(array.nbytes for array in arrays)
    return {
        "kernels": len(exe.plan),
        "scratch": exe.scratch_bytes,
        "inputs": inputs,
        "output": result.nbytes,
        "call": peak - before,
        "process": max(peak, compiling) - inputs,
        "seconds": min(times),
        "difference": attention_difference(arrays, result),
    }


def attention_difference(arrays: Sequence[np.ndarray], result: np.ndarray) -> float:
    """The largest difference from float64 over some rows of every head."""
    q, k, v = arrays
    rows = np.linspace(0, q.shape[1] - 1, 16).astype(int)
    worst = 0.0
    for head in range(len(q)):
        scores = q[head, rows].astype(np.float64) @ k[head].astype(np.float64).T
        powers = np.exp((scores - scores.max(-1, keepdims=True)) * q.shape[-1] ** -0.5)
        expected = powers @ v[head] / powers.sum(-1, keepdims=True)
        worst = max(worst, float(np.abs(expected - result[head, rows]).max()))
    return worst


def simplified(graph: dd.Graph) -> ir.Module:
    """The module that the search begins with; in the graph's context."""
    module = ir.Module.parse(str(graph.module))
    build_pipeline("dodeca-simplify", module.context).run(module)
    return module


def status(key: str) -> int:
    """Bytes that the kernel counts for this process."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{key}:")[1].split()[0]) * 1024


def peak_bytes() -> int:
    """The most memory that this process has had at a time.

    Not from getrusage if it can be helped: there a process starts with the peak of its parent.
    """
    try:
        return status("VmHWM")
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


MEASURES: dict[str, Callable[..., Facts]] = {
    "search": search,
    "saturation": saturation,
    "digests": digests,
    "profile": profile,
    "memory": memory,
}


def fresh(measure: str, *arguments: Any, seed: int = 0) -> Facts:
    """What a new process measures; `seed` is its PYTHONHASHSEED."""
    print(f"{measure} {' '.join(map(str, arguments))}", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, __file__, "--measure", json.dumps([measure, *arguments])],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": str(seed)},
        timeout=PATIENCE,
    )
    if done.returncode:
        raise SystemExit(f"{measure} {arguments}: the process ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


# --- the tables ---------------------------------------------------------------------------------


def verdict(value: float, limit: float) -> str:
    """Whether a value is below its limit, in a word."""
    return "met" if value < limit else "missed"


def mega(size: float) -> str:
    return f"{size / MEGA:.1f}"


def saturation_part() -> str:
    """Attention and one layer of two models: nodes, matches, seconds; then the dearest rules."""
    lines = [["program", "operations", "e-nodes", "iterations", "matches", "saturation s", "fuse s",
              "fuse cpu s", "target"]]  # fmt: skip
    rules = [["program", "rule", "matches", "s"]]
    for name, most, seconds, over in (
        (ATTENTION, 2_000, 0.5, "saturation"),
        (BERT, None, 2.0, "seconds"),
        (LLAMA, None, 2.0, "seconds"),
    ):
        found = fresh("search", name)
        what = {"saturation": "saturation", "seconds": "fuse"}[over]
        targets = [f"{what} < {seconds:g} s: {verdict(found[over], seconds)}"]
        if most is not None:
            targets.append(f"< {most:,} e-nodes: {verdict(found['nodes'], most)}")
        matches = sum(int(row[0]) for row in found["rules"].values())
        lines.append([
            f"`{name}`", str(found["operations"]), str(found["nodes"]), str(found["iterations"]),
            str(matches), f"{found['saturation']:.3f}", f"{found['seconds']:.2f}",
            f"{found['cpu']:.2f}", "; ".join(targets),
        ])  # fmt: skip
        order = sorted(found["rules"].items(), key=lambda item: (-item[1][1], -item[1][0]))
        for rule, (count, took) in order[:5]:
            rules.append([f"`{name}`", rule, str(int(count)), f"{took:.3f}"])
    title = "The five rules that took longest, in egglog's whole milliseconds, or matched most:"
    return f"{markdown(lines)}\n\n{title}\n\n{markdown(rules)}"


def depth_part() -> str:
    """Networks of distinct layers, lines through their figures, and one of identical layers."""
    runs = {n: fresh("search", DISTINCT.format(n)) for n in LAYERS}
    lines = [["layers", "operations", "regions", "e-nodes", "saturation s", "fuse s", "fuse cpu s",
              "peak MB"]]  # fmt: skip
    for n, found in runs.items():
        lines.append([f"{n} distinct", *_depth_cells(found)])
    same = fresh("search", IDENTICAL.format(EQUAL))
    lines.append([f"{EQUAL} identical", *_depth_cells(same)])
    deepest = runs[max(LAYERS)]
    others = same["regions"] - same["solved"]  # the first layer is solved, and what lies around
    text = [
        markdown(lines),
        "",
        markdown(fits(runs)),
        "",
        f"Targets: {max(LAYERS)} distinct layers in less than 20 s: "
        f"{verdict(deepest['seconds'], 20)}; "
        f"peak below 2 GB: {verdict(deepest['peak'], 2e9)}; {EQUAL} identical layers solved once: "
        f"{verdict(EQUAL - 2, others + 1)}.",
    ]
    return "\n".join(text)


def _depth_cells(found: Facts) -> list[str]:
    return [
        str(found["operations"]),
        f"{found['solved']} of {found['regions']}",
        str(found["nodes"]),
        f"{found['saturation']:.2f}",
        f"{found['seconds']:.2f}",
        f"{found['cpu']:.2f}",
        mega(found["peak"]),
    ]


def fits(runs: dict[int, Facts]) -> list[list[str]]:
    """A line through each figure, over the number of layers."""
    lines = [["fitted", "at no layer", "for each layer", "R²"]]
    for key, label, scale in (
        ("nodes", "e-nodes", 1),
        ("saturation", "saturation s", 1),
        ("seconds", "fuse s", 1),
        ("cpu", "fuse cpu s", 1),
        ("peak", "peak MB", MEGA),
    ):
        slope, start, square = fit(runs, [found[key] / scale for found in runs.values()])
        start += 0.005 * (abs(start) < 0.005)  # no -0.00
        lines.append([label, f"{start:.2f}", f"{slope:.2f}", f"{square:.4f}"])
    return lines


def fit(counts: Iterable[float], values: Sequence[float]) -> tuple[float, float, float]:
    """The slope and start of the line of least squares, and its R²."""
    x, y = np.array(list(counts), float), np.array(values, float)
    slope, start = np.polyfit(x, y, 1)
    left, spread = y - (slope * x + start), y - y.mean()
    return float(slope), float(start), float(1 - (left @ left) / max(float(spread @ spread), 1e-30))


def seeds_part() -> str:
    """Whether processes with other hash seeds make the same programs, byte for byte."""
    found = [fresh("digests", ATTENTION, BERT, seed=seed) for seed in range(SEEDS)]
    lines = [["program", "processes", "different results", "SHA-256", "target"]]
    for name in (ATTENTION, BERT):
        made = sorted({digest[name] for digest in found})
        same = "byte-identical: " + ("met" if len(made) == 1 else "missed")
        lines.append([f"`{name}`", str(len(found)), str(len(made)), " ".join(made), same])
    return markdown(lines)


def cost_part() -> str:
    """What the cost model predicts beside what calls take: for programs, then for kernels."""
    lines = [["program", "launches", "predicted us", "measured us", "ratio", "mean", "least",
              "largest"]]  # fmt: skip
    kernels = [["program", "kernel", "operations", "predicted us", "measured us", "ratio"]]
    ratios = []
    for name in PROFILED:
        found = fresh("profile", name, 20)
        lines.append([
            f"`{name}`", str(len(found["launches"])), f"{found['predicted'] * 1e6:.1f}",
            f"{found['measured'] * 1e6:.1f}", f"{found['measured'] / found['predicted']:.2f}",
            f"{found['mean']:.2f}", f"{found['least']:.2f}", f"{found['largest']:.2f}",
        ])  # fmt: skip
        for kernel, operations, predicted, measured, ratio in found["launches"]:
            ratios.append(ratio)
            if name in (BERT, LLAMA):
                row = [f"{predicted * 1e6:.1f}", f"{measured * 1e6:.1f}", f"{ratio:.2f}"]
                kernels.append([f"`{name}`", f"`{kernel}`", str(operations), *row])
    mean = statistics.geometric_mean(ratios)
    off = [max(r / mean, mean / r) for r in ratios]
    text = (
        f"Over all {len(ratios)} launches the geometric mean of the ratios is {mean:.2f}. A ratio "
        f"is off it by a factor of {statistics.geometric_mean(off):.2f} on average and of "
        f"{max(off):.2f} at most."
    )
    return f"{markdown(lines)}\n\n{text}\n\nThe kernels of the layers:\n\n{markdown(kernels)}"


def memory_part() -> str:
    """What a long attention needs beside its inputs."""
    lines = [["program", "kernels", "scores MB", "inputs MB", "output MB", "scratch MB",
              "peak in a call MB", "process MB", "s", "difference", "target"]]  # fmt: skip
    for name in LONG:
        heads, length, _ = (int(size) for size in name.split("_")[1].split("x"))
        found = fresh("memory", name)
        lines.append([
            f"`{name}`", str(found["kernels"]), mega(4 * heads * length**2), mega(found["inputs"]),
            mega(found["output"]), mega(found["scratch"]), mega(found["call"]),
            mega(found["process"]), f"{found['seconds']:.2f}", f"{found['difference']:.1e}",
            f"< 300 MB: {verdict(found['call'], 300e6)}",
        ])  # fmt: skip
    return markdown(lines)


PARTS: dict[str, Callable[[], str]] = {
    "saturation": saturation_part,
    "depth": depth_part,
    "seeds": seeds_part,
    "cost": cost_part,
    "memory": memory_part,
}


def machine() -> str:
    """Where and when the figures were measured."""
    cpu, cores = cpu_identity(), len(os.sched_getaffinity(0))
    where = f"{cpu.model} ({cpu.architecture}), {cores} cores"
    versions = f"Python {sys.version.split()[0]}, egglog {version('egglog')}"
    return f"{time.strftime('%d %B %Y')}: {where}; {versions}."


def main() -> int:
    """The command; its exit status."""
    os.environ["DODECA_CACHE"] = "off"  # what is measured is what is compiled now
    return command(__doc__ or "", PAGE, PARTS, MEASURES, machine)


if __name__ == "__main__":
    sys.exit(main())
