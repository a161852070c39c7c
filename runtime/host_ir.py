"""A GPU kernel's LLVM IR, rewritten so that this CPU can run its threads one at a time.

In: optimised IR in NVPTX or AMDGPU flavour. Out: the same function for the host, which takes its
coordinates as arguments after its own:

    define ptx_kernel void @k(ptr addrspace(1) %x)        define void @k(ptr %x, i32 %sim.tid, ...)
      %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()  =>    %t = add i32 %sim.tid, 0

Only kernels whose threads are independent: a barrier or workgroup memory raises TargetError.
"""

from __future__ import annotations

import re

from ..dialect.errors import TargetError

# The coordinates, in the order in which the rewritten kernel takes them.
COORDINATES = (
    ("i32", "%sim.tid"),
    ("i32", "%sim.ctaid"),
    ("i32", "%sim.ntid"),
    ("i32", "%sim.nctaid"),
    ("ptr", "%sim.implicitarg"),
    ("ptr", "%sim.dispatch"),
)
_OF_AXIS = {  # intrinsic without its axis: (what it is along x, what it is along y and z)
    "nvvm.read.ptx.sreg.tid": ("%sim.tid", "0"),
    "nvvm.read.ptx.sreg.ctaid": ("%sim.ctaid", "0"),
    "nvvm.read.ptx.sreg.ntid": ("%sim.ntid", "1"),
    "nvvm.read.ptx.sreg.nctaid": ("%sim.nctaid", "1"),
    "amdgcn.workitem.id": ("%sim.tid", "0"),
    "amdgcn.workgroup.id": ("%sim.ctaid", "0"),
}
_REGISTERS = {
    f"{name}.{axis}": f"add i32 {along_x if axis == 'x' else else_}, 0"
    for name, (along_x, else_) in _OF_AXIS.items()
    for axis in "xyz"
} | {
    "amdgcn.implicitarg.ptr": "getelementptr i8, ptr %sim.implicitarg, i64 0",
    "amdgcn.dispatch.ptr": "getelementptr i8, ptr %sim.dispatch, i64 0",
}
_SAME = {  # a device's instruction and LLVM's own name for what it computes, within its error
    "nvvm.ex2.approx.f": "exp2.f32",
    "nvvm.ex2.approx.f32": "exp2.f32",
    "nvvm.ex2.approx.ftz.f": "exp2.f32",
    "nvvm.ex2.approx.ftz.f32": "exp2.f32",
    "nvvm.lg2.approx.f": "log2.f32",
    "nvvm.lg2.approx.f32": "log2.f32",
    "nvvm.lg2.approx.ftz.f": "log2.f32",
    "nvvm.sin.approx.f": "sin.f32",
    "nvvm.sqrt.f": "sqrt.f32",
    "nvvm.sqrt.rn.f": "sqrt.f32",
    "nvvm.sqrt.rn.d": "sqrt.f64",
    "nvvm.sqrt.approx.f": "sqrt.f32",
    "nvvm.fma.rn.f": "fma.f32",
    "nvvm.fma.rn.d": "fma.f64",
    "nvvm.fmin.f": "minnum.f32",
    "nvvm.fmax.f": "maxnum.f32",
    "amdgcn.exp2.f32": "exp2.f32",
    "amdgcn.log.f32": "log2.f32",
    "amdgcn.sqrt.f32": "sqrt.f32",
    "amdgcn.sqrt.f64": "sqrt.f64",
}
_RECIPROCAL = {
    "nvvm.rcp.rn.f": "float",
    "nvvm.rcp.rn.d": "double",
    "nvvm.rcp.approx.ftz.f": "float",
    "nvvm.rcp.approx.ftz.d": "double",
    "amdgcn.rcp.f16": "half",
    "amdgcn.rcp.f32": "float",
    "amdgcn.rcp.f64": "double",
}
_CALL = r"(?:tail |notail |musttail )?call [^@\n]*@llvm\."


def to_host(text: str, name: str) -> str:
    """The IR of a kernel for the host; TargetError names what cannot be run there."""
    refuse(text, name)
    text = re.sub(r"^(?:target |attributes #).*$", "", text, flags=re.M)
    text = re.sub(r"(?<=[\w)]) #\d+(?=[\s,{]|$)", "", text, flags=re.M)
    text = re.sub(r"\b(?:ptx|amdgpu)_kernel ", "", text)
    text = _generic_pointers(text)
    text = _intrinsics(text)
    _complain_of_the_rest(text, name)
    return _with_coordinates(text, name)


def refuse(text: str, name: str) -> None:
    """TargetError if the threads of a kernel depend on each other."""
    barrier = re.search(r"@llvm\.((?:nvvm\.barrier|amdgcn\.s\.barrier)[\w.]*)", text)
    if barrier:
        raise TargetError(f"kernel {name}: the barrier {barrier[1]} is not simulated yet")
    if "addrspace(3)" in text:
        raise TargetError(f"kernel {name}: workgroup (shared) memory is not simulated yet")


def _generic_pointers(text: str) -> str:
    """Global, constant and private memory are all the host's one kind."""
    text = re.sub(r", addrspace\([145]\)", "", text)
    text = re.sub(r" addrspace\([145]\)", "", text)
    text = re.sub(r", !noalias\.addrspace !\d+", "", text)
    text = re.sub(r"\baddrspacecast (?=\(?ptr)", "bitcast ", text)
    return re.sub(
        r"@llvm\.[\w.]+", lambda found: re.sub(r"\.p[145](?=\.|$)", ".p0", found[0]), text
    )


def _intrinsics(text: str) -> str:
    """Coordinates become arguments, and a device's own mathematics becomes LLVM's."""

    def declaration(found: re.Match[str]) -> str:
        known = found[1] in _REGISTERS or found[1] in _SAME or found[1] in _RECIPROCAL
        return "" if known else found[0]

    def register(found: re.Match[str]) -> str:
        value = _REGISTERS.get(found[2])
        return f"{found[1]} = {value}" if value else found[0]

    def reciprocal(found: re.Match[str]) -> str:
        kind = _RECIPROCAL.get(found[2])
        return f"{found[1]} = fdiv {kind} 1.0, {found[3]}" if kind else found[0]

    text = re.sub(r"^declare [^@\n]*@llvm\.([\w.]+)\(.*$", declaration, text, flags=re.M)
    text = re.sub(rf"(%\S+) = {_CALL}([\w.]+)\(\).*$", register, text, flags=re.M)
    one = r"\((?:float|double|half)(?: noundef)? ([^\s()]+)\).*$"
    text = re.sub(rf"(%\S+) = {_CALL}([\w.]+){one}", reciprocal, text, flags=re.M)
    return re.sub(
        r"@llvm\.((?:nvvm|amdgcn)\.[\w.]+)",
        lambda found: f"@llvm.{_SAME.get(found[1], found[1])}",
        text,
    )


def _complain_of_the_rest(text: str, name: str) -> None:
    device = re.search(r"@llvm\.((?:nvvm|amdgcn|r600)\.[\w.]+)", text)
    if device:
        raise TargetError(f"kernel {name}: the intrinsic {device[1]} is not simulated")
    space = re.search(r"addrspace\(\d+\)", text)
    if space:
        raise TargetError(f"kernel {name}: memory of {space[0]} is not simulated")
    if re.search(r"\bcall [^@\n]*\basm ", text):
        raise TargetError(f"kernel {name}: inline assembly is not simulated")
    outside = re.search(r"^declare [^@\n]*@(?!llvm\.)\"?([\w.$]+)", text, flags=re.M)
    if outside:
        raise TargetError(f"kernel {name}: the function {outside[1]} is not in its module")


def _with_coordinates(text: str, name: str) -> str:
    """Append the coordinates to the kernel's parameters."""
    head = re.search(rf'^define [^@\n]*@"?{re.escape(name)}"?\(', text, flags=re.M)
    if head is None:
        raise TargetError(f"kernel {name}: its LLVM IR defines no function of that name")
    end, depth = head.end(), 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    parameters = text[head.end() : end - 1]
    extra = ", ".join(f"{kind} {value}" for kind, value in COORDINATES)
    joined = f"{parameters}, {extra}" if parameters.strip() else extra
    return text[: head.end()] + joined + text[end - 1 :]
