"""Who is measured: a class for each library that can run the cases.

    >>> peer = Torch(threads=2)
    >>> run = peer.prepare(build("softmax_4096x1024"))
    >>> peer.to_numpy(run())

A run takes no arguments and is finished when it returns. The driver leaves out a peer that `lacks`
something. Compilers take their models from torch's ONNX exporter where they have no frontend for
Python. To add a peer, write a class with `modules`, `prepare` and perhaps `prepare_into` and
`to_numpy`, and put it in PEERS.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import networks
import numpy as np
from cases import OPERATIONS, Case
from formulas import Formulas

Run = Callable[[], Any]


class Unsupported(Exception):
    """A library has no way to run a case; says in a few words why."""


class Peer:
    """A library; `modules` are what must be installed for it."""

    modules: tuple[str, ...] = ()

    def __init__(self, threads: int):
        self.threads = threads

    @classmethod
    def lacks(cls) -> list[str]:
        """What it needs and is not here."""
        return [f"the module {name}" for name in cls.modules if find_spec(name) is None]

    def prepare(self, case: Case) -> Run:
        """A function that runs the case once, as users call the library; or Unsupported."""
        raise NotImplementedError

    def prepare_into(self, case: Case) -> Run:
        """The same into an array that the caller made before; Unsupported without such a way."""
        raise Unsupported("gives fresh arrays")

    def to_numpy(self, result: Any) -> np.ndarray:
        """What a run returned, as an array."""
        return np.asarray(result)


class Dodeca(Peer):
    """This compiler, called as a user calls it: numpy arrays in, a fresh one out.

    `search` is the budget in seconds of a search for each case; 0 takes the cost model's choice.
    """

    modules = ("dodeca",)

    def __init__(self, threads: int, search: Callable[[Case], float] = lambda case: 0.0):
        super().__init__(threads)
        self.search = search

    def executable(self, case: Case) -> tuple[Any, list[np.ndarray]]:
        """The compiled case, and its arguments."""
        import dodeca as dd

        function, arrays = traced(case)
        seconds = self.search(case)
        search = dd.Search(seconds=seconds, progress=False) if seconds else None
        return dd.compile(function, *arrays, threads=self.threads, search=search), arrays

    def prepare(self, case: Case) -> Run:
        exe, arrays = self.executable(case)
        return lambda: exe(*arrays)

    def prepare_into(self, case: Case) -> Run:
        exe, arrays = self.executable(case)
        out = np.empty_like(exe(*arrays))
        return lambda: exe(*arrays, out=out)


def traced(case: Case) -> tuple[Callable[..., Any], list[np.ndarray]]:
    """A case as a function of Tensors, and the arrays that it is called with."""
    import dodeca as dd
    from dodeca.models.bert import Bert

    def conv(x: Any, w: Any, stride: int, padding: Any, groups: int) -> Any:
        return dd.conv2d(dd.pad(x, ((0, 0), (0, 0), *padding)), w, stride=stride, groups=groups)

    def batch_norm(x: Any, mean: Any, variance: Any, w: Any, b: Any, eps: float) -> Any:
        scale = w * dd.rsqrt(variance + eps)
        return x * scale[:, None, None] + (b - mean * scale)[:, None, None]

    functions = SimpleNamespace(
        linear=lambda x, w, b: x @ w.mT + b,
        gelu=dd.gelu,
        relu6=lambda x: dd.clip(x, 0, 6),
        softmax=dd.softmax,
        layer_norm=dd.layer_norm,
        batch_norm=batch_norm,
        attention=lambda q, k, v: dd.softmax(q @ k.mT * int(q.shape[-1]) ** -0.5) @ v,
        transpose=lambda x: x.mT,
        conv=conv,
        cross_entropy=lambda x, y: -dd.gather(dd.log_softmax(x), y[:, None]).mean(),
        wide_product=lambda a, b: a.astype("int32") @ b.astype("int32"),
        rounded_product=lambda a, b: a @ b,
    )
    arrays = list(case.inputs.values())
    if case.operation == "minilm":
        return Bert.from_folder(networks.minilm_folder()).sentence_embedding, arrays
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

    def prepare_into(self, case: Case) -> Run:
        out, v = np.empty_like(self.prepare(case)()), case.inputs | case.weights
        ways: dict[str, Run] = {
            "matmul": lambda: np.matmul(v["a"], v["b"], out=out),
            "linear": lambda: np.add(np.matmul(v["x"], v["w"].T, out=out), v["b"], out=out),
            "int8matmul": lambda: np.matmul(v["a"], v["b"], out=out, dtype=np.int32),
        }
        if case.operation == "transpose":
            return lambda: (np.copyto(out, v["x"].T), out)[1]
        return _way(ways, case)


def _way(ways: dict[str, Run], case: Case) -> Run:
    if case.operation not in ways:
        raise Unsupported("gives fresh arrays")
    return ways[case.operation]


# --- torch --------------------------------------------------------------------------------------


class Torch(Peer):
    """torch, eager, with its fused functions but for `attention` (MiniLM's is fused)."""

    modules = ("torch",)
    fused_attention = False

    def __init__(self, threads: int):
        super().__init__(threads)
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)

    def functions(self) -> SimpleNamespace:
        """The cases' functions (formulas.py), as a user of torch would call them."""
        import torch
        from torch.nn import functional

        def conv(x: Any, w: Any, stride: int, padding: Any, groups: int) -> Any:
            (top, bottom), (left, right) = padding
            if (top, left) != (bottom, right):
                x, top, left = functional.pad(x, (left, right, top, bottom)), 0, 0
            return functional.conv2d(x, w, None, stride, (top, left), 1, groups)

        def written_out(q: Any, k: Any, v: Any) -> Any:
            return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v

        fused = functional.scaled_dot_product_attention
        return SimpleNamespace(
            to_float=lambda x: x.float(),
            swap=torch.transpose,
            transpose=lambda x: x.mT.contiguous(),
            linear=functional.linear,
            gelu=functional.gelu,
            relu6=functional.relu6,
            softmax=lambda x: x.softmax(-1),
            layer_norm=lambda x, w, b, eps: functional.layer_norm(x, x.shape[-1:], w, b, eps),
            batch_norm=lambda x, m, s, w, b, eps: functional.batch_norm(x, m, s, w, b, eps=eps),
            mix=fused,
            attention=fused if self.fused_attention else written_out,
            conv=conv,
            cross_entropy=functional.cross_entropy,
            wide_product=torch._int_mm,  # its only product of int8 matrices
            rounded_product=torch.matmul,
        )

    def module(self, case: Case) -> tuple[Any, tuple[Any, ...]]:
        """The case as a torch module, whose buffers are the weights, and its inputs."""
        import torch

        functions = self.functions()

        class Module(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                for i, array in enumerate(case.weights.values()):
                    self.register_buffer(f"w{i}", torch.from_numpy(array))

            def forward(self, *inputs: Any) -> Any:
                weights = {name: getattr(self, f"w{i}") for i, name in enumerate(case.weights)}
                named = dict(zip(case.inputs, inputs, strict=True))
                return OPERATIONS[case.operation](functions, named | weights)

        return Module().eval(), tuple(self.tensor(a) for a in case.inputs.values())

    def tensor(self, array: np.ndarray) -> Any:
        """An array as a tensor."""
        import torch

        if array.dtype == ml_dtypes.bfloat16:  # numpy's own dtypes do not have it
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    def prepare(self, case: Case) -> Run:
        module, inputs = self.module(case)
        return lambda: module(*inputs)

    def prepare_into(self, case: Case) -> Run:
        import torch

        module, inputs = self.module(case)
        out = torch.empty_like(module(*inputs))
        v = dict(zip(case.inputs, inputs, strict=True)) | dict(
            zip(case.weights, module.buffers(), strict=True)
        )
        ways: dict[str, Run] = {
            "matmul": lambda: torch.matmul(v["a"], v["b"], out=out),
            "bf16matmul": lambda: torch.matmul(v["a"], v["b"], out=out),
            "int8matmul": lambda: torch._int_mm(v["a"], v["b"], out=out),
            "linear": lambda: torch.addmm(v["b"], v["x"], v["w"].T, out=out),
            "softmax": lambda: torch.softmax(v["x"], -1, out=out),
            "transpose": lambda: out.copy_(v["x"].T),
        }
        return _way(ways, case)

    def to_numpy(self, result: Any) -> np.ndarray:
        import torch

        if result.dtype == torch.bfloat16:
            return result.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return result.numpy()

    def to_onnx(self, case: Case) -> bytes:
        """The case as an ONNX model."""
        import torch

        if case.operation == "int8matmul":
            return _integer_product(case)
        program: Any = torch.onnx.export(*self.module(case), dynamo=True, verbose=False)
        return program.model_proto.SerializeToString()


def _integer_product(case: Case) -> bytes:
    """ONNX's product of int8 matrices, which torch's exporter does not know."""
    from onnx import TensorProto, helper

    a, b = (array.shape for array in case.inputs.values())
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT8, array.shape)
        for name, array in case.inputs.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.INT32, (a[0], b[1]))
    node = helper.make_node("MatMulInteger", list(case.inputs), ["y"])
    graph = helper.make_graph([node], "product", inputs, [output])
    opset = helper.make_opsetid("", 18)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()


class TorchSdpa(Torch):
    """torch's fused attention."""

    fused_attention = True

    def prepare(self, case: Case) -> Run:
        if case.operation not in ("attention", "decode"):
            raise Unsupported("for attention alone")
        return super().prepare(case)

    def prepare_into(self, case: Case) -> Run:
        raise Unsupported("gives fresh arrays")


class Inductor(Torch):
    """torch.compile as it is."""

    options: dict[str, Any] = {}  # noqa: RUF012
    freezing = False

    @classmethod
    def lacks(cls) -> list[str]:
        compiler = os.environ.get("CXX", "g++")
        found = shutil.which(compiler)
        return super().lacks() + ([] if found else [f"a C++ compiler ({compiler})"])

    def prepare(self, case: Case) -> Run:
        import torch
        from torch._inductor import config

        config.freezing = self.freezing
        torch._dynamo.reset()
        module, inputs = self.module(case)
        compiled = torch.compile(module, dynamic=False, **self.options)
        return lambda: compiled(*inputs)

    def prepare_into(self, case: Case) -> Run:
        raise Unsupported("gives fresh arrays")


class InductorMax(Inductor):
    """torch.compile with max-autotune; weights are frozen, and may be packed."""

    options = {"mode": "max-autotune"}  # noqa: RUF012
    freezing = True


# --- compilers of ONNX models -------------------------------------------------------------------


class OnnxRuntime(Torch):
    """onnxruntime with its default optimisations; outputs are fresh arrays."""

    modules = ("onnxruntime", "torch", "onnxscript")

    def session(self, case: Case) -> tuple[Any, dict[str, np.ndarray]]:
        """A session, and what it is fed with."""
        import onnxruntime

        onnxruntime.set_default_logger_severity(4)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        session = onnxruntime.InferenceSession(
            self.to_onnx(case), options, providers=["CPUExecutionProvider"]
        )
        names = [given.name for given in session.get_inputs()]
        return session, dict(zip(names, case.inputs.values(), strict=True))

    def prepare(self, case: Case) -> Run:
        session, feed = self.session(case)
        return lambda: session.run(None, feed)[0]

    def prepare_into(self, case: Case) -> Run:
        import onnxruntime

        session, feed = self.session(case)
        out = np.empty_like(session.run(None, feed)[0])
        binding = session.io_binding()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        place = onnxruntime.OrtValue.ortvalue_from_numpy(out)
        binding.bind_ortvalue_output(session.get_outputs()[0].name, place)

        def run() -> Any:
            session.run_with_iobinding(binding)
            return place

        return run

    def to_numpy(self, result: Any) -> np.ndarray:
        return result if isinstance(result, np.ndarray) else np.asarray(result.numpy())


class OpenVino(Torch):
    """OpenVINO for latency, held to float32."""

    modules = ("openvino", "torch", "onnxscript")

    def request(self, case: Case) -> tuple[Any, list[Any]]:
        """An inference request, and its inputs."""
        import openvino

        core = openvino.Core()
        settings = {
            "INFERENCE_NUM_THREADS": self.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }
        compiled = core.compile_model(core.read_model(self.to_onnx(case)), "CPU", settings)
        inputs = [
            openvino.Tensor(a.view(np.uint16), a.shape, openvino.Type.bf16)
            if a.dtype == ml_dtypes.bfloat16
            else openvino.Tensor(a, shared_memory=True)
            for a in case.inputs.values()
        ]
        return compiled.create_infer_request(), inputs

    def prepare(self, case: Case) -> Run:
        request, inputs = self.request(case)
        return lambda: request.infer(inputs, share_inputs=True)[0]

    def prepare_into(self, case: Case) -> Run:
        request, inputs = self.request(case)
        for i, given in enumerate(inputs):
            request.set_input_tensor(i, given)

        def run() -> Any:
            request.start_async()
            request.wait()
            return request.get_output_tensor(0).data

        return run

    def to_numpy(self, result: Any) -> np.ndarray:
        array = np.asarray(result)  # it hands out the bits of bfloat16 as if they were float16
        return array.view(ml_dtypes.bfloat16) if array.dtype == np.float16 else array


class Iree(Torch):
    """IREE for this CPU, with data tiling."""

    modules = ("iree.compiler", "iree.runtime", "torch", "onnxscript")

    @classmethod
    def lacks(cls) -> list[str]:
        return super().lacks() if find_spec("iree") else ["the module iree.compiler"]

    def __init__(self, threads: int):
        super().__init__(threads)
        import iree.runtime

        cores = sorted(os.sched_getaffinity(0))[:threads]
        iree.runtime.flags.parse_flags(f"--task_topology_cpu_ids={','.join(map(str, cores))}")
        self.config = iree.runtime.Config("local-task")

    def prepare(self, case: Case) -> Run:
        import iree.compiler
        import iree.runtime

        with tempfile.TemporaryDirectory() as folder:
            model, imported = Path(folder) / "model.onnx", Path(folder) / "model.mlir"
            model.write_bytes(self.to_onnx(case))
            tool = [sys.executable, "-m", "iree.compiler.tools.import_onnx"]
            done = subprocess.run(
                [*tool, str(model), "-o", str(imported)], capture_output=True, text=True
            )
            if done.returncode:
                raise Unsupported(f"cannot import it: {done.stderr.strip().splitlines()[-1]}")
            flags = ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"]
            flags += ["--iree-opt-data-tiling", "--iree-llvmcpu-enable-ukernels=all"]
            flags += ["--iree-llvmcpu-stack-allocation-limit=131072"]
            code = iree.compiler.compile_file(
                str(imported), input_type="onnx", target_backends=["llvm-cpu"], extra_args=flags
            )
        context = iree.runtime.SystemContext(config=self.config)
        context.add_vm_module(iree.runtime.VmModule.copy_buffer(context.instance, code))
        module = context.modules["module"]
        (name,) = (
            name
            for name in module.vm_module.function_names
            if not name.startswith("__") and not name.endswith("$async")
        )
        function = module[name]
        inputs = [iree.runtime.asdevicearray(self.config.device, a) for a in case.inputs.values()]
        return lambda: (function(*inputs), context)[0]  # the function does not keep its context

    def prepare_into(self, case: Case) -> Run:
        raise Unsupported("gives fresh arrays")

    def to_numpy(self, result: Any) -> np.ndarray:
        return (result[0] if isinstance(result, tuple | list) else result).to_host()


# --- jax, tinygrad ------------------------------------------------------------------------------


class Jax(Peer):
    """jax.jit; it runs as many threads as this process has cores."""

    modules = ("jax", "jaxlib")

    def prepare(self, case: Case) -> Run:
        import jax
        import jax.numpy as jnp

        class Functions(Formulas):
            def conv(self, x: Any, w: Any, stride: int, padding: Any, groups: int) -> Any:
                return jax.lax.conv_general_dilated(
                    x, w, (stride, stride), padding, feature_group_count=groups
                )

            def wide_product(self, a: Any, b: Any) -> Any:
                return jnp.matmul(a, b, preferred_element_type=jnp.int32)

            def rounded_product(self, a: Any, b: Any) -> Any:
                return a @ b

        functions = Functions(jnp, jax.scipy.special.erf, dense=jnp.array)
        inputs, weights = jax.device_put(case.inputs), jax.device_put(case.weights)
        run = jax.jit(lambda i, w: OPERATIONS[case.operation](functions, i | w))
        return lambda: run(inputs, weights).block_until_ready()


class Tinygrad(Peer):
    """tinygrad's TinyJit, without its search; it runs as many threads as this process has cores."""

    modules = ("tinygrad",)

    @classmethod
    def lacks(cls) -> list[str]:
        compiler = os.environ.get("CC", "clang")
        return super().lacks() + ([] if shutil.which(compiler) else [compiler])

    def __init__(self, threads: int):
        super().__init__(threads)
        os.environ |= {"DEV": "CPU", "CACHELEVEL": "0"}

    def prepare(self, case: Case) -> Run:
        from tinygrad import Device, Tensor, TinyJit, dtypes

        def conv(x: Any, w: Any, stride: int, padding: Any, groups: int) -> Any:
            (top, bottom), (left, right) = padding
            return x.conv2d(w, None, groups, stride, padding=(left, right, top, bottom))

        def mix(q: Any, k: Any, v: Any, bias: Any = 0) -> Any:
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias
            return scores.softmax(-1) @ v

        functions = SimpleNamespace(
            to_float=lambda x: x.float(),
            swap=lambda x, a, b: x.transpose(a, b),
            transpose=lambda x: x.transpose(0, 1).contiguous(),
            linear=lambda x, w, b: x @ w.transpose(0, 1) + b,
            gelu=lambda x: x * ((x * 0.5**0.5).erf() + 1) * 0.5,
            relu6=lambda x: x.relu6(),
            softmax=lambda x: x.softmax(-1),
            layer_norm=lambda x, w, b, eps: x.layernorm(eps=eps) * w + b,
            batch_norm=lambda x, m, s, w, b, eps: x.batchnorm(w, b, m, (s + eps).rsqrt()),
            mix=mix,
            attention=mix,
            conv=conv,
            cross_entropy=lambda x, y: x.sparse_categorical_crossentropy(y),
            wide_product=lambda a, b: a.dot(b, dtype=dtypes.int32),
            rounded_product=lambda a, b: a @ b,
        )

        def tensor(array: np.ndarray) -> Any:
            if array.dtype == ml_dtypes.bfloat16:
                wide = Tensor(array.astype(np.float32))
                return wide.cast(dtypes.bfloat16).contiguous().realize()
            return Tensor(array).contiguous().realize()

        inputs, weights = (
            {name: tensor(a) for name, a in arrays.items()}
            for arrays in (case.inputs, case.weights)
        )
        step = TinyJit(
            lambda **given: OPERATIONS[case.operation](functions, given | weights).realize()
        )
        device = Device[Device.DEFAULT]

        def run() -> Any:
            result = step(**inputs)
            device.synchronize()
            return result

        run()  # the second call is the one that it captures
        run()
        return run

    def to_numpy(self, result: Any) -> np.ndarray:
        from tinygrad import dtypes

        array = result.numpy()
        return array.astype(ml_dtypes.bfloat16) if result.dtype == dtypes.bfloat16 else array


PEERS: dict[str, type[Peer]] = {
    "dodeca": Dodeca,
    "numpy": Numpy,
    "torch": Torch,
    "torch-sdpa": TorchSdpa,
    "inductor": Inductor,
    "inductor-max": InductorMax,
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "jax": Jax,
    "iree": Iree,
    "tinygrad": Tinygrad,
}
