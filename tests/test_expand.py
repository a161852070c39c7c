"""Every primitive's body on every dtype: its numbers on the host, and no calls on any target.

Each body is built as a function of arrays, on scalars and on 1-D and 2-D vectors, and lowered by
upstream passes alone. The numbers are compared with numpy, bit for bit where the operation is
exactly defined, else within `ULP`.
"""

import ctypes
import itertools
import math
import re
import struct
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
from dodeca.dialect import PRIMITIVES
from dodeca.dialect.errors import DtypeError
from dodeca.passes import expand
from dodeca.passes.blocks.lower import keep_sqrt
from mlir import ir
from mlir.dialects import arith, func, gpu, memref, scf, vector
from mlir.dialects import llvm as mlir_llvm
from mlir.passmanager import PassManager
from ulp import ULP

# What lowers the bodies on each kind of target; nothing else is needed. On the GPUs
# convert-math-to-llvm must come before the conversion to nvvm or rocdl, which would make calls to
# libdevice or ocml; keep_sqrt goes between the two.
CPU = (
    "builtin.module(convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,"
    "finalize-memref-to-llvm,convert-arith-to-llvm,convert-index-to-llvm,"
    "convert-func-to-llvm{use-bare-ptr-memref-call-conv=1},convert-cf-to-llvm,"
    "convert-ub-to-llvm,reconcile-unrealized-casts)"
)
GPU_FIRST = (
    "builtin.module(gpu.module(convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm))"
)
NVVM = (
    "builtin.module(gpu.module(convert-gpu-to-nvvm{use-bare-ptr-memref-call-conv=1},"
    "reconcile-unrealized-casts))"
)
ROCDL = (
    "builtin.module(gpu.module(convert-gpu-to-rocdl{chipset=CHIP use-bare-ptr-memref-call-conv=1 "
    "runtime=HIP},reconcile-unrealized-casts))"
)

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float64": np.dtype(np.float64),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
}
FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
APPROXIMATE = ("exp2", "log2", "sin")
SHAPES = [(8,), (), (2, 4)]
DIVISORS = [1.0, -1.0, 4.0, 0.25, 2.0**40, 3.0]
WIDE = np.longdouble
RNG_SEED = 20


# --- functions of arrays -------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """A body, and the dtypes of the arrays that it reads and writes."""

    body: Callable[..., ir.Value]
    inputs: tuple[str, ...]
    output: str


def primitive(name: str, dtype: str) -> Kernel:
    inputs = [dtype] * ({"div": 2, "max": 2, "select": 3}.get(name) or PRIMITIVES[name].arity)
    if name == "select":
        inputs[0] = "bool"
    output = "bool" if name == "less_than" else dtype
    return Kernel(lambda *x: expand.emit(name, x, dtype), tuple(inputs), output)


def mod_by(divisor: float, dtype: str) -> Kernel:
    def body(x: ir.Value) -> ir.Value:
        y = expand.constant(divisor, dtype, expand.Lanes(x).shape)
        return expand.emit("mod", [x, y], dtype)

    return Kernel(body, (dtype,), dtype)


def conversion(source: str, target: str) -> Kernel:
    return Kernel(lambda x: expand.cast(x, source, target), (source,), target)


def same_bits(source: str, target: str) -> Kernel:
    return Kernel(lambda x: expand.bitcast(x, source, target), (source,), target)


def defined(name: str, dtype: str) -> bool:
    body = expand.BODIES[name]
    kind = "floats" if dtype in FLOATS else "booleans" if dtype == "bool" else "integers"
    return (body.bits or getattr(body, kind)) is not None


CASES = [(n, d) for n in expand.BODIES for d in DTYPES if defined(n, d)]
BITCASTS = [("float32", "int32"), ("int64", "float64"), ("bfloat16", "float16"), ("uint8", "int8")]
KERNELS = {f"{name}_{dtype}": primitive(name, dtype) for name, dtype in CASES}
KERNELS |= {f"cast_{s}_{t}": conversion(s, t) for s in DTYPES for t in DTYPES}
KERNELS |= {f"bits_{s}_{t}": same_bits(s, t) for s, t in BITCASTS}
KERNELS |= {f"mod_{i}_{d}": mod_by(c, d) for i, c in enumerate(DIVISORS) for d in FLOATS}


def memory(dtype: str) -> str:
    """The dtype in memory."""
    return "int8" if dtype == "bool" else dtype


def array_type(dtype: str) -> ir.Type:
    element = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}
    name = element.get(memory(dtype)) or f"i{DTYPES[memory(dtype)].itemsize * 8}"
    return ir.MemRefType.get([1 << 30], ir.Type.parse(name))


def array_types(kernel: Kernel) -> list[ir.Type]:
    return [array_type(dtype) for dtype in (*kernel.inputs, kernel.output)]


def write_body(
    kernel: Kernel, arrays: Sequence[ir.Value], index: ir.Value, shape: tuple[int, ...]
) -> None:
    """Loads from each input, the kernel's body, and a store."""
    values = []
    for array, dtype in zip(arrays, kernel.inputs, strict=False):
        element = array.type.element_type
        if shape:
            flat = ir.VectorType.get([math.prod(shape)], element)
            value = vector.load(flat, array, [index])
            value = vector.shape_cast(ir.VectorType.get(shape, element), value)
        else:
            value = memref.load(array, [index])
        values.append(expand.cast(value, memory(dtype), dtype))
    result = expand.cast(kernel.body(*values), kernel.output, memory(kernel.output))
    if shape:
        flat = ir.VectorType.get([math.prod(shape)], result.type.element_type)
        vector.store(vector.shape_cast(flat, result), arrays[-1], [index])
    else:
        memref.store(result, arrays[-1], [index])


def host_module(shape: tuple[int, ...], kernels: dict[str, Kernel]) -> ir.Module:
    """A function (arrays, length) for each kernel."""
    module = ir.Module.create()
    size = ir.IndexType.get()
    for name, kernel in kernels.items():
        with ir.InsertionPoint(module.body):
            function = func.FuncOp(name, ([*array_types(kernel), size], []))
        with ir.InsertionPoint(function.add_entry_block()):
            *arrays, length = function.arguments
            start, step = arith.constant(size, 0), arith.constant(size, math.prod(shape))
            loop = scf.ForOp(start, length, step)
            with ir.InsertionPoint(loop.body):
                write_body(kernel, arrays, loop.induction_variable, shape)
                scf.YieldOp([])
            func.ReturnOp([])
    assert module.operation.verify()
    return module


def device_module(shape: tuple[int, ...], kernels: dict[str, Kernel]) -> ir.Module:
    """A gpu.module with a GPU kernel for each kernel."""
    module = ir.Module.parse("module attributes {gpu.container_module} { gpu.module @k {} }")
    body = module.body.operations[0].regions[0].blocks[0]
    for name, kernel in kernels.items():
        with ir.InsertionPoint(body):
            kind = ir.TypeAttr.get(ir.FunctionType.get(array_types(kernel), []))
            function = gpu.GPUFuncOp(kind, sym_name=name, kernel=True)
        entry = function.add_entry_block()
        with ir.InsertionPoint(entry):
            write_body(kernel, list(entry.arguments), gpu.thread_id(gpu.Dimension.x), shape)
            gpu.ReturnOp([])
    assert module.operation.verify()
    return module


def host_ir(shape: tuple[int, ...], kernels: dict[str, Kernel]) -> str:
    with ir.Context(), ir.Location.unknown():
        module = host_module(shape, kernels)
        PassManager.parse(CPU).run(module.operation)
        return mlir_llvm.translate_module_to_llvmir(module.operation)


def device_ir(shape: tuple[int, ...], kernels: dict[str, Kernel], chip: str) -> str:
    with ir.Context(), ir.Location.unknown():
        module = device_module(shape, kernels)
        PassManager.parse(GPU_FIRST).run(module.operation)
        keep_sqrt(module.operation)
        last = NVVM if chip.startswith("sm_") else ROCDL.replace("CHIP", chip)
        PassManager.parse(last).run(module.operation)
        return mlir_llvm.translate_module_to_llvmir(module.body.operations[0].operation)


def machine_code(text: str, triple: str, chip: str, features: str) -> bytes:
    """An ELF object; for NVPTX the PTX."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    chosen = llvm.Target.from_triple(triple)
    machine = chosen.create_target_machine(cpu=chip, features=features, opt=3)
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_unrolling = options.loop_vectorization = False  # the body once, as it is
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    module = llvm.parse_assembly(str(module))  # code generation wants a fresh module
    if triple.startswith("nvptx"):
        return machine.emit_assembly(module).encode()
    return machine.emit_object(module)


class HostCode:
    """Kernels compiled for this machine; called with numpy arrays."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.llvm_ir = host_ir(shape, KERNELS)
        features = llvm.get_host_cpu_features().flatten()
        triple = llvm.get_process_triple()
        self.object = machine_code(self.llvm_ir, triple, llvm.get_host_cpu_name(), features)
        empty = llvm.parse_assembly(f'target triple = "{triple}"')
        self.engine = llvm.create_mcjit_compiler(
            empty, llvm.Target.from_triple(triple).create_target_machine()
        )
        self.engine.add_object_file(llvm.ObjectFileRef.from_data(self.object))
        self.engine.finalize_object()

    def __call__(self, name: str, *arrays: np.ndarray) -> np.ndarray:
        kernel = KERNELS[name]
        length = len(arrays[0])
        padded = -(-length // 8) * 8
        buffers = [np.resize(a, padded).astype(DTYPES[k]) for a, k in zip(arrays, kernel.inputs)]  # noqa: B905
        buffers.append(np.zeros(padded, DTYPES[kernel.output]))
        arguments = [ctypes.c_void_p] * len(buffers)
        function = ctypes.CFUNCTYPE(None, *arguments, ctypes.c_int64)(
            self.engine.get_function_address(name)
        )
        function(*(buffer.ctypes.data for buffer in buffers), padded)
        return buffers[-1][:length]


@pytest.fixture(autouse=True)
def _ieee_without_warnings() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def host(request: pytest.FixtureRequest) -> HostCode:
    return HostCode(request.param)


# --- what to try, and what should come -----------------------------------------------------------


def bits_type(dtype: str) -> np.dtype:
    return np.dtype(f"u{DTYPES[dtype].itemsize}")


def specials(dtype: str) -> np.ndarray:
    """The edges of a dtype."""
    kind = DTYPES[dtype]
    if dtype == "bool":
        return np.array([False, True])
    if dtype in INTEGERS:
        info = np.iinfo(kind)
        edges = {info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 10, 100}
        edges |= {i for i in (-1, -2, -3, -7, -100) if info.min < 0}
        return np.array(sorted(edges), kind)
    info = ml_dtypes.finfo(kind)
    tiny, low = info.smallest_normal, info.smallest_subnormal
    ones = [1.0, 1.5, 2.0, 3.0, 10.0, 0.1, 1 / 3, 7e3, 1.0 + float(info.eps), 1 - float(info.eps)]
    edges = [0.0, low, low * 3, tiny - low, tiny, tiny + low, info.max, info.max / 2, np.inf]
    positive = np.array([*map(float, edges), *ones, *(float(info.max) / v for v in ones)])
    return np.concatenate([positive, -positive, [np.nan]]).astype(kind)


def random_values(dtype: str, count: int, seed: int = RNG_SEED) -> np.ndarray:
    """Half of them any bits, half near one or small."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    raw = rng.integers(0, np.iinfo(bits_type(dtype)).max, count, bits_type(dtype), endpoint=True)
    values = raw.view(DTYPES[dtype])
    if dtype in FLOATS:
        values[::2] = rng.normal(0, 4, len(values[::2])).astype(DTYPES[dtype])
    else:
        values[::2] = rng.integers(0, 20, len(values[::2]))
    return values


def operands(inputs: Sequence[str]) -> list[np.ndarray]:
    """Every combination of edges, and random values."""
    if list(inputs) in (["int8"] * 2, ["uint8"] * 2):
        first, second = np.meshgrid(*[np.arange(256, dtype="u1").view(DTYPES[inputs[0]])] * 2)
        return [first.ravel(), second.ravel()]
    edges = list(itertools.product(*map(specials, inputs)))
    columns = zip(*edges, strict=True)
    return [
        np.concatenate([np.array(column, DTYPES[d]), random_values(d, 4000, i)])
        for i, (column, d) in enumerate(zip(columns, inputs, strict=True))
    ]


def all_values(dtype: str) -> np.ndarray:
    """Every value of a narrow dtype; edges and random values of a wide one."""
    if DTYPES[dtype].itemsize <= 2 and dtype != "bool":
        count = 1 << (8 * DTYPES[dtype].itemsize)
        return np.arange(count).astype(bits_type(dtype)).view(DTYPES[dtype])
    return np.concatenate([specials(dtype), random_values(dtype, 20_000)])


def rounded(exact: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers rounded once to nearest even; to 16 bits by looking them up among all values."""
    if DTYPES[dtype].itemsize > 2:
        return exact.astype(DTYPES[dtype])
    infinity = int(np.array(np.inf, DTYPES[dtype]).view("u2"))
    table = np.arange(infinity).astype("u2").view(DTYPES[dtype]).astype(WIDE)
    table = np.append(table, 2 * table[-1] - table[-2])  # the bits of a value are its position
    size = np.abs(exact)
    above = np.searchsorted(table, size).clip(0, infinity)
    below = np.where(table[above] <= size, above, above - 1)
    middle = (table[below] + table[above]) / 2
    up = (size > middle) | ((size == middle) & (above % 2 == 0))
    bits = np.where(up, above, below) | (np.signbit(exact) << 15)
    return np.where(np.isnan(exact), infinity + 1, bits).astype("u2").view(DTYPES[dtype])


def expected(name: str, dtype: str, *x: np.ndarray) -> np.ndarray:
    """What an exactly defined primitive gives."""
    narrow = DTYPES[dtype].itemsize == 2
    wide = [v.astype(np.float64) if narrow and v.dtype != bool else v for v in x]
    if name == "select":
        return np.where(*x)
    if name == "less_than":
        return wide[0] < wide[1]
    if dtype in INTEGERS and name == "mod":
        zero = (x[1] == 0) | ((x[1] == -1) if dtype != "uint8" else False)
        return np.where(zero, 0, np.fmod(x[0], np.where(zero, 1, x[1])))
    if dtype == "bool":
        return {"mul": x[0] & x[1], "mod": x[0] & False}.get(name, x[0] | x[1])
    meaning = {
        "add": np.add, "mul": np.multiply, "mod": np.fmod, "max": np.maximum,
        "div": np.divide, "recip": np.reciprocal, "sqrt": np.sqrt,
    }  # fmt: skip
    result = meaning[name](*wide)
    return rounded(result, dtype) if narrow else result


def assert_same(actual: np.ndarray, wanted: np.ndarray, *operands: np.ndarray, zeros: bool = True):
    """Bit for bit; a NaN is a NaN; the sign of zero only if `zeros`."""
    wanted = wanted.astype(actual.dtype)
    if np.issubdtype(actual.dtype, np.integer) or actual.dtype == bool:
        same = actual == wanted
    else:
        bits = f"u{actual.dtype.itemsize}"
        same = (actual.view(bits) == wanted.view(bits)) | (np.isnan(actual) & np.isnan(wanted))
        if not zeros:
            same |= (actual == 0) & (wanted == 0)
    wrong = np.flatnonzero(~same)[:5]
    columns = [operand[wrong] for operand in operands]
    assert not len(wrong), f"of {columns}: {actual[wrong]} instead of {wanted[wrong]}"


def ulps(actual: np.ndarray, exact: np.ndarray, dtype: str) -> np.ndarray:
    """Errors in units in the last place of the exact result."""
    info = ml_dtypes.finfo(DTYPES[dtype])
    nearest = rounded(exact, dtype)
    right = (actual == nearest) | (np.isnan(actual) & np.isnan(nearest))
    exponent = np.frexp(exact)[1] - 1
    unit = np.ldexp(WIDE(1), np.maximum(exponent, info.minexp) - info.nmant)
    error = np.abs(actual.astype(WIDE) - exact) / unit
    return np.where(right & ~np.isfinite(error), 0, np.where(np.isnan(error), np.inf, error))


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), [c for c in CASES if c[0] not in APPROXIMATE])
def test_exact_primitives(host: HostCode, name: str, dtype: str) -> None:
    values = operands(KERNELS[f"{name}_{dtype}"].inputs)
    actual = host(f"{name}_{dtype}", *values)
    assert_same(actual, expected(name, dtype, *values), *values, zeros=name != "max")


@pytest.mark.parametrize("dtype", FLOATS)
def test_mod_by_known_divisors(host: HostCode, dtype: str) -> None:
    x = all_values(dtype)
    for i, divisor in enumerate(DIVISORS):
        y = np.full_like(x, divisor)
        assert_same(host(f"mod_{i}_{dtype}", x), expected("mod", dtype, x, y), x, y)


def arguments(name: str, dtype: str) -> np.ndarray:
    """Finite ones of every size, those where the result is neither 0 nor infinite, hard ones."""
    if DTYPES[dtype].itemsize == 2:
        return all_values(dtype)
    rng = np.random.default_rng(RNG_SEED)
    info = np.finfo(DTYPES[dtype])
    count = 60_000
    size = 2.0 ** rng.uniform(info.minexp - info.nmant, info.maxexp, count)
    signs = rng.choice([-1.0, 1.0], count)
    near = {
        "exp2": rng.uniform(info.minexp - info.nmant - 2, info.maxexp + 1, count),
        "log2": 1 + signs * 2.0 ** rng.uniform(-info.nmant, -1, count),
        "sin": np.rint(rng.uniform(-1e5, 1e5, count)) * (np.pi / 2) + rng.normal(0, 0.1, count),
    }
    hard = [1e7, 1e22, 1e30, 6381956970095103 * 2.0**797, 22.0, 355.0, 103993.0]
    signed = size if name == "log2" else size * signs
    return np.concatenate([signed, near[name], np.array(hard)]).astype(DTYPES[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", APPROXIMATE)
def test_errors_are_within_the_stated_ulps(host: HostCode, name: str, dtype: str) -> None:
    if dtype == "float64" and np.finfo(WIDE).nmant < 60:
        pytest.skip("numpy has nothing wider than float64 here")
    x = arguments(name, dtype)
    exact = getattr(np, name)(x.astype(WIDE if dtype == "float64" else np.float64))
    error = ulps(host(f"{name}_{dtype}", x), exact, dtype)
    worst = int(error.argmax())
    assert error[worst] <= ULP[name, dtype], f"{name}({x[worst]!r}) is off by {error[worst]}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_points_of_exp2_and_log2(host: HostCode, dtype: str) -> None:
    info = np.finfo(DTYPES[dtype])
    powers = np.arange(info.minexp - info.nmant, info.maxexp)
    values = np.ldexp(1.0, powers)
    assert_same(host(f"exp2_{dtype}", powers), values, powers)
    assert_same(host(f"log2_{dtype}", values), powers, values)


EDGES = {
    "exp2": [(-np.inf, 0.0), (np.inf, np.inf), (-0.0, 1.0), (1e-30, 1.0), (2e4, np.inf), (-2e4, 0)],
    "log2": [(0.0, -np.inf), (-0.0, -np.inf), (-1.0, np.nan), (-1e-40, np.nan), (np.inf, np.inf)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (np.inf, np.nan), (-np.inf, np.nan), (-1e-40, -1e-40)],
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", APPROXIMATE)
def test_edges(host: HostCode, name: str, dtype: str) -> None:
    x, wanted = np.array([*EDGES[name], (np.nan, np.nan)]).T.astype(DTYPES[dtype])
    if name == "log2":  # float16 has no -1e-40
        wanted = np.where(x == 0, -np.inf, wanted).astype(DTYPES[dtype])
    assert_same(host(f"{name}_{dtype}", x), wanted, x)


# --- casts, constants ----------------------------------------------------------------------------


def between(source: str, target: str) -> np.ndarray:
    """Halfway points of a 16-bit target, and what the source can tell from them."""
    if source == "bool" or DTYPES[target].itemsize != 2 or target not in FLOATS:
        return np.array([], DTYPES[source])
    bits = np.arange(1, int(np.array(np.inf, DTYPES[target]).view("u2")), 7).astype("u2")
    values = bits.view(DTYPES[target]).astype(np.float64)
    middle = (values + (bits - 1).astype("u2").view(DTYPES[target]).astype(np.float64)) / 2
    if source in FLOATS:
        exact = middle.astype(DTYPES[source])
        around = [np.nextafter(exact, DTYPES[source].type(s)) for s in (0, np.inf)]
        return np.concatenate([exact, *around]) if source != "bfloat16" else exact
    inside = middle[(middle >= 2) & (middle < 2.0 ** (8 * DTYPES[source].itemsize - 2))]
    exact = inside.astype(DTYPES[source])
    return np.concatenate([exact - 1, exact, exact + 1, -exact - 1, -exact, 1 - exact])


def cast_expected(x: np.ndarray, source: str, target: str) -> np.ndarray:
    wide = x.astype(WIDE)  # holds an int64 exactly
    if target == "bool":
        return x != 0
    if target in FLOATS:
        return rounded(wide, target)
    if source not in FLOATS:
        return x.astype(DTYPES[target])
    info = np.iinfo(DTYPES[target])
    low, high = wide <= info.min, wide >= WIDE(info.max)
    inside = np.where(low | high | np.isnan(wide), 0, wide).astype(DTYPES[target])
    return np.where(low, info.min, np.where(high, info.max, inside))


@pytest.mark.skipif(np.finfo(WIDE).nmant < 63, reason="longdouble does not hold an int64")
@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_casts(host: HostCode, source: str, target: str) -> None:
    x = np.concatenate([all_values(source), between(source, target)])
    if source in FLOATS and target in INTEGERS:
        edge = float(np.iinfo(DTYPES[target]).max)
        edges = np.array([[edge + i, -edge + i] for i in (-2, -1, -0.5, 0, 0.5, 1, 2)])
        x = np.concatenate([x, edges.ravel().astype(x.dtype)])
    assert_same(host(f"cast_{source}_{target}", x), cast_expected(x, source, target), x)


@pytest.mark.parametrize(("source", "target"), BITCASTS)
def test_bitcasts(host: HostCode, source: str, target: str) -> None:
    x = all_values(source)
    kind = bits_type(source)
    assert np.array_equal(host(f"bits_{source}_{target}", x).view(kind), x.view(kind))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_constants_are_exact(dtype: str, shape: tuple[int, ...]) -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        for value in specials(dtype):
            with ir.InsertionPoint(module.body):
                number = float(value) if dtype in FLOATS else int(value)
                made = expand.constant(number, dtype, shape)
            attribute = made.owner.attributes["value"]
            if shape:
                assert made.type.shape == list(shape)
                attribute = attribute.get_splat_value()
            back = attribute.value
            assert_same(np.array([back]).astype(DTYPES[dtype]), np.array([value]))


# --- code ----------------------------------------------------------------------------------------


def called(llvm_ir: str) -> list[str]:
    """Functions that an IR module declares and LLVM does not implement."""
    return re.findall(r"^declare .*@(?!llvm\.)([\w.]+)", llvm_ir, re.MULTILINE)


def undefined_symbols(elf: bytes) -> list[str]:
    """The symbols that an ELF64 object takes from elsewhere."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, start + size * i) for i in range(count)]
    names = []
    for _, kind, _, _, offset, length, link, *_ in sections:
        if kind != 2:  # a symbol table
            continue
        strings = sections[link][4]
        for entry in range(offset + 24, offset + length, 24):
            name, _, _, section = struct.unpack_from("<IBBH", elf, entry)
            if section == 0:
                text = elf[strings + name : elf.index(b"\0", strings + name)]
                names.append(text.decode())
    return names


def test_host_code_calls_nothing(host: HostCode) -> None:
    assert not called(host.llvm_ir)
    # memset is what LLVM makes of a loop that stores a constant, the result of mod_bool
    assert set(undefined_symbols(host.object)) <= {"memset"}


@pytest.mark.parametrize("chip", ["x86-64-v3", "x86-64-v4"])
def test_x86_code_calls_nothing(chip: str) -> None:
    elf = machine_code(host_ir((16,), KERNELS), "x86_64-unknown-linux-gnu", chip, "")
    assert not undefined_symbols(elf)


def test_a_call_would_be_seen() -> None:
    text = """
declare float @sinf(float)
define float @f(float %x) {
  %r = call float @sinf(float %x)
  ret float %r
}"""
    assert called(text) == ["sinf"]
    assert undefined_symbols(machine_code(text, "x86_64-unknown-linux-gnu", "", "")) == ["sinf"]


@pytest.mark.parametrize(
    ("chip", "shape"), [("sm_80", ()), ("sm_80", (2, 4)), ("sm_90", (4,))], ids=str
)
def test_nvptx_code_calls_nothing(tmp_path: Path, chip: str, shape: tuple[int, ...]) -> None:
    text = device_ir(shape, KERNELS, chip)
    assert not called(text)
    ptx = machine_code(text, "nvptx64-nvidia-cuda", chip, "+ptx80").decode()
    assert ".extern" not in ptx
    assert not re.search(r"\bcall\b", ptx)
    assert not re.search(r"\.(approx|ftz|full)\b", ptx)  # IEEE rounding, subnormals kept
    found = Path(sysconfig.get_path("purelib"), "nvidia").glob("**/bin/ptxas")
    assembler = next(found, None)
    if assembler is not None:
        file = tmp_path / "kernels.ptx"
        file.write_text(ptx)
        command = [assembler, f"-arch={chip}", "-O1", "-o", tmp_path / "cubin", file]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("chip", "shape"), [("gfx942", (2, 4)), ("gfx1100", ())], ids=str)
def test_amdgpu_code_calls_nothing(chip: str, shape: tuple[int, ...]) -> None:
    text = device_ir(shape, KERNELS, chip)
    assert not called(text)
    assert not undefined_symbols(machine_code(text, "amdgcn-amd-amdhsa", chip, ""))


def ops_of(kernel: Kernel) -> str:
    with ir.Context(), ir.Location.unknown():
        return str(host_module((8,), {"f": kernel}))


def test_a_power_of_two_needs_no_loop_to_divide() -> None:
    for divisor, loops in zip(DIVISORS, [0, 0, 0, 0, 0, 1], strict=True):
        assert ops_of(mod_by(divisor, "bfloat16")).count("scf.while") == loops


def test_exp2_is_17_vector_instructions_and_has_no_branch() -> None:
    text = ops_of(KERNELS["exp2_float32"])
    assert "scf.if" not in text
    count = len(re.findall(r"(arith\.(?!constant|bitcast|cmpf)\w+|math\.\w+) ", text))
    assert count == 17


def test_float16_needs_no_far_reduction() -> None:
    assert "scf.if" in ops_of(KERNELS["sin_bfloat16"])
    assert "scf.if" not in ops_of(KERNELS["sin_float16"])


def test_contract_lets_mul_and_add_fuse() -> None:
    def body(contract: bool) -> Kernel:
        def multiply_add(a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
            product = expand.emit("mul", [a, b], "float32", contract=contract)
            return expand.emit("add", [product, c], "float32", contract=contract)

        return Kernel(multiply_add, ("float32",) * 3, "float32")

    for contract in (False, True):
        text = host_ir((8,), {"f": body(contract)})
        assert ("fmul contract" in text) == ("fadd contract" in text) == contract


def test_errors_name_what_does_not_fit() -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            one = expand.constant(1.0, "float32", ())
            many = expand.constant(1.0, "float32", (4,))
            whole = expand.constant(1, "int32", ())
            with pytest.raises(KeyError, match="tanh"):
                expand.emit("tanh", [one], "float32")
            with pytest.raises(DtypeError, match="unknown dtype 'float8'"):
                expand.emit("sin", [one], "float8")
            with pytest.raises(TypeError, match="missing 1 required positional argument"):
                expand.emit("add", [one], "float32")
            with pytest.raises(TypeError, match="operand 0 should hold f64"):
                expand.emit("sin", [one], "float64")
            with pytest.raises(TypeError, match=r"in the shape \[\], but is vector<4xf32>"):
                expand.emit("add", [many, one], "float32")
            with pytest.raises(TypeError, match="not defined on int32"):
                expand.emit("sin", [whole], "int32")
            with pytest.raises(TypeError, match="float32 and int64 have no common bit pattern"):
                expand.bitcast(one, "float32", "int64")
