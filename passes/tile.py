"""`dodeca-tile`: from a kernel and its schedule to a tile program in upstream MLIR.

In: a kernel, read from a function in the dodeca dialect, and its schedule. Out: a function over
memrefs in `scf`, `arith`, `math`, `vector` and `memref`. Every part of the kernel's term is one
tile value: a vector whose dimensions are the part's axes that have a tile of more than 1, a scalar
if there is none.

    func.func @k(%a0: memref<64x32xf32>, %a1: memref<64xf32>, %begin: index, %end: index) {
      scf.for %program = %begin to %end step %c1 { ... }         the grid of a CPU
      memref's last axis is the vector's: vector.load, arith, scf.for over reductions, vector.store

On a GPU the function is a `gpu.func`, and a block of threads runs a program.
"""

from __future__ import annotations

from dataclasses import replace

from mlir import ir

from ..dialect.errors import CompileError
from ..dialect.ops import TensorType
from ..dialect.verifier import walk
from . import terms
from .blocks.program import BlockProgram, block_function
from .collapse import shaped
from .comprehend import Comprehension, output_axes, static_shape
from .placement import deep_recursion
from .program import KernelTerm, Program, memory_type
from .schedule import Schedule
from .stage import OUTPUT
from .targets import Target

GRID = "dodeca.grid"  # on a tile function: how many programs there are


def read_kernel(function: ir.Operation) -> KernelTerm:
    """The term of a kernel function; the axes of its results are the first ones of its axes."""
    block = function.regions[0].blocks[0]
    results = list(block.operations[len(block.operations) - 1].operands)
    name = ir.StringAttr(function.attributes["sym_name"]).value
    names = {v: f"a{i}" for i, v in enumerate(block.arguments)}
    comprehension = Comprehension(names.get)
    shapes = [static_shape(v) for v in results]
    wholes = [comprehension.whole(v) for v in results]
    term = terms.results(list(zip(wholes, map(len, shapes), strict=True)))
    longest = max(shapes, key=len)
    if any(shape != longest[: len(shape)] for shape in shapes):
        raise CompileError(
            f"kernel {name} has results of shapes {shapes}; their first sizes must be the same"
        )
    inputs, outputs = (tuple(map(TensorType.of, vs)) for vs in (block.arguments, results))
    return KernelTerm(name, term, output_axes(longest), inputs, outputs)


def tile(
    kernel: KernelTerm, schedule: Schedule, target: Target, precision: str, place: ir.Location
) -> ir.Module:
    """The tile program of one kernel, in a module of its own; it comes from a place."""
    with place.context, place:
        term, axes = shaped(kernel.term, kernel.axes, schedule.names)
        kernel = replace(kernel, term=term, axes=axes)
        module, block, arguments = _shell(kernel, schedule, target)
        kind = BlockProgram if target.is_gpu else Program
        program = kind(kernel, schedule, arguments, target, contract=precision == "fast")
        if schedule.programs(axes):  # of no places there is nothing to store
            with ir.InsertionPoint(block.operations[len(block.operations) - 1]), deep_recursion():
                program.run(block)
    return module


def _shell(
    kernel: KernelTerm, schedule: Schedule, target: Target
) -> tuple[ir.Module, ir.Block, dict[str, ir.Value]]:
    """An empty function with the kernel's arguments."""
    buffers = {f"a{i}": kind for i, kind in enumerate(kernel.inputs)}
    buffers |= {f"{OUTPUT}{i}": kind for i, kind in enumerate(kernel.outputs)}
    seen = {t.attr[0]: t.attr[2] for t in terms.postorder([kernel.term]) if t.op == "load"}
    for i, (_, rank) in enumerate(terms.outcomes(kernel.term, len(kernel.axes))):
        seen[f"{OUTPUT}{i}"] = tuple(a.size for a in kernel.axes[:rank])
    types = ((n, TensorType(seen.get(n, k.shape), k.dtype)) for n, k in buffers.items())
    given = [f"%{name}: {memory_type(kind)} {{llvm.noalias}}" for name, kind in types]
    grid = f"{GRID} = {schedule.programs(kernel.axes)} : i64"
    if target.is_gpu:
        text = block_function(kernel.name, ", ".join(given), grid, schedule.warps * target.warp)
    else:
        inside = ", ".join([*given, "%begin: index", "%end: index"])
        text = f"func.func @{kernel.name}({inside}) attributes {{{grid}}} {{ func.return }}"
    module = ir.Module.parse(text)
    function = next(op for op in walk(module.operation) if GRID in op.attributes)
    block = function.regions[0].blocks[0]
    return module, block, dict(zip(buffers, block.arguments, strict=False))
