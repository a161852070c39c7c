"""Loads egglog's engine without the package around it, in which programs are written in Python.

To import that takes longer than most searches. What comes later and asks for either finds it.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec

NAME = "egglog.bindings"


def load_engine() -> None:
    """Import the compiled module alone; ImportError if egglog is not installed."""
    if NAME in sys.modules:
        return
    package = find_spec("egglog")
    spec = PathFinder.find_spec(NAME, package and package.submodule_search_locations)
    if spec is None or spec.loader is None:
        raise ImportError("dodeca needs egglog: pip install 'egglog>=13.2'")
    sys.modules[NAME] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])


load_engine()
