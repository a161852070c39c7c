"""Binaries at work: executables, their memory and threads, and the tools around them."""

from .executable import Executable, PlannedLaunch

__all__ = ["Executable", "PlannedLaunch"]
