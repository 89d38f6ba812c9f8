"""Networks made ready for a forward pass, by torch or by onnxruntime."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from models.architecture import Architecture
from search.latency import MAX_LABEL, Precision, Runtime
from workers.latency.measure import Pass

_DTYPES = {Precision.FP32: torch.float32, Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}

_INPUT, _OUTPUT = "images", "logits"
_OPSET = 17
_ERRORS_ONLY = 3


class NotExecutable(ValueError):
    """The device or the runtime cannot compute so; the message says what it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How forward passes are computed.

    Attributes:
        runtime: what executes the network.
        precision: number format of weights and activations.
        batch_size: images of a pass.
        threads: of one operation, on processors.
        device: of torch; onnxruntime computes on the processor.

    Raises:
        NotExecutable: a runtime or a precision that is not there.
    """

    runtime: Runtime
    precision: Precision
    batch_size: int
    threads: int
    device: torch.device

    def __post_init__(self) -> None:
        if runtime_version(self.runtime) is None:
            raise NotExecutable(f"{self.runtime} is not installed here")
        allowed = [Precision.FP32]
        if self.runtime is Runtime.TORCH:
            allowed += [Precision.BF16] if self.device.type == "cpu" else [Precision.BF16, Precision.FP16]
        if self.precision not in allowed:
            there = ", ".join(allowed)
            raise NotExecutable(f"{self.runtime} on {self.device.type} computes in {there}, not in {self.precision}")

    @property
    def label(self) -> str:
        """What computes: the name of the processor or GPU. Equal labels mean comparable latencies."""
        if self.runtime is Runtime.TORCH and self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)[:MAX_LABEL]
        return f"{_processor()} ({os.cpu_count()} cores)"[-MAX_LABEL:]

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Let torch use so many threads meanwhile."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def images(self, arch: Architecture, generator: torch.Generator) -> Tensor:
        """Images of noise (B, C, S, S), as normalised ones are spread."""
        return torch.randn(self.batch_size, arch.in_chans, arch.img_size, arch.img_size, generator=generator)

    def pass_of(self, network: nn.Module, images: Tensor, scratch: Path) -> Pass:
        """One forward pass of a network.

        Args:
            network: in eval mode, on the CPU; moved and converted where the execution needs it.
            images: float32 (B, C, S, S).
            scratch: an existing folder for files that are needed while this is called.
        """
        if self.runtime is Runtime.ONNXRUNTIME:
            return self._onnx_pass(network, images, scratch)
        network = network.to(self.device, _DTYPES[self.precision])
        images = images.to(self.device, _DTYPES[self.precision])

        @torch.inference_mode()
        def run() -> None:
            network(images)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

        return run

    def _onnx_pass(self, network: nn.Module, images: Tensor, scratch: Path) -> Pass:
        path = scratch / "network.onnx"
        write_onnx(network, images, path)
        # Here, not above: machines that measure with torch alone need not have it.
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        path.unlink()
        feed = {_INPUT: images.numpy()}
        return lambda: session.run([_OUTPUT], feed)


def runtime_version(runtime: Runtime) -> str | None:
    """Version of what executes networks; None when it is not installed."""
    if runtime is Runtime.TORCH:
        return torch.__version__
    try:
        import onnxruntime
    except ImportError:
        return None
    return str(onnxruntime.__version__)


def write_onnx(network: nn.Module, images: Tensor, path: Path) -> None:
    """Write a network as ONNX, for batches like ``images`` (B, C, S, S); answers ``logits`` (B, K)."""
    with warnings.catch_warnings():
        # torch's newer exporter takes some ten seconds for each network; both give the same operators here.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network, (images,), path, input_names=[_INPUT], output_names=[_OUTPUT], opset_version=_OPSET, dynamo=False
        )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass  # only Linux has it
    return platform.processor() or platform.machine()
