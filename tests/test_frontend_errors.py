"""What a user reads when a call does not fit: the operation, the operands, what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import dodeca as dd
import numpy as np
import pytest

seq = dd.Dim("seq", 1, 64)


def x(*shape: Any, dtype: str = "float32") -> dd.Tensor:
    return dd.ones(shape, dtype)


ROWS: list[tuple[Callable[[], Any], type[dd.Error], str]] = [
    (
        lambda: dd.matmul(x(2, 3), x(4, 5)),
        dd.ShapeError,
        "matmul: shapes (2, 3) and (4, 5): 3 and 4 differ",
    ),
    (lambda: x(2) @ x(), dd.ShapeError, "matmul: shapes (2,) and (): a scalar has no axis"),
    (
        lambda: x(2, 3, 4) @ x(5, 4, 3),
        dd.ShapeError,
        "matmul: shapes (2, 3, 4) and (5, 4, 3): 2 and 5 differ",
    ),
    (
        lambda: x(2, 3) + x(4),
        dd.ShapeError,
        "add: shapes (2, 3) and (4,) do not broadcast: 3 and 4 differ",
    ),
    (lambda: dd.sum(x(2, 3), axis=2), dd.ShapeError, "sum: axis 2 is outside a tensor of rank 2"),
    (
        lambda: dd.sum(x(2, 3), axis=(0, -2)),
        dd.ShapeError,
        "sum: the axes (0, -2) name an axis twice",
    ),
    (lambda: dd.softmax(x(2), axis=1), dd.ShapeError, "softmax: axis 1 is outside"),
    (
        lambda: x(2, 3).reshape(4, 2),
        dd.ShapeError,
        "cannot make (4, 2) of a tensor of shape (2, 3)",
    ),
    (
        lambda: x(2, 3).reshape(4, -1),
        dd.ShapeError,
        "cannot make (4, -1) of a tensor of shape (2, 3)",
    ),
    (lambda: x(2, 3).reshape(-1, -1), dd.ShapeError, "more than one -1"),
    (
        lambda: x(2, 3).permute(0, 0),
        dd.ShapeError,
        "permute_dims: (0, 0) is not an order of the 2 axes",
    ),
    (
        lambda: dd.squeeze(x(2, 3), 0),
        dd.ShapeError,
        "squeeze: axis 0 of shape (2, 3) is not of size 1",
    ),
    (
        lambda: dd.concat([x(2, 3), x(2, 4)]),
        dd.ShapeError,
        "concat: shapes (2, 3) and (2, 4) differ",
    ),
    (lambda: dd.concat([]), dd.ShapeError, "concat: needs at least one tensor"),
    (lambda: dd.stack([x(2), x(3)]), dd.ShapeError, "stack: shapes (2,) and (3,) differ"),
    (lambda: dd.split(x(5), 2), dd.ShapeError, "axis 0 of size 5 does not divide into 2 parts"),
    (lambda: x(2, 3)[2], dd.ShapeError, "index: 2 is out of range for axis 0 of shape (2, 3)"),
    (lambda: x(2, 3)[0, 0, 0], dd.ShapeError, "index: 3 indices for shape (2, 3)"),
    (lambda: x(2)[x(2) > 0], dd.DtypeError, "use where"),
    (lambda: x(2)[1.5], dd.DtypeError, "index: 1.5 is not an integer, slice, None, ... or tensor"),
    (
        lambda: x(2)[x(2)],
        dd.DtypeError,
        "index: takes signed integers, unsigned integers, not float32",
    ),
    (
        lambda: dd.take(x(2), x(2)),
        dd.DtypeError,
        "take: the indices are float32, expected integers",
    ),
    (lambda: dd.einsum("ij,jk", x(2, 3)), dd.ShapeError, "'ij,jk' names 2 operands, got 1"),
    (lambda: dd.einsum("ij->k", x(2, 3)), dd.ShapeError, "the result has 'k' in a wrong way"),
    (lambda: dd.einsum("i->i", x(2, 3)), dd.ShapeError, "'i' does not fit shape (2, 3)"),
    (
        lambda: dd.einsum("i,i->i", x(2), x(3)),
        dd.ShapeError,
        "einsum: shapes (2,) and (3,): 2 and 3 differ",
    ),
    (lambda: dd.conv2d(x(1, 3, 8, 8), x(4, 2, 3, 3)), dd.ShapeError, "x has 3 channels"),
    (
        lambda: dd.conv2d(x(1, 3, 2, 2), x(4, 3, 3, 3)),
        dd.ShapeError,
        "a window of (3, 3) does not fit",
    ),
    (
        lambda: dd.max_pool2d(x(8, 8), 2),
        dd.ShapeError,
        "max_pool2d: takes a tensor (n, c, rows, columns)",
    ),
    (
        lambda: dd.layer_norm(x(2, 3), x(2)),
        dd.ShapeError,
        "the weight has shape (2,), expected (3,)",
    ),
    (lambda: dd.topk(x(3), 4), dd.ShapeError, "topk: k is 4, but axis 0 has 3 elements"),
    (lambda: x(2) + "a", dd.DtypeError, "add: 'a' (str) is not a tensor, array or number"),
    (lambda: x(2) + 1j, dd.DtypeError, "add: 1j (complex) is not a tensor, array or number"),
    (lambda: x(2, dtype="uint8") + 300, dd.DtypeError, "add: 300 does not fit uint8"),
    (lambda: -x(2, dtype="bool"), dd.DtypeError, "negative: takes"),
    (lambda: x(2) & x(2), dd.DtypeError, "bitwise_and: takes bools, not float32"),
    (lambda: x(2).astype("int3"), dd.DtypeError, "unknown dtype 'int3'"),
    (lambda: dd.bitcast(x(2), "int64"), dd.DtypeError, "no common bit pattern"),
    (lambda: dd.Tensor(np.ones(3, np.uint16)), dd.DtypeError, "uint16"),
    (lambda: dd.zeros((2, -1)), dd.ShapeError, "zeros: the shape (2, -1) has a negative size"),
    (lambda: dd.gelu(x(2), approximate="no"), dd.Error, "'none' or 'tanh'"),
    (lambda: dd.arange(0, 5, 0), dd.ShapeError, "the step is 0"),
    (lambda: x(2).__setitem__(0, 1), dd.Error, "a Tensor does not change"),
    (lambda: 1 in x(2), dd.Error, "not known while tracing"),
    (lambda: dd.Dim("seq", 3, 2), dd.ShapeError, "expected 0 <= low <= high"),
    (lambda: seq + 1, dd.ShapeError, "the size seq is known only when the program runs"),
    (
        lambda: dd.concat([x(seq), x(seq)]),
        dd.ShapeError,
        "concat: needs a number, but the size seq",
    ),
    (
        lambda: x(seq, 2).reshape(-1),
        dd.ShapeError,
        "reshape: needs a number for the -1, but the size seq",
    ),
    (
        lambda: x(seq) + x(5),
        dd.ShapeError,
        "shapes (seq,) and (5,) do not broadcast: seq and 5 differ",
    ),
    (lambda: x(seq)[2], dd.ShapeError, "index: 2 is out of range for axis 0 of shape (seq,)"),
    (lambda: x(seq)[1:], dd.ShapeError, "index: needs a number to slice axis 0"),
    (lambda: x(seq).prod(), dd.ShapeError, "prod: needs a number"),
    (lambda: x(seq).size, dd.ShapeError, "size: needs a number"),
    (lambda: dd.pad(x(seq), 1), dd.ShapeError, "pad: needs a number"),
    (lambda: dd.spec((2,), "nope"), dd.DtypeError, "unknown dtype 'nope'"),
    (lambda: dd.trace(3), dd.ArgumentError, "trace: 3 is not a function"),
    (lambda: dd.trace(lambda a: a, (2, 3)), dd.ArgumentError, "expected a dd.spec or an array"),
    (lambda: dd.trace(lambda a: a), dd.ArgumentError, "0 specs do not fit <lambda>: missing"),
    (
        lambda: dd.trace(lambda a: 3, dd.spec((2,))),
        dd.Error,
        "the result is 3 (int); expected a Tensor",
    ),
    (lambda: dd.trace(lambda a: {"k": None}, dd.spec((2,))), dd.Error, "result['k'] is None"),
    (lambda: dd.trace(lambda a: (), dd.spec((2,))), dd.Error, "the function returns no Tensor"),
    (
        lambda: dd.trace(lambda a: a if a > 0 else -a, dd.spec(())),
        dd.Error,
        "not known while tracing",
    ),
    (
        lambda: dd.trace(lambda a, b: a + b, dd.spec((seq,)), dd.spec((dd.Dim("seq", 1, 9),))),
        dd.ShapeError,
        "have one name but two ranges",
    ),
    (lambda: dd.trace(lambda: x(seq)), dd.ShapeError, "trace: no input has the size seq"),
    (lambda: dd.compile(lambda a: a, dd.spec((2,)), search=9), dd.ArgumentError, "a dd.Search"),
    (lambda: dd.compile(lambda a: a, dd.spec((2,)), precision="high"), dd.Error, "fast or strict"),
]


@pytest.mark.parametrize(("call", "kind", "message"), ROWS, ids=[row[2][:40] for row in ROWS])
def test_message(call: Callable[[], Any], kind: type[dd.Error], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        call()


def test_arguments_of_interpret() -> None:
    graph = dd.trace(lambda a, b: a @ b, dd.spec((2, 3)), dd.spec((3, seq), name="keys"))
    a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    assert graph.interpret(a, b).shape == (2, 4)
    with pytest.raises(dd.ArgumentError, match=r"expected 2 arrays \(a, keys\), got 1"):
        graph.interpret(a)
    with pytest.raises(dd.ArgumentError, match=r"argument 0 \(a\) has shape \(3, 2\), expected"):
        graph.interpret(a.T, b)
    with pytest.raises(
        dd.ArgumentError, match=r"argument 1 \(keys\): the size seq is 65, expected 1 to 64"
    ):
        graph.interpret(a, np.ones((3, 65), np.float32))
    ids = dd.trace(lambda i: i + 1, dd.spec((2,), "int64"))
    with pytest.raises(dd.ArgumentError, match="is float32"):
        ids.interpret(np.ones(2, np.float32))
