"""The table of our passes.

A pass is one row: its name, what it does, its options, and a function that changes a module in
place.

    Pass("dodeca-tile", "Turns kernels into tile programs", KernelOptions, _tile)

After each pass the module must verify, by MLIR's rules and by the dialect's; what runs the passes
(`pass_pipeline`) checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlir import ir

from .candidates import CandidatesOptions, print_candidates
from .fusion import fuse
from .passes.blocks.lower import keep_sqrt
from .passes.lower import lowering
from .passes.tile import read_kernel, tile
from .runtime.device import find_target
from .schedule_attribute import kernel_schedule
from .simplify import simplify


@dataclass(frozen=True)
class Pass:
    """One pass, or a name for several.

    `run` changes the module in place, or raises an Error. Without it, `expands`
    gives the text of the pipeline that the name stands for.
    """

    name: str  # "dodeca-verify"
    summary: str
    options: type  # a frozen dataclass; each field, a str, int or bool with a default, is an option
    run: Callable[[ir.Operation, Any], None] | None = None
    expands: Callable[[Any], str] | None = None


@dataclass(frozen=True)
class NoOptions:
    """The options of a pass that has none."""


@dataclass(frozen=True)
class TargetOptions:
    """For which target."""

    target: str = "cpu"


@dataclass(frozen=True)
class KernelOptions(TargetOptions):
    """For which target, and under which classes of rules ("strict" keeps every rounding)."""

    precision: str = "fast"


def _verify(module: ir.Operation, options: NoOptions) -> None:
    """Nothing to do: the module is verified after every pass of ours, and so after this one."""


def _simplify(module: ir.Operation, options: NoOptions) -> None:
    simplify(module)


def _fuse(module: ir.Operation, options: KernelOptions) -> None:
    fused = fuse(module, find_target(options.target), options.precision)
    _replace_body(module, [fused.module])


def _tile(module: ir.Operation, options: KernelOptions) -> None:
    target = find_target(options.target)
    body = module.regions[0].blocks[0]
    kernels = [op.operation for op in body.operations if op.operation.name == "func.func"]
    if len(kernels) > 1:
        kernels = kernels[1:]  # the first calls the others; the plan is read from it, not code
    made = []
    for function in kernels:
        kernel = read_kernel(function)
        schedule = kernel_schedule(function, kernel, target, options.precision == "strict")
        made.append(tile(kernel, schedule, target, options.precision, function.location))
    _replace_body(module, made)
    if target.is_gpu:
        module.attributes["gpu.container_module"] = ir.UnitAttr.get()


def _replace_body(module: ir.Operation, others: Sequence[ir.Module]) -> None:
    """Put what the other modules hold in the place of what a module holds."""
    body = module.regions[0].blocks[0]
    for op in list(body.operations):
        op.operation.erase()
    for other in others:
        for op in list(other.body.operations):
            op.operation.detach_from_parent()
            body.append(op.operation)


def _keep_sqrt(module: ir.Operation, options: NoOptions) -> None:
    keep_sqrt(module)


def _lowering(options: TargetOptions) -> str:
    return lowering(find_target(options.target))


ROWS = [
    Pass("dodeca-verify", "Checks every rule of the dialect", NoOptions, _verify),
    Pass("dodeca-simplify", "Removes dead operations and merges equal ones", NoOptions, _simplify),
    Pass(
        "dodeca-fuse",
        "Chooses kernels by equality saturation and extraction",
        KernelOptions,
        _fuse,
    ),
    Pass(
        "dodeca-candidates",
        "Prints the best programs found, each a module",
        CandidatesOptions,
        print_candidates,
    ),
    Pass("dodeca-tile", "Turns kernels into tile programs", KernelOptions, _tile),
    Pass(
        "dodeca-keep-sqrt",
        "Hides square roots from the lowering that wants library calls",
        NoOptions,
        _keep_sqrt,
    ),
    Pass(
        "dodeca-lower",
        "Lowers tile programs to the LLVM dialect",
        TargetOptions,
        expands=_lowering,
    ),
]
PASSES: dict[str, Pass] = {row.name: row for row in ROWS}
