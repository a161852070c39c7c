"""Arrays of other libraries, without a copy, through the DLPack protocol.

numpy's own `from_dlpack` knows no bfloat16, so the capsule is read here: the C structures below are
those of DLPack 0.8, which every producer gives when it is asked for no version.

    >>> from_dlpack(np.arange(3, dtype="int32"))
    array([0, 1, 2], dtype=int32)
    >>> device_view(a_tensor_on_a_gpu, stream).address
    140352468713472
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dialect.dtypes import DTYPES

_CPU, _CUDA_HOST, _ROCM_HOST = 1, 3, 11  # DLPack's device types whose memory the CPU reads
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # DLPack's dtype codes, as numpy's kinds
_BFLOAT = 4
_CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}


DLPACK_CODES = {  # code and bits of each dtype
    name: (_BFLOAT if name == "bfloat16" else _CODES[row.kind], row.bits)
    for name, row in DTYPES.items()
}


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _Memory:
    """Keeps a capsule, and with it the producer's memory, alive while numpy looks at it."""

    def __init__(self, capsule: Any, interface: dict[str, Any]):
        self.capsule = capsule  # never marked as used, so that its own destructor frees the tensor
        self.__array_interface__ = interface


def from_dlpack(value: Any) -> np.ndarray:
    """A read-only numpy view of an object with `__dlpack__`; ValueError says why there is none."""
    device = value.__dlpack_device__()[0]
    if device not in (_CPU, _CUDA_HOST, _ROCM_HOST):
        raise ValueError("is not in the CPU's memory")
    capsule = value.__dlpack__()
    tensor = Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    dtype = _dtype(tensor)
    shape = tuple(tensor.shape[: tensor.ndim])
    if 0 in shape:
        return np.empty(shape, dtype)
    strides = None
    if tensor.strides:
        strides = tuple(step * dtype.itemsize for step in tensor.strides[: tensor.ndim])
    interface = {
        "version": 3,
        "shape": shape,
        "typestr": f"|V{dtype.itemsize}",
        "strides": strides,
        "data": (tensor.data + tensor.byte_offset, True),
    }
    return np.asarray(_Memory(capsule, interface)).view(dtype)


@dataclass(frozen=True)
class DeviceView:
    """An array of another library on a device, and what keeps it alive."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype
    device: int
    holder: Any

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def device_type(value: Any) -> int:
    """DLPack's type of the device that a value lies on; the CPU's for what speaks no DLPack."""
    return value.__dlpack_device__()[0] if hasattr(value, "__dlpack_device__") else _CPU


def device_view(value: Any, stream: int) -> DeviceView:
    """A view of a row-major array on a device, ready for work on a stream of that device.

    ValueError says why there is none.
    """
    capsule = value.__dlpack__(stream=stream)
    tensor = Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    dtype, shape = _dtype(tensor), tuple(tensor.shape[: tensor.ndim])
    if tensor.strides and 0 not in shape:
        step = 1
        for size, stride in reversed([*zip(shape, tensor.strides[: tensor.ndim], strict=True)]):
            if size != 1 and stride != step:
                raise ValueError("is not row-major: make it contiguous")
            step *= size
    address = (tensor.data or 0) + tensor.byte_offset
    return DeviceView(address, shape, dtype, tensor.device_id, capsule)


def _dtype(tensor: Tensor) -> np.dtype:
    if tensor.lanes == 1 and (tensor.code, tensor.bits) == (_BFLOAT, 16):
        return DTYPES["bfloat16"].numpy
    if tensor.lanes == 1 and tensor.code in _KINDS and tensor.bits % 8 == 0:
        return np.dtype(f"{_KINDS[tensor.code]}{tensor.bits // 8}")
    raise ValueError(f"has a dtype that numpy does not know (DLPack code {tensor.code})")
