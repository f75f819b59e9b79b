"""Loading a reward model to train: the backbone of a language model with one number for a whole text."""

from __future__ import annotations

from transformers import AutoModelForSequenceClassification, PreTrainedModel

from roll.models.loading import load_tokenizer
from roll.models.value_heads import load_with_value_head


def load_reward_model(
    pretrain: str, *, dtype: str | None = "fp32", device: str = "cpu", attn_implementation: str | None = None
) -> PreTrainedModel:
    """Load the reward model of ``pretrain`` in evaluation mode: a sequence classifier with one label.

    From a language model comes the backbone; the head starts at zero, so before the first step every score is 0. What
    is there of a head with one label is kept: that of a saved reward model, and that of a critic but for its bias,
    which changes no comparison. The configuration says which token fills up rows, without which ``transformers`` would
    not know where a text ends.

    Args:
        pretrain: A built-in model (:data:`roll.models.finding.BUILT_IN`), a folder, or a Hugging Face name.
        dtype: ``fp32``, ``bf16`` or ``fp16``; ``None`` keeps the type the weights are stored in.
        device: Torch device string.
        attn_implementation: ``sdpa``, ``eager`` or ``flash_attention_2``; ``None`` lets ``transformers`` choose.

    Raises:
        ModelNotFoundError: If nothing is there that a reward model can be made of.
    """
    model = load_with_value_head(
        AutoModelForSequenceClassification,
        pretrain,
        "reward model",
        dtype=dtype,
        device=device,
        attn_implementation=attn_implementation,
    )
    config = model.config.get_text_config()
    if config.pad_token_id is None:
        config.pad_token_id = load_tokenizer(pretrain).pad_token_id
    return model
