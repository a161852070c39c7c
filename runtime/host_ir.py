"""A GPU kernel's LLVM IR, rewritten so that this CPU can run its threads as fibers.

In: optimised IR in NVPTX or AMDGPU flavour. Out: the same functions for the host, in which shared
memory has fixed addresses, coordinates are read from the record of the thread that runs, what
threads do together is a call to `sim.` functions, and (if `checked`) every access is announced:

    %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()   =>   %t = load i32, ptr %sim.tid.x
    %v = load float, ptr addrspace(3) %p, align 4         call void @sim.touch(ptr %p, i64 4, i32 7)
                                                          %v = load float, ptr %p, align 4

Number 7 is the site: where in the kernel it is, for messages and counts. What is not known raises
TargetError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import llvmlite.binding as llvm

from ..dialect.errors import CompileError, TargetError
from .collectives import Call, Operation, collective
from .fibers import STATE, THREAD, offset_of
from .inline_assembly import operation_of
from .ir_text import argument_list, bytes_of, next_type, next_value
from .warp_ir import DECLARATIONS

_SPACES = {"nvvm": "[13457]", "amdgcn": "[13458]"}  # what a pointer is on the host
_GUARD = 256  # bytes between two arrays in shared memory: a row of all banks

_OF_AXIS = {  # intrinsic without its axis: the field of a thread's record, or of the state
    "nvvm.read.ptx.sreg.tid": "tid",
    "nvvm.read.ptx.sreg.ctaid": "ctaid",
    "nvvm.read.ptx.sreg.ntid": "ntid",
    "nvvm.read.ptx.sreg.nctaid": "nctaid",
    "amdgcn.workitem.id": "tid",
    "amdgcn.workgroup.id": "ctaid",
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
# A barrier in two halves with nothing between them is a barrier.
_HALVES = re.compile(
    r"(?<=\n)( +)(?:tail )?call void @llvm\.amdgcn\.s\.barrier\.signal\(i32 -1\)(, !dbg !\d+)?\n"
    r" +(?:tail )?call void @llvm\.amdgcn\.s\.barrier\.wait\(i16 -1\)(?:, !dbg !\d+)?(?=\n)"
)
_WIDE = re.compile(r"@llvm\.mem(?:cpy|move|set)(?:\.inline)?\.")


@dataclass(frozen=True)
class Site:
    """An instruction of a kernel that accesses memory or meets other threads."""

    kind: str  # "load", "store", "atomic", "async" (a copy that lands later) or "meets"
    text: str  # the instruction
    where: str  # file:line, if the IR says so

    @property
    def said(self) -> str:
        return f"`{self.text}`" + (f" ({self.where})" if self.where else "")


@dataclass(frozen=True)
class HostIR:
    """A kernel for the host, and what is to be known to run it."""

    text: str
    sites: tuple[Site, ...]
    operations: tuple[Operation, ...]  # what Python does, by the kind that a thread asks for
    waits: bool  # whether threads may wait: each needs a fiber
    # Offset and bytes of each array in shared memory; 0 bytes: the launch says how many.
    shared: tuple[tuple[int, int], ...]
    constants: tuple[str, ...]  # names of global variables; @sim.constants has their addresses


@dataclass
class _Rewriting:
    """What is collected on the way through a module."""

    name: str
    wave: int
    checked: bool
    chip: str
    places: dict[str, str]  # number of a DILocation -> file:line
    signatures: dict[str, str]  # declared function -> "result (arguments)"
    sites: list[Site] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    definitions: dict[str, str] = field(default_factory=dict)
    waits: bool = False
    names: int = 0

    def fresh(self) -> str:
        self.names += 1
        return f"%sim.v{self.names}"

    def site(self, kind: str, line: str) -> int:
        found = re.search(r", !dbg !(\d+)", line)
        where = self.places.get(found[1], "") if found else ""
        text = re.sub(r"(?:, ![\w.]+ !\d+)+$", "", line.strip())
        self.sites.append(Site(kind, text, where))
        return len(self.sites) - 1


def to_host(
    text: str, name: str, *, wave: int = 32, checked: bool = False, arena: int = 0, chip: str = ""
) -> HostIR:
    """The IR of a kernel for the host; TargetError names what cannot be run there."""
    try:
        module = llvm.parse_assembly(text)
    except RuntimeError as error:
        raise CompileError(f"simulate: kernel {name}: {error}\n{text}") from error
    functions = {
        _unspaced(one.name): _unspaced(str(one.global_value_type)) for one in module.functions
    }
    functions.setdefault("llvm.amdgcn.s.barrier", "void ()")  # see `_HALVES`
    defined = [one.name for one in module.functions if not one.is_declaration]
    if name not in defined:
        raise TargetError(f"kernel {name}: its LLVM IR defines no function of that name")
    variables = [
        (one.name, str(one.global_value_type), str(one))
        for one in module.global_variables
        if not one.name.startswith("llvm.")
    ]
    text = str(module)
    work = _Rewriting(name, wave, checked, chip, _source_lines(text), functions)
    shared, text = _shared_memory(text, variables, arena, name)
    family = "amdgcn" if "amdgcn" in module.triple or "@llvm.amdgcn." in text else "nvvm"
    text = _plain(text, family)
    body = "\n".join(_function_lines(text, work))
    _complain_of_the_rest(body, work)
    constants = [kept for kept, _, line in variables if "addrspace(3)" not in line.split("=")[1]]
    body += _constant_table(constants, [kind for kept, kind, _ in variables if kept in constants])
    body = f"{body}\n{''.join(work.definitions.values())}"
    return HostIR(
        body, tuple(work.sites), tuple(work.operations), work.waits, shared,
        tuple(constants),
    )  # fmt: skip


# --- what is the same in every line -------------------------------------------------------------


def _source_lines(text: str) -> dict[str, str]:
    """file:line of each location in the debug information."""
    files = dict(re.findall(r'^!(\d+) = !DIFile\(filename: "([^"]*)"', text, flags=re.M))
    scopes = dict(re.findall(r"^!(\d+) = .*?\bfile: !(\d+)", text, flags=re.M))
    found = {}
    pattern = r"^!(\d+) = (?:distinct )?!DILocation\(line: (\d+),.*?scope: !(\d+)"
    for number, line, scope in re.findall(pattern, text, flags=re.M):
        found[number] = f"{files.get(scopes.get(scope, ''), '?')}:{line}"
    return found


def _shared_memory(
    text: str, variables: Sequence[tuple[str, str, str]], arena: int, name: str
) -> tuple[tuple[tuple[int, int], ...], str]:
    """Give arrays in shared memory fixed addresses: offsets and sizes, and the text."""
    places, end, late = [], 0, []
    for variable, kind, line in variables:
        if "addrspace(3)" not in line.partition("=")[2].partition(" global ")[0]:
            continue
        aligned = re.search(r", align (\d+)", line)
        alignment = max(int(aligned[1]) if aligned else 16, 16)
        size = bytes_of(kind)
        if size == 0:
            late.append(variable)
            continue
        begin = -(-end // alignment) * alignment
        places.append((begin, size))
        text = _fix(text, variable, arena + begin)
        end = begin + size + _GUARD
    dynamic = -(-end // 1024) * 1024
    for variable in late:
        text = _fix(text, variable, arena + dynamic)
    if late:
        places.append((dynamic, 0))
    return tuple(places), text


def _fix(text: str, variable: str, address: int) -> str:
    quoted = rf'@(?:"{re.escape(variable)}"|{re.escape(variable)}(?![\w.$-]))'
    text = re.sub(rf"^{quoted} = .*\n", "", text, flags=re.M)
    return re.sub(quoted, f"inttoptr (i64 {address} to ptr)", text)


def _plain(text: str, family: str) -> str:
    """Drop what only a device's compiler reads; all memory is the host's one kind."""
    spaces = _SPACES[family]
    text = re.sub(
        r"^(?:target |attributes #|source_filename|![\w.]+ = |;).*\n", "", text, flags=re.M
    )
    text = re.sub(r"^@llvm\.(?:compiler\.)?used = .*\n", "", text, flags=re.M)
    text = re.sub(r"^ +#dbg_\w+\(.*\n", "", text, flags=re.M)
    text = re.sub(r"(?<=[\w)]) #\d+(?=[\s,{]|$)", "", text, flags=re.M)
    text = re.sub(r"^(define .*?)(?: ![\w.]+ !\d+)+ \{$", r"\1 {", text, flags=re.M)
    text = re.sub(r"\b(?:ptx|amdgpu)_kernel ", "", text)
    text = re.sub(rf", addrspace\({spaces}\)", "", text)
    text = re.sub(rf" addrspace\({spaces}\)", "", text)
    text = re.sub(r", !(?!dbg )[\w.]+ !\d+", "", text)
    text = re.sub(r"\baddrspacecast (?=\(?ptr)", "bitcast ", text)
    text = re.sub(r"^ +call void @llvm\.lifetime\..*\n", "", text, flags=re.M)
    text = _HALVES.sub(r"\1call void @llvm.amdgcn.s.barrier()\2", text)
    return re.sub(r"@llvm\.[\w.]+", lambda found: _unspaced(found[0]), text)


def _unspaced(name: str) -> str:
    """A name or a type in which all pointers are of the host's one kind."""
    return re.sub(r" addrspace\([134578]\)", "", re.sub(r"\.p[134578](?=\.|$)", ".p0", name))


def _constant_table(names: Sequence[str], kinds: Sequence[str]) -> str:
    """Addresses and ends of global variables, which a kernel may read."""
    rows = []
    for name, kind in zip(names, kinds, strict=True):
        end = f'ptr getelementptr ({kind}, ptr @"{name}", i64 1)'
        rows.append(f'{{ ptr, ptr }} {{ ptr @"{name}", {end} }}')
    return (
        f"\n@sim.constants = constant [{len(rows)} x {{ ptr, ptr }}] [{', '.join(rows)}]\n"
        "define ptr @sim.constant_table() {\n  ret ptr @sim.constants\n}\n"
        f"{DECLARATIONS}"
    )


# --- line by line -------------------------------------------------------------------------------


def _function_lines(text: str, work: _Rewriting) -> list[str]:
    lines: list[str] = []
    private: set[str] = set()  # pointers into a thread's own stack
    inside = fresh = False
    for line in text.splitlines():
        if line.startswith("define "):
            inside = fresh = True
            private = set()
        elif line.startswith("declare "):
            if not _declared_by_us(line, work):
                lines.append(line)
            continue
        elif fresh and line.strip():
            fresh = False
            if re.match(r'(?:[\w.$-]+|"[^"]*"):', line):
                lines += [line, *_PROLOGUE]
                continue
            lines += _PROLOGUE
        elif line == "}":
            inside = False
        lines += _rewritten(line, work, private) if inside and line.startswith("  ") else [line]
    return lines


def _declared_by_us(line: str, work: _Rewriting) -> bool:
    """Whether calls of a declared function are rewritten."""
    found = re.search(r'@"?([\w.$-]+)"?\(', line)
    name = found[1] if found else ""
    return name.startswith(("llvm.nvvm.", "llvm.amdgcn.", "dodeca."))


_PROLOGUE = [
    "  %sim.t = call ptr @sim.thread()",
    "  %sim.s = call ptr @sim.address()",
]


def _rewritten(line: str, work: _Rewriting, private: set[str]) -> list[str]:
    made = _opened(line, work, private)
    return [re.sub(r", !dbg !\d+", "", one) for one in made]


def _opened(line: str, work: _Rewriting, private: set[str]) -> list[str]:
    """A line as it is for the host, with what comes before it."""
    word = re.match(r"  (?:(%\S+) = )?((?:tail |notail |musttail )?\w+)", line)
    if word is None:
        return [line]
    opcode = word[2].split()[-1]
    if opcode == "alloca":
        private.add(word[1])
    elif opcode == "getelementptr":
        base = re.search(r", ptr (%[\w.$-]+)", line)
        if base and base[1] in private:
            private.add(word[1])
    elif opcode == "call":
        return _call(line, word[1] or "", work)
    elif work.checked and opcode in _ACCESS:
        pointer, size = _ACCESS[opcode](line)
        if pointer not in private:
            kind = opcode if opcode in ("load", "store") else "atomic"
            align = re.search(r", align (\d+)", line)
            aligned = int(align[1]) if align else 1
            return [_touch(pointer, size, work.site(kind, line), aligned), line]
    elif opcode in _DIVISIONS:
        return _division(line, work)
    return [line]


_DIVISIONS = ("udiv", "sdiv", "urem", "srem")


def _division(line: str, work: _Rewriting) -> list[str]:
    """A GPU gives some number for a division by zero; this CPU would end the process."""
    found = re.match(
        r"( +\S+ = \w+(?: exact)?) (i\d+) (.*), (%\S+)$", re.sub(r", !dbg.*", "", line)
    )
    if found is None:
        return [line]
    zero, divisor = work.fresh(), work.fresh()
    return [
        f"  {zero} = icmp eq {found[2]} {found[4]}, 0",
        f"  {divisor} = select i1 {zero}, {found[2]} -1, {found[2]} {found[4]}",
        f"{found[1]} {found[2]} {found[3]}, {divisor}",
    ]


def _touch(pointer: str, size: int | str, site: int, align: int = 1) -> str:
    how = size + ((align - 1) << 32) if isinstance(size, int) else size
    return f"  call void @sim.touch(ptr {pointer}, i64 {how}, i32 {site})"


def _after(pattern: str, line: str) -> int:
    found = re.search(pattern, line)
    assert found is not None, line
    return found.end()


def _load(line: str) -> tuple[str, int]:
    kind, position = next_type(line, _after(r" = load (?:atomic |volatile )*", line))
    pointer, _ = next_value(line, line.index("ptr ", position) + 4)
    return pointer, bytes_of(kind)


def _store(line: str) -> tuple[str, int]:
    kind, position = next_type(line, _after(r"  store (?:atomic |volatile )*", line))
    _, position = next_value(line, position)
    pointer, _ = next_value(line, line.index("ptr ", position) + 4)
    return pointer, bytes_of(kind)


def _exchange(line: str) -> tuple[str, int]:
    pointer, position = next_value(line, line.index(" ptr ") + 5)
    kind, _ = next_type(line, position + 2)
    return pointer, bytes_of(kind)


_ACCESS: dict[str, Callable[[str], tuple[str, int]]] = {
    "load": _load,
    "store": _store,
    "atomicrmw": _exchange,
    "cmpxchg": _exchange,
}


def _call(line: str, result: str, work: _Rewriting) -> list[str]:
    if " asm " in line:
        return _assembly(line, result, work)
    found = re.search(r'@"?((?:llvm|dodeca)\.[\w.]+)"?\(', line)
    if found is None:
        return [line]
    full, arguments = found[1], argument_list(line, found.end())
    if _WIDE.search(found[0]):
        return _bulk(line, full, arguments, work)
    name = full.removeprefix("llvm.")
    short, _, axis = name.rpartition(".")
    if axis in ("x", "y", "z") and short in _OF_AXIS:
        return _register(result, _OF_AXIS[short], "xyz".index(axis), work)
    if name in _SAME:
        return [line.replace(f"@llvm.{name}(", f"@llvm.{_SAME[name]}(")]
    if name in _RECIPROCAL:
        kind = _RECIPROCAL[name]
        return [f"  {result} = fdiv {kind} 1.0, {arguments[0][1]}"]
    if name in ("amdgcn.implicitarg.ptr", "amdgcn.dispatch.ptr"):
        which = "implicit" if "implicit" in name else "dispatch"
        return _loaded("ptr", result, "%sim.s", offset_of(STATE, which), work)
    return _together(line, full, result, arguments, work)


def _assembly(line: str, result: str, work: _Rewriting) -> list[str]:
    """Inline assembly, if it is known. Shared memory may come as 32 bits."""
    quoted = re.search(r'call (.*?) asm (?:sideeffect |alignstack )*"([^"]*)", "([^"]*)"\(', line)
    name = operation_of(quoted[2]) if quoted else None
    if quoted is None or name is None:
        raise TargetError(f"kernel {work.name}: inline assembly is not simulated: {line.strip()}")
    if not name:
        return []
    arguments, before = argument_list(line, quoted.end()), []
    if "mbarrier" in name and arguments[0][0] == "i32":
        pointer = work.fresh()
        before.append(f"  {pointer} = inttoptr i32 {arguments[0][1]} to ptr")
        arguments[0] = ("ptr", pointer)
    return before + _written(line, name, quoted[1], result, arguments, work)


def _register(result: str, name: str, axis: int, work: _Rewriting) -> list[str]:
    of_thread = name in (THREAD.names or ())
    base, record = ("%sim.t", THREAD) if of_thread else ("%sim.s", STATE)
    return _loaded("i32", result, base, offset_of(record, name) + 4 * axis, work)


def _loaded(kind: str, result: str, base: str, at: int, work: _Rewriting) -> list[str]:
    pointer = work.fresh()
    return [
        f"  {pointer} = getelementptr i8, ptr {base}, i64 {at}",
        f"  {result} = load {kind}, ptr {pointer}",
    ]


def _bulk(
    line: str, full: str, arguments: Sequence[tuple[str, str]], work: _Rewriting
) -> list[str]:
    """llvm.memcpy, memmove and memset: checked, but of one record at most in the log."""
    if not work.checked:
        return [line]
    kind, size = arguments[2]
    made, wide = [], size
    if kind != "i64":
        wide = work.fresh()
        made.append(f"  {wide} = zext {kind} {size} to i64")
    made.append(_touch(arguments[0][1], wide, work.site("store", line)))
    if "memset" not in full:
        made.append(_touch(arguments[1][1], wide, work.site("load", line)))
    return [*made, line]


def _together(
    line: str, full: str, result: str, arguments: list[tuple[str, str]], work: _Rewriting
) -> list[str]:
    """A call to what threads do with each other, or with units beside them."""
    if not full.startswith(("llvm.nvvm.", "llvm.amdgcn.", "dodeca.")):
        return [line]
    kind, _, _ = work.signatures[full].partition(" (")
    return _written(line, full, kind, result, arguments, work)


def _written(
    line: str,
    full: str,
    kind: str,
    result: str,
    arguments: list[tuple[str, str]],
    work: _Rewriting,
) -> list[str]:
    call = Call(full.removeprefix("llvm."), kind, arguments, work.wave, work.checked, work.chip)
    made = collective(call, work.operations)
    if made is None:
        raise TargetError(f"kernel {work.name}: the intrinsic {call.name} is not simulated")
    if made.does == "nothing":
        return []
    if made.does == "value":
        return [f"  {result} = {made.body}"]
    work.waits |= made.waits
    sites = [work.site(one, line) for one in made.sites]
    if made.key not in work.definitions:
        work.definitions[made.key] = made.body
    passed = [f"{of} {value}" for of, value in arguments] + [f"i32 {sites[0] if sites else 0}"]
    assigned = f"{result} = " if result else ""
    return [f'  {assigned}call {kind} @"{made.key}"({", ".join(passed)})']


def _complain_of_the_rest(text: str, work: _Rewriting) -> None:
    name = work.name
    device = re.search(r"@llvm\.((?:nvvm|amdgcn|r600)\.[\w.]+)", text)
    if device:
        raise TargetError(f"kernel {name}: the intrinsic {device[1]} is not simulated")
    space = re.search(r"addrspace\(\d+\)", text)
    if space:
        raise TargetError(f"kernel {name}: memory of {space[0]} is not simulated")
    outside = re.search(r"^declare [^@\n]*@(?!llvm\.|\"?sim\.)\"?([\w.$]+)", text, flags=re.M)
    if outside:
        raise TargetError(f"kernel {name}: the function {outside[1]} is not in its module")
