"""Matrix instructions: sums of products that the lanes of a warp compute together.

One table: an instruction is a shape, dtypes, and how its operands and its result lie in registers
and lanes (`linear`). It has rows and columns; which of a kernel's axes these are is the schedule's.
An operand is any term, loaded and computed where its fragment lies.

    sum(r0, a[d0, r0] * b[r0, d1])    d0 rows, d1 columns, r0 the depth
    mma.sync m16n8k16                 rows (2, 3, 4, R), columns (R, 0, 1), depth (R, 0, 1, R)

The columns of a result lie as the depth of an operand does: a product's result is an operand of the
next one as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from mlir import ir
from mlir.dialects import amdgpu, llvm, vector

from ..index import Axis
from ..lanes import Lanes, reshape
from ..stage import Step
from ..targets import Target
from ..terms import Term, postorder
from .linear import REGISTER as R
from .linear import Bits, filled, run

NARROW = {"float16": "float32", "bfloat16": "float32", "int8": "int32"}  # what sums are kept in


@dataclass(frozen=True)
class Instruction:
    """One matrix instruction, for operands of one dtype.

    `rows` is how rows lie in their operand and in the result, `own` how columns lie in theirs,
    `columns` how they lie in the result, `depth` how the summed axis lies in both. A fragment has
    its elements in the order of the depth's higher registers, then rows, then its lowest.
    """

    family: str  # of instructions, as in `Target.matrix`
    shape: tuple[int, int, int]  # of the instruction itself: m, n, k
    dtype: str
    rows: Bits
    own: Bits
    columns: Bits
    depth: Bits
    rows_first: bool = True  # whether rows are the instruction's m


def _mma(dtype: str, k: int, depth: Bits) -> Instruction:
    return Instruction("mma", (16, 8, k), dtype, (2, 3, 4, R), (2, 3, 4), (R, 0, 1), depth)


def _amd(family: str, dtype: str, k: int, columns: Bits, depth: Bits) -> Instruction:
    near = (0, 1, 2, 3)
    return Instruction(family, (16, 16, k), dtype, near, near, columns, depth, rows_first=False)


INSTRUCTIONS = [
    *(_mma(dtype, 16, (R, 0, 1, R)) for dtype in ("float16", "bfloat16")),
    _mma("int8", 32, (R, R, 0, 1, R)),
    *(_amd("mfma", dtype, 16, (R, R, 4, 5), (R, R, 4, 5)) for dtype in ("float16", "bfloat16")),
    _amd("mfma", "float32", 4, (R, R, 4, 5), (4, 5)),
    _amd("mfma", "int8", 16, (R, R, 4, 5), (R, R, 4, 5)),
    _amd("mfma3", "int8", 32, (R, R, 4, 5), (R, R, R, 4, 5)),
    *(_amd("wmma", dtype, 16, (4, R, R, R), (R, R, R, R)) for dtype in ("float16", "bfloat16")),
    _amd("wmma", "int8", 16, (4, R, R, R), (R, R, R, R)),
    *(_amd("wmma12", dtype, 16, (R, R, R, 4), (R, R, R, 4)) for dtype in ("float16", "bfloat16")),
    _amd("wmma12", "int8", 16, (R, R, R, 4), (R, R, R, 4)),
]


@dataclass(frozen=True)
class Product:
    """A sum of products as a matrix product: its operands, without a widening, and their axes."""

    instruction: Instruction
    fold: Term
    operands: tuple[Term, Term]  # of the rows, of the columns
    rows: Axis
    columns: Axis


@cache
def product(fold: Term, wide: frozenset[Axis], columns: Axis, target: Target) -> Product | None:
    """A sum as a matrix product, if it is one: of its axes two are `wide`, the tile's, and each is
    in one of the factors."""
    body = fold.args[0]
    if fold.op != "sum" or body.op != "mul" or columns not in body.axes:
        return None
    operands = tuple(_narrow(x) for x in body.args)
    found = _instruction(operands, fold, target)
    own = [x.axes & wide for x in operands]
    if found is None or sorted(map(len, own)) != [1, 1] or own[0] == own[1]:
        return None
    if any(fold.attr not in x.axes for x in operands) or columns not in own[0] | own[1]:
        return None
    if columns in own[0]:
        operands, own = operands[::-1], own[::-1]
    (rows,) = own[0]
    return Product(found, fold, (operands[0], operands[1]), rows, columns)


def products_of(steps: Iterable[Step], sizes: Mapping[str, int], target: Target) -> list[Product]:
    """The matrix products in steps whose axes have tiles of these sizes."""
    return [
        found
        for step in steps
        for t in postorder([step.term])
        if t.op == "sum" and step.axes
        for wide in [frozenset(a for a in step.axes if sizes[a.name] > 1)]
        if (found := product(t, wide, step.axes[-1], target))
    ]


def has_instruction(fold: Term, target: Target) -> bool:
    """Whether a sum, or a rolling one, multiplies dtypes that the target has instructions for."""
    if fold.op == "roll":
        return _instruction([_narrow(fold.args[1])], fold, target) is not None
    body = fold.args[0]
    product = fold.op == "sum" and body.op == "mul"
    return product and _instruction(map(_narrow, body.args), fold, target) is not None


def _narrow(x: Term) -> Term:
    """A factor as it was before it was widened."""
    return x.args[0] if x.op == "cast" and NARROW.get(x.args[0].dtype.name) == x.dtype.name else x


def _instruction(operands: Iterable[Term], fold: Term, target: Target) -> Instruction | None:
    """The target's last instruction for these operands."""
    dtypes = {x.dtype.name for x in operands}
    known = [
        row for row in INSTRUCTIONS if row.family in target.matrix.split() and dtypes == {row.dtype}
    ]
    kept = {NARROW.get(name, name) for name in dtypes}
    return known[-1] if known and fold.dtype.name in dtypes | kept else None


def emit(row: Instruction, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """c + a * b of fragments, vectors of one dimension; a has rows, b columns."""
    m, n, k = row.shape
    if not row.rows_first:
        a, b = b, a
    if row.family == "mma":
        return _mma_sync(row, a, b, c)
    if Lanes(a).shape == (1,):
        a, b = (vector.extract(x, [], [0]) for x in (a, b))
    kind = amdgpu.WMMAOp if row.family.startswith("wmma") else amdgpu.MFMAOp
    return kind(m, n, k, a, b, c, results=[c.type]).result


def _mma_sync(row: Instruction, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """NVIDIA's instruction takes words: pairs of float16, else integers of 32 bits."""
    m, n, k = row.shape
    halves, kind = row.dtype == "float16", ir.VectorType(c.type).element_type

    def words(x: ir.Value) -> list[ir.Value]:
        count = prod(Lanes(x).shape) * Lanes(x).width // 32
        i32 = ir.IntegerType.get_signless(32)
        found = (
            reshape(x, [count, 2]) if halves else vector.bitcast(ir.VectorType.get([count], i32), x)
        )
        return [vector.extract(found, [], [i]) for i in range(count)]

    given = [words(a), words(b), [vector.extract(c, [], [i]) for i in range(4)]]
    called = {"float16": "f16", "bfloat16": "bf16", "int8": "s8"}[row.dtype]
    attributes = {
        "layoutA": "#nvvm.mma_layout<row>",
        "layoutB": "#nvvm.mma_layout<col>",
        "shape": f"#nvvm.shape<m = {m}, n = {n}, k = {k}>",
        "operandSegmentSizes": f"array<i32: {', '.join(str(len(x)) for x in given)}>",
    }
    attributes |= {f"multiplicand{x}PtxType": f"#nvvm.mma_type<{called}>" for x in "AB"}
    if called == "s8":
        attributes["intOverflowBehavior"] = "#nvvm.mma_int_overflow<wrapped>"
    result = ir.Type.parse(f"!llvm.struct<({', '.join([str(kind)] * 4)})>")
    made = ir.Operation.create(
        "nvvm.mma.sync", [result], [x for words in given for x in words],
        {name: ir.Attribute.parse(text) for name, text in attributes.items()},
    ).result  # fmt: skip
    parts = [llvm.extractvalue(kind, made, ir.DenseI64ArrayAttr.get([i])) for i in range(4)]
    return vector.from_elements(c.type, parts)


def places(own: Bits, along: Bits) -> list[tuple[int, int]]:
    """The registers of a fragment in its order: along its own axis, and along the other."""
    low, high = run(along), (1 << along.count(R)) // run(along)
    rows = range(1 << own.count(R))
    return [(o, h * low + n) for h in range(high) for o in rows for n in range(low)]


def matrix_layouts(
    products: Sequence[Product], sizes: Mapping[str, int], warps: int, lanes: int, alone: bool
) -> dict[str, Bits]:
    """How rows and columns lie in so many warps: each gets the longer side, or, unless a product is
    `alone`, rows get all, so that no row is in two warps."""
    row, found = products[0].instruction, dict[str, Bits]()
    first, rows = lanes.bit_length() - 1, products[0].rows.name
    left = {rows: sizes[rows] >> len(row.rows)}
    if alone:
        left |= {p.columns.name: sizes[p.columns.name] >> len(row.columns) for p in products}
    taken: dict[str, list[int]] = {name: [] for name in left}
    for bit in range(first + warps.bit_length() - 2, first - 1, -1):
        longest = max(left, key=lambda name: left[name])
        if left[longest] > 1:
            taken[longest].insert(0, bit)
            left[longest] //= 2
    for p in products:
        found[p.columns.name] = filled(
            row.columns, sizes[p.columns.name], taken.get(p.columns.name, ())
        )
    return {**found, rows: filled(row.rows, sizes[rows], taken[rows])}
