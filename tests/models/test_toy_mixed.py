"""The teacher of games and sums, and the policy it started."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from pathlib import Path

import pytest
import torch

from roll.generation import GenerationRequest, SamplingParams
from roll.models.finding import resolve_pretrain
from roll.models.loading import load_model, load_tokenizer
from roll.models.toy import MIXED_WEIGHTS_DIRECTORY
from roll.models.toy.build import RECIPES, build
from roll.models.toy.mixed import teachers
from roll.rendering import ChatRenderer
from roll.strategies.generation.hf_infer.strategy import HfInferStrategy

VALIDATION = Path(__file__).resolve().parents[2] / "roll" / "presets" / "data" / "sums_val.jsonl"
TOKENIZER = load_tokenizer("toy_mixed")
RENDERER = ChatRenderer(TOKENIZER)


def test_both_teachers_play_and_calculate() -> None:
    for teacher in teachers(RENDERER, lambda text: list(TOKENIZER.encode(text, add_special_tokens=False)), seed=3):
        tags = {sample.tag for sample in itertools.islice(teacher, 60)}
        assert "SimpleSokoban" in tags and "arithmetic" in tags


@pytest.mark.long
def test_the_mixed_build_goes_on_from_another_policy_and_is_reproducible(tmp_path: Path) -> None:
    for name in ("first", "second"):
        build(tmp_path / name, "mixed", steps=3, batch_size=4)
        torch.manual_seed(1234)
    hashes = [
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / name).iterdir()}
        for name in ("first", "second")
    ]
    assert hashes[0] == hashes[1] and "model.safetensors" in hashes[0]


def test_the_shipped_policy_is_found_by_name_and_small() -> None:
    assert resolve_pretrain("toy_mixed") == str(MIXED_WEIGHTS_DIRECTORY) == str(RECIPES["mixed"].weights)
    assert sum(path.stat().st_size for path in MIXED_WEIGHTS_DIRECTORY.iterdir()) < 4 * 2**20


def test_the_shipped_policy_calculates_sometimes() -> None:
    rows = [json.loads(line) for line in VALIDATION.read_text("utf-8").splitlines()]
    engine = HfInferStrategy(load_model("toy_mixed"), max_slots=256, max_length=128)
    sampling = SamplingParams(max_new_tokens=40, stop_token_ids=RENDERER.stop_token_ids)

    async def right(index: int, row: dict[str, str]) -> bool:
        prompt = RENDERER.initial_ids([{"role": "user", "content": row["prompt"]}])
        completion = await engine.generate(GenerationRequest(str(index), prompt, sampling, seed=index))
        return f"<answer>{row['ground_truth']}</answer>" in RENDERER.decode(completion.token_ids)

    async def answer() -> list[bool]:
        return await asyncio.gather(*[right(index, row) for index, row in enumerate(rows)])

    found = asyncio.run(answer())
    assert 0.05 < sum(found) / len(found) < 0.6, "room to learn, and something to begin with"
