"""Whether a kernel is right: run between guard bytes, on hard inputs, against two judges.

    judge = Judge(cases, threads=2)
    judge.take_anchor(plain)       # "", or why it cannot be one
    judge.verdict(kernel)          # "case large, output 0: at (3, 17) 1.25, expected 1.5 ± 1e-05"

*Windows* are parts of an output with what a reference says of each element and by how much a kernel
may differ there. The *anchor* is the same kernel with the task's plainest schedule, itself held to
the windows: a candidate's outputs are compared with the anchor's at every place, so that an error
is seen wherever it is, though the reference covers windows only.

What a verdict of "" says, for these inputs: every element inside a window is as close to the
reference as its tolerance asks; every other element is as close to the anchor's as
`anchor_tolerance` asks; every element was written; no input was changed; nothing was written in the
4096 bytes around each buffer. What it does not say: that an element outside all windows is right
where the anchor is wrong in the same way; anything of an element outside all windows where the
anchor's is not finite or nearly overflows, or of those of a whole output in a case where the
reference gives up somewhere (a tolerance of infinity); that nothing farther than the guard bytes
was written; that no read went outside a buffer; or anything of other inputs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ..dialect.dtypes import BY_NUMPY, DTYPES
from ..dialect.errors import Error
from .cpu import CpuRunner
from .device import no_launch
from .memory import plan_memory
from .program import Buffer, Kernel, Launch, Program
from .simulate import Cell

# How far a schedule, which may order a sum in another way, may move an element: as a part of the
# larger of the element and the typical magnitude in the case (the median of the finite elements).
ANCHORED = {"float64": 1e-8, "float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
# From this part of the largest finite number on, the order of a sum may decide what is finite.
OVERFLOWS = 1 / 16
SLOW = 0.01  # seconds of a launch, below which all cases together cost little
# What outputs hold before a run. All ones is NaN. The anchor's are a finite number, and no bool: so
# an element that neither the anchor nor the candidate writes differs too.
_UNWRITTEN, _UNWRITTEN_INTEGER, _UNWRITTEN_BY_ANCHOR = 0xFF, 0xA5, 0x5A


@dataclass(frozen=True, eq=False)
class Window:
    """What a part of an output holds; it begins at `starts` and has the shape of `expected`."""

    output: int  # the position among the outputs
    starts: tuple[int, ...]
    expected: np.ndarray  # in the widened dtype; NaN: must be NaN
    tolerance: np.ndarray  # the largest absolute difference of each element; inf: anything goes


@dataclass(frozen=True, eq=False)
class Case:
    """Inputs of a kernel, and what is known of its outputs."""

    name: str
    inputs: tuple[np.ndarray, ...]
    windows: tuple[Window, ...]


# --- comparing ----------------------------------------------------------------------------------


def differences(case: Case, outputs: Sequence[np.ndarray]) -> str:
    """Where outputs differ from a case's windows, in words; "" if nowhere."""
    for window in case.windows:
        sizes = zip(window.starts, window.expected.shape, strict=True)
        part = outputs[window.output][tuple(slice(a, a + n) for a, n in sizes)]
        where = f"case {case.name}, output {window.output}"
        if part.shape != window.expected.shape:
            shape = outputs[window.output].shape
            raise Error(f"{where}: a window at {window.starts} does not lie in {shape}")
        said = _compared(part, window.expected, window.tolerance, where, window.starts)
        if said:
            return said
    return ""


def anchor_differences(
    case: Case,
    outputs: Sequence[np.ndarray],
    anchor: Sequence[np.ndarray],
    tolerances: Sequence[np.ndarray | None],
) -> str:
    """Where outputs differ from the anchor's in a case by more than a schedule may; "" if nowhere.

    `tolerances` are those of `anchor_tolerance`, for each output.
    """
    for output, found in enumerate(outputs):
        expected, tolerance = anchor[output], tolerances[output]
        if tolerance is not None and not _surely_near(found, expected, tolerance):
            where = f"case {case.name}, against the anchor, output {output}"
            said = _compared(found, expected, tolerance, where, (0,) * found.ndim)
            if said:
                return said
    return ""


def _surely_near(found: np.ndarray, expected: np.ndarray, tolerance: np.ndarray) -> bool:
    """Whether all elements are finite and as close as is allowed: a quick look that large outputs
    pass as a rule."""
    if found.dtype != np.float32:
        return False
    with np.errstate(all="ignore"):
        off = np.subtract(found, expected)
        return bool((np.abs(off, out=off) <= tolerance).all())


def anchor_tolerance(case: Case, output: int, anchor: np.ndarray) -> np.ndarray | None:
    """By how much each element of an output may differ from the anchor's; None: not compared.

    Where the case's windows on this output allow more than `ANCHORED` does, the output is badly
    conditioned, and all of it is allowed as many times more.
    """
    kind = BY_NUMPY[anchor.dtype]
    if not kind.is_float:
        return np.zeros(anchor.shape)
    limits = ml_dtypes.finfo(kind.numpy)
    wide = anchor.astype(np.float64)
    with np.errstate(all="ignore"):
        size = np.abs(wide)
        finite = size < float(limits.max) * OVERFLOWS
        if not finite.any():
            return None
        least = max(float(np.median(size[finite])), float(limits.smallest_normal))
        looser = 1.0
        for window in case.windows:
            if window.output == output and window.expected.size:
                if np.isinf(window.tolerance).any():
                    return None
                base = ANCHORED[kind.name] * np.fmax(np.abs(window.expected), least)
                ratio = np.where(np.isfinite(window.expected), window.tolerance / base, 0)
                looser = max(looser, float(np.max(ratio)))
        allowed = np.where(finite, ANCHORED[kind.name] * looser * np.maximum(size, least), np.inf)
        return allowed.astype(np.float64 if kind.bits == 64 else np.float32)


def _compared(
    found: np.ndarray,
    expected: np.ndarray,
    tolerance: np.ndarray,
    where: str,
    starts: tuple[int, ...],
) -> str:
    """Where an array differs from what is expected by more than is allowed, in words."""
    wide = np.result_type(expected.dtype, np.float64)
    if not BY_NUMPY[found.dtype].is_float:
        wide = np.dtype(np.longdouble)  # which holds every integer
    with np.errstate(all="ignore"):
        a, b = found.astype(wide), expected.astype(wide)
        right = (np.abs(a - b) <= tolerance) | (a == b) | (np.isnan(a) & np.isnan(b))
        wrong = ~(right | np.isinf(tolerance))
    count = int(np.count_nonzero(wrong))
    if not count:
        return ""
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    place = tuple(int(i) + start for i, start in zip(first, starts, strict=True))
    allowed = f" ± {float(tolerance[first]):.3g}" if tolerance[first] else ""
    return (
        f"{where}: at {place} {_shown(found[first])}, expected {_shown(expected[first])}{allowed}; "
        f"{count} of {wrong.size} places differ"
    )


def _shown(value: np.generic) -> str:
    if value.dtype.kind in "biu":
        return str(value)
    return f"{float(value):.9g}"


# --- running ------------------------------------------------------------------------------------


def one_kernel_program(kernel: Kernel) -> Program:
    """A program that launches a kernel once; its buffers are the kernel's arguments."""
    if kernel.target != "cpu":
        raise no_launch(kernel.target, "check candidates of a search")
    count = len(kernel.arguments)
    reads = count - kernel.outputs
    return Program(
        target=kernel.target,
        kernels={kernel.name: kernel},
        buffers=tuple(
            Buffer(shape, dtype, "input" if i < reads else "output")
            for i, (shape, dtype) in enumerate(kernel.arguments)
        ),
        prepare=(),
        plan=(Launch(kernel.name, tuple(range(count))),),
        inputs=tuple(range(reads)),
        outputs=tuple(range(reads, count)),
        weights={},
        stages={},
    )


class GuardedKernel:
    """A kernel with buffers of its own, each between guard bytes."""

    def __init__(self, kernel: Kernel, threads: int):
        program = one_kernel_program(kernel)
        self._reads = len(program.inputs)
        self._runner = CpuRunner(program, {}, plan_memory(program, program.plan), threads)
        self._cells = [Cell(buffer) for buffer in program.buffers]
        self.breached = False  # whether it wrote outside of its buffers
        self.seconds = 0.0  # what the last run took

    def run(self, case: Case, *, as_anchor: bool = False) -> tuple[list[np.ndarray], str]:
        """The outputs, which the next run overwrites, and what was written that may not be."""
        cells, reads = self._cells, self._reads
        if len(case.inputs) != reads:
            raise Error(f"case {case.name}: {len(case.inputs)} inputs; the kernel has {reads}")
        for cell, array in zip(cells, case.inputs, strict=False):
            if (cell.array.shape, cell.array.dtype) != (array.shape, array.dtype):
                got = f"{array.dtype} {array.shape}"
                wanted = f"{cell.array.dtype} {cell.array.shape}"
                raise Error(f"case {case.name}: an input is {got}; the kernel takes {wanted}")
            np.copyto(cell.array, array)
        for cell in cells[reads:]:
            is_float = BY_NUMPY[cell.array.dtype].is_float
            byte = _UNWRITTEN if is_float else _UNWRITTEN_INTEGER
            _bytes(cell.array)[:] = _UNWRITTEN_BY_ANCHOR if as_anchor else byte
        start = time.perf_counter()
        self._runner.run({index: cell.array for index, cell in enumerate(cells)})
        self.seconds = time.perf_counter() - start
        return [cell.array for cell in cells[reads:]], self._damage(case)

    def _damage(self, case: Case) -> str:
        """What a run wrote that it may not write, in words."""
        for position, cell in enumerate(self._cells):
            output = position - self._reads
            name = f"input {position}" if output < 0 else f"output {output}"
            breach = cell.breach()
            if breach:
                self.breached = True
                return f"case {case.name}: wrote outside {name}, {breach}"
            if output < 0:
                if not np.array_equal(_bytes(cell.array), _bytes(case.inputs[position])):
                    return f"case {case.name}: wrote into {name}"
            elif cell.array.dtype == bool and (_bytes(cell.array) > 1).any():
                first = int(np.argmax(_bytes(cell.array) > 1))
                place = tuple(map(int, np.unravel_index(first, cell.array.shape)))
                return f"case {case.name}, {name}: at {place} neither true nor false"
        return ""


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class TooSlow(Exception):
    """A kernel that is not worth checking in more cases: what it took."""

    def __init__(self, seconds: float):
        super().__init__(f"one launch took {seconds:.3g} s")
        self.seconds = seconds


class Judge:
    """The cases of a task, and its anchor's outputs in each."""

    def __init__(self, cases: Sequence[Case], threads: int):
        self.cases = list(cases)
        self.threads = threads
        self.damaged = False  # whether a kernel wrote outside of its buffers
        self._anchor: list[list[np.ndarray]] = []  # its outputs in each case
        self._allowed: list[list[np.ndarray | None]] = []  # how far kernels may be from them

    @property
    def anchored(self) -> bool:
        """Whether kernels are compared with an anchor."""
        return bool(self._anchor)

    @property
    def bytes(self) -> int:
        """The memory of all arrays."""
        arrays = [array for outputs in self._anchor for array in outputs]
        arrays += [one for allowed in self._allowed for one in allowed if one is not None]
        for case in self.cases:
            arrays += case.inputs
            arrays += [x for window in case.windows for x in (window.expected, window.tolerance)]
        return sum(array.nbytes for array in arrays)

    def take_anchor(self, kernel: Kernel) -> str:
        """Compare kernels with this one from now on; or why it is not fit for that."""
        self._anchor = []
        kept: list[list[np.ndarray]] = []
        said = self._run(kernel, kept)
        if not said:
            self._anchor = kept
            self._allowed = [
                [anchor_tolerance(case, i, output) for i, output in enumerate(outputs)]
                for case, outputs in zip(self.cases, kept, strict=True)
            ]
        return said

    def verdict(self, kernel: Kernel, limit: float = math.inf) -> str:
        """What is wrong with a kernel, in one line; "" if nothing was found.

        TooSlow: it takes longer than `limit` seconds (and than `SLOW`), and is right in the first
        case.
        """
        return self._run(kernel, None, max(limit, SLOW))

    def _run(
        self, kernel: Kernel, kept: list[list[np.ndarray]] | None, limit: float = math.inf
    ) -> str:
        """Run a kernel in all cases; where it is an anchor, keep its outputs."""
        guarded = GuardedKernel(kernel, self.threads)
        for number, case in enumerate(self.cases):
            outputs, said = guarded.run(case, as_anchor=kept is not None)
            self.damaged |= guarded.breached
            said = said or differences(case, outputs)
            if not said and self._anchor:
                said = anchor_differences(
                    case, outputs, self._anchor[number], self._allowed[number]
                )
            if said:
                return said
            if guarded.seconds > limit:
                raise TooSlow(guarded.seconds)
            if kept is not None:
                kept.append([output.copy() for output in outputs])
        return ""


# --- inputs -------------------------------------------------------------------------------------

Kind = tuple[tuple[int, ...], str]  # the shape and dtype of an argument


def adversarial_inputs(
    arguments: Sequence[Kind], seed: int
) -> list[tuple[str, tuple[np.ndarray, ...]]]:
    """Named sets of inputs for arguments of these shapes and dtypes; the same for the same seed.

    "normal"; "large": normal times 1e4 (1e2 in float16); "tiny": from about 1e-6 down to subnormal
    numbers; "special": normal, with a few ±inf, NaN and ±0. Integers are small and not negative,
    for they may be indices; where there are any, a set "full range" is added. Bools are random.
    """
    names = ["normal", "large", "tiny", "special"]
    if any(DTYPES[dtype].kind in ("int", "uint") for _, dtype in arguments):
        names.append("full range")
    sets = []
    for number, name in enumerate(names):
        rng = np.random.default_rng([seed, number])
        sets.append((name, tuple(_drawn(rng, kind, name) for kind in arguments)))
    return sets


def ordinary_inputs(
    arguments: Sequence[Kind], seed: int = 0, scale: float = 1.0
) -> tuple[np.ndarray, ...]:
    """Inputs that are not hard: normal numbers times `scale`, small integers, random bools."""
    rng = np.random.default_rng(seed)
    return tuple(_drawn(rng, kind, "normal", scale) for kind in arguments)


def _drawn(rng: np.random.Generator, kind: Kind, name: str, scale: float = 1.0) -> np.ndarray:
    shape, dtype = kind[0], DTYPES[kind[1]]
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if not dtype.is_float:
        info = np.iinfo(dtype.numpy)
        if name == "full range":
            return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
        return rng.integers(0, 100, shape, dtype.numpy)
    wide = np.float64 if dtype.bits == 64 else np.float32
    values = np.asarray(rng.standard_normal(shape, wide))
    if name == "large":
        values *= 100 if dtype.name == "float16" else 1e4
    elif name == "tiny":
        least = float(ml_dtypes.finfo(dtype.numpy).smallest_subnormal)
        values = np.copysign(10 ** rng.uniform(np.log10(least), -6, shape), values)
    elif name == "special":
        _plant(rng, values)
    elif scale != 1:
        values *= scale
    return values.astype(dtype.numpy)


def _plant(rng: np.random.Generator, values: np.ndarray) -> None:
    """Put a few special numbers into an array: of each at most one in eight elements, or so."""
    flat = values.reshape(-1)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
    few = min(len(special), -(-flat.size // 8))
    rare = rng.permutation(special)[:few]
    zeros = np.tile([0.0, -0.0], flat.size // 32)
    places = rng.permutation(flat.size)
    flat[places[: few + zeros.size]] = np.concatenate([rare, zeros])
