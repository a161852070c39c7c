"""What a measurement depends on besides the program: the machine, and the version of the compiler.

>>> identity("cpu", threads=2)
'{"core":"znver3","features":["adx",...],"kind":"cpu","model":"AMD EPYC","threads":2}'
>>> device_in_words(identity("cpu", threads=2))
'AMD EPYC (znver3), 2 threads'
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

# What the code that is measured is made by, besides this package.
_LIBRARIES = ("egglog", "llvmlite", "xtc-mlir-python-bindings")


@cache
def identity(target: str, threads: int) -> str:
    """The device that a program for this target runs on here, as canonical JSON text.

    Two equal ones may share what was measured. For a CPU: its model, LLVM's names of its core and
    of what it can do, and how many cores are used. A GPU target without a device names itself.
    """
    facts: dict[str, Any] = {"kind": target.split(":")[0]}
    if target == "cpu":
        from .device import cpu_identity  # here, for it loads LLVM

        cpu = cpu_identity()
        facts |= {"model": cpu.model, "core": cpu.architecture, "features": list(cpu.features)}
        facts["threads"] = threads
    else:
        facts["target"] = target
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))


def threads_of(device: str) -> int:
    """How many cores a device's identity says; 0 if it does not."""
    threads = _facts(device).get("threads")
    return threads if isinstance(threads, int) else 0


def is_this_machine(target: str, device: str) -> bool:
    """Whether an identity is that of this machine, with any number of threads."""
    return device == identity(target, threads_of(device))


def device_in_words(device: str) -> str:
    """A device's identity in a few words; any text is taken."""
    facts = _facts(device)
    name = facts.get("model") or facts.get("name") or facts.get("target") or "an unknown device"
    core = facts.get("core") or facts.get("capability")
    threads = threads_of(device)
    words = f"{name} ({core})" if core else str(name)
    return words + (f", {threads} thread{'s' * (threads != 1)}" if threads else "")


def _facts(device: str) -> dict[str, Any]:
    try:
        facts = json.loads(device)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


@cache
def compiler_version() -> str:
    """The version of the package, and a hash of its sources and of its libraries' versions.

    The sources stand for the rules and for how code is made; nothing of them is loaded.
    """
    from importlib import util

    digest = hashlib.sha256()
    package = (__package__ or "").rpartition(".")[0]
    for name in (package, *(f"{package}.{part}" for part in ("dialect", "passes", "runtime"))):
        found = util.find_spec(name)
        for folder in (found and found.submodule_search_locations) or ():
            for path in sorted(Path(folder).glob("*.py")):
                digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for name in _LIBRARIES:
        digest.update(f"{name} {_version(name)}\n".encode())
    return f"{_version(package)}+{digest.hexdigest()[:12]}"


def _version(name: str) -> str:
    from importlib import metadata  # here, for it takes as long to load as a database

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # another build of the bindings
        return "unknown"
