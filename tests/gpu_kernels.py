"""Graphs whose kernels blocks of threads run, and what is made of them for a chip.

`python tests/gpu_kernels.py` makes all of them for all chips, some 800; the tests a quarter.

A `Case` is a graph and a schedule, or none: then the compiler chooses one. `outcome(case, chip)`
compiles it, asks the vendor's tools what they think of it, and runs it in the simulator.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import dodeca as dd
import numpy as np
from dodeca.dialect.ops import context
from dodeca.fusion import fuse
from dodeca.passes.schedule import Schedule
from dodeca.passes.targets import Target
from dodeca.passes.tile import KernelTerm, read_kernel
from dodeca.pipeline import Clock, compile_kernels, simplified
from dodeca.runtime.device import find_target
from dodeca.runtime.executable import Executable
from dodeca.runtime.program import Kernel
from dodeca.runtime.toolchain import assemble_ptx, link_amdgpu, read_amdgpu_metadata
from dodeca.schedule_attribute import SCHEDULE, schedule_attribute
from mlir import ir
from programs import draw

NVIDIA = tuple(
    f"cuda:{chip}" for chip in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")
)
AMD = tuple(f"hip:{chip}" for chip in ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"))
CHIPS = NVIDIA + AMD

# How far results may be from the interpreter's in high precision, as a part of the largest one.
TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2, "int8": 0.0, "int32": 0.0}

Choice = Callable[[KernelTerm, Target], Schedule]


@dataclass(frozen=True)
class Case:
    """A graph, by its function and the specs of its inputs, and the schedule of its one kernel."""

    function: Callable[..., Any]
    specs: tuple[tuple[tuple[int, ...], str], ...]
    schedule: Choice | None = None
    below: int = 10  # integers among the inputs are less

    def graph(self) -> dd.Graph:
        return dd.trace(self.function, *(dd.spec(shape, dtype) for shape, dtype in self.specs))

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [
            rng.integers(0, self.below, shape).astype(dtype)
            if dtype == "int32"
            else draw(rng, shape, dtype)
            for shape, dtype in self.specs
        ]


# --- schedules ----------------------------------------------------------------------------------


def has_matrix(dtype: str, target: Target) -> bool:
    """Whether a chip has instructions for products of these; of float32, only CDNA has."""
    return dtype != "float32" or target.matrix.startswith("mfma")


def tiled(rows: int, columns: int, warps: int, dtype: str) -> Choice:
    """A tile of a product: on matrix instructions if there are any, its operands in stages."""

    def choose(kernel: KernelTerm, target: Target) -> Schedule:
        matrix, size = has_matrix(dtype, target), dd.dtype(dtype).bytes
        first, second = (a.name for a in kernel.axes)
        tiles = ((first, rows), (second, columns))
        stages = (3 if target.matrix == "mma" else 2) if matrix else 0
        return Schedule(
            second, tiles, tiles, (), 16 // size,
            warps=warps, matrix=matrix, depth=128 // size, stages=stages,
        )  # fmt: skip

    return choose


def flash(rows: int, keys: int, warps: int, depth: int, stages: int = 1) -> Choice:
    """Attention in one loop over blocks of keys, with its state in registers; of two stages, the
    queries lie in shared memory.
    """

    def choose(kernel: KernelTerm, target: Target) -> Schedule:
        *batch, queries, columns = kernel.axes
        blocks = {a.name: 1 for a in batch}
        blocks |= {queries.name: min(rows, queries.size), columns.name: columns.size}
        return Schedule(
            None, tuple((a.name, 1) for a in kernel.axes), tuple(blocks.items()), (), 4,
            fold=keys, warps=warps, matrix=True, depth=depth, stages=stages,
        )  # fmt: skip

    return choose


def rolled(kernel: KernelTerm, target: Target) -> Schedule:
    """The same without matrix instructions: each row has a thread."""
    found = flash(32, 16, 1, 0)(kernel, target)
    return replace(found, vector=kernel.axes[-2].name, lanes=1, matrix=False, stages=0)


# --- graphs -------------------------------------------------------------------------------------


def matmul(a, b):
    return a @ b


def matmul_turned(a, b):
    return a @ b.mT


def attention(q, k, v):
    return dd.softmax(q @ k.mT * q.shape[-1] ** -0.5, axis=-1) @ v


def causal_attention(q, k, v):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    seen = dd.tril(dd.ones(scores.shape[-2:], dtype="bool"))
    return dd.softmax(dd.where(seen, scores, float("-inf")), axis=-1) @ v


def cross_entropy(x, target):
    top = dd.max(x, axis=-1)
    total = dd.log(dd.sum(dd.exp(x - top[:, None]), axis=-1)) + top
    chosen = dd.arange(x.shape[1])[None, :] == target[:, None]
    return dd.mean(total - dd.sum(dd.where(chosen, x, 0.0), axis=-1))


def scatter_add(x, index):
    """The sum of the rows that have each index."""
    chosen = dd.arange(20)[:, None] == index[None, :]
    return dd.sum(dd.where(chosen[:, :, None], x[None, :, :], 0.0), axis=1)


def int8_gemv(x, weights, scales):
    """Weights as bytes; of each row a group of 64 has a scale."""
    groups = dd.reshape(weights, (weights.shape[0], -1, 64)).astype("float32")
    return dd.sum(groups * scales[:, :, None] * dd.reshape(x, (1, -1, 64)), axis=(1, 2))


def int4_gemv(x, packed, scales):
    """Two weights a byte: -8 to 7, the one of an even column in the lower half."""
    pairs = packed.astype("int32")
    halves = dd.stack([pairs % 16 - 8, pairs // 16], axis=2)  # // rounds down: a signed half
    groups = dd.reshape(halves, (packed.shape[0], -1, 64)).astype("float32")
    return dd.sum(groups * scales[:, :, None] * dd.reshape(x, (1, -1, 64)), axis=(1, 2))


def _f32(*shapes: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((shape, "float32") for shape in shapes)


def _products() -> Iterator[tuple[str, Case]]:
    for dtype in ("float32", "float16", "bfloat16", "int8"):
        for m, n, k in ((64, 64, 64), (100, 75, 50)):
            yield f"matmul {dtype} {m}x{n}x{k}", Case(matmul, (((m, k), dtype), ((k, n), dtype)))
        tile = tiled(64, 64, 4, dtype)
        m, n, k = 100, 64, 150 if dtype == "float32" else 320
        yield f"matmul {dtype} tile", Case(matmul, (((m, k), dtype), ((k, n), dtype)), tile)
        turned = (((m, k), dtype), ((n, k), dtype))
        yield f"matmul {dtype} tile, turned", Case(matmul_turned, turned, tile)


def _attentions() -> Iterator[tuple[str, Case]]:
    for dtype in ("float32", "float16"):
        for d in (64, 128):
            for n in (1, 17, 128, 200):
                for function in (attention, causal_attention):
                    specs = (((1, n, d), dtype),) * 3
                    name = f"{function.__name__} {dtype} {n}x{d}"
                    yield name, Case(function, specs)
                    if dtype == "float16" and n > 1:
                        yield (
                            f"{name} flash",
                            Case(function, specs, flash(64, 32, 4, d)),
                        )


CASES: dict[str, Case] = {
    **dict(_products()),
    **dict(_attentions()),
    "attention float32 40x16 rolled": Case(attention, _f32(*[(2, 40, 16)] * 3), rolled),
    "softmax": Case(lambda x: dd.softmax(x, axis=-1), _f32((9, 1000))),
    "softmax float16": Case(lambda x: dd.softmax(x, axis=-1), (((9, 1000), "float16"),)),
    "layer_norm": Case(dd.layer_norm, _f32((9, 768), (768,), (768,))),
    "layer_norm float16": Case(dd.layer_norm, (((9, 768), "float16"), *[((768,), "float16")] * 2)),
    "cross_entropy": Case(cross_entropy, (((16, 500), "float32"), ((16,), "int32")), below=500),
    "gelu": Case(dd.gelu, _f32((100, 77))),
    "transpose": Case(lambda x: x.mT, _f32((100, 260))),
    "embedding": Case(dd.embedding, (((50, 24), "float32"), ((30,), "int32")), below=50),
    "scatter_add": Case(scatter_add, (((70, 12), "float32"), ((70,), "int32")), below=20),
    "conv2d": Case(
        lambda x, w: dd.conv2d(x, w, stride=2, padding=1), _f32((2, 8, 13, 11), (16, 8, 3, 3))
    ),
    "split_k": Case(matmul, _f32((3, 8192), (8192, 5))),
    "gemv int8": Case(int8_gemv, (((512,), "float32"), ((33, 512), "int8"), ((33, 8), "float32"))),
    "gemv int4": Case(int4_gemv, (((512,), "float32"), ((33, 256), "int8"), ((33, 8), "float32"))),
}


PAIRS = [(name, chip) for name in CASES for chip in CHIPS]
# Every case on every fourth chip, and each chip with a quarter of the cases: what tests run. All:
# python tests/gpu_kernels.py
SLICE = PAIRS[::4]


# --- what is made of them -----------------------------------------------------------------------


@cache
def _expected(name: str) -> np.ndarray:
    case = CASES[name]
    return np.asarray(case.graph().interpret(*case.arrays(), precision="high"))


@cache
def _fused(case: Case) -> str:
    """A graph as one kernel: what would be chosen where to start one takes very long."""
    module, target = case.graph().module, replace(find_target("cpu"), launch=1.0)
    with context(), ir.Location.unknown():
        made = fuse(simplified(module, Clock()).operation, target, "fast")
        return str(made.module)


def executable(case: Case, chip: str) -> Executable:
    if case.schedule is None:
        return dd.compile(case.graph(), target=chip)
    target = find_target(chip)
    with context(), ir.Location.unknown():
        module = ir.Module.parse(_fused(case))
        _, kernel = module.body.operations
        chosen = case.schedule(read_kernel(kernel.operation), target)
        kernel.operation.attributes[SCHEDULE] = schedule_attribute(chosen)
        program = compile_kernels(module, "", target, "fast", Clock(), {})
    return Executable(program, {})


@dataclass(frozen=True)
class Facts:
    """What a vendor's tools say of a kernel."""

    name: str
    registers: int
    spills: int
    stack: int
    matrix: int  # instructions


def facts_of(kernel: Kernel, link: bool = False) -> Facts:
    chip = kernel.target.partition(":")[2]
    if kernel.target.startswith("cuda"):
        assert ".extern .func" not in kernel.text
        _, found = assemble_ptx(kernel.text, chip)
        return Facts(
            kernel.name, found["registers"], found["spill_bytes"], found["stack_bytes"],
            kernel.text.count("mma.sync"),
        )  # fmt: skip
    binary = link_amdgpu(kernel.binary) if link else kernel.binary
    (found,) = read_amdgpu_metadata(binary)["kernels"]
    assert found["name"] == kernel.name
    return Facts(
        kernel.name, found["vgprs"], found["vgpr_spills"] + found["sgpr_spills"],
        found["private_bytes"], kernel.text.count("v_mfma") + kernel.text.count("v_wmma"),
    )  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    error: float  # the greatest, as a part of the largest result
    kernels: tuple[Facts, ...]


def outcome(name: str, chip: str, both_orders: bool, link: bool) -> Outcome:
    case = CASES[name]
    exe, expected = executable(case, chip), _expected(name).astype(np.float64)
    scale, error = max(np.abs(expected).max(), 1e-9), 0.0
    for reverse in (False, True) if both_orders else (False,):
        found = np.asarray(exe.simulate(*case.arrays(), reverse=reverse))
        assert found.shape == expected.shape
        off = np.abs(found.astype(np.float64) - expected).max() / scale
        error = max(error, math.inf if np.isnan(off) else float(off))
    return Outcome(error, tuple(facts_of(kernel, link) for kernel in exe.kernels))


if __name__ == "__main__":
    wrong = 0
    for name, chip in PAIRS:
        result = outcome(name, chip, both_orders=True, link=True)
        spilling = [k.name for k in result.kernels if k.spills or k.stack]
        bad = result.error > TOLERANCE[CASES[name].specs[0][1]]
        wrong += bad
        if bad or spilling:
            print(f"{name} on {chip}: error {result.error:.2g}, spills in {spilling}", flush=True)
    print(f"{len(PAIRS)} kernels, {wrong} wrong")
