"""The keys of ``strategy_config``: where the server is, who asks, and how patiently."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from roll.config.errors import UNSET, ConfigError, Problem, choose_from
from roll.generation import SamplingParams
from roll.strategies.generation.sampling_limits import Refusal

USUAL_KEY: Final = "OPENAI_API_KEY"
"""The environment variable with the key, where none is named."""


class EndpointOptions(BaseModel):
    """Where the server is, who asks, and how patiently."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str = Field(description="Up to `/v1`.")
    model: str = Field(min_length=1, description="Name of the model at the server.")
    api_key_env: str | None = Field(None, description="Environment variable that holds the key.")
    timeout: float = Field(120.0, gt=0, description="Seconds for one attempt.")
    retries: int = Field(5, ge=0, description="Attempts after the first.")
    backoff: float = Field(0.5, ge=0, description="Seconds before the first retry, doubled each time.")
    concurrency: int = Field(16, ge=1, description="Requests at a time.")
    extra_body: dict[str, Any] = Field(default_factory=dict, description="Further fields of each request.")

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("this is no address: it begins with http:// or https:// and ends with /v1")
        if parts.username or parts.password or parts.query:
            raise ValueError("an address is written down with the run: name the variable of a key in api_key_env")
        return url.rstrip("/")

    @property
    def key_variable(self) -> str | None:
        """The environment variable with the key, ``None`` to send none."""
        return self.api_key_env or (USUAL_KEY if os.environ.get(USUAL_KEY) else None)


def check_options(options: Mapping[str, Any] | None, *, path: str = "strategy_config") -> None:
    """Check the options of a configuration.

    Raises:
        ConfigError: Lists what is missing, unknown or out of range, and a key that is not in the environment.
    """
    read_options(options, path)


def read_options(options: Mapping[str, Any] | None, path: str) -> EndpointOptions:
    """Return the options.

    Raises:
        ConfigError: See :func:`check_options`.
    """
    given = dict(options or {})
    try:
        read = EndpointOptions(**given)
    except ValidationError as error:
        raise ConfigError([_problem(each, path, given) for each in error.errors()]) from error
    if read.api_key_env and not os.environ.get(read.api_key_env):
        fix = f"export {read.api_key_env}=…; the key itself belongs into no file and no command."
        problem = Problem(f"{path}.api_key_env", "this environment variable is not set.", fix, read.api_key_env)
        raise ConfigError([problem])
    return read


def refusals(sampling: SamplingParams) -> Iterator[Refusal]:
    """Yield what is asked for and cannot be had."""
    if sampling.stop_strings:
        message = "an endpoint leaves out the text that ends a response, which environments and verifiers read"
        yield Refusal("stop_strings", message, "leave it out")
    if sampling.grammar:
        yield Refusal("grammar", "an endpoint is asked for text of any form", "leave it out, or use strategy hf_infer")


def _problem(error: Any, path: str, given: Mapping[str, Any]) -> Problem:
    name = str(error["loc"][0])
    place, message = f"{path}.{name}", f"{str(error['msg']).removeprefix('Value error, ').rstrip('.')}."
    if error["type"] == "missing":
        return Problem(
            place, "the endpoint is not named.", f"set {name}: {EndpointOptions.model_fields[name].description}"
        )
    if error["type"] == "extra_forbidden":
        return Problem(place, "unknown option.", choose_from(name, EndpointOptions.model_fields))
    about = EndpointOptions.model_fields[name].description
    value = given.get(name)
    shown = UNSET if name == "base_url" and set("@?") & set(str(value)) else value  # there may be a key in it
    return Problem(place, message, f"correct it: {about}", shown)
