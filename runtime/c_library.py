"""A program for users of C: a library, a header that documents it, and an example.

    exe.export_c("out")              # out/model.h, out/libmodel.so, out/example.c
    cc example.c -L. -lmodel -Wl,-rpath,'$ORIGIN' -o example

The library has everything inside: kernels, threads, memory plan, and the weights as read-only data,
which the system maps when they are read and shares between processes. It needs the C library alone.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..dialect.dtypes import DTYPES
from ..dialect.errors import ArgumentError, CompileError, TargetError
from .c_source import EXAMPLE, HEADER, SOURCE
from .cpu import read_by_calls
from .cpu_features import linux_flag
from .driver import LINE, PARK_AFTER, YIELD_AFTER
from .memory import ALIGNMENT, PAGE, Layout, plan_memory, waits
from .program import Buffer, Program
from .shared_library import LibraryCode, objects

if TYPE_CHECKING:
    from .executable import Executable

ABI = 1  # of the functions in the header
_LARGEST = 1_900_000_000  # bytes of weights: code reaches its data within 2 GiB


def export_c(exe: Executable, folder: str | os.PathLike[str], name: str = "model") -> None:
    """Write NAME.h, libNAME.so and example.c into a folder; `Executable.export_c` says the rest."""
    from .artifact import needs_of, version
    from .toolchain import build_c_library

    if not re.fullmatch(r"[a-z][a-z0-9_]{0,60}", name) or name.startswith("dodeca"):
        raise ArgumentError(f"export_c: {name!r} cannot begin the names of C functions")
    if exe.target != "cpu":
        raise TargetError(f"export_c: the program is for {exe.target}; C programs run on a CPU")
    if isinstance(exe.code, LibraryCode):
        raise ArgumentError("export_c: a loaded executable cannot be linked again; compile it")
    program, resident = exe.program, exe.resident
    data, offsets = _joined(resident)
    if len(data) > _LARGEST:
        raise CompileError(f"export_c: {len(data)} bytes of weights; a library holds {_LARGEST}")
    model = _Model(program, plan_memory(program, program.plan), offsets, name)
    words = {
        "NAME": name,
        "UPPER": name.upper(),
        "ABI": str(ABI),
        "VERSION": version(),
        "CORE": needs_of(exe).core,
    }
    header = _filled(HEADER, {**words, **model.header()})
    flags = "".join(f'"{linux_flag(feature)}", ' for feature in needs_of(exe).features)
    digest = hashlib.sha256(data).hexdigest()
    source = _filled(SOURCE, {**words, **model.source(), "FLAGS": flags, "DIGEST": digest})
    used = {launch.kernel for launch in program.plan}
    kernels = {key: kernel for key, kernel in program.kernels.items() if key in used}
    inside = {f"{name}.h": header.encode(), "weights.bin": bytes(data) or b"\0"}
    built = build_c_library(source, objects(kernels), f"{name}_*", f"lib{name}.so", inside)
    made = Path(folder)
    made.mkdir(parents=True, exist_ok=True)
    for file, content in (
        (f"{name}.h", header.encode()),
        (f"lib{name}.so", built),
        ("example.c", _filled(EXAMPLE, words).encode()),
    ):
        new = made / f".{file}.{os.urandom(4).hex()}.new"
        new.write_bytes(content)
        os.replace(new, made / file)  # a running program keeps the library that it has


def _joined(resident: Mapping[int, np.ndarray]) -> tuple[bytearray, dict[int, int]]:
    """The arrays one after the other, and where each begins."""
    data, offsets = bytearray(), {}
    for index, array in resident.items():
        data += bytes(-len(data) % ALIGNMENT)
        offsets[index] = len(data)
        data += np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return data, offsets


def _filled(text: str, words: Mapping[str, str]) -> str:
    """The text with @WORD@ replaced by what the word stands for."""
    return re.sub(r"@([A-Z_]+)@", lambda found: words[found[1]], text)


@dataclass(frozen=True)
class _Model:
    """What the header and the source say of a program; `weights` are offsets in the data."""

    program: Program
    arena: Layout
    weights: Mapping[int, int]
    name: str

    def header(self) -> dict[str, str]:
        """The words of the header's text."""
        inputs, outputs = self._buffers(self.program.inputs), self._buffers(self.program.outputs)
        lines = [_line("input", i, buffer) for i, buffer in enumerate(inputs)]
        lines += [_line("output", i, buffer) for i, buffer in enumerate(outputs)]
        upper = self.name.upper()
        sizes = [
            f"#define {upper}_{kind}_{i}_BYTES {buffer.bytes}"
            for kind, buffers in (("INPUT", inputs), ("OUTPUT", outputs))
            for i, buffer in enumerate(buffers)
        ]
        return {
            "TENSORS": "\n".join(f" *   {line}" for line in lines),
            "INPUTS": str(len(inputs)),
            "OUTPUTS": str(len(outputs)),
            "SIZES": "\n".join(sizes),
        }

    def _buffers(self, ids: Iterable[int]) -> list[Buffer]:
        return [self.program.buffers[index] for index in ids]

    def source(self) -> dict[str, str]:
        """The words of the source's text."""
        return {**self._launches(), **self._places(), "LINE": str(LINE), "SPIN": str(YIELD_AFTER)}

    def _launches(self) -> dict[str, str]:
        program = self.program
        used = list(dict.fromkeys(launch.kernel for launch in program.plan))
        number = {kernel: i for i, kernel in enumerate(used)}
        kernels = [program.kernels[name] for name in used]
        for kernel in kernels:
            if not re.fullmatch(r"[A-Za-z_.$][\w.$]*", kernel.name, re.ASCII):
                raise CompileError(f"export_c: {kernel.name!r} cannot be the name of a function")
        counts = sorted({len(kernel.arguments) for kernel in kernels})
        names = [kernel.name for kernel in kernels]
        declared = [f'FUNCTION kernel_{i}(void) __asm__("{n}");' for i, n in enumerate(names)]
        declared += [f'FUNCTION call_{n}(void) __asm__("dodeca_call_{n}");' for n in counts]
        ids, rows = [], []
        waiting = waits(program.plan, program.kernels, program.buffers, self.arena.offsets)
        for launch, wait in zip(program.plan, waiting, strict=True):
            call, kernel = len(launch.arguments), program.kernels[launch.kernel]
            rows.append(
                f"{{call_{call}, kernel_{number[launch.kernel]}, ids + {len(ids)}, "
                f"{kernel.grid}, {int(wait)}}}"
            )
            ids += launch.arguments
        return {
            "KERNELS": "\n".join(declared),
            "IDS": _list(ids),
            "PLAN": ",\n    ".join(rows) or "{0, 0, 0, 0, 0}",
            "LAUNCHES": str(len(rows)),
            "WIDEST": str(max((kernel.grid for kernel in kernels), default=0)),
        }

    def _places(self) -> dict[str, str]:
        program, used = self.program, read_by_calls(self.program)
        return {
            "BUFFERS": str(max(len(program.buffers), 1)),
            "ARENA": str(-(-self.arena.bytes // PAGE) * PAGE or PAGE),
            "PLACES": _pairs(self.arena.offsets),
            "WEIGHTS": _pairs({i: at for i, at in self.weights.items() if i in used}),
            "INPUT_TENSORS": _tensors(self._buffers(program.inputs)),
            "OUTPUT_TENSORS": _tensors(self._buffers(program.outputs)),
            "INPUT_IDS": _list(program.inputs),
            "OUTPUT_IDS": _list(program.outputs),
            "COPIED": _list([int(copied) for copied in self._copied()]),
            "PARK": str(PARK_AFTER),
        }

    def _copied(self) -> list[bool]:
        """For each output whether it is a copy: of an input, a weight, or an output before it."""
        outputs, seen = self.program.outputs, {*self.program.inputs, *self.weights}
        return [index in seen or index in outputs[:i] for i, index in enumerate(outputs)]


def _line(kind: str, position: int, buffer: Buffer) -> str:
    shape = "".join(f"[{size}]" for size in buffer.shape) or "a number"
    name = f"  {_printable(buffer.name)}" if buffer.name else ""
    return f"{kind} {position}: {buffer.dtype} {shape}, {buffer.bytes} bytes{name}"


def _printable(name: str) -> str:
    """A name as a comment and a string of C can have it."""
    return re.sub(r"[^\w .\-\[\]]", "_", name, flags=re.ASCII)


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "0"


def _pairs(places: Mapping[int, int]) -> str:
    """Buffers and offsets, and an end."""
    return "".join(f"{{{index}, {at}}}, " for index, at in places.items()) + "{-1, 0}"


def _tensors(buffers: Sequence[Buffer]) -> str:
    rows = []
    for buffer in buffers:
        sizes = _list(buffer.shape)
        rows.append(
            f'{{"{_printable(buffer.name)}", "{buffer.dtype}", {len(buffer.shape)}, '
            f"(const int64_t[]){{{sizes}}}, {buffer.bytes}, {DTYPES[buffer.dtype].bytes}}}"
        )
    return ",\n    ".join(rows) or '{"", "", 0, 0, 0, 0}'
