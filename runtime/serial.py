"""A compiled program as plain bytes, and back: JSON for what it says, blobs for code and texts.

    files = encode(program)               # {"program.json": b'{"target":...', "0": b"\\x7fELF..."}
    program = decode(unpack(pack(files)))

What is decoded may come from anywhere. `decode` makes no program that the runtime could not run: a
launch names kernels and buffers that are there, gives each kernel arrays of the shapes and dtypes
that it was compiled for, and writes only where writing is allowed. It cannot know what the code
itself does.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..dialect.dtypes import DTYPES
from ..dialect.errors import ParseError
from .container import pack, parse_json, unpack
from .program import Buffer, Kernel, Launch, Program

__all__ = ["MANIFEST", "decode", "encode", "pack", "unpack"]

MANIFEST = "program.json"
ROLES: tuple[str, ...] = ("input", "output", "weight", "prepared", "scratch")
_TARGET = re.compile(r"cpu|(cpu|cuda|hip):[a-z0-9_-]{1,40}")
_LARGEST = 1 << 47  # bytes of a buffer: what an address can reach
_MOST = (1 << 31) - 1  # programs of a grid, threads of a block
_DEEPEST = 16  # how deep facts may nest
T = TypeVar("T")

# --- a program as files -------------------------------------------------------------------------


class _Blobs:
    """Blobs named 0, 1, ...; equal ones are kept once."""

    def __init__(self) -> None:
        self.names: dict[bytes, str] = {}

    def add(self, data: bytes | str) -> str:
        blob = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
        return self.names.setdefault(blob, str(len(self.names)))


def encode(program: Program) -> dict[str, bytes]:
    """The files of a program, by name. Sequences in its report and resources come back as lists."""
    blobs = _Blobs()
    manifest = {
        "target": program.target,
        "kernels": {name: _kernel_row(kernel, blobs) for name, kernel in program.kernels.items()},
        "buffers": [[list(b.shape), b.dtype, b.role, b.name] for b in program.buffers],
        "prepare": [[n.kernel, list(n.arguments), n.predicted] for n in program.prepare],
        "plan": [[n.kernel, list(n.arguments), n.predicted] for n in program.plan],
        "inputs": list(program.inputs),
        "outputs": list(program.outputs),
        "weights": program.weights,
        "stages": {name: blobs.add(text) for name, text in program.stages.items()},
        "report": plain(program.report),
    }
    text = json.dumps(manifest, separators=(",", ":"))
    return {MANIFEST: text.encode(), **{name: blob for blob, name in blobs.names.items()}}


def _kernel_row(kernel: Kernel, blobs: _Blobs) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "target": kernel.target,
        "grid": kernel.grid,
        "block": kernel.block,
        "arguments": [[list(shape), dtype] for shape, dtype in kernel.arguments],
        "outputs": kernel.outputs,
        "fused": list(kernel.fused),
        "stages": {stage: blobs.add(text) for stage, text in kernel.stages.items()},
        "llvm_ir": blobs.add(kernel.llvm_ir),
        "text": blobs.add(kernel.assembly),
        "binary": blobs.add(kernel.binary),
        "resources": plain(kernel.resources),
    }


def plain(value: Any) -> Any:
    """Facts as JSON knows them: sequences as lists, numpy's numbers as Python's, others as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return plain(value.item()) if hasattr(value, "item") else str(value)


# --- and back -----------------------------------------------------------------------------------


def decode(files: Mapping[str, bytes]) -> Program:
    """The program of such files; ParseError says what does not fit."""
    if MANIFEST not in files:
        raise ParseError(f"the program has no {MANIFEST}")
    row = _row(
        parse_json(files[MANIFEST], MANIFEST),
        "program",
        ("target", "kernels", "buffers", "prepare", "plan", "inputs", "outputs", "weights"),
        ("stages", "report"),
    )
    target = _text(row["target"], "target")
    if not _TARGET.fullmatch(target):
        raise ParseError(f"target: {target!r} is not one of dodeca's")
    kernels = _mapped(row["kernels"], "kernels", lambda one, at: _kernel(one, at, target, files))
    if len({kernel.name for kernel in kernels.values()}) != len(kernels):
        raise ParseError("kernels: two have one name")
    program = Program(
        target=target,
        kernels=kernels,
        buffers=_listed(row["buffers"], "buffers", _buffer),
        prepare=_listed(row["prepare"], "prepare", _launch),
        plan=_listed(row["plan"], "plan", _launch),
        inputs=_listed(row["inputs"], "inputs", _count),
        outputs=_listed(row["outputs"], "outputs", _count),
        weights=_mapped(row["weights"], "weights", _count),
        stages=_mapped(row["stages"], "stages", lambda one, at: _blob_text(one, at, files)),
        report=_facts(row["report"], "report"),
    )
    _check_report(program.report)
    check(program)
    return program


def _kernel(value: Any, where: str, target: str, files: Mapping[str, bytes]) -> Kernel:
    row = _row(
        value,
        where,
        ("name", "target", "grid", "block", "arguments", "outputs", "fused", "stages"),
        ("llvm_ir", "text", "binary", "resources"),
    )
    kernel = Kernel(
        name=_text(row["name"], f"{where}.name"),
        target=_text(row["target"], f"{where}.target"),
        grid=_count(row["grid"], f"{where}.grid", _MOST),
        block=_count(row["block"], f"{where}.block", _MOST),
        arguments=_listed(row["arguments"], f"{where}.arguments", _argument),
        outputs=_count(row["outputs"], f"{where}.outputs"),
        fused=_listed(row["fused"], f"{where}.fused", _text),
        stages=_mapped(
            row["stages"], f"{where}.stages", lambda one, at: _blob_text(one, at, files)
        ),
        llvm_ir=_blob_text(row["llvm_ir"], f"{where}.llvm_ir", files),
        assembly=_blob_text(row["text"], f"{where}.text", files),
        binary=_blob(row["binary"], f"{where}.binary", files),
        resources=_facts(row["resources"], f"{where}.resources"),
    )
    if kernel.target != target:
        raise ParseError(f"{where}.target: {kernel.target!r} in a program for {target!r}")
    if not kernel.name or "\0" in kernel.name:
        raise ParseError(f"{where}.name: {kernel.name!r} cannot be the name of a function")
    if kernel.block < 1 or (target == "cpu" and kernel.block != 1):
        raise ParseError(f"{where}.block: {kernel.block} is not possible on {target}")
    if kernel.outputs > len(kernel.arguments):
        raise ParseError(f"{where}.outputs: {kernel.outputs}, of {len(kernel.arguments)} arguments")
    _count(kernel.resources.get("dynamic_shared_bytes", 0), f"{where}.resources", _MOST)
    return kernel


def _argument(value: Any, where: str) -> tuple[tuple[int, ...], str]:
    shape, dtype = _items(value, where, 2)
    sizes = _listed(shape, f"{where}.shape", _count)
    return sizes, _dtype(dtype, sizes, where)


def _buffer(value: Any, where: str) -> Buffer:
    shape, dtype, role, name = _items(value, where, 4)
    sizes = _listed(shape, f"{where}.shape", _count)
    if role not in ROLES:
        raise ParseError(f"{where}.role: expected one of {', '.join(ROLES)}; got {role!r}")
    return Buffer(sizes, _dtype(dtype, sizes, where), role, _text(name, f"{where}.name"))


def _dtype(value: Any, shape: tuple[int, ...], where: str) -> str:
    name = _text(value, f"{where}.dtype")
    if name not in DTYPES:
        raise ParseError(f"{where}.dtype: {name!r} is not one of dodeca's")
    # without the sizes of 0 too, for strides must fit an address as well
    if len(shape) > 32 or math.prod(size or 1 for size in shape) * DTYPES[name].bytes > _LARGEST:
        raise ParseError(f"{where}.shape: {shape} is too large")
    return name


def _launch(value: Any, where: str) -> Launch:
    kernel, arguments, predicted = _items(value, where, 3)
    if isinstance(predicted, bool) or not isinstance(predicted, int | float):
        raise ParseError(f"{where}.predicted: expected a number, got {_shown(predicted)}")
    ids = _listed(arguments, f"{where}.arguments", _count)
    return Launch(_text(kernel, f"{where}.kernel"), ids, float(predicted))


# --- what the parts must agree on ---------------------------------------------------------------


def check(program: Program) -> None:
    """ParseError unless every launch can run: ids in range, shapes, and who may write where."""
    buffers, last = program.buffers, len(program.buffers) - 1
    for name, ids in (
        ("inputs", program.inputs),
        ("outputs", program.outputs),
        ("weights", tuple(program.weights.values())),
    ):
        for index in ids:
            if index > last:
                raise ParseError(f"{name}: there is no buffer {index}; the last one is {last}")
    for name, ids, role in (
        ("inputs", program.inputs, "input"),
        ("weights", tuple(program.weights.values()), "weight"),
    ):
        having = [index for index, buffer in enumerate(buffers) if buffer.role == role]
        if sorted(ids) != having:
            raise ParseError(f"{name}: {list(ids)}, but the buffers of that role are {having}")
    for name, launches, reads, writes in (
        ("prepare", program.prepare, {"weight", "prepared", "scratch"}, {"prepared", "scratch"}),
        ("plan", program.plan, set(ROLES), {"scratch", "output"}),
    ):
        for position, launch in enumerate(launches):
            _check_launch(program, launch, f"{name}[{position}]", reads, writes)
    outputs = {*program.outputs}
    for launch in program.prepare:
        for index in launch.arguments:
            if index in outputs and buffers[index].role == "scratch":
                raise ParseError(f"prepare: buffer {index} is a result, which only calls make")


def _check_launch(
    program: Program, launch: Launch, where: str, reads: set[str], writes: set[str]
) -> None:
    kernel = program.kernels.get(launch.kernel)
    if kernel is None:
        raise ParseError(f"{where}: there is no kernel {launch.kernel!r}")
    if len(launch.arguments) != len(kernel.arguments):
        raise ParseError(
            f"{where}: kernel {kernel.name} takes {len(kernel.arguments)} arguments, "
            f"not {len(launch.arguments)}"
        )
    first_written = len(kernel.arguments) - kernel.outputs
    for position, index in enumerate(launch.arguments):
        if index >= len(program.buffers):
            raise ParseError(f"{where}: there is no buffer {index}")
        buffer = program.buffers[index]
        if (buffer.shape, buffer.dtype) != kernel.arguments[position]:
            shape, dtype = kernel.arguments[position]
            raise ParseError(
                f"{where}: argument {position} of kernel {kernel.name} is {dtype} {shape}, "
                f"buffer {index} is {buffer.dtype} {buffer.shape}"
            )
        if buffer.role not in (reads if position < first_written else writes):
            use = "read" if position < first_written else "write"
            raise ParseError(f"{where}: may not {use} buffer {index}, whose role is {buffer.role}")


# --- values of JSON -----------------------------------------------------------------------------


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."


def _row(value: Any, where: str, *fields: tuple[str, ...]) -> dict[str, Any]:
    """An object with exactly these fields."""
    wanted = {name for group in fields for name in group}
    if not isinstance(value, dict):
        raise ParseError(f"{where}: expected an object, got {_shown(value)}")
    if set(value) != wanted:
        odd = sorted(set(value) ^ wanted)[0]
        raise ParseError(
            f"{where}: the field {odd!r} is {'unknown' if odd in value else 'missing'}"
        )
    return value


def _items(value: Any, where: str, count: int) -> list[Any]:
    if not isinstance(value, list) or len(value) != count:
        raise ParseError(f"{where}: expected a list of {count}, got {_shown(value)}")
    return value


def _listed(value: Any, where: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
    if not isinstance(value, list):
        raise ParseError(f"{where}: expected a list, got {_shown(value)}")
    return tuple(read(part, f"{where}[{i}]") for i, part in enumerate(value))


def _mapped(value: Any, where: str, read: Callable[[Any, str], T]) -> dict[str, T]:
    if not isinstance(value, dict):
        raise ParseError(f"{where}: expected an object, got {_shown(value)}")
    return {key: read(part, f"{where}[{key!r}]") for key, part in value.items()}


def _count(value: Any, where: str, most: int = _LARGEST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ParseError(f"{where}: expected a whole number up to {most}, got {_shown(value)}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ParseError(f"{where}: expected text, got {_shown(value)}")
    return value


def _blob(value: Any, where: str, files: Mapping[str, bytes]) -> bytes:
    name = _text(value, where)
    if name not in files or name == MANIFEST:
        raise ParseError(f"{where}: there is no blob {name!r}")
    return files[name]


def _blob_text(value: Any, where: str, files: Mapping[str, bytes]) -> str:
    try:
        return _blob(value, where, files).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise ParseError(f"{where}: blob {value!r} is not text") from None


def _facts(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ParseError(f"{where}: expected an object, got {_shown(value)}")
    _check_depth(value, where, _DEEPEST)
    return value


def _check_depth(value: Any, where: str, left: int) -> None:
    if not left:
        raise ParseError(f"{where}: nests too deep")
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _check_depth(part, where, left - 1)


def _check_report(report: Mapping[str, Any]) -> None:
    """The report's times are numbers; the rest is shown as it is."""
    for stage, seconds in _mapped(
        report.get("seconds", {}), "report.seconds", lambda x, _: x
    ).items():
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise ParseError(f"report.seconds[{stage!r}]: expected a number, got {_shown(seconds)}")
