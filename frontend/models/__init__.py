"""Models with their checkpoints' layouts: `dodeca.models.bert`."""

from . import bert

__all__ = ["bert"]
