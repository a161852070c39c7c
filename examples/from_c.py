"""A function written in Python, called from C: compiled, exported, built with a C compiler, run.

    python examples/from_c.py [--output FOLDER]

It writes mixer.h, libmixer.so and example.c, builds example.c, and compares what that prints with
what Python computes. Needs a C compiler: cc, gcc, clang, or `pip install ziglang`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import dodeca as dd
import numpy as np
from dodeca.runtime.toolchain import find_c_compiler

RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(64, 32)).astype(np.float32)


def mix(x: dd.Tensor) -> dd.Tensor:
    """One layer and a softmax: float32 (8, 64) -> (8, 32)."""
    return dd.softmax(dd.gelu(x @ WEIGHT))


def build(folder: Path) -> Path:
    """Build the example that `export_c` wrote; the program. dd.Error says what is missing."""
    compiler = find_c_compiler()
    if compiler is None:
        raise dd.TargetError("no C compiler was found (cc, gcc, clang): pip install ziglang")
    command = [*compiler, "example.c", "-L.", "-lmixer", "-Wl,-rpath,$ORIGIN", "-o", "example"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "example"


def main(arguments: Sequence[str] | None = None) -> int:
    """The demonstration; its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("out/from_c"), help="folder to write")
    folder = parser.parse_args(arguments).output
    try:
        exe = dd.compile(mix, dd.spec((8, 64), name="x"))
        exe.export_c(folder, name="mixer")
        program = build(folder)
    except (dd.Error, OSError) as error:
        print(f"from_c.py: {error}", file=sys.stderr)
        return 1
    x = RNG.normal(size=(8, 64)).astype(np.float32)
    x.tofile(folder / "x.bin")
    ran = subprocess.run([program.absolute(), folder / "x.bin"], check=True, capture_output=True)
    same = ran.stdout == exe(x).tobytes()
    print((folder / "mixer.h").read_text(encoding="utf-8").split("*/")[0] + "*/")
    print(f"{program} gives {'the same bits as Python' if same else 'ANOTHER result'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
