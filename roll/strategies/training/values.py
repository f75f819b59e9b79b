"""Values of a critic at response tokens."""

from __future__ import annotations

import copy
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    PretrainedConfig,
    PreTrainedModel,
)

from roll.strategies.base import Classifier
from roll.strategies.training.packing import flat_hidden
from roll.strategies.training.ulysses import SequenceRanks

HEADS = ("score", "classifier")

_CLASSES: Final = {
    "token": MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    "sequence": MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
}


def classifier_class(config: PretrainedConfig, kind: Classifier) -> type[PreTrainedModel]:
    """Return the class of ``transformers`` for a classifier with the backbone of ``config``.

    Raises:
        ValueError: There is none for this architecture.
    """
    found: Any = _CLASSES[kind].get(type(config), None)
    if found is None:
        raise ValueError(f"transformers has no {kind} classifier for {config.model_type}.")
    model: type[PreTrainedModel] = found
    return model


def classifier_config(config: PretrainedConfig, kind: Classifier, pad_token_id: int | None = None) -> PretrainedConfig:
    """Return a copy of a configuration that says that its model is a classifier with one label, without dropout.

    Args:
        config: Of the backbone.
        kind: The classifier.
        pad_token_id: Set where the configuration has none: ``transformers`` finds the end of a sequence by it.

    Raises:
        ValueError: There is none for this architecture.
    """
    described = copy.deepcopy(config)
    described.architectures = [classifier_class(config, kind).__name__]
    described.num_labels, described.classifier_dropout = 1, 0.0
    if described.pad_token_id is None:
        described.pad_token_id = pad_token_id
    return described


def value_head(model: PreTrainedModel) -> nn.Linear:
    """Return the layer of a critic that maps hidden states to one number.

    Args:
        model: A Hugging Face model for token classification with one label.

    Raises:
        TypeError: If ``model`` has no such layer.
    """
    for name in HEADS:
        head = getattr(model, name, None)
        if isinstance(head, nn.Linear) and head.out_features == 1:
            return head
    raise TypeError(
        f"{type(model).__name__} has no value head (a linear layer {' or '.join(HEADS)} with one output). "
        "Load critics with roll.models.critic.load_critic."
    )


def forward_values(
    model: PreTrainedModel,
    input_ids: Tensor,
    response_mask: Tensor,
    *,
    lengths: Tensor | None = None,
    ranks: SequenceRanks | None = None,
    shared: bool = False,
) -> Tensor:
    """Run a critic over right-padded sequences and return the value of the state before each token of the mask.

    A value is read from the hidden state of the token before, so it has seen the tokens < t and never token t itself:
    the alignment of log-probs, and the one that generalised advantage estimation expects.

    Args:
        model: A critic (see :func:`value_head`).
        input_ids: ``[batch, sequence]`` int64, padded on the right.
        response_mask: ``[batch, sequence]`` bool or 0/1, aligned with the token it describes; 0 on padding.
        lengths: ``[batch]``, valid tokens of each row: packs the rows
            (:func:`roll.strategies.training.packing.flat_hidden`).
        ranks: Those that each compute a part of the same sequences; every one of them gets all values.
        shared: Compute equal beginnings of packed rows once.

    Returns:
        ``[batch, sequence]``, 0 outside the mask; position 0 is always 0.
    """
    head = value_head(model)
    mask = response_mask.bool().clone()
    mask[:, 0] = False
    hidden = flat_hidden(model.base_model, input_ids, lengths, ranks, shared=shared, read=mask)
    mask = hidden.own(mask)
    before = hidden.before(mask)
    # The head keeps the precision of its weights: bf16 has three digits, too few for the small differences of values.
    with torch.autocast(before.device.type, enabled=False):
        values = head(before.to(head.weight.dtype)).squeeze(-1)
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    return hidden.together(values.new_zeros(mask.shape).masked_scatter(mask, values))
