"""BERT encoders, in the layout of Hugging Face's checkpoints (all-MiniLM-L6-v2 is one).

    >>> model = Bert.from_folder("all-MiniLM-L6-v2")
    >>> embed = dd.compile(model.sentence_embedding, ids, mask)     # specs, int64 (b, s)

Attributes are named as the parameters of the checkpoints are.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from math import sqrt
from pathlib import Path
from typing import Any

from ..activations import gelu, softmax
from ..arithmetic import sqrt as square_root
from ..comparison import maximum
from ..creation import asarray
from ..dialect.errors import Error, ParseError, ShapeError
from ..nn import Embedding, LayerNorm, Linear, Module, ModuleList, join_heads, split_heads
from ..safetensors import load
from ..tensor import Tensor


@dataclass(frozen=True)
class Config:
    """The fields of a checkpoint's config.json that the encoder needs."""

    vocab_size: int = 30522
    hidden_size: int = 384
    num_hidden_layers: int = 6
    num_attention_heads: int = 12
    intermediate_size: int = 1536
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    position_embedding_type: str = "absolute"

    @staticmethod
    def from_file(path: Path) -> Config:
        """The config of a JSON file; ParseError names the file, Error what it asks for in vain."""
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
            known = {f.name: given[f.name] for f in fields(Config) if f.name in given}
        except (OSError, ValueError, TypeError) as error:
            raise ParseError(f"{path}: not a model's config: {error}") from None
        config = Config(**known)
        if config.hidden_act != "gelu" or config.position_embedding_type != "absolute":
            raise Error(
                f"{path}: the encoder has gelu and absolute positions, not "
                f"{config.hidden_act} and {config.position_embedding_type}"
            )
        return config


class Embeddings(Module):
    """The sum of word, position and type embeddings, normalised."""

    def __init__(self, config: Config):
        width = config.hidden_size
        self.word_embeddings = Embedding(config.vocab_size, width)
        self.position_embeddings = Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = Embedding(config.type_vocab_size, width)
        self.LayerNorm = LayerNorm(width, config.layer_norm_eps)

    def forward(self, input_ids: Tensor) -> Tensor:
        """int64 (b, s) -> (b, s, d), all of type 0."""
        length = input_ids.shape[1]
        positions = self.position_embeddings.weight
        longest = length if isinstance(length, int) else length.high
        if longest > int(positions.shape[0]):
            raise ShapeError(f"bert: {longest} tokens, but positions only for {positions.shape[0]}")
        words = self.word_embeddings(input_ids)
        kind = self.token_type_embeddings.weight[0]
        return self.LayerNorm(words + positions[:length] + kind)


class SelfAttention(Module):
    """Attention of every token to every token that the mask keeps."""

    def __init__(self, config: Config):
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """x (b, s, d), bias (b, 1, 1, s) -> (b, s, d)."""
        q, k, v = (split_heads(f(x), self.heads) for f in (self.query, self.key, self.value))
        scale = 1 / sqrt(int(q.shape[-1]))
        return join_heads(softmax((q @ k.mT) * scale + bias) @ v)


class Output(Module):
    """A linear layer, the residual, the norm."""

    def __init__(self, features: int, config: Config):
        self.dense = Linear(features, config.hidden_size)
        self.LayerNorm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """(..., features) and (..., d) -> (..., d)."""
        return self.LayerNorm(self.dense(x) + residual)


class Attention(Module):
    """Self-attention with its output layer."""

    def __init__(self, config: Config):
        self.self = SelfAttention(config)
        self.output = Output(config.hidden_size, config)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """x (b, s, d), bias (b, 1, 1, s) -> (b, s, d)."""
        return self.output(self.self(x, bias), x)


class Intermediate(Module):
    """The first linear layer of the feed-forward block, with gelu."""

    def __init__(self, config: Config):
        self.dense = Linear(config.hidden_size, config.intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        """(b, s, d) -> (b, s, intermediate)."""
        return gelu(self.dense(x))


class Layer(Module):
    """Attention and feed-forward block."""

    def __init__(self, config: Config):
        self.attention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = Output(config.intermediate_size, config)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """x (b, s, d), bias (b, 1, 1, s) -> (b, s, d)."""
        attended = self.attention(x, bias)
        return self.output(self.intermediate(attended), attended)


class Encoder(Module):
    """The layers, one after the other."""

    def __init__(self, config: Config):
        self.layer = ModuleList([Layer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """x (b, s, d), bias (b, 1, 1, s) -> (b, s, d)."""
        for layer in self.layer:
            x = layer(x, bias)
        return x


class Bert(Module):
    """An encoder: token ids and a mask give the last hidden state."""

    def __init__(self, config: Config | None = None):
        self.config = config or Config()
        self.embeddings = Embeddings(self.config)
        self.encoder = Encoder(self.config)

    @staticmethod
    def from_folder(path: str | os.PathLike[str]) -> Bert:
        """The model of a folder with config.json and model.safetensors.

        What is not the encoder's (position_ids, a pooler, a head) is left out; ParseError or Error
        says what is missing or does not fit.
        """
        folder = Path(path)
        model = Bert(Config.from_file(folder / "config.json"))
        state = load(folder / "model.safetensors")
        state = {name.removeprefix("bert."): value for name, value in state.items()}
        others = ("pooler.", "cls.", "embeddings.position_ids")
        model.load_state({n: value for n, value in state.items() if not n.startswith(others)})
        return model

    def forward(self, input_ids: Any, attention_mask: Any) -> Tensor:
        """int64 (b, s) twice, the mask 1 for tokens and 0 for padding -> float32 (b, s, d)."""
        ids, mask = asarray(input_ids), asarray(attention_mask)
        bias = (1.0 - mask.astype("float32")) * -1e9
        return self.encoder(self.embeddings(ids), bias[:, None, None, :])

    def sentence_embedding(self, input_ids: Any, attention_mask: Any) -> Tensor:
        """int64 (b, s) twice -> (b, d): the mean over a sentence's tokens, of length 1."""
        mask = asarray(attention_mask)
        return mean_pooled(self.forward(input_ids, mask), mask)


def mean_pooled(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """(b, s, d) and int64 (b, s) -> (b, d): the mean over the tokens with mask 1, of length 1."""
    mask = attention_mask.astype("float32")[:, :, None]
    mean = (hidden * mask).sum(axis=1) / maximum(mask.sum(axis=1), 1e-9)
    length = square_root((mean * mean).sum(axis=1, keepdims=True))
    return mean / maximum(length, 1e-12)
