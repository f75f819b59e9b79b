"""Libraries that talk while they load: the run has a display of its own."""

from __future__ import annotations

import logging

from transformers.utils import logging as transformers_logging


def quiet_libraries() -> None:
    """Switch progress bars and notices off for the rest of this process."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    quiet_deepspeed()


def quiet_deepspeed() -> None:
    """Leave out what DeepSpeed tells wherever transformers finds it installed: which device, which compiler."""
    for name in ("DeepSpeed", None):
        logger = logging.getLogger(name)
        if _is_worth_telling not in logger.filters:
            logger.addFilter(_is_worth_telling)


def _is_worth_telling(record: logging.LogRecord) -> bool:
    return "distutils" not in record.pathname and "Setting accelerator to CPU" not in record.getMessage()
