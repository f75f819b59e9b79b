"""A policy behind an endpoint, until Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import uvicorn

from roll.api.policy import load_policy
from roll.config.worker import WorkerConfig
from roll.gateway.app import APIS, Gateway
from roll.gateway.served import ServedPolicy
from roll.gateway.server import HOST, listen, server_config
from roll.gateway.unrecorded import Unrecorded
from roll.generation import SamplingParams
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

    Raises:
        ConfigError: There is no such policy, or the port is taken.
    """
    listener = listen(host, port)
    try:
        policy = load_policy(source, dtype=dtype)
        longest = max_length or min(int(getattr(policy.model.config, "max_position_embeddings", _LONGEST)), _LONGEST)
        gateway = Gateway(name or str(source), only_model=True)
        url = f"http://{host}:{listener.getsockname()[1]}"

        async def answer() -> None:
            renderer = policy.text.renderer
            job = EngineJob(
                folder=lambda: policy.source, load=lambda: policy.model, max_length=longest, decode=policy.text.written
            )
            engine = build_engine(_ENGINE, job)
            try:
                served = ServedPolicy(
                    renderer=renderer,
                    generate=engine.generate,
                    sampling=SamplingParams(longest),
                    sequence_length=longest,
                    overrules=False,
                )
                shown = gateway.open(Unrecorded(served), key)
                say(f"{gateway.model} answers at {url}; Ctrl-C ends it.")
                say(f"  export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={shown}")
                say(f"  export ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY={shown}")
                say(f"  {', '.join(APIS)}; model {gateway.model}, {longest:,} tokens")
                await uvicorn.Server(server_config(gateway)).serve(sockets=[listener])
            finally:
                await engine.close()

        asyncio.run(answer())
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()
