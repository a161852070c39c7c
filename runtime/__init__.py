"""Binaries at work: executables, their memory and threads, and the tools around them."""

from .executable import Executable, PlannedLaunch
from .profile import LaunchProfile, Profile

__all__ = ["Executable", "LaunchProfile", "PlannedLaunch", "Profile"]
