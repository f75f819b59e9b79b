"""The real SGLang engine, which all tests of it share, and its double."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
import torch
from engines import MAX_LENGTH, MOST_NAMED, EngineUnderTest, HuggingFace, Says, children_named, decode, toy_folder
from sglang_double import END_TOKEN, VOCABULARY, install

from roll.generation import SamplingParams
from roll.models.loading import load_model
from roll.strategies.generation.sglang.description import SGLANG

needs_sglang = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None, reason="SGLang is not installed here: run `make test-sglang`"
)


class RealSglang(EngineUnderTest):
    """SGLang's engine on CPUs, where it has no seeds: ``enable_deterministic_inference`` is refused there."""

    about = SGLANG
    keyed_noise = False

    def __init__(self, **strategy_config: Any) -> None:
        from roll.strategies.generation.sglang.strategy import SglangStrategy

        self.before = {child.pid for child in psutil.Process().children(recursive=True)}
        engine = SglangStrategy(
            toy_folder(),
            max_slots=64,
            max_length=MAX_LENGTH,
            dtype="fp32",
            bucket_bytes=64 * 1024,
            decode=decode,
            most_named=MOST_NAMED,
            strategy_config=strategy_config,
        )
        super().__init__(engine, HuggingFace(load_model("toy")))

    def own_processes(self) -> list[psutil.Process]:
        return children_named("sglang::", self.before)


@dataclass
class Number:
    """The model of the double: it adds a number."""

    number: int

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        return [(prompt[-1] + self.number * step) % VOCABULARY for step in range(1, count + 1)]

    def log_probs(self, prompt: list[int], tokens: list[int], sampling: SamplingParams) -> torch.Tensor:
        before = torch.tensor([prompt[-1], *tokens[:-1]])
        right = (before + self.number) % VOCABULARY == torch.tensor(tokens)
        return torch.where(right, -float(self.number), float("-inf"))

    def distributions(self, tokens: list[int]) -> torch.Tensor:
        following = (torch.tensor(tokens[:-1]) + self.number) % VOCABULARY
        everywhere = torch.full((len(following), VOCABULARY), float("-inf"))
        return everywhere.scatter(1, following.unsqueeze(1), -float(self.number))

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "number", torch.full((2,), float(self.number))


def written(tokens: list[int]) -> str:
    """Return the text of the double's tokens."""
    return "".join(f"<{token}>" for token in tokens)


class SglangDouble(EngineUnderTest):
    """The strategy over the fake package: it has no noise."""

    about = SGLANG
    keyed_noise = False
    leads_to_end = [END_TOKEN - 3]  # noqa: RUF012
    end_token = END_TOKEN
    vocabulary = VOCABULARY

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from roll.strategies.generation.sglang.strategy import SglangStrategy

        install(monkeypatch)
        size = {"max_slots": 64, "max_length": MAX_LENGTH, "most_named": MOST_NAMED}
        engine = SglangStrategy(toy_folder(), **size, dtype="fp32", decode=written)
        super().__init__(engine, Number(1))

    def decode(self, tokens: list[int]) -> str:
        return written(tokens)

    def changed(self, seed: int) -> Says:
        return Number(2 + seed)
