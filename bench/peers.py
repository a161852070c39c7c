"""Who is measured: a class for each library that can run the cases.

    >>> peer = Torch(threads=2)
    >>> run = peer.prepare(build("softmax_4096x1024"))
    >>> peer.to_numpy(run())

A run takes no arguments and is finished when it returns. The driver leaves out a peer whose modules
are not installed. onnxruntime and OpenVINO take their models from torch's ONNX exporter. To add a
peer, write a class with `modules`, `prepare` and perhaps `to_numpy`, and put it in PEERS.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import cases
import numpy as np
from cases import OPERATIONS, Case, Formulas

Run = Callable[[], Any]


class Peer:
    """A library; `modules` are what must be installed for it."""

    modules: tuple[str, ...] = ()

    def __init__(self, threads: int):
        self.threads = threads

    def prepare(self, case: Case) -> Run:
        """A function that runs the case once."""
        raise NotImplementedError

    def to_numpy(self, result: Any) -> np.ndarray:
        """What a run returned, as an array."""
        return np.asarray(result)


class Dodeca(Peer):
    """This compiler, called as a user calls it: numpy arrays in, a fresh one out."""

    modules = ("dodeca",)

    def prepare(self, case: Case) -> Run:
        import dodeca as dd

        function, arrays = traced(case)
        exe = dd.compile(function, *arrays, threads=self.threads)
        return lambda: exe(*arrays)


def traced(case: Case) -> tuple[Callable[..., Any], list[np.ndarray]]:
    """A case as a function of Tensors, and the arrays that it is called with."""
    import dodeca as dd
    from dodeca.models.bert import Bert

    functions = SimpleNamespace(
        linear=lambda x, w, b: x @ w.mT + b,
        gelu=dd.gelu,
        softmax=dd.softmax,
        layer_norm=dd.layer_norm,
        transpose=lambda x: x.mT,
    )
    arrays = list(case.inputs.values())
    if case.operation == "minilm":
        return Bert.from_folder(cases.model_folder()).sentence_embedding, arrays
    weights = {name: dd.asarray(a) for name, a in case.weights.items()}

    def function(*inputs: Any) -> Any:
        named = dict(zip(case.inputs, inputs, strict=True))
        return OPERATIONS[case.operation](functions, named | weights)

    return function, arrays


class Numpy(Peer):
    """numpy; its erf, which it does not have, is a table with linear interpolation."""

    modules = ("numpy",)

    def prepare(self, case: Case) -> Run:
        at = np.linspace(-6, 6, 24001)
        table = np.array([math.erf(x) for x in at])
        functions = Formulas(np, lambda x: np.interp(x, at, table).astype(np.float32))
        arrays = case.inputs | case.weights
        return lambda: OPERATIONS[case.operation](functions, arrays)


class Torch(Peer):
    """torch, eager, with its fused functions (MiniLM's attention too)."""

    modules = ("torch",)

    def __init__(self, threads: int):
        super().__init__(threads)
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)

    def module(self, case: Case) -> tuple[Any, tuple[Any, ...]]:
        """The case as a torch module, and its inputs."""
        import torch
        from torch.nn import functional

        functions = SimpleNamespace(
            to_float=lambda x: x.float(),
            linear=functional.linear,
            gelu=functional.gelu,
            softmax=lambda x: x.softmax(-1),
            layer_norm=lambda x, w, b, eps: functional.layer_norm(x, x.shape[-1:], w, b, eps),
            mix=functional.scaled_dot_product_attention,
            transpose=lambda x: x.mT.contiguous(),
        )
        weights = {name: torch.from_numpy(a) for name, a in case.weights.items()}

        class Module(torch.nn.Module):
            def forward(self, *inputs: Any) -> Any:
                named = dict(zip(case.inputs, inputs, strict=True))
                return OPERATIONS[case.operation](functions, named | weights)

        return Module().eval(), tuple(torch.from_numpy(a) for a in case.inputs.values())

    def prepare(self, case: Case) -> Run:
        module, inputs = self.module(case)
        return lambda: module(*inputs)

    def to_onnx(self, case: Case) -> bytes:
        """The case as an ONNX model."""
        import torch

        program: Any = torch.onnx.export(*self.module(case), dynamo=True, verbose=False)
        return program.model_proto.SerializeToString()


class OnnxRuntime(Torch):
    """onnxruntime with its default optimisations; outputs are fresh arrays."""

    modules = ("onnxruntime", "torch", "onnxscript")

    def prepare(self, case: Case) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        session = onnxruntime.InferenceSession(
            self.to_onnx(case), options, providers=["CPUExecutionProvider"]
        )
        names = [given.name for given in session.get_inputs()]
        feed = dict(zip(names, case.inputs.values(), strict=True))
        return lambda: session.run(None, feed)[0]


class OpenVino(Torch):
    """OpenVINO for latency, held to float32."""

    modules = ("openvino", "torch", "onnxscript")

    def prepare(self, case: Case) -> Run:
        import openvino

        core = openvino.Core()
        settings = {
            "INFERENCE_NUM_THREADS": self.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }
        compiled = core.compile_model(core.read_model(self.to_onnx(case)), "CPU", settings)
        request, arrays = compiled.create_infer_request(), list(case.inputs.values())
        return lambda: request.infer(arrays, share_inputs=True)[0]


class Jax(Peer):
    """jax.jit; it runs as many threads as this process has cores."""

    modules = ("jax", "jaxlib")

    def prepare(self, case: Case) -> Run:
        import jax
        import jax.numpy as jnp

        functions = Formulas(jnp, jax.scipy.special.erf, dense=jnp.array)
        inputs, weights = jax.device_put(case.inputs), jax.device_put(case.weights)
        run = jax.jit(lambda i, w: OPERATIONS[case.operation](functions, i | w))
        return lambda: run(inputs, weights).block_until_ready()


PEERS: dict[str, type[Peer]] = {
    "dodeca": Dodeca,
    "numpy": Numpy,
    "torch": Torch,
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "jax": Jax,
}
