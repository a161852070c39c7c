"""A kernel's schedule as an attribute of its function: written, and read back.

func.func private @k0(...) attributes {dodeca.schedule = {blocks = {d0 = 64 : i64}, ...}}
"""

from __future__ import annotations

from mlir import ir

from .dialect.errors import CompileError
from .passes import cost, terms
from .passes.index import Axis
from .passes.schedule import Schedule
from .passes.targets import Target
from .passes.tile import KernelTerm

SCHEDULE = "dodeca.schedule"
NUMBERS = ("lanes", "fold", "depth", "stages", "warps")  # of a schedule; the last are a GPU's


def kernel_schedule(
    function: ir.Operation, kernel: KernelTerm, target: Target, strict: bool
) -> Schedule:
    """The schedule in the function's attribute, or the cost model's best."""
    if SCHEDULE in function.attributes:
        return read_schedule(function.attributes[SCHEDULE], kernel.axes)
    return cost.cheapest(terms.rolled(kernel.term), kernel.axes, target, strict)[1]


def schedule_attribute(schedule: Schedule) -> ir.Attribute:
    """A schedule as a dictionary attribute that prints and parses."""

    def pairs(items: tuple[tuple[str, int], ...]) -> str:
        return "{" + ", ".join(f"{name} = {n} : i64" for name, n in items) + "}"

    order = ", ".join(f'"{name}"' for name in schedule.order)
    return ir.Attribute.parse(
        f"{{blocks = {pairs(schedule.blocks)}, fold = {schedule.fold} : i64, "
        f"lanes = {schedule.lanes} : i64, order = [{order}], "
        f"{'pairs, ' if schedule.pairs else ''}"
        f"reassociate = {'true' if schedule.reassociate else 'false'}, "
        f'tiles = {pairs(schedule.tiles)}, vector = "{schedule.vector or ""}"'
        f"{', matrix' if schedule.matrix else ''}"
        + "".join(f", {n} = {x} : i64" for n in NUMBERS[2:] if (x := getattr(schedule, n)))
        + "}"
    )


def read_schedule(attribute: ir.Attribute, axes: tuple[Axis, ...]) -> Schedule:
    """The schedule in a kernel's attribute."""
    found = ir.DictAttr(attribute)

    def pairs(name: str) -> tuple[tuple[str, int], ...]:
        table = ir.DictAttr(found[name])
        known = [a.name for a in axes if a.name in table]
        if len(known) < len(table):
            raise ValueError(f"{name} are not of axes alone")
        return tuple((axis, ir.IntegerAttr(table[axis]).value) for axis in known)

    try:
        vector = ir.StringAttr(found["vector"]).value or None
        order = tuple(ir.StringAttr(a).value for a in ir.ArrayAttr(found["order"]))
        free = ir.BoolAttr(found["reassociate"]).value
        tiles, blocks = pairs("tiles"), pairs("blocks")
        known = {n: ir.IntegerAttr(found[n]).value for n in NUMBERS if n in found}
        flags = "pairs" in found, "matrix" in found
        return Schedule(
            vector, tiles, blocks, order, reassociate=free, pairs=flags[0], matrix=flags[1], **known
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CompileError(
            f"{SCHEDULE} {attribute} is not a schedule of this kernel: {error}"
        ) from None
