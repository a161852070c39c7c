"""`dodeca`: the commands beside the compiler.

    dodeca db list
    dodeca db show sentence_embedding
    dodeca check ~/.cache/dodeca/bugs/5f2e11d0a9c34b77.mlir

A command is a module with `main(words) -> exit status`, loaded when it is called. Exit status: 0,
1 with one line that says why, 2 if the command line is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from .dialect.errors import Error

# name: its module, what it does
COMMANDS = {
    "db": ("database_command", "the tuning database: what was measured, and how sure"),
    "check": ("reproducer", "compile, run and check again a kernel that a search found wrong"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    options = _parser().parse_args(arguments)
    module = importlib.import_module(f".{COMMANDS[options.command][0]}", __package__)
    try:
        status = module.main(options.words)
        sys.stdout.flush()
    except Error as error:
        print(f"dodeca {options.command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # of `dodeca db list | head`; nor may the exit write to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        prog="dodeca",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n"
        + "\n".join(f"  {name:{width}}  {what}" for name, (_, what) in COMMANDS.items())
        + "\n\n`dodeca COMMAND --help` says more.",
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
