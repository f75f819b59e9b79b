"""A JSON Schema of the keys of a kind of run, by which editors complete and check YAML files."""

from __future__ import annotations

from typing import Any, Final

from pydantic import ValidationError

from roll.config.base import ConfigModel
from roll.config.run import RunConfig
from roll.config.validation import sections

_INTERPOLATED: Final = {"type": "string", "pattern": r"\$\{"}
_TEXT: Final = {"type": "string"}
_OF_HYDRA: Final = {
    "defaults": {"type": "array", "description": "Files that this one begins with."},
    "hydra": {"type": "object", "description": "Settings of Hydra."},
}


def json_schema(kind: type[RunConfig]) -> dict[str, Any]:
    """Return the schema of a file.

    No key is required, since files inherit from others; every value may be an interpolation (``${max_steps}``), and a
    list of one the text alone.
    """
    schema = kind.model_json_schema()
    models = {model.__name__: model for _, model in sections(kind)} | {kind.__name__: kind}
    parts = schema.get("$defs", {})
    for name, definition in [*parts.items(), (kind.__name__, schema)]:
        if "properties" in definition:
            _open(definition, models.get(name))
    for name, model in models.items():
        if name in parts and _is_number_alone(model):
            parts[name] = {"anyOf": [parts[name], {"type": "number"}]}
    schema["properties"] |= _OF_HYDRA
    # A key with a slash chooses a file: actor_train/strategy: deepspeed_zero2.
    schema["patternProperties"] = {"^[^.]*/": {"type": ["string", "array", "null"]}}
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


def _is_number_alone(model: type[ConfigModel]) -> bool:
    """Whether a section can be written as one number (``math: 1.0`` for the weight of a verifier)."""
    try:
        model.model_validate(1.0)
    except ValidationError:
        return False
    return True


def _open(definition: dict[str, Any], model: type[ConfigModel] | None) -> None:
    definition.pop("required", None)
    properties = definition["properties"]
    for name, described in properties.items():
        said = {key: described.pop(key) for key in ("description", "default") if key in described}
        takes = _TEXT if "array" in str(described) else _INTERPOLATED
        properties[name] = {"anyOf": [described, takes], **said}
    for alias, key in (model.key_aliases if model else {}).items():
        properties[alias] = properties[key]
