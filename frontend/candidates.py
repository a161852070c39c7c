"""`dodeca-candidates`: prints the best programs that are found, each as a module of kernels."""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from .fusion import candidates
from .runtime.device import find_target


@dataclass(frozen=True)
class CandidatesOptions:
    """For which target, under which classes of rules, and how many programs."""

    target: str = "cpu"
    precision: str = "fast"
    count: int = 4


def print_candidates(module: ir.Operation, options: CandidatesOptions) -> None:
    """Print each with its predicted time; the module stays as it is."""
    target = find_target(options.target)
    for n, fused in enumerate(candidates(module, target, options.precision, (), options.count)):
        seconds = sum(r["predicted seconds"] for r in fused.regions)
        print(f"// candidate {n}: {seconds * 1e6:.2f} us predicted\n{fused.module}")
