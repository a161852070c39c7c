"""`dodeca-fuse`: from one function of primitives to kernels and a main function that calls them.

In: a function in the dodeca dialect. Out: the same meaning, as a function of calls, with one
function in the dodeca dialect for each kernel; equal kernels are one function. `passes/fuse.py`
decides, and here it is written down.

    func.func @main(%a) { %0 = call @k0_exp2(%a) {dodeca.predicted = 1.2e-05 : f64} ; return %0 }
    func.func private @k0_exp2(%a0) attributes {dodeca.schedule = ...} { primitives }
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b

from mlir import ir
from mlir.dialects import func

from . import engine as engine  # before what needs egglog: it loads no more than that
from .decompose import Decomposer
from .dialect import PRIMITIVES
from .dialect.ops import entry_function
from .passes import terms
from .passes.fuse import choices
from .passes.layouts import Program
from .passes.panels import Chosen
from .passes.regions import Region
from .passes.targets import Target
from .passes.terms import REDUCTIONS, Term, postorder
from .schedule_attribute import SCHEDULE, schedule_attribute

PREDICTED = "dodeca.predicted"


@dataclass
class Fused:
    """The module of kernels; region by region what the search did, and which kernels it chose."""

    module: ir.Module
    regions: list[dict] = field(default_factory=list)
    chosen: Program = field(default_factory=list)


def fuse(
    module: ir.Operation, target: Target, precision: str, without: Collection[str] = ()
) -> Fused:
    """The kernels of the module's first function; `without` names rules to leave out."""
    return candidates(module, target, precision, without, 1)[0]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A search makes many small objects that live as long as it does: looking for garbage among
    them is a third of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_collector_paused()
def candidates(
    module: ir.Operation, target: Target, precision: str, without: Collection[str], count: int
) -> list[Fused]:
    """The best programs that were found, at most `count`, the best first."""
    found = choices(module, target, precision, without, count)
    return [assemble(module, chosen, reports) for chosen, reports in found]


def assemble(module: ir.Operation, chosen: Program, reports: Sequence[dict] = ()) -> Fused:
    """The module in which these kernels compute the regions of the module's first function.

    Its main function calls them in this order.
    """
    function = entry_function(module)
    with module.context, function.location:
        fused = Fused(ir.Module.create(), [*reports], chosen)
        builder = _Builder(fused.module, function)
        for region, kernels in chosen:
            builder.add(region, kernels)
        builder.finish()
    return fused


# --- the module of kernels ----------------------------------------------------------------------


class _Builder:
    """Writes kernels, each once, and the main function that calls them."""

    def __init__(self, module: ir.Module, function: ir.Operation):
        self.module = module
        self.old = function.regions[0].blocks[0]
        name = ir.StringAttr(function.attributes["sym_name"]).value
        kind = ir.TypeAttr(function.attributes["function_type"]).value
        with ir.InsertionPoint(module.body):
            self.main = func.FuncOp(name, kind)
        if "arg_attrs" in function.attributes:
            self.main.attributes["arg_attrs"] = function.attributes["arg_attrs"]
        block = self.main.add_entry_block()
        self.point = ir.InsertionPoint(block)
        self.values: dict[ir.Value, ir.Value] = dict(
            zip(self.old.arguments, block.arguments, strict=True)
        )
        self.kernels: dict[tuple, func.FuncOp] = {}

    def add(self, region: Region, chosen: list[Chosen]) -> None:
        """Call a region's kernels on this region's values."""
        value_of = {name: v for v, name in region.names.items()}
        made = {name: self.values[v] for name, v in value_of.items() if v in self.values}
        place = ir.Location.unknown()
        for kernel in chosen:
            place = value_of[kernel.name].location if kernel.name in value_of else place
            with self.point, place:
                term = terms.plain(kernel.term)
                reads = buffer_order(term)
                term = rename_buffers(term, {name: f"a{i}" for i, name in enumerate(reads)})
                arguments = [made[name] for name in reads]
                function = self._kernel(kernel, term, [x.type for x in arguments])
                call = func.CallOp(function, arguments)
                call.attributes[PREDICTED] = ir.FloatAttr.get_f64(kernel.seconds)
            made.update(zip(kernel.names, call.results, strict=True))
        self.values |= {value_of[name]: x for name, x in made.items() if name in value_of}

    def _kernel(self, kernel: Chosen, term: Term, types: list[ir.Type]) -> func.FuncOp:
        """The function that computes a kernel by this term; a new one only if it is new."""
        key = (term, kernel.axes, kernel.schedule)
        if key in self.kernels:
            return self.kernels[key]

        def body(*arguments: ir.Value) -> list[ir.Value]:
            decomposer = Decomposer({f"a{i}": x for i, x in enumerate(arguments)})
            found = terms.outcomes(term, len(kernel.axes))
            return [decomposer.tensor(t, kernel.axes[:rank]) for t, rank in found]

        name = f"k{len(self.kernels)}_{describe(term)}"
        with ir.InsertionPoint(self.module.body):
            made = func.FuncOp.from_py_func(*types, name=name)(body)
        function = made.func_op  # pyright: ignore[reportFunctionMemberAccess]  # not in stubs
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        function.attributes[SCHEDULE] = schedule_attribute(kernel.schedule)
        self.kernels[key] = function
        return function

    def finish(self) -> None:
        last = self.old.operations[len(self.old.operations) - 1]
        with self.point, last.location:
            func.ReturnOp([self.values[v] for v in last.operands])


def buffer_order(root: Term) -> list[str]:
    """The buffers that a term loads, in an order that does not depend on their names.

    The operands of a sum or a product are in the order of their digests, which names are part of:
    kernels that differ in names alone are one when these come from where the buffers stand.
    """
    forms: dict[Term, str] = {}

    def operands(x: Term) -> Sequence[Term]:
        swaps = x.op in PRIMITIVES and PRIMITIVES[x.op].commutative
        return sorted(x.children, key=forms.__getitem__) if swaps else x.children

    for x in postorder([root]):
        attr = f"{list(map(str, x.attr[1]))}{x.attr[2]}" if x.op == "load" else x.attr
        words = [x.op, x.dtype.name, str(attr), *(forms[c] for c in operands(x))]
        forms[x] = blake2b("|".join(words).encode(), digest_size=10).hexdigest()
    loads = (x for x in postorder([root], children=operands) if x.op == "load")
    return list(dict.fromkeys(x.attr[0] for x in loads))


def rename_buffers(term: Term, names: dict[str, str]) -> Term:
    """The same term on buffers of other names."""

    def renamed(x: Term) -> Term:
        if x.op != "load":
            return x
        name, index, shape = x.attr
        return terms.load(names[name], index, shape, x.dtype)

    return terms.rewrite(term, renamed)


def describe(term: Term) -> str:
    """A short name for a kernel: its reductions, outermost last, and the operation at its root."""
    order = postorder([term])
    words = ["contract" if t.args[0].op == "mul" else t.op for t in order if t.op in REDUCTIONS]
    if term.op not in (*REDUCTIONS, "load", "results"):
        words.append(term.op)
    return "_".join([*dict.fromkeys(words)][:4]) or "copy"
