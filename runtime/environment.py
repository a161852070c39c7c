"""The environment variables that dodeca reads, all of them, in one table.

>>> flag("ROCM_PATH", "/opt/rocm")
'/opt/rocm'
"""

from __future__ import annotations

import os

FLAGS = {
    "OMP_NUM_THREADS": "threads of an executable for the CPU, where `threads=` does not say",
    "DODECA_CACHE": "the folder of the tuning database and of compiled code; `off` keeps nothing",
    "XDG_CACHE_HOME": "where the folder `dodeca` of caches is, without DODECA_CACHE; else ~/.cache",
    "DODECA_GRAPHS": "`off` launches a GPU's kernels one by one, and not as one graph",
    "DODECA_GPU_CHECK": "`1` waits after each launch on a GPU, so that an error names its kernel",
    "CUDA_HOME": "where ptxas is looked for first, in `bin`",
    "CUDA_PATH": "the same, where CUDA_HOME is not set",
    "ROCM_PATH": "where ld.lld is looked for first, in `llvm/bin`; /opt/rocm if not set",
}


def flag(name: str, default: str = "") -> str:
    """The value of a variable of the table."""
    assert name in FLAGS, f"{name} is not in the table of environment variables"
    return os.environ.get(name, default)
