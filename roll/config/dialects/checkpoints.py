"""What guides say of the parts of a checkpoint: what a run goes on from, and the model in Hugging Face format."""

from __future__ import annotations

from typing import Any, Final

from roll.config.dialects.rows import Impossible, Look, Row, Sets, Unused, no_effect
from roll.config.errors import FixableError

_CONTENTS: Final = "checkpoint_config.contents"
_MODEL: Final = "checkpoint_config.hf_model"
_PARTS: Final = ("model", "optimizer", "extra", "hf_model")


def contents_rows(section: str) -> tuple[Row, ...]:
    """Return the rows of the parts that a trainer of verl saves, and takes of a checkpoint."""
    return (
        *(
            Row(f"{section}.{name}", (_CONTENTS, _MODEL), "without `optimizer`: weights alone", _contents)
            for name in ("save_contents", "contents")
        ),
        Row(f"{section}.load_contents", note="all of them", convert=_loaded, agrees="resume_from_checkpoint"),
        *no_effect(
            "a checkpoint is written whole before the next step", f"{section}.async_save", f"{section}.mbridge_config"
        ),
    )


def model_row(key: str) -> Row:
    """Return the row of a switch by which a checkpoint has the model in Hugging Face format."""
    return Row(key, _MODEL, "true is `always`, false `never`", _switch)


def _contents(value: Any, look: Look) -> Any:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or any(part not in _PARTS for part in value):
        raise FixableError("it is a list of parts.", f"write some of {', '.join(_PARTS)}.")
    if "optimizer" not in value:
        return Sets({_CONTENTS: "weights"}, note="weights are saved in the Hugging Face format")
    return Sets({_CONTENTS: "all"}, {_MODEL: "always" if "hf_model" in value else "never"})


def _loaded(value: Any, look: Look) -> Any:
    """Convert the parts that a run which goes on takes of a checkpoint: it takes all of them."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list) or "optimizer" in parts:
        return Unused()
    return Impossible(
        "a run that goes on takes all of a checkpoint", "pretrain: <checkpoint>/hf begins with its weights"
    )


def _switch(value: Any, look: Look) -> Any:
    return {True: "always", False: "never"}.get(value, value) if isinstance(value, bool) else value
