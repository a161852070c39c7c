"""Arrays on a device, without a copy, to and from other libraries through DLPack.

    y = exe(torch_tensor_on_the_gpu)          # a DeviceArray
    torch.from_dlpack(y), cupy.from_dlpack(y)     # the same memory
    y.numpy()                                     # a copy on the host

`__cuda_array_interface__` is there on NVIDIA's devices for libraries that know no DLPack.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ..dialect.dtypes import BY_NUMPY, DTYPES
from .dlpack import DLPACK_CODES, Tensor
from .gpu_session import Memory, Session
from .program import Buffer

_CPU = 1  # DLPack's type of the host
_DEFAULT_STREAMS = (None, 0, 1)  # a stream of ours waits for these and they for it


class DeviceArray:
    """A result of a call on a device: dense, row-major, never changed after.

    The call's work may still be under way; whoever takes the array through a protocol waits for it
    on their stream.
    """

    def __init__(self, memory: Memory, buffer: Buffer):
        self.memory = memory
        self.shape, self.dtype = buffer.shape, buffer.dtype
        self.nbytes = buffer.bytes

    def __repr__(self) -> str:
        facts = self.memory.session.facts
        return f"DeviceArray({self.dtype} {self.shape} on {facts.name})"

    @property
    def device(self) -> tuple[int, int]:
        """As `__dlpack_device__` has it."""
        return self.__dlpack_device__()

    def numpy(self) -> np.ndarray:
        """A copy in the host's memory, when the work is done."""
        array = np.empty(self.shape, DTYPES[self.dtype].numpy)
        session = self.memory.session
        with session.working():
            session.download([(self.memory.address, array)])
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("the array lies on a device: numpy cannot have it without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        session = self.memory.session
        return session.driver.vendor.dlpack, session.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule; `stream` will see the array once it is there, -1 asks for no such order."""
        if dl_device is not None and dl_device[0] == _CPU:
            if copy is False:
                raise BufferError("the array lies on a device: the host cannot have it uncopied")
            return self.numpy().__dlpack__()
        if copy:
            raise BufferError("a copy on the device is not made here; copy the array that you get")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array is on device {self.device}, not on {tuple(dl_device)}")
        session = self.memory.session
        if stream not in _DEFAULT_STREAMS:
            self.memory.foreign = True
            if stream != -1:
                with session.working():
                    session.before(int(stream or 0))
        return _capsule(self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        session = self.memory.session
        if session.driver.vendor.family != "cuda":
            raise AttributeError("__cuda_array_interface__ is NVIDIA's; use __dlpack__")
        row = DTYPES[self.dtype]
        if self.dtype == "bfloat16":
            raise AttributeError("__cuda_array_interface__ has no bfloat16; use __dlpack__")
        self.memory.foreign = True
        return {
            "shape": self.shape,
            "typestr": row.numpy.str,
            "data": (self.memory.address if self.nbytes else 0, False),
            "strides": None,
            "stream": session.stream,
            "version": 3,
        }


def on_device(session: Session, array: np.ndarray) -> DeviceArray:
    """A copy of an array of the host."""
    buffer = Buffer(array.shape, BY_NUMPY[array.dtype].name, "input")
    with session.working():
        memory = session.allocate(array.nbytes)
        session.upload(memory.address, np.ascontiguousarray(array))
    return DeviceArray(memory, buffer)


# --- capsules -----------------------------------------------------------------------------------


class _Managed(ctypes.Structure):
    """DLManagedTensor. The deleter is called once, by whoever has taken the capsule."""


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Managed._fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]
_out: dict[int, tuple[Any, ...]] = {}  # what must live while others have a capsule, by its address

_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api)
)
# a capsule that ends is no object any more: its address is all that may be touched
_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_NAME = b"dltensor"


@_DELETER
def _delete(address: int) -> None:
    _out.pop(address, None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _ended(capsule: int) -> None:
    """A capsule that nobody took is gone, and the array with it."""
    if _valid(capsule, _NAME):
        _out.pop(_pointer(capsule, _NAME), None)


def _capsule(array: DeviceArray) -> Any:
    """A "dltensor" capsule of an array, which lives until the deleter is called."""
    count = len(array.shape)
    shape = (ctypes.c_int64 * max(count, 1))(*array.shape)
    strides = (ctypes.c_int64 * max(count, 1))()
    step = 1
    for axis in reversed(range(count)):
        strides[axis] = step
        step *= array.shape[axis]
    code, bits = DLPACK_CODES[array.dtype]
    kind, number = array.__dlpack_device__()
    tensor = Tensor(
        data=array.memory.address,
        device_type=kind,
        device_id=number,
        ndim=count,
        code=code,
        bits=bits,
        lanes=1,
        shape=shape,
        strides=strides,
        byte_offset=0,
    )
    managed = _Managed(tensor=tensor, context=None, deleter=_delete)
    address = ctypes.addressof(managed)
    _out[address] = managed, shape, strides, array
    return _new(address, _NAME, ctypes.cast(_ended, ctypes.c_void_p).value)
