"""A policy behind an endpoint, until Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from transformers import PreTrainedModel

from roll.api.policy import Policy, load_policy
from roll.common.http_server import HttpServer
from roll.config import ConfigError, Problem
from roll.config.worker import WorkerConfig
from roll.gateway.app import Gateway, how_to_ask
from roll.gateway.served import ServedPolicy
from roll.gateway.server import HOST, listen, server_config
from roll.gateway.unrecorded import Unrecorded
from roll.models.adapted import with_adapter
from roll.models.finding import resolve_pretrain
from roll.service.clients import Base
from roll.service.serving import serve_training
from roll.strategies import EngineJob
from roll.strategies.building import build_engine

_ENGINE = WorkerConfig().strategy_args.strategy_name
_LONGEST = 4096


def serve(
    source: str | Path,
    *,
    say: Callable[[str], None],
    host: str = HOST,
    port: int = 0,
    key: str | None = None,
    name: str | None = None,
    max_length: int | None = None,
    dtype: str = "fp32",
    adapters: Mapping[str, str | Path] | None = None,
    train: str | Path | None = None,
) -> None:
    """Answer for a policy until Ctrl-C.

    Args:
        source: What :func:`roll.load_policy` takes.
        say: Shows a line to the person at the terminal.
        host: The interface; by default none that another machine reaches.
        port: 0 for any that is free.
        key: What clients show; ``None`` makes one.
        name: The name of the model; by default that of the source.
        max_length: Most tokens of a conversation and its answer; by default what the model was made for, 4096 at most.
        dtype: See :func:`roll.load_policy`.
        adapters: Folders of LoRA adapters for the policy, by the names of the models that they make of it.
        train: A folder for weights, if clients are to train adapters of the policy: Tinker's protocol is spoken then.

    Raises:
        ConfigError: There is no such policy, its adapters are not for it, or the port is taken.
    """
    listener = listen(host, port)
    try:
        policy = load_policy(source, dtype=dtype)
        longest = max_length or min(int(getattr(policy.model.config, "max_position_embeddings", _LONGEST)), _LONGEST)
        if train is not None:
            called = name or str(source)
            serve_training(_trained(policy, called, longest), listener=listener, say=say, folder=Path(train), key=key)
            return
        gateway = Gateway(name or str(source), only_model=True)
        url = f"http://{host}:{listener.getsockname()[1]}"

        models = {gateway.model: policy.model, **_adapted(policy, adapters or {}, gateway.model)}

        async def answer() -> None:
            async with AsyncExitStack() as engines:
                asked = {
                    name: Unrecorded(await engines.enter_async_context(_serving(policy, model, longest)))
                    for name, model in models.items()
                }
                shown = gateway.open(asked.pop(gateway.model), key, asked)
                for line in how_to_ask(list(models), url, shown, longest):
                    say(line)
                await HttpServer(server_config(gateway)).serve(sockets=[listener])

        asyncio.run(answer())
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()


def _trained(policy: Policy, name: str, longest: int) -> Base:
    """Return a policy as what clients adapt."""
    return Base(
        name=name,
        folder=resolve_pretrain(policy.source),
        model=policy.model,
        decode=policy.text.written,
        stop_token_ids=tuple(policy.text.renderer.stop_token_ids),
        longest=longest,
    )


def _adapted(policy: Policy, adapters: Mapping[str, str | Path], taken: str) -> dict[str, PreTrainedModel]:
    """Return the policy with each of the adapters.

    Raises:
        ConfigError: A name is taken, or a folder holds no adapters for it.
    """
    made = {}
    for name, folder in adapters.items():
        try:
            if name == taken:
                raise ValueError(f"{name} is the name of the policy itself")
            made[name] = with_adapter(policy.model, folder)
        except (OSError, ValueError, ModuleNotFoundError) as error:
            fix = "give a name, and a folder that save_adapters() or peft wrote for this policy."
            raise ConfigError([Problem("--adapter", f"{error}.", fix, f"{name}={folder}")]) from error
    return made


@asynccontextmanager
async def _serving(policy: Policy, model: PreTrainedModel, longest: int) -> AsyncIterator[ServedPolicy]:
    """An engine for a model, as calls reach it; it ends with the block."""
    job = EngineJob(
        folder=lambda: policy.source,
        load=lambda: model,
        max_length=longest,
        decode=policy.text.written,
        tokenizer=lambda: policy.text.tokenizer,
    )
    engine = build_engine(_ENGINE, job)
    try:
        yield ServedPolicy.in_use(policy.text.renderer, engine.generate, longest)
    finally:
        await engine.close()
