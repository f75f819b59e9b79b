"""Other rotary waves: trainer and engine compute what a plain model of `transformers` with the same parameters does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from roll.config import RLVRConfig
from roll.config.loading import load
from roll.generation import GenerationRequest, SamplingParams
from roll.models.errors import ModelNotFoundError
from roll.models.rope import scaled_folder, with_rope
from roll.strategies.building import build_trainer
from roll.workers.factory import generation_strategy, trainer_job
from roll.workers.loading import model_folder
from tests.strategies.generation.hf_infer.hf_infer_support import SIZES, prompts, run_all

THETA = 500.0
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: list[tuple[dict[str, Any] | None, float | None]] = [
    ({"rope_type": "linear", "factor": 2.0}, None),
    (YARN, None),
    ({**YARN, "original_max_position_embeddings": 128, "attention_factor": 1.5}, 9000.0),
    ({**LLAMA3, "original_max_position_embeddings": 128}, None),
    (None, 9000.0),
]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLL_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    rope = {"rope_type": "default", "rope_theta": THETA}
    LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=rope)).save_pretrained(path)
    return str(path)


def plain(folder: str, scaling: dict[str, Any] | None, theta: float | None) -> PreTrainedModel:
    """Return what `transformers` makes of the same weights when it is given the parameters itself."""
    config = AutoConfig.from_pretrained(folder)
    rope = {"rope_theta": theta or THETA, **(scaling or {"rope_type": "default"})}
    if rope["rope_type"] != "linear":
        rope.setdefault("original_max_position_embeddings", SIZES["max_position_embeddings"])
    described = {key: value for key, value in config.to_dict().items() if key != "rope_parameters"}
    return AutoModelForCausalLM.from_pretrained(folder, config=LlamaConfig(**described, rope_parameters=rope)).eval()


def run(folder: str, scaling: dict[str, Any] | None, theta: float | None) -> RLVRConfig:
    own = {"actor_train.model_args.rope_scaling": scaling, "actor_train.model_args.rope_theta": theta}
    return load(
        {},
        kind=RLVRConfig,
        overrides={
            "pretrain": folder,
            "num_return_sequences_in_group": 2,
            "rewards": {"math_rule": {"verifiers": {"math": 1.0}}},
            "actor_train.data_args.file_name": ["problems.jsonl"],
            **{key: value for key, value in own.items() if value is not None},
        },
    )


def log_probs(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        rows = model(ids, use_cache=False).logits.log_softmax(-1)
    return rows[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]


@pytest.mark.parametrize(("scaling", "theta"), SCALINGS)
def test_trainer_and_engine_have_the_positions_of_transformers(folder: str, scaling: Any, theta: Any) -> None:
    config, ruler = run(folder, scaling, theta), plain(folder, scaling, theta)
    [prompt] = prompts(1, 40, 40)
    engine = generation_strategy(config)
    sampling = SamplingParams(max_new_tokens=8, temperature=0.0)
    [completion] = run_all(engine, [GenerationRequest("a", prompt, sampling)])
    ids = torch.tensor([prompt + completion.token_ids])
    expected = log_probs(ruler, ids)
    sampled = torch.tensor(completion.logprobs)
    torch.testing.assert_close(sampled, expected[0, len(prompt) - 1 :], atol=1e-5, rtol=0)
    trainer = build_trainer("fsdp_train", trainer_job(config, "actor_train"))
    whole = torch.ones_like(ids, dtype=torch.bool)
    batch = TensorDict({"input_ids": ids, "response_mask": whole, "lengths": torch.tensor([ids.shape[1]])}, [1])
    scored = trainer.compute_log_probs(batch)
    torch.testing.assert_close(scored[:, 1:], expected, atol=1e-5, rtol=0)
    # They are others than those of the model as it is, or nothing was tried.
    assert (log_probs(plain(folder, None, None), ids) - expected).abs().max() > 1e-3


def test_the_reference_of_the_same_model_turns_as_the_policy_does(folder: str) -> None:
    config = run(folder, YARN, None)
    assert config.model_args("reference").rope_scaling == config.actor_train.model_args.rope_scaling
    assert model_folder(config, "reference") == model_folder(config, "actor_train") != folder


def test_a_folder_is_made_once_of_links_and_describes_itself_in_old_words_and_new(folder: str) -> None:
    made = Path(scaled_folder(folder, YARN, None))
    assert scaled_folder(folder, YARN, None) == str(made)
    assert scaled_folder(folder, YARN, 9000.0) != str(made)
    assert (made / "model.safetensors").resolve() == (Path(folder) / "model.safetensors").resolve()
    said = json.loads((made / "config.json").read_text())
    own = {**YARN, "original_max_position_embeddings": 512}
    assert (said["rope_scaling"], said["rope_theta"]) == (own, THETA)
    assert said["rope_parameters"] == {**own, "rope_theta": THETA}
    assert said["max_position_embeddings"] == 2048


def test_the_description_of_a_scaled_model_scales_from_what_it_was_trained_with() -> None:
    once = with_rope({"rope_theta": 1e6, "max_position_embeddings": 512}, YARN, None)
    assert with_rope(once, YARN, None) == once
    assert with_rope(once, None, None) == once
    seen = with_rope({"text_config": {"rope_theta": 1e6, "max_position_embeddings": 512}}, YARN, None)
    assert seen == {"text_config": once}


def test_yarn_says_how_far_it_reaches_and_is_refused_where_that_is_less_than_without() -> None:
    scaled = with_rope({"rope_theta": 1e6, "max_position_embeddings": 512}, {**YARN, "factor": 8.0}, None)
    assert scaled["max_position_embeddings"] == 4096
    assert with_rope(scaled, YARN, None)["max_position_embeddings"] == 2048
    with pytest.raises(ValueError, match="of 64 positions reaches 256, and it has 512 without"):
        with_rope(scaled, {**YARN, "original_max_position_embeddings": 64}, None)


def test_a_model_with_several_kinds_of_waves_is_refused(tmp_path: Path) -> None:
    kinds = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    (tmp_path / "config.json").write_text(json.dumps({"rope_parameters": kinds}))
    with pytest.raises(ModelNotFoundError, match="rotary waves of several kinds"):
        scaled_folder(str(tmp_path), YARN, None)
