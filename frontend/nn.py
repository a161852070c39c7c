"""Layers: a `Module` holds Tensors and other Modules as plain attributes, and calls its `forward`.

    >>> layer = dd.nn.Linear(384, 1536)
    >>> layer.parameters().keys()
    dict_keys(['weight', 'bias'])
    >>> exe = dd.compile(layer, dd.spec((128, 384)))

Layouts and names of parameters are torch's, so that checkpoints load as they are. New parameters
are random numbers (`seed` makes them repeatable) until `load_state` replaces them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .activations import layer_norm, rms_norm, softmax
from .comparison import where
from .convolution import Pair, conv2d
from .creation import arange, asarray
from .dialect import dtype as as_dtype
from .dialect.errors import Error, ShapeError
from .indexing import embedding
from .movement import expand_dims, permute_dims, reshape
from .shapes import show
from .tensor import Leaf, Tensor

_random = np.random.default_rng(0)


def seed(value: int) -> None:
    """Start the random numbers of new parameters afresh."""
    global _random
    _random = np.random.default_rng(value)


def _uniform(shape: tuple[int, ...], bound: float, dtype: Any) -> Tensor:
    numbers = _random.random(shape, np.float32) * np.float32(2 * bound) - np.float32(bound)
    return asarray(numbers.astype(as_dtype(dtype).numpy))


class Module:
    """A part of a model. Subclasses set attributes in `__init__` and define `forward`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; subclasses define it."""
        raise Error(f"{type(self).__name__} defines no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def children(self) -> Iterator[tuple[str, Any]]:
        """The names and values of the attributes, lists of Modules spread over their positions."""
        for name, value in vars(self).items():
            if isinstance(value, list | tuple) and any(isinstance(v, Module) for v in value):
                yield from ((f"{name}.{i}", part) for i, part in enumerate(value))
            else:
                yield name, value

    def parameters(self) -> dict[str, Tensor]:
        """Every Tensor of the module and the modules in it, by its dotted name."""
        found: dict[str, Tensor] = {}
        for name, value in self.children():
            if isinstance(value, Tensor):
                found[name] = value
            elif isinstance(value, Module):
                found |= {f"{name}.{inner}": p for inner, p in value.parameters().items()}
        return found

    def load_state(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Replace the parameters by the arrays or Tensors of these dotted names, dtypes included.

        Raises Error for names that are missing or unexpected, unless `strict` is false, and
        ShapeError for an array of another shape than the parameter; nothing is replaced then.
        """
        own = self.parameters()
        missing = [name for name in own if name not in state]
        unexpected = [name for name in state if name not in own]
        if strict and (missing or unexpected):
            raise Error(f"load_state: {_listed('missing', missing, 'unexpected', unexpected)}")
        loaded = {name: _named(name, state[name]) for name in own if name in state}
        for name, value in loaded.items():
            if value.shape != own[name].shape:
                raise ShapeError(
                    f"load_state: {name} has shape {show(value.shape)}, "
                    f"expected {show(own[name].shape)}"
                )
        for name, value in loaded.items():
            self._replace(name.split("."), value)

    def _replace(self, path: Sequence[str], value: Tensor) -> None:
        holder: Any = self
        for part in path[:-1]:
            holder = holder[int(part)] if part.isdigit() else getattr(holder, part)
        setattr(holder, path[-1], value)


def _listed(*parts: Any) -> str:
    """`missing a, b; unexpected c`, leaving out what is empty."""
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return "; ".join(f"{label} {', '.join(names)}" for label, names in pairs if names)


def _named(name: str, value: Any) -> Tensor:
    """The value as a leaf of this name."""
    tensor = asarray(value, name=name)
    if isinstance(tensor.attribute, Leaf) and tensor.name != name:
        return asarray(tensor.attribute.array, name=name)
    return tensor


class ModuleList(Module):
    """Modules in a list, by position."""

    def __init__(self, modules: Sequence[Module] = ()):
        self.modules = list(modules)

    def children(self) -> Iterator[tuple[str, Any]]:
        yield from ((str(i), module) for i, module in enumerate(self.modules))

    def append(self, module: Module) -> None:
        """Add a module at the end."""
        self.modules.append(module)

    def __getitem__(self, position: int) -> Module:
        return self.modules[position]

    def __iter__(self) -> Iterator[Module]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)


class Sequential(ModuleList):
    """Modules one after the other."""

    def __init__(self, *modules: Module):
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        """The last module's result on the results of those before it."""
        for module in self.modules:
            x = module(x)
        return x


class Linear(Module):
    """x @ weight.T + bias, weight (out, in): (..., in) -> (..., out)."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: Any = "float32"
    ):
        bound = 1 / math.sqrt(max(in_features, 1))
        self.weight = _uniform((out_features, in_features), bound, dtype)
        self.bias = _uniform((out_features,), bound, dtype) if bias else None

    def forward(self, x: Any) -> Tensor:
        """(..., in) -> (..., out)."""
        y = asarray(x) @ self.weight.mT
        return y if self.bias is None else y + self.bias


class Embedding(Module):
    """The rows of a table: integers (...) -> (..., d)."""

    def __init__(self, count: int, features: int, dtype: Any = "float32"):
        self.weight = _uniform((count, features), 1.0, dtype)

    def forward(self, indices: Any) -> Tensor:
        """Integers (...) -> (..., d)."""
        return embedding(self.weight, indices)


class LayerNorm(Module):
    """Normalisation over the last axes, to mean 0 and variance 1, then weight and bias."""

    def __init__(
        self,
        shape: int | Sequence[int],
        eps: float = 1e-5,
        bias: bool = True,
        dtype: Any = "float32",
    ):
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        element = as_dtype(dtype).numpy
        self.eps = eps
        self.weight = asarray(np.ones(sizes, element))
        self.bias = asarray(np.zeros(sizes, element)) if bias else None

    def forward(self, x: Any) -> Tensor:
        """The shape of x."""
        axes = tuple(range(-self.weight.ndim, 0))
        return layer_norm(x, self.weight, self.bias, self.eps, axes)


class RMSNorm(Module):
    """Division by the root of the mean square over the last axes, then the weight."""

    def __init__(self, shape: int | Sequence[int], eps: float = 1e-6, dtype: Any = "float32"):
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps = eps
        self.weight = asarray(np.ones(sizes, as_dtype(dtype).numpy))

    def forward(self, x: Any) -> Tensor:
        """The shape of x."""
        return rms_norm(x, self.weight, self.eps, tuple(range(-self.weight.ndim, 0)))


class Conv2d(Module):
    """A convolution of (n, c, rows, columns), weight (out, in / groups, i, j)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: Any = "float32",
    ):
        window = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        shape = (out_channels, in_channels // groups, *window)
        bound = 1 / math.sqrt(max(math.prod(shape[1:]), 1))
        self.weight = _uniform(shape, bound, dtype)
        self.bias = _uniform((out_channels,), bound, dtype) if bias else None
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups

    def forward(self, x: Any) -> Tensor:
        """(n, in, rows, columns) -> (n, out, rows', columns')."""
        return conv2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


def scaled_dot_product_attention(
    q: Any, k: Any, v: Any, mask: Any = None, scale: float | None = None, causal: bool = False
) -> Tensor:
    """softmax(q k^T * scale + mask) v, for q (..., i, d), k (..., j, d), v (..., j, e).

    `mask` broadcasts to (..., i, j): bools say which pairs count, numbers are added. `causal` keeps
    the pairs with j <= i. `scale` is 1 / sqrt(d) by default.
    """
    queries, keys, values = asarray(q), asarray(k), asarray(v)
    width = queries.shape[-1]
    scores = (queries @ keys.mT) * (1 / math.sqrt(width) if scale is None else scale)
    if mask is not None:
        given = asarray(mask)
        scores = where(given, scores, -math.inf) if given.dtype.kind == "bool" else scores + given
    if causal:
        i, j = arange(queries.shape[-2]), arange(keys.shape[-2])
        scores = where(j <= expand_dims(i, 1), scores, -math.inf)
    return softmax(scores, -1) @ values


class MultiHeadAttention(Module):
    """Attention of a sequence to itself or to a context: (b, s, d) -> (b, s, d)."""

    def __init__(self, features: int, heads: int, bias: bool = True, dtype: Any = "float32"):
        if features % heads:
            raise ShapeError(f"MultiHeadAttention: {heads} heads do not divide {features} features")
        self.heads = heads
        self.q_proj = Linear(features, features, bias, dtype)
        self.k_proj = Linear(features, features, bias, dtype)
        self.v_proj = Linear(features, features, bias, dtype)
        self.out_proj = Linear(features, features, bias, dtype)

    def forward(
        self, x: Any, mask: Any = None, context: Any = None, causal: bool = False
    ) -> Tensor:
        """x (b, s, d), context (b, t, d) or x itself, mask to fit (b, heads, s, t) -> (b, s, d)."""
        source = x if context is None else context
        q = split_heads(self.q_proj(x), self.heads)
        k = split_heads(self.k_proj(source), self.heads)
        v = split_heads(self.v_proj(source), self.heads)
        mixed = scaled_dot_product_attention(q, k, v, mask, causal=causal)
        return self.out_proj(join_heads(mixed))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(b, s, d) -> (b, heads, s, d / heads)."""
    batch, length, features = x.shape
    if isinstance(features, int) and features % heads:
        raise ShapeError(f"split_heads: {heads} heads do not divide {features} features")
    split = reshape(x, (batch, length, heads, int(features) // heads))
    return permute_dims(split, (0, 2, 1, 3))


def join_heads(x: Tensor) -> Tensor:
    """(b, heads, s, d) -> (b, s, heads * d)."""
    batch, heads, length, width = x.shape
    return reshape(permute_dims(x, (0, 2, 1, 3)), (batch, length, int(heads) * int(width)))
