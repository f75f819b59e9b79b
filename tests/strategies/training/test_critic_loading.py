from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
)

from roll.models.critic import load_critic
from roll.models.errors import ModelNotFoundError
from roll.models.loading import load_model
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from roll.strategies.training.values import forward_values, value_head
from tests.strategies.generation.hf_infer.hf_infer_support import SIZES, qwen
from tests.strategies.training.batches import token_batch

FAMILIES = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config),
    "llama": (LlamaForCausalLM, LlamaConfig),
}


def saved(directory: Path, model: PreTrainedModel) -> str:
    model.save_pretrained(directory)
    return str(directory)


def values_of(model: PreTrainedModel) -> Tensor:
    batch = token_batch()
    with torch.no_grad():
        return forward_values(model, batch["input_ids"], batch["response_mask"])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_critic_of_a_language_model_has_its_backbone_and_values_of_zero(
    family: str, tied: bool, tmp_path: Path
) -> None:
    model_class, config_class = FAMILIES[family]
    policy = model_class(config_class(**SIZES, tie_word_embeddings=tied))
    critic = load_critic(saved(tmp_path, policy))
    backbone = dict(policy.base_model.named_parameters())
    assert dict(critic.base_model.named_parameters()).keys() == backbone.keys()
    for name, parameter in critic.base_model.named_parameters():
        assert torch.equal(parameter, backbone[name]), name
    head = value_head(critic)
    own = {id(parameter) for parameter in [*critic.base_model.parameters(), *head.parameters()]}
    assert {id(parameter) for parameter in critic.parameters()} == own, "no language-model head is left"
    assert not critic.training and values_of(critic).count_nonzero() == 0
    # The values are zero because of the head alone.
    torch.nn.init.ones_(head.weight)
    assert values_of(critic).count_nonzero() == token_batch()["response_mask"].sum()


def test_the_packaged_model_makes_a_critic_without_dropout() -> None:
    critic, policy = load_critic("toy"), load_model("toy")
    assert torch.equal(critic.get_input_embeddings().weight, policy.get_input_embeddings().weight)
    assert critic.dropout.p == 0.0 and critic.config.num_labels == 1
    assert all(parameter.dtype == torch.float32 for parameter in critic.parameters())


def test_loading_draws_nothing_from_the_global_generator(tmp_path: Path) -> None:
    path = saved(tmp_path, qwen())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load_critic(path)
    assert torch.equal(torch.rand(3), expected)


def trained_critic() -> PreTrainedModel:
    critic = load_critic("toy")
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    return critic


def test_a_saved_critic_loads_exactly_head_included(tmp_path: Path) -> None:
    critic = trained_critic()
    FsdpTrainStrategy(critic, TrainOptions(), predicts="values").save_hf(tmp_path)
    expected = values_of(critic)
    assert expected.count_nonzero() > 20
    assert torch.equal(values_of(load_critic(str(tmp_path))), expected)
    # It is an ordinary Hugging Face model: nothing of this project is needed to read it.
    plain = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    batch = token_batch()
    with torch.no_grad():
        logits = plain(batch["input_ids"], use_cache=False).logits[..., 0]
    read = torch.where(batch["response_mask"][:, 1:], logits[:, :-1], 0.0)
    torch.testing.assert_close(read, expected[:, 1:], atol=1e-6, rtol=0)


def test_the_head_of_a_reward_model_is_kept(tmp_path: Path) -> None:
    torch.manual_seed(1)
    reward_model = Qwen3ForSequenceClassification(Qwen3Config(**SIZES, num_labels=1))
    head = value_head(load_critic(saved(tmp_path, reward_model)))
    assert reward_model.score.weight.count_nonzero() > 0 and torch.equal(head.weight, reward_model.score.weight)
    assert head.bias.item() == 0.0, "it has none, so the critic's starts at zero"


def test_a_head_for_other_labels_is_left_out(tmp_path: Path) -> None:
    critic = load_critic(saved(tmp_path, Qwen3ForSequenceClassification(Qwen3Config(**SIZES, num_labels=3))))
    assert value_head(critic).weight.shape[0] == 1 and values_of(critic).count_nonzero() == 0


def test_a_folder_without_all_of_the_backbone_is_an_error(tmp_path: Path) -> None:
    path = saved(tmp_path, qwen())
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelNotFoundError, match=r"it lacks \d+ weights of the model, model\.layers\.2\.\S+ among"):
        load_critic(path)


def test_a_model_that_is_not_there_is_a_readable_error(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"there is no such folder\. use pretrain=toy"):
        load_critic(str(tmp_path / "nowhere"))


def test_a_language_model_has_no_value_head() -> None:
    with pytest.raises(TypeError, match=r"Qwen3ForCausalLM has no value head .*load_critic"):
        value_head(qwen())
