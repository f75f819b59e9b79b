"""What loaders say about a model that cannot be had."""

from __future__ import annotations

from roll.config.errors import FixableError


class ModelNotFoundError(FixableError):
    """What ``pretrain`` names is no built-in model, no model folder, and no name that can be fetched."""
