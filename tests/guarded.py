"""Memory that tells when it is touched where it must not be.

room = Guarded((3, 5), np.dtype(np.float32), last=True)    # its end is the end of a page
room.array[...] = 1.0                                      # the page behind cannot be touched
room.breach()                                              # bytes before it have changed
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_MARK = 0xC5


class Guarded:
    """Room for an array between two pages that cannot be touched, at its end or at its start."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, last: bool):
        size = int(np.prod(shape)) * dtype.itemsize
        self.pages = max(1, -(-size // PAGE)) * PAGE
        self._map = mmap.mmap(-1, self.pages + 2 * PAGE)
        self._all = np.frombuffer(self._map, np.uint8)
        self._base = self._all.ctypes.data
        self._inside = self._all[PAGE : PAGE + self.pages]
        start = self.pages - size if last else 0
        self._around = np.ones(self.pages, bool)
        self._around[start : start + size] = False
        self.bytes = self._inside[start : start + size]
        self.array = self.bytes.view(dtype).reshape(shape)
        self._inside[self._around] = _MARK
        for page in (self._base, self._base + PAGE + self.pages):
            self._protect(page, PAGE, mmap.PROT_READ & 0)

    def _protect(self, address: int, size: int, how: int) -> None:
        if _LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), how):
            raise OSError(ctypes.get_errno(), "mprotect")

    def only_read(self) -> Guarded:
        """The same, and from now on it cannot be written."""
        self._protect(self._base + PAGE, self.pages, mmap.PROT_READ)
        return self

    def breach(self) -> bool:
        """Whether something beside the array has been written."""
        return bool((self._inside[self._around] != _MARK).any())
