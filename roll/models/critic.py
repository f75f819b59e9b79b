"""Loading a critic: the backbone of a language model with one number per token in place of the vocabulary."""

from __future__ import annotations

from transformers import AutoModelForTokenClassification, PreTrainedModel

from roll.models.value_heads import load_with_value_head


def load_critic(
    pretrain: str, *, dtype: str | None = "fp32", device: str = "cpu", attn_implementation: str | None = None
) -> PreTrainedModel:
    """Load the critic of ``pretrain`` in evaluation mode: a token classifier with one label and without dropout.

    From a language model comes the backbone; its head is left out. The value head starts at zero, so before the first
    step every value is 0, whatever the seed, and that step moves the head only. What is there of a value head is kept:
    that of a saved critic, and that of a reward model with one label.

    Args:
        pretrain: A built-in model (:data:`roll.models.finding.BUILT_IN`), a folder, or a Hugging Face name.
        dtype: ``fp32``, ``bf16`` or ``fp16``; ``None`` keeps the type the weights are stored in.
        device: Torch device string.
        attn_implementation: ``sdpa``, ``eager`` or ``flash_attention_2``; ``None`` lets ``transformers`` choose.

    Raises:
        ModelNotFoundError: If nothing is there that a critic can be made of.
    """
    return load_with_value_head(
        AutoModelForTokenClassification,
        pretrain,
        "critic",
        dtype=dtype,
        device=device,
        attn_implementation=attn_implementation,
    )
