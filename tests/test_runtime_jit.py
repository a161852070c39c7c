"""Code in this process: narrow floats on CPUs without instructions for them."""

import ctypes

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
from dodeca.runtime.conversions import CONVERSIONS_IR
from dodeca.runtime.jit import compile_for_host, load_objects

KINDS = {"float": "f4", "double": "f8", "half": "f2", "bfloat": ml_dtypes.bfloat16}
NAMES = {
    ("float", "bfloat"): "__truncsfbf2",
    ("double", "bfloat"): "__truncdfbf2",
    ("float", "half"): "__truncsfhf2",
    ("double", "half"): "__truncdfhf2",
    ("half", "float"): "__extendhfsf2",
}


def loop(source, result, operation, declarations=""):
    """A function that maps an array: (input, output, length)."""
    text = f"""
define void @map(ptr %a, ptr %b, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %p = getelementptr {source}, ptr %a, i64 %i
  %x = load {source}, ptr %p
  %r = {operation}
  %q = getelementptr {result}, ptr %b, i64 %i
  store {result} %r, ptr %q
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
    engine = load_objects([compile_for_host(llvm.parse_assembly(text + declarations), "map")])
    address = engine.get_function_address("map")
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)

    def run(array):
        out = np.empty(array.shape, KINDS[result])
        call(array.ctypes.data, out.ctypes.data, array.size)
        return out

    run.engine = engine
    return run


def samples(kind):
    """All halves; floats and doubles of all exponents, around every tie of the narrower formats."""
    halves = np.arange(1 << 16, dtype="u2").view("f2").astype("f8")
    brain = np.arange(1 << 16, dtype="u4").astype("u4") << 16
    wide = np.concatenate([halves, brain.view("f4").astype("f8")])
    wide = wide[np.isfinite(wide)]
    ties = (wide[:-1] + wide[1:]) / 2
    some = np.concatenate([wide, ties, ties * (1 + 2.0**-20), ties * (1 - 2.0**-20)])
    some = np.concatenate([some, ties * (1 + 2.0**-50), ties * (1 - 2.0**-50)])
    some = np.concatenate([some, [np.inf, -np.inf, 65519.99, 65520, 1e39, 3.4e38, 1e-46, 0, -0.0]])
    return halves.astype("f2") if kind == "half" else some.astype(KINDS[kind])


@pytest.mark.filterwarnings("ignore:.*encountered in cast")
@pytest.mark.parametrize("source, result", NAMES)
def test_conversions_round_once(source, result):
    name = NAMES[source, result]
    text = CONVERSIONS_IR[CONVERSIONS_IR.index("define") :]
    operation = f"call {result} @{name}({source} %x)"
    x = samples(source)
    got = loop(source, result, operation, text)(x)
    # numpy goes from double to bfloat16 through float, which rounds twice; half is right there
    if (source, result) == ("double", "bfloat"):
        expected = np.array([_brain(one) for one in x[:: len(x) // 20000]])
        got = got[:: len(x) // 20000].astype("f8")
    else:
        expected = x.astype(KINDS[result]).astype("f8")
        got = got.astype("f8")
    np.testing.assert_array_equal(got, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(expected)[number])


def _brain(value):
    """A double rounded once to 8 significant bits, with bfloat16's range."""
    if not np.isfinite(value) or value == 0:
        return value
    _, exponent = np.frexp(value)
    unit = 2.0 ** max(int(exponent) - 8, -133)
    rounded = np.round(value / unit) * unit
    return np.copysign(np.inf if abs(rounded) >= 2.0**128 else rounded, value)


@pytest.mark.filterwarnings("ignore:.*encountered in cast")
@pytest.mark.parametrize("source, result", NAMES)
def test_a_kernel_may_convert(source, result):
    operation = "fptrunc" if result != "float" else "fpext"
    x = np.array([0.0, -1.5, np.inf, np.nan, 3.14159, 1e-7, 70000.0]).astype("f4")
    x = x.astype(KINDS[source])
    got = loop(source, result, f"{operation} {source} %x to {result}")(x)
    expected = x.astype(KINDS[result])
    np.testing.assert_array_equal(got.astype("f8"), expected.astype("f8"))


def test_not_an_elf_file():
    from dodeca.dialect.errors import ParseError

    with pytest.raises(ParseError, match="ELF"):
        load_objects([b"\x00" * 100])
