"""Whether somebody answers at an endpoint, takes the key and has the model: asked once, before anything is played."""

from __future__ import annotations

import os
from typing import Any, Final

import httpx

from roll.config.errors import ConfigError, Problem, choose_from
from roll.strategies.generation.openai_endpoint.options import USUAL_KEY, EndpointOptions

_SECONDS: Final = 10.0


def greet(options: EndpointOptions, path: str) -> None:
    """Ask for the list of models, and where it does not name this one, for one token of it.

    Args:
        options: Where the server is.
        path: Key path of the options, for errors.

    Raises:
        ConfigError: Nothing answers there, the key is refused, or there is no such model.
    """
    variable = options.key_variable
    headers = {} if variable is None else {"authorization": f"Bearer {os.environ[variable]}"}
    place = f"{path}.base_url"
    try:
        with httpx.Client(headers=headers, timeout=_SECONDS) as client:
            listed = client.get(f"{options.base_url}/models")
            if listed.status_code not in (401, 403) and options.model in (names := _names(listed)):
                return
            answer = listed if listed.status_code in (401, 403) else _ask(client, options)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        message = f"nothing answers there ({type(error).__name__}: {error})."
        fix = "start the server, or correct the address; it ends with /v1."
        raise ConfigError([Problem(place, message, fix, options.base_url)]) from error
    if answer.status_code in (401, 403):
        message = f"the server refuses {'a request without a key' if variable is None else f'the key in {variable}'}."
        fix = f"export {USUAL_KEY}=…, or name the variable in api_key_env (--api-key-env)."
        raise ConfigError([Problem(f"{path}.api_key_env", message, fix if variable is None else "correct the key.")])
    if answer.status_code in (400, 404, 422) and names:
        message = f"the server has no such model, or does not answer for it: {_said(answer)}."
        raise ConfigError([Problem(f"{path}.model", message, choose_from(options.model, names), options.model)])
    if answer.status_code == 404:
        message = "what answers there is no OpenAI-compatible endpoint, or knows no such model."
        raise ConfigError([Problem(place, f"{message} {_said(answer)}", "correct it: up to /v1.", options.base_url)])


def _ask(client: httpx.Client, options: EndpointOptions) -> httpx.Response:
    body: dict[str, Any] = {"model": options.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    body |= options.extra_body
    asked = {key: value for key, value in body.items() if value is not None}
    return client.post(f"{options.base_url}/chat/completions", json=asked, timeout=options.timeout)


def _names(listed: httpx.Response) -> list[str]:
    """Return the models that a server lists; none where it lists none, or not in the way that is usual."""
    try:
        return [str(model["id"]) for model in listed.json()["data"]] if listed.is_success else []
    except (ValueError, KeyError, TypeError):
        return []


def _said(answer: httpx.Response) -> str:
    return " ".join(answer.text.split())[:200]
