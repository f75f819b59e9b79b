"""From which hub names are downloaded."""

from __future__ import annotations

import os


def takes_modelscope() -> bool:
    """Tell whether ``USE_MODELSCOPE`` asks for ModelScope in place of the Hugging Face hub."""
    return os.environ.get("USE_MODELSCOPE", "").lower() in ("1", "true", "yes")
