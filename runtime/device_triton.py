"""Plain programs in Triton for the device check: a matrix product, a softmax, an elementwise one.

    run = RUNS["matmul"]([a, b])      # tensors of PyTorch on the device
    c = run()

They are written as Triton's tutorials write them, with one set of blocks each and no search.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import triton
import triton.language as tl

_TILE, _DEPTH, _GROUP = 128, 64, 8


@triton.jit
def _product(a, b, c, n, m, k, TILE: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr):
    """c[n, m] = a[n, k] @ b[k, m]; all sizes are multiples of the blocks."""
    number = tl.program_id(0)
    down, across = tl.cdiv(n, TILE), tl.cdiv(m, TILE)
    first = number // (GROUP * across) * GROUP
    height = min(down - first, GROUP)
    i = (first + number % height) * TILE + tl.arange(0, TILE)
    j = number % (GROUP * across) // height * TILE + tl.arange(0, TILE)
    r = tl.arange(0, DEPTH)
    left = a + i[:, None] * k + r[None, :]
    right = b + r[:, None] * m + j[None, :]
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for _ in range(0, k, DEPTH):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += DEPTH
        right += DEPTH * m
    tl.store(c + i[:, None] * m + j[None, :], total.to(c.dtype.element_ty))


@triton.jit
def _softmax(x, y, columns, WIDTH: tl.constexpr):
    """A row for each program."""
    row, at = tl.program_id(0), tl.arange(0, WIDTH)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    values = values.to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    shares = powers / tl.sum(powers, axis=0)
    tl.store(y + row * columns + at, shares.to(y.dtype.element_ty), mask=at < columns)


@triton.jit
def _gelu(x, y, z, count, WIDTH: tl.constexpr):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    a = tl.load(x + at, mask=at < count).to(tl.float32)
    b = tl.load(y + at, mask=at < count).to(tl.float32)
    c = 0.5 * a * (1 + tl.erf(a * 0.7071067811865476)) * b + a
    tl.store(z + at, c.to(z.dtype.element_ty), mask=at < count)


def _run_product(given: Sequence[Any]) -> Callable[[], Any]:
    a, b = given
    (n, k), m = a.shape, b.shape[1]
    c = torch.empty((n, m), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(n, _TILE) * triton.cdiv(m, _TILE),)
    blocks = {"TILE": _TILE, "DEPTH": _DEPTH, "GROUP": _GROUP, "num_warps": 8, "num_stages": 3}

    def run() -> Any:
        cast(Any, _product)[grid](a, b, c, n, m, k, **blocks)
        return c

    return run


def _run_softmax(given: Sequence[Any]) -> Callable[[], Any]:
    (x,) = given
    y, (rows, columns) = torch.empty_like(x), x.shape

    def run() -> Any:
        cast(Any, _softmax)[(rows,)](
            x, y, columns, WIDTH=triton.next_power_of_2(columns), num_warps=8
        )
        return y

    return run


def _run_gelu(given: Sequence[Any]) -> Callable[[], Any]:
    x, y = given
    z, count = torch.empty_like(x), x.numel()

    def run() -> Any:
        cast(Any, _gelu)[(triton.cdiv(count, 1024),)](x, y, z, count, WIDTH=1024)
        return z

    return run


RUNS: dict[str, Callable[[Sequence[Any]], Callable[[], Any]]] = {
    "matmul": _run_product,
    "softmax": _run_softmax,
    "gelu": _run_gelu,
}
