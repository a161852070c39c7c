"""Small kernels in LLVM IR for the SIMT executor's tests, and how they are run."""

import re
from functools import cache

import llvmlite.binding as llvm
import numpy as np
from dodeca.runtime.ir_text import bytes_of, parts
from dodeca.runtime.operations import numpy_type
from dodeca.runtime.simt import device_kernel

FEATURES = {
    "sm_80": "+ptx80",
    "sm_90": "+ptx80",
    "sm_90a": "+ptx80",
    "sm_89": "+ptx84",
    "sm_100a": "+ptx86",
}
TRIPLES = {"cuda": "nvptx64-nvidia-cuda", "hip": "amdgcn-amd-amdhsa"}
THREAD = {"cuda": "nvvm.read.ptx.sreg.tid", "hip": "amdgcn.workitem.id"}
BLOCK = {"cuda": "nvvm.read.ptx.sreg.ctaid", "hip": "amdgcn.workgroup.id"}
CONVENTION = {"cuda": "ptx_kernel", "hip": "amdgpu_kernel"}


@cache
def text_for_chip(ir: str, target: str) -> str:
    """PTX or ISA: proof that LLVM takes the IR for this chip."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    family, _, chip = target.partition(":")
    module = llvm.parse_assembly(ir)
    module.verify()
    for line in str(module).splitlines():  # an intrinsic that LLVM knows has attributes
        assert not line.startswith("declare") or re.search(r"@(?!llvm\.)| #\d+$", line), line
    machine = llvm.Target.from_triple(TRIPLES[family]).create_target_machine(
        cpu=chip, features=FEATURES.get(chip, "")
    )
    module.triple, module.data_layout = TRIPLES[family], str(machine.target_data)
    return machine.emit_assembly(module)


@cache
def optimised(ir: str, target: str) -> str:
    """The IR after the passes that LLVM has for this chip."""
    text_for_chip(ir, target)
    family, _, chip = target.partition(":")
    machine = llvm.Target.from_triple(TRIPLES[family]).create_target_machine(
        cpu=chip, features=FEATURES.get(chip, ""), opt=3
    )
    module = llvm.parse_assembly(ir)
    module.triple, module.data_layout = TRIPLES[family], str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return str(module)


def kernel(target: str, body: str, arguments: int = 2, before: str = "") -> str:
    """A kernel @k(ptr %p0, ptr %p1, ...); %t is its thread and %b its block.

    What the body calls is declared by its calls.
    """
    family = target.partition(":")[0]
    heads = ", ".join(f"ptr addrspace(1) %p{i}" for i in range(arguments))
    body = (
        f"  %t = call i32 @llvm.{THREAD[family]}.x()\n"
        f"  %b = call i32 @llvm.{BLOCK[family]}.x()\n{body}"
    )
    text = f'target triple = "{TRIPLES[family]}"\n{before}\n'
    text += f"define {CONVENTION[family]} void @k({heads}) {{\n{body}\n  ret void\n}}\n"
    return text + declarations(body)


def declarations(body: str) -> str:
    """A declaration of each intrinsic that is called."""
    found = {}
    for result, name, arguments in re.findall(
        r"call ((?:\{[^}]*\}|<[^>]*>|[\w() ]+?)) @(llvm\.[\w.]+)\((.*)\)", body
    ):
        kinds = re.findall(r"(ptr addrspace\(\d+\)|<[^>]*>|[a-z]\w*) (?=[^,]+)", arguments)
        found[name] = f"declare {result} @{name}({', '.join(kinds)})\n"
    return "".join(found.values())


def run(ir, target, arrays, blocks=1, threads=32, checked=True, **more):
    """Launch @k on arrays, which it changes; what it counted."""
    blocks = blocks if isinstance(blocks, tuple) else (blocks, 1, 1)
    threads = threads if isinstance(threads, tuple) else (threads, 1, 1)
    code = device_kernel("k", ir, len(arrays), target, checked)
    return code.launch(blocks, threads, [(x.ctypes.data, x.nbytes) for x in arrays], **more)


def wave_of(target: str) -> int:
    chip = target.partition(":")[2]
    return 64 if chip.startswith("gfx9") else 32


def one_call(target: str, name: str, result: str, arguments: list[str]) -> str:
    """A kernel in which each thread loads an intrinsic's arguments from its row of %p0, and stores
    the results in its row of %p1. An argument "i32 4" is a constant."""
    body, at, passed = ["  %wide = zext i32 %t to i64"], 0, []
    stride = sum(_room(kind) for kind in arguments if " " not in kind or kind[0] == "<")
    body.append(f"  %in.at = mul i64 %wide, {max(stride, 1)}")
    body.append("  %in = getelementptr i8, ptr addrspace(1) %p0, i64 %in.at")
    for i, kind in enumerate(arguments):
        if " " in kind and kind[0] != "<":
            passed.append(kind)
            continue
        body.append(f"  %at{i} = getelementptr i8, ptr addrspace(1) %in, i64 {at}")
        stored = "i8" if kind == "i1" else kind
        body.append(f"  %l{i} = load {stored}, ptr addrspace(1) %at{i}, align 1")
        value = f"%l{i}"
        if kind == "i1":
            body.append(f"  %c{i} = trunc i8 %l{i} to i1")
            value = f"%c{i}"
        passed.append(f"{kind} {value}")
        at += _room(kind)
    body.append(f"  %r = call {result} @llvm.{name}({', '.join(passed)})")
    out = sum(_room(kind) for kind in parts(result))
    body.append(f"  %out.at = mul i64 %wide, {out}")
    body.append("  %out = getelementptr i8, ptr addrspace(1) %p1, i64 %out.at")
    at = 0
    for i, kind in enumerate(parts(result)):
        value = "%r"
        if result.startswith("{"):
            value = f"%e{i}"
            body.append(f"  {value} = extractvalue {result} %r, {i}")
        if kind == "i1":
            body.append(f"  %w{i} = zext i1 {value} to i8")
            kind, value = "i8", f"%w{i}"
        body.append(f"  %o{i} = getelementptr i8, ptr addrspace(1) %out, i64 {at}")
        body.append(f"  store {kind} {value}, ptr addrspace(1) %o{i}, align 1")
        at += _room(kind)
    return kernel(target, "\n".join(body))


def _room(kind: str) -> int:
    return max(4, bytes_of(kind))


def call_on(target, name, result, arguments, values, threads=None, accept=True):
    """The results of an intrinsic on values, an array (threads, ...) for each argument that is not
    constant; `accept`: the IR is compiled for the chip too."""
    ir = one_call(target, name, result, arguments)
    assert not accept or text_for_chip(ir, target)
    threads = threads or wave_of(target)
    free = [kind for kind in arguments if " " not in kind or kind[0] == "<"]
    rows = np.zeros((threads, sum(map(_room, free)) or 1), np.uint8)
    _fill(rows, free, values)
    members = parts(result)
    out = np.zeros((threads, sum(map(_room, members))), np.uint8)
    for reverse in (True, False):
        out[:] = 0
        run(ir, target, [rows, out], threads=threads, reverse=reverse)
    found, at = [], 0
    for kind in members:
        dtype = numpy_type(kind)
        part = np.ascontiguousarray(out[:, at : at + dtype.itemsize])
        found.append(part.view(dtype.base) if dtype.shape else part.view(dtype)[:, 0])
        at += _room(kind)
    return found


def _fill(rows, kinds, values):
    at = 0
    for kind, value in zip(kinds, values, strict=True):
        dtype = numpy_type(kind)
        raw = np.ascontiguousarray(value).view(np.uint8).reshape(len(rows), dtype.itemsize)
        rows[:, at : at + dtype.itemsize] = raw
        at += _room(kind)
