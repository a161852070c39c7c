"""The errors that a user of dodeca sees: one clear message in the terms of their own program."""

from __future__ import annotations


class Error(Exception):
    """Base of every error that dodeca raises on purpose."""


class ShapeError(Error, ValueError):
    """Shapes, axes or index maps that do not fit each other."""


class DtypeError(Error, TypeError):
    """A dtype that is unknown, or that an operation does not take."""


class ArgumentError(Error, TypeError):
    """An executable was called with the wrong arguments."""


class ParseError(Error, ValueError):
    """A file that is not what it should be: MLIR text, safetensors."""


class VerifyError(Error, ValueError):
    """A module that breaks the rules of the dialect. `.diagnostics` lists every finding."""

    def __init__(self, diagnostics: list[tuple[str, str]]):
        self.diagnostics = diagnostics
        super().__init__("\n".join(f"{where}: error: {message}" for where, message in diagnostics))

    def __reduce__(self) -> tuple:
        # an exception made from its text would not unpickle
        return VerifyError, (self.diagnostics,)


class CompileError(Error, RuntimeError):
    """A stage of the compiler failed; the message names the stage and how to repeat it."""


class TargetError(Error, ValueError):
    """An unknown target, or one whose driver or device is missing."""


class DeviceError(Error, RuntimeError):
    """A GPU's driver refused or failed; the message names its function and what it was for."""
