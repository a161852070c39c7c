"""A compiled program that can be called, looked into and saved.

exe = Executable(program, weights={"w": w}, threads=2)
y = exe(x)                      # a fresh array; exe(x, out=y) writes into one
exe.plan[0], exe.scratch_bytes, exe.ir("text")
exe.save("model.dodeca")        # dodeca.load("model.dodeca")(x)
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dialect.errors import ArgumentError, TargetError
from .arguments import Inputs, Pointers, result_maker, take_outputs, take_weights
from .cpu import Code, CpuRunner, read_by_calls, thread_count
from .cpu_features import CpuNeeds
from .device import no_launch
from .memory import address_of, plan_memory
from .profile import Profile, profiled
from .program import Buffer, Kernel, Program

if TYPE_CHECKING:
    from .counters import Counts  # of the simulator, which few processes need
    from .gpu_runner import GpuRunner  # of a GPU, likewise

STAGES = ("dodeca", "kernels", "tile", "llvm", "llvm_ir", "text")


@dataclass(frozen=True)
class PlannedLaunch:
    """One launch of the plan: `grid` blocks of `block` threads (on a CPU, `grid` programs)."""

    kernel: str
    grid: int
    block: int
    shared_bytes: int  # dynamic shared memory of a block
    arguments: tuple[int, ...]  # buffer ids


class Executable:
    """A program, ready to be called from any number of Python threads.

    `program` is what the compiler made; `weights` maps the names in `program.weights` to arrays;
    `threads` defaults to OMP_NUM_THREADS or the cores of this process, and results do not depend on
    it; `unflatten` makes the caller's result out of the list of result arrays. A saved file brings
    `code`, the kernels in memory, and `resident`, arrays by buffer id in place of `weights`.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Any],
        *,
        threads: int | None = None,
        unflatten: Callable[[list[np.ndarray]], Any] | None = None,
        code: Code | None = None,
        resident: Mapping[int, np.ndarray] | None = None,
    ):
        self.program = program
        self.target = program.target
        self.threads = thread_count(threads)
        self.unflatten = unflatten
        self._memory = plan_memory(program, program.plan)
        self.needs: CpuNeeds | None = None  # of a loaded file, what its code needs of the CPU
        self._runner: CpuRunner | None = None
        self._gpu: GpuRunner | None = None
        self._making = threading.Lock()  # held while the first call on a GPU makes its runner
        on_cpu = program.target == "cpu"
        kept = read_by_calls(program) if on_cpu else {*program.weights.values()}
        taken = take_weights(program, weights, kept) if resident is None else dict(resident)
        # of the others there are weak references, for a file that says which weights it was made of
        self._once = {i: weakref.ref(taken[i]) for i in taken if i not in kept}
        self._weights = {i: array for i, array in taken.items() if i in kept}
        if on_cpu:
            self._runner = CpuRunner(program, taken, self._memory, self.threads, code)
            self._weights = self._runner.resident
        self._inputs = Inputs(program)
        inside = {*program.inputs, *program.weights.values()}
        self._fresh = {  # by buffer id, what makes an array for an output of each call
            index: result_maker(program.buffers[index])
            for index in program.outputs
            if index not in inside and program.buffers[index].role != "prepared"
        }
        self._outputs = [  # buffer ids, and whether the result is fresh and not an earlier one too
            (index, index in self._fresh and index not in program.outputs[:position])
            for position, index in enumerate(program.outputs)
        ]

    @property
    def resident(self) -> dict[int, np.ndarray]:
        """The arrays that stay from call to call, by buffer id: weights and prepared buffers."""
        return dict(self._weights)

    @property
    def code(self) -> Code | None:
        """The kernels in memory; None for a GPU."""
        return None if self._runner is None else self._runner.code

    def weight(self, index: int) -> np.ndarray | None:
        """The array of a weight; None if it was needed only once and the caller let it go."""
        once = self._once.get(index)
        return self._weights.get(index) if once is None else once()

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels, in the order of the program."""
        return list(self.program.kernels.values())

    @property
    def plan(self) -> list[PlannedLaunch]:
        """The launches of a call, in order."""
        planned = []
        for launch in self.program.plan:
            kernel = self.program.kernels[launch.kernel]
            shared = int(kernel.resources.get("dynamic_shared_bytes", 0))
            planned.append(
                PlannedLaunch(kernel.name, kernel.blocks, kernel.block, shared, launch.arguments)
            )
        return planned

    @property
    def buffers(self) -> dict[int, Buffer]:
        """The buffers by id; each has `bytes`, `dtype`, `shape`, `role` and perhaps a `name`."""
        return dict(enumerate(self.program.buffers))

    @property
    def scratch_bytes(self) -> int:
        """The size of the arena that holds the scratch buffers of one call."""
        return self._memory.bytes

    def ir(self, stage: str) -> str:
        """The code at a stage: "dodeca", "kernels", "tile", "llvm", "llvm_ir" or "text".

        Where each kernel has its own, they follow each other, under a line with the kernel's name.
        """
        if stage not in STAGES:
            raise ArgumentError(f"stage: expected one of {', '.join(STAGES)}; got {stage!r}")
        if stage in self.program.stages:
            return self.program.stages[stage]
        mark = {"llvm_ir": ";", "text": "#" if self.target.startswith("cpu") else "//"}.get(
            stage, "//"
        )
        parts = []
        for kernel in self.kernels:
            plain = stage in ("llvm_ir", "text")
            text = getattr(kernel, stage) if plain else kernel.stages.get(stage, "")
            parts.append(f"{mark} kernel {kernel.name}\n{text.rstrip()}\n")
        return "\n".join(parts)

    def report(self) -> str:
        """What was made, as text: what each kernel does, buffers, memory, time to compile."""
        from .report import report

        return report(self.program, self.scratch_bytes, self.threads)

    def dump(self, folder: str | PathLike[str]) -> None:
        """Write a folder with the code at every stage and a manifest.json; whole or not at all."""
        from .archive import dump

        dump(self.program, self.scratch_bytes, folder)

    def save(self, path: str | PathLike[str], weights: str = "inside") -> None:
        """Write one file that `dodeca.load` makes an executable of, without the compiler.

        `weights="inside"` puts the arrays into the file, those that are computed once from weights
        in place of the weights that only they need; "reference" writes their names, shapes, dtypes
        and hashes, and loading asks for them. The file is replaced as a whole. For a CPU a linker
        is needed; TargetError says what to install.
        """
        from .artifact import save

        save(self, path, weights)

    def export_c(self, folder: str | PathLike[str], name: str = "model") -> None:
        """Write a library for C programs: model.h, libmodel.so and an example, by this name.

        A C compiler is needed; TargetError says what to install, and that the program must be one
        for a CPU.
        """
        from .c_library import export_c

        export_c(self, folder, name)

    def simulate(self, *arrays: Any, reverse: bool = False) -> Any:
        """Run a GPU program's plan on this CPU, thread by thread; `reverse`: the last first.

        The result is that of a call. A program for the CPU is simply called.
        """
        if self._runner is not None:
            return self(*arrays)
        if self.target.startswith("cpu"):
            raise no_launch(self.target)
        from .simulate import simulate  # and with it LLVM

        inputs = self._inputs.take(arrays, {})
        results = simulate(self.program, inputs, self._weights, reverse=reverse)
        return self._result(results)

    def count(self, *arrays: Any) -> list[Counts]:
        """Run a GPU program's plan on this CPU, and count what each launch does to memory.

        Sectors of global memory, cycles of shared memory with its bank conflicts, instructions of
        matrix units, bytes; in the order of the plan. TargetError for a program of a CPU.
        """
        if self.target.startswith("cpu"):
            raise TargetError("count: a program for a CPU has no warps; compile it for a GPU")
        from .simulate import simulate_with_counts

        inputs = self._inputs.take(arrays, {})
        return simulate_with_counts(self.program, inputs, self._weights)[1]

    def profile(self, *arrays: Any, repeats: int = 20) -> Profile:
        """Time each launch of the plan, beside the seconds that were predicted for it.

        The plan runs launch by launch, in order and with this executable's threads, `repeats` times
        after a first one that is not counted; a launch's figure is the median. A GPU times its
        launches itself, each after a write that leaves nothing of its data in the cache.
        TargetError where the target's device is not here, ArgumentError as in a call.
        """
        if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
            text = f"repeats: expected a whole number of at least 1, got {repeats!r}"
            raise ArgumentError(text)
        if self._runner is None:
            return self._profile_on_gpu(arrays, repeats)
        values = self._inputs.take(arrays, {})
        for index, new in self._fresh.items():
            values[index], _ = new()
        measured = self._runner.profile(values, repeats)
        values.update(self._runner.resident)
        result = self._result([values[index].copy() for index in self.program.outputs])
        return profiled(self.program, measured, self.threads, repeats, result)

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """Run the program on arrays, objects with `__dlpack__`, or Python numbers for 0-d inputs.

        `out` takes arrays for the results: one, or a flat sequence in the order of the results.
        ArgumentError tells which argument has the wrong dtype or shape; nothing is cast. On a GPU,
        arrays that lie on it are used where they are, and results then stay there too, as arrays
        with `__dlpack__`; TargetError says which driver is missing.
        """
        if self._runner is None:
            return self._result(self.on_gpu().call(arrays, out))
        frame = self._runner.borrow()
        pointers = frame.pointers
        try:
            values = self._inputs.take(arrays, pointers)
            targets = None if out is None else take_outputs(self.program, out)
            if targets is not None:
                self._place(targets, values, pointers)
            for index, new in self._fresh.items():
                if index not in values:
                    values[index], pointers[index] = new()
            self._runner.launch(frame)
        finally:
            self._runner.give_back(frame)
        results = []
        for index, own in self._outputs:
            array = values[index] if index in values else self._weights[index]
            results.append(array if own or targets is not None else array.copy())
        if targets is not None:
            _copy_into(targets, results)
            results = targets
        return self._result(results)

    def on_gpu(self) -> GpuRunner:
        """The program on its GPU, made by the first call; TargetError says what is missing."""
        if self.target.startswith("cpu"):
            raise no_launch(self.target)
        with self._making:
            if self._gpu is None:
                from .gpu_runner import GpuRunner  # and with it a driver

                self._gpu = GpuRunner(self.program, self._weights)
            return self._gpu

    def _profile_on_gpu(self, arrays: Sequence[Any], repeats: int) -> Profile:
        from .gpu_timing import profile_plan

        runner = self.on_gpu()
        measured, results = profile_plan(runner, arrays, repeats)
        device = runner.session.facts.name
        return profiled(self.program, measured, 0, repeats, self._result(results), device)

    def _place(
        self, targets: list[np.ndarray], values: dict[int, np.ndarray], pointers: Pointers
    ) -> None:
        """Add the caller's arrays for outputs to the values, where kernels can write into them."""
        for position, index in enumerate(self.program.outputs):
            if index in self._fresh and index not in values:
                target = targets[position]
                flags = target.flags
                fits = flags.c_contiguous and flags.aligned
                if fits and not _overlaps(target, values.values()):
                    values[index], pointers[index] = target, address_of(target)

    def _result(self, results: list[np.ndarray]) -> Any:
        if self.unflatten is not None:
            return self.unflatten(results)
        return results[0] if len(results) == 1 else tuple(results)


def _copy_into(targets: list[np.ndarray], sources: list[np.ndarray]) -> None:
    """Copy each source that is not its target yet; a source may overlap another one's target."""
    waiting = []
    for position, target in enumerate(targets):
        source = sources[position]
        if source is not target:
            waiting.append((target, source.copy() if _overlaps(source, targets) else source))
    for target, source in waiting:
        np.copyto(target, source)


def _overlaps(array: np.ndarray, others: Iterable[np.ndarray]) -> bool:
    return any(np.may_share_memory(array, other) for other in others)
