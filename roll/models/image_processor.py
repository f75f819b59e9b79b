"""The image processor of a model that sees goes wherever its weights go."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from roll.strategies.pictures import PictureError, load_image_processor


def copy_image_processor(source: str, folder: Path) -> None:
    """Write the image processor of ``source``, where it has one, beside a model that sees.

    Args:
        source: A folder or hub name.
        folder: In Hugging Face format, with the ``config.json`` of the model.
    """
    config = folder / "config.json"
    if not config.is_file() or "vision_config" not in json.loads(config.read_text("utf-8")):
        return
    # A folder of weights alone has none, and is copied as it is.
    with suppress(PictureError):
        load_image_processor(source).save_pretrained(folder)
