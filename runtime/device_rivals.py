"""The same work by PyTorch (cuBLAS, hipBLAS, its own attention) and Triton, where installed.

    rivals = installed()                          # {"torch": "2.9.0", "triton": "3.5.0"}
    seconds = time_torch(case, arrays, limit=0.5)     # the median, by the device's clock
    seconds = time_triton(case, arrays, limit=0.5)    # None where no program was written for it

Both are timed as our own programs are: events, a warm-up, and a write of twice the last cache
before each run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np

from .device_cases import Case

WARM_UP, LEAST, MOST = 3, 5, 50  # runs
FLUSH = 256 << 20  # bytes: above twice the last cache of what there is
Run = Callable[[], Any]


def installed() -> dict[str, str]:
    """The versions of the libraries that can be compared with, by name."""
    found = {}
    for name in ("torch", "triton"):
        if find_spec(name) is not None:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = "unknown"
    return found


def time_torch(case: Case, arrays: Sequence[np.ndarray], limit: float) -> float | None:
    """Seconds of a run of PyTorch's own functions."""
    torch = import_module("torch")
    if case.rival not in _TORCH:
        return None
    given = [to_torch(torch, array) for array in arrays]
    with torch.no_grad():
        return _median(torch, _TORCH[case.rival](torch, given, case.options), limit)


def time_triton(case: Case, arrays: Sequence[np.ndarray], limit: float) -> float | None:
    """Seconds of a run of a plain program in Triton, as its tutorials have them."""
    programs = import_module(".device_triton", __package__)
    if case.rival not in programs.RUNS:
        return None
    torch = import_module("torch")
    given = [to_torch(torch, array) for array in arrays]
    return _median(torch, programs.RUNS[case.rival](given), limit)


def to_torch(torch: Any, array: np.ndarray, device: str = "cuda") -> Any:
    """A tensor on the device; ROCm's PyTorch calls it "cuda" too."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).to(device).view(torch.bfloat16)
    return torch.from_numpy(array).to(device)


def _median(torch: Any, run: Run, limit: float) -> float:
    flush = torch.empty(FLUSH, dtype=torch.uint8, device="cuda")

    def sample() -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        first.record()
        run()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) * 1e-3

    taken = [sample() for _ in range(WARM_UP)][-1]
    if taken > limit:
        return taken
    count = int(min(MOST, max(LEAST, limit / max(taken, 1e-6))))
    return statistics.median(sample() for _ in range(count))


# --- programs -----------------------------------------------------------------------------------


def _attention(torch: Any, given: Sequence[Any], options: dict[str, Any]) -> Run:
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(*given, is_causal=options["causal"])


def _layer_norm(torch: Any, given: Sequence[Any], options: dict[str, Any]) -> Run:
    x, gain, bias = given
    return lambda: torch.nn.functional.layer_norm(x, gain.shape, gain, bias)


def _gelu(torch: Any, given: Sequence[Any], options: dict[str, Any]) -> Run:
    x, y = given
    return lambda: torch.addcmul(x, torch.nn.functional.gelu(x), y)


def decode(torch: Any, given: Sequence[Any], options: dict[str, Any]) -> Run:
    """The layer of `device_cases`, as a user of PyTorch writes it."""
    x, keys, values, cos, sin, before, after, q, k, v, o, gate, up, down = given
    groups, _, size = keys.shape
    many = q.shape[1] // (groups * size)

    def norm(x: Any, gain: Any) -> Any:
        wide = x.float()
        spread = (wide * wide).mean(-1, keepdim=True) + 1e-6
        return (wide * torch.rsqrt(spread)).to(x.dtype) * gain

    def rotated(x: Any) -> Any:
        return x * cos + torch.roll(x, size // 2, -1) * sin

    def run() -> Any:
        inner = norm(x, before)
        query = rotated((inner @ q).view(groups, many, size))
        key = rotated((inner @ k).view(groups, 1, size))
        value = (inner @ v).view(groups, 1, size)
        keys[:, -1:], values[:, -1:] = key, value  # in place, as caches are kept
        scores = query @ keys.mT * (1 / math.sqrt(size))
        mixed = torch.softmax(scores, -1) @ values
        y = x + mixed.reshape(1, -1) @ o
        inner = norm(y, after)
        return y + (torch.nn.functional.silu(inner @ gate) * (inner @ up)) @ down, key, value

    return run


_TORCH: dict[str, Callable[[Any, Sequence[Any], dict[str, Any]], Run]] = {
    "matmul": lambda torch, given, _: lambda: torch.mm(*given),
    "attention": _attention,
    "softmax": lambda torch, given, _: lambda: torch.softmax(given[0], -1),
    "layer_norm": _layer_norm,
    "gelu": _gelu,
    "transpose": lambda torch, given, _: lambda: given[0].T.contiguous(),
    "decode": decode,
}
