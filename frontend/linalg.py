"""Products of matrices and tensors: all are one contraction.

    view of a, view of b   both in the axes of the result followed by the contracted ones
    mul, sum_reduce        over the last axis, once for each contracted axis

16-bit floats are multiplied and summed in float32 and rounded once; integers wrap.

    >>> dd.einsum("bhqd,bhkd->bhqk", q, k), x @ w.T
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .arithmetic import binary
from .dialect.errors import ShapeError
from .maps import dims, literal, view
from .movement import reshape
from .promotion import as_tensor, promote, widen
from .reductions import fold
from .shapes import Size, normal_axis, show
from .tensor import Tensor

Labels = Sequence[str]


def contract(name: str, tensors: Sequence[Tensor], labels: Sequence[Labels], out: Labels) -> Tensor:
    """The sum, over all labels not in `out`, of the product of the tensors with these axes.

    A label twice on one tensor is its diagonal; a size of 1 meets any size. Tensors are multiplied
    from left to right, and a label is summed as soon as nothing to come needs it.
    """
    kind = tensors[0].dtype
    sizes = _label_sizes(name, tensors, labels)
    left, left_labels = widen(tensors[0]), list(labels[0])
    if len(tensors) == 1:
        return _aligned_sum([left], [left_labels], out, sizes).astype(kind)
    for i in range(1, len(tensors)):
        right, right_labels = widen(tensors[i]), list(labels[i])
        later = {label for rest in labels[i + 1 :] for label in rest} | set(out)
        left, left_labels = _without(left, left_labels, later | set(right_labels), sizes)
        right, right_labels = _without(right, right_labels, later | set(left_labels), sizes)
        both = list(dict.fromkeys([*left_labels, *right_labels]))
        kept = [*[label for label in out if label in both]]
        kept += [label for label in both if label in later and label not in kept]
        left = _aligned_sum([left, right], [left_labels, right_labels], kept, sizes)
        left_labels = kept
    return _aligned_sum([left], [left_labels], out, sizes).astype(kind)


def _label_sizes(name: str, tensors: Sequence[Tensor], labels: Sequence[Labels]) -> dict[str, Size]:
    sizes: dict[str, Size] = {}
    for tensor, named in zip(tensors, labels, strict=True):
        for label, size in zip(named, tensor.shape, strict=True):
            known = sizes.setdefault(label, size)
            if known == 1:
                sizes[label] = size
            elif size not in (1, known):
                shapes = " and ".join(show(t.shape) for t in tensors)
                raise ShapeError(f"{name}: shapes {shapes}: {known} and {size} differ")
    return sizes


def _without(
    x: Tensor, labels: list[str], needed: set[str], sizes: dict[str, Size]
) -> tuple[Tensor, list[str]]:
    """x with the labels summed that are its own business, and the labels that are left."""
    left = [label for label in dict.fromkeys(labels) if label in needed]
    if len(left) == len(set(labels)):
        return x, labels
    return _aligned_sum([x], [labels], left, sizes), left


def _aligned_sum(
    tensors: Sequence[Tensor], labels: Sequence[Labels], out: Labels, sizes: dict[str, Size]
) -> Tensor:
    """The product of the tensors in the axes of `out` and then of what is summed."""
    union = dict.fromkeys(label for named in labels for label in named)
    summed = [label for label in union if label not in out]
    order = [*out, *summed]
    shape = tuple(sizes[label] for label in order)
    d = dims(len(order))
    aligned = []
    for tensor, named in zip(tensors, labels, strict=True):
        places = [
            literal(0) if size == 1 and sizes[label] != 1 else d[order.index(label)]
            for label, size in zip(named, tensor.shape, strict=True)
        ]
        aligned.append(view([tensor], [places], shape))
    product = aligned[0] if len(aligned) == 1 else binary("mul", *aligned)
    return fold("sum_reduce", product, range(len(out), len(order)))


def matmul(x: Any, y: Any) -> Tensor:
    """The matrix product, (..., m, k) @ (..., k, n) -> (..., m, n), with numpy's rules: leading
    axes broadcast, a vector on the left is a row, on the right a column, and its axis is
    dropped."""
    a, b = promote("matmul", x, y)
    if not a.ndim or not b.ndim:
        raise ShapeError(
            f"matmul: shapes {show(a.shape)} and {show(b.shape)}: a scalar has no axis"
        )
    inner = a.shape[-1], b.shape[-2 if b.ndim > 1 else -1]
    if inner[0] != inner[1]:
        raise ShapeError(
            f"matmul: shapes {show(a.shape)} and {show(b.shape)}: {inner[0]} and {inner[1]} differ"
        )
    rank = max(a.ndim, b.ndim, 2) - 2
    batch = [f"batch{i}" for i in range(rank)]
    left = [*batch[rank - max(a.ndim - 2, 0) :], "row", "inner"][-a.ndim - (a.ndim == 1) :]
    right = [*batch[rank - max(b.ndim - 2, 0) :], "inner", "column"]
    left = ["inner"] if a.ndim == 1 else left
    right = ["inner"] if b.ndim == 1 else right
    out = [*batch, *(["row"] if a.ndim > 1 else []), *(["column"] if b.ndim > 1 else [])]
    return contract("matmul", [a, b], [left, right], out)


def einsum(subscripts: str, *operands: Any) -> Tensor:
    """numpy's einsum: explicit (`"ij,jk->ik"`) or implicit, with `...` and repeated letters."""
    tensors = promote("einsum", *operands)
    terms, arrow, result = subscripts.replace(" ", "").partition("->")
    inputs = terms.split(",")
    if len(inputs) != len(tensors) or not tensors:
        raise ShapeError(f"einsum: {subscripts!r} names {len(inputs)} operands, got {len(tensors)}")
    labels = [_labels(subscripts, term, t) for term, t in zip(inputs, tensors, strict=True)]
    dots = max((named for named in ([n for n in ls if len(n) > 1] for ls in labels)), key=len)
    if arrow:
        out = [
            label
            for part in _letters(subscripts, result)
            for label in (dots if part == "..." else [part])
        ]
    else:
        flat = [label for named in labels for label in named]
        out = [
            *dots,
            *sorted(label for label in set(flat) if len(label) == 1 and flat.count(label) == 1),
        ]
    known = {label for named in labels for label in named}
    for label in out:
        if label not in known or out.count(label) > 1:
            raise ShapeError(f"einsum: {subscripts!r}: the result has {label!r} in a wrong way")
    return contract("einsum", tensors, labels, out)


def _letters(subscripts: str, term: str) -> list[str]:
    """A term as letters, with "..." as one of them."""
    before, dots, after = term.partition("...")
    if not all(c.isalpha() and c.isascii() for c in before + after):
        raise ShapeError(f"einsum: {subscripts!r}: {term!r} is not letters and at most one '...'")
    return [*before, *([dots] if dots else []), *after]


def _labels(subscripts: str, term: str, x: Tensor) -> list[str]:
    """A label for each axis of x; the axes under '...' are named from the right."""
    letters = _letters(subscripts, term)
    free = x.ndim - sum(letter != "..." for letter in letters)
    if free < 0 or (free and "..." not in letters):
        raise ShapeError(f"einsum: {subscripts!r}: {term!r} does not fit shape {show(x.shape)}")
    dots = [f"...{i}" for i in reversed(range(free))]
    return [label for part in letters for label in (dots if part == "..." else [part])]


def tensordot(x: Any, y: Any, axes: Any = 2) -> Tensor:
    """The contraction of the last `axes` axes of x with the first of y, or of two lists of axes."""
    a, b = promote("tensordot", x, y)
    if isinstance(axes, int):
        if axes > min(a.ndim, b.ndim) or axes < 0:
            raise ShapeError(
                f"tensordot: {axes} axes of shapes {show(a.shape)} and {show(b.shape)}"
            )
        pairs = list(zip(range(a.ndim - axes, a.ndim), range(axes), strict=True))
    else:
        first, second = ([part] if isinstance(part, int) else list(part) for part in axes)
        if len(first) != len(second):
            raise ShapeError(f"tensordot: {len(first)} axes against {len(second)}")
        pairs = [
            (normal_axis("tensordot", i, a.ndim), normal_axis("tensordot", j, b.ndim))
            for i, j in zip(first, second, strict=True)
        ]
    left, right = [f"a{i}" for i in range(a.ndim)], [f"b{i}" for i in range(b.ndim)]
    for i, j in pairs:
        if a.shape[i] != b.shape[j]:
            raise ShapeError(
                f"tensordot: shapes {show(a.shape)} and {show(b.shape)}: "
                f"{a.shape[i]} and {b.shape[j]} differ"
            )
        right[j] = left[i]
    shared = {left[i] for i, _ in pairs}
    out = [label for label in (*left, *right) if label not in shared]
    return contract("tensordot", [a, b], [left, right], out)


def outer(x: Any, y: Any) -> Tensor:
    """Every product of an element of x with one of y; tensors of higher rank are flattened."""
    a, b = (reshape(as_tensor("outer", v), (-1,)) for v in (x, y))
    return contract("outer", promote("outer", a, b), [["i"], ["j"]], ["i", "j"])


def vecdot(x: Any, y: Any, axis: int = -1) -> Tensor:
    """The sum of x * y over an axis."""
    a, b = promote("vecdot", x, y)
    i, j = normal_axis("vecdot", axis, a.ndim), normal_axis("vecdot", axis, b.ndim)
    names = [f"...{k}" for k in range(max(a.ndim, b.ndim) - 1)]
    left, right = names[len(names) - a.ndim + 1 :], names[len(names) - b.ndim + 1 :]
    return contract(
        "vecdot",
        [a, b],
        [[*left[:i], "inner", *left[i:]], [*right[:j], "inner", *right[j:]]],
        names,
    )
