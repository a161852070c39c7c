"""What a caller hands in, checked against a buffer and made ready for a kernel: never cast.

>>> as_array(2, Buffer((), "float32", "input"), "argument 0")
array(2., dtype=float32)
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..dialect.dtypes import BY_NUMPY, DTYPES
from ..dialect.errors import ArgumentError
from .dlpack import from_dlpack
from .memory import ALIGNMENT, HUGE, Lender, address_of, aligned
from .program import Buffer, Program

_SMALL = 4096  # bytes below which an output's alignment is not worth the time to arrange it
_LARGEST = {  # the largest finite value of each float dtype
    **{name: float(np.finfo(name).max) for name in ("float16", "float32", "float64")},
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
}


def as_array(value: Any, buffer: Buffer, where: str) -> np.ndarray:
    """The value as a row-major, aligned array of the buffer's dtype and shape, copied if need be.

    `where` names the value in an ArgumentError: 'argument 0', 'weight "w"'.
    """
    array = value if type(value) is np.ndarray else _converted(value, buffer, where)
    if array.dtype != DTYPES[buffer.dtype].numpy or array.shape != buffer.shape:
        raise ArgumentError(f"{where}: expected {describe(buffer)}, got {_described(array)}")
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        array = array.copy(order="C")
    return array


def _converted(value: Any, buffer: Buffer, where: str) -> np.ndarray:
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if isinstance(value, bool | int | float) and buffer.shape == ():
        return _scalar(value, buffer, where)
    if hasattr(value, "__dlpack__"):
        try:
            return from_dlpack(value)
        except (ValueError, RuntimeError, BufferError, TypeError) as error:
            text = f"{where}: a {type(value).__name__} that cannot be used as it is: {error}"
            raise ArgumentError(text) from error
    got = f"the number {value!r}" if isinstance(value, bool | int | float) else type(value).__name__
    raise ArgumentError(f"{where}: expected {describe(buffer)}, got {got}")


def _scalar(value: bool | int | float, buffer: Buffer, where: str) -> np.ndarray:
    """A Python number as a 0-d array, if the dtype holds it (a float may be rounded)."""
    row = DTYPES[buffer.dtype]
    if row.kind == "bool":
        fits = isinstance(value, bool)
    elif isinstance(value, bool):
        fits = False
    elif row.is_float:
        fits = abs(value) <= _LARGEST[row.name] or value in (math.inf, -math.inf) or value != value
    else:
        info = np.iinfo(row.numpy)
        fits = isinstance(value, int) and int(info.min) <= value <= int(info.max)
    if not fits:
        raise ArgumentError(f"{where}: expected {describe(buffer)}, which {value!r} does not fit")
    if row.numpy.type is np.void:
        return _bfloat16(float(value))
    return np.array(float(value) if row.is_float else value, row.numpy)


def _bfloat16(value: float) -> np.ndarray:
    """A bfloat16 without ml_dtypes: the upper half of a float32, rounded to even."""
    wide = np.array(value, np.float32)
    bits = int(wide.view(np.uint32))
    rounded = bits >> 16 | 64 if np.isnan(wide) else (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.array(rounded, np.uint16).view(DTYPES["bfloat16"].numpy)


def describe(buffer: Buffer) -> str:
    """A buffer's dtype and shape in words."""
    return f"a {buffer.dtype} number" if buffer.shape == () else f"{buffer.dtype} {buffer.shape}"


def _described(array: np.ndarray) -> str:
    row = BY_NUMPY.get(array.dtype)
    return f"{row.name if row else array.dtype.str} {array.shape}"


def name_of(buffer: Buffer, position: int) -> str:
    """An argument as the user knows it."""
    return f"argument {position} ({buffer.name!r})" if buffer.name else f"argument {position}"


Pointers = ctypes.Array[ctypes.c_uint64] | dict[int, int]  # addresses by buffer id


class Inputs:
    """What a program is called with: made once, so that a call need not spell out names."""

    def __init__(self, program: Program):
        self.rows: list[tuple[int, int, Buffer, str]] = []  # position, buffer id, buffer, name
        for position, index in enumerate(program.inputs):
            buffer = program.buffers[index]
            self.rows.append((position, index, buffer, name_of(buffer, position)))

    def check_count(self, values: Sequence[Any]) -> None:
        """ArgumentError where there are more or fewer arguments than the program takes."""
        if len(values) != len(self.rows):
            names = [buffer.name or describe(buffer) for _, _, buffer, _ in self.rows]
            wanted = f"{len(names)} ({', '.join(names)})" if names else "0"
            raise ArgumentError(f"expected {wanted} arguments, got {len(values)}")

    def take(self, values: Sequence[Any], pointers: Pointers) -> dict[int, np.ndarray]:
        """The caller's arguments by buffer id; `pointers` gets their addresses."""
        self.check_count(values)
        arrays = {}
        for position, index, buffer, name in self.rows:
            arrays[index] = array = as_array(values[position], buffer, name)
            pointers[index] = address_of(array)
        return arrays


def take_weights(
    program: Program, given: Mapping[str, Any], kept: Collection[int]
) -> dict[int, np.ndarray]:
    """The weights by buffer id; those in `kept` at multiples of 64 bytes, to be read in each call.

    A read-only array that lies well already is shared, as weights mapped from a file are; any other
    in `kept` is copied, so that a later change to it by the caller is never seen.
    """
    taken: dict[int, np.ndarray] = {}
    copied: dict[int, np.ndarray] = {}
    for name, index in program.weights.items():
        buffer = program.buffers[index]
        where = f"weight {name!r}"
        if name not in given:
            raise ArgumentError(f"{where}: missing; expected {describe(buffer)}")
        array = as_array(given[name], buffer, where)
        shared = array is given[name] and not array.flags.writeable
        if index in kept and (not shared or address_of(array) % ALIGNMENT):
            copied[index] = array
        else:
            taken[index] = array
    return {**taken, **_copies(copied)}


def _copies(arrays: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Copies in one piece of memory, which the system gives faster than many pieces."""
    sizes = {key: -(-array.nbytes // ALIGNMENT) * ALIGNMENT for key, array in arrays.items()}
    memory, at = aligned(sum(sizes.values())), 0
    copies = {}
    for key, array in arrays.items():
        place = memory[at : at + array.nbytes]
        copies[key] = place.view(array.dtype).reshape(array.shape)
        np.copyto(copies[key], array)
        at += sizes[key]
    return copies


def new_array(buffer: Buffer) -> np.ndarray:
    """An uninitialised array for a buffer, at a multiple of 64 bytes."""
    return np.ndarray(buffer.shape, DTYPES[buffer.dtype].numpy, aligned(buffer.bytes))


def result_maker(buffer: Buffer) -> Callable[[], tuple[np.ndarray, int]]:
    """What makes an uninitialised array for a result of each call, and gives its address too.

    The memory is nobody else's. It starts at a multiple of 64 bytes unless it is small.
    """
    shape, dtype, size = buffer.shape, DTYPES[buffer.dtype].numpy, buffer.bytes
    lender = Lender(size) if size >= HUGE else None

    def make() -> tuple[np.ndarray, int]:
        if size < _SMALL:
            array = np.empty(shape, dtype)
            return array, address_of(array)
        memory = lender.lend() if lender else np.empty(size + ALIGNMENT, np.uint8)
        address = address_of(memory)
        skip = -address % ALIGNMENT
        return np.ndarray(shape, dtype, memory, skip), address + skip

    return make


def take_outputs(program: Program, out: Any) -> list[np.ndarray] | None:
    """The caller's `out=`: an array, or a flat sequence of arrays in the order of the results."""
    if out is None:
        return None
    arrays = [out] if isinstance(out, np.ndarray) else list(out)
    if len(arrays) != len(program.outputs):
        raise ArgumentError(f"out: expected {len(program.outputs)} arrays, got {len(arrays)}")
    for position, index in enumerate(program.outputs):
        buffer, array = program.buffers[index], arrays[position]
        if not isinstance(array, np.ndarray):
            got = type(array).__name__
            text = f"out[{position}]: expected a numpy array to write into, got {got}"
            raise ArgumentError(text)
        if array.dtype != DTYPES[buffer.dtype].numpy or array.shape != buffer.shape:
            text = f"out[{position}]: expected {describe(buffer)}, got {_described(array)}"
            raise ArgumentError(text)
        if not array.flags.writeable:
            raise ArgumentError(f"out[{position}]: the array is read-only")
    return arrays
