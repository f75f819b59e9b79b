"""A client's adapters: gradients that add up, optimiser steps, and what is written of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from roll.models.lora import add_adapters
from roll.service.losses import loss_named
from roll.service.records import Adam, Adapters, Example, Learned, RefusedError
from roll.strategies.training.adapters import is_adapter, save_adapters

_TOKENS: Final = 8192
"""Tokens of a pass."""
_ATTENTION: Final = {"q_proj", "k_proj", "v_proj", "o_proj"}
_WEIGHTS, _STATE, _KIND = "own.safetensors", "optimizer.pt", "client.json"


class ClientModel:
    """A model with adapters of one client, whose weights are those of all.

    Args:
        base: The model, without adapters; its weights stay as they are and are not copied.
        wanted: Which adapters.

    Raises:
        RefusedError: It cannot have such adapters.
    """

    def __init__(self, base: PreTrainedModel, wanted: Adapters) -> None:
        if wanted.rank < 1 or not (wanted.train_mlp or wanted.train_attn):
            raise RefusedError("LoRA needs a rank of at least 1, and train_mlp or train_attn")
        self.wanted = wanted
        self.model = sharing(base)
        names = {name.rpartition(".")[2] for name, part in base.named_modules() if isinstance(part, torch.nn.Linear)}
        head = base.get_output_embeddings()
        names -= {name.rpartition(".")[2] for name, part in base.named_modules() if part is head}
        chosen = [name for name in sorted(names) if (wanted.train_attn if name in _ATTENTION else wanted.train_mlp)]
        add_adapters(self.model, wanted.rank, target=chosen, seed=wanted.seed)
        # Dropout has no place here: the log-probs of a pass are compared with those of sampling.
        self.model.eval()
        self._parameters = {name: each for name, each in self.model.named_parameters() if is_adapter(name)}
        self._optimizer = torch.optim.AdamW(self._parameters.values(), lr=0.0)

    def learn(
        self, examples: Sequence[Example], loss: str, config: Mapping[str, float], *, backward: bool = True
    ) -> Learned:
        """Compute a loss, and add its gradients to those that are there.

        Args:
            examples: At least one.
            loss: One of :data:`roll.service.losses.LOSSES`.
            config: Its settings.
            backward: Whether gradients are wanted.

        Raises:
            RefusedError: The examples are not for this loss, or not for this model.
        """
        if not examples:
            raise RefusedError("there is no data to learn from")
        kind = loss_named(loss, frozenset.intersection(*(frozenset(each.inputs) for each in examples)), config)
        self._check(examples, several=kind.several)
        outputs: list[dict[str, Tensor]] = []
        total = 0.0
        for rows in _passes(examples):
            with torch.set_grad_enabled(backward):
                summed: Tensor | None = None
                for example, logprobs in zip(rows, self._logprobs(rows), strict=True):
                    losses = kind.function(logprobs, example.inputs, config)
                    outputs.append({"logprobs": logprobs.detach(), "elementwise_loss": losses.detach()})
                    summed = losses.sum() if summed is None else summed + losses.sum()
                assert summed is not None
                if backward:
                    summed.backward()
            total += float(summed.detach())
        return Learned(outputs, {"loss:sum": total})

    def step(self, wanted: Adam) -> dict[str, float]:
        """Take an optimiser step with the gradients that are there, and forget them; return its metrics."""
        for group in self._optimizer.param_groups:
            group.update(
                lr=wanted.learning_rate,
                betas=(wanted.beta1, wanted.beta2),
                eps=wanted.eps,
                weight_decay=wanted.weight_decay,
            )
        most = wanted.grad_clip_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), most)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": float(norm)}

    def snapshot(self) -> PreTrainedModel:
        """Return the model as it is now, for sampling; what is learned later is not in it."""
        frozen: PreTrainedModel = copy.deepcopy(self.model, _kept(self.model, adapters=False))
        return frozen.requires_grad_(False).eval()

    def save(self, folder: Path, *, optimizer: bool) -> None:
        """Write the adapters in peft's form, and the optimiser's state if that is wanted."""
        folder.mkdir(parents=True, exist_ok=True)
        save_adapters(self.model, folder, Tensor.detach)
        save_file(
            {name: each.detach().contiguous() for name, each in self._parameters.items()}, folder / "own.safetensors"
        )
        (folder / _KIND).write_text(json.dumps(asdict(self.wanted)), "utf-8")
        if optimizer:
            torch.save(self._optimizer.state_dict(), folder / _STATE)

    def load(self, folder: Path, *, optimizer: bool) -> None:
        """Read what :meth:`save` wrote; gradients that are there are forgotten.

        Raises:
            RefusedError: It is of other adapters, or has no state of an optimiser.
        """
        stored = load_file(folder / _WEIGHTS)
        if {name: each.shape for name, each in stored.items()} != {
            name: each.shape for name, each in self._parameters.items()
        }:
            raise RefusedError(f"these weights are not of adapters of rank {self.wanted.rank}")
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(stored[name])
        self._optimizer.zero_grad(set_to_none=True)
        if optimizer:
            if not (folder / _STATE).is_file():
                raise RefusedError("these weights have no state of an optimiser: they are for sampling")
            self._optimizer.load_state_dict(torch.load(folder / _STATE, weights_only=True))

    def _logprobs(self, rows: Sequence[Example]) -> list[Tensor]:
        """Return the log-probs of the targets of each example, ``[length]`` or ``[length, targets]`` as these are."""
        wanted = [row.inputs["target_tokens"] for row in rows]
        apart = [each.reshape(len(each), -1) for each in wanted]
        longest = max(len(row.token_ids) for row in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        targets = torch.zeros(len(rows), longest, max(each.shape[1] for each in apart), dtype=torch.long)
        for number, (row, each) in enumerate(zip(rows, apart, strict=True)):
            length = len(row.token_ids)
            ids[number, :length] = torch.tensor(row.token_ids)
            targets[number, :length, : each.shape[1]] = each
            mask[number, :length] = 1
        logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float()
        found = torch.log_softmax(logits, -1).gather(-1, targets)
        return [
            found[number, : len(each), : each.shape[1]].reshape(wanted[number].shape)
            for number, each in enumerate(apart)
        ]

    def _check(self, examples: Sequence[Example], *, several: bool) -> None:
        words = int(self.model.config.vocab_size)
        for number, example in enumerate(examples):
            length, targets = len(example.token_ids), example.inputs["target_tokens"]
            if not length or min(example.token_ids) < 0 or max(example.token_ids) >= words:
                raise RefusedError(f"datum {number} has no tokens, or some that the model does not have ({words})")
            shape = tuple(targets.shape)
            if shape != (length,) and not (several and len(shape) == 2 and shape[0] == length and shape[1]):
                most = f"[{length}] or [{length}, targets]" if several else f"[{length}]"
                raise RefusedError(f"datum {number}: target_tokens has shape {list(shape)}, and is to have {most}")
            if int(targets.min()) < 0 or int(targets.max()) >= words:
                raise RefusedError(f"datum {number} has targets that the model does not have ({words})")
            for name, values in example.inputs.items():
                if tuple(values.shape) != shape:
                    given = list(values.shape)
                    raise RefusedError(f"datum {number}: {name} has shape {given}, and target_tokens {list(shape)}")


def stored_kind(folder: Path) -> Adapters:
    """Return which adapters are in a folder that :meth:`ClientModel.save` wrote.

    Raises:
        RefusedError: There is no such folder.
    """
    try:
        written: dict[str, Any] = json.loads((folder / _KIND).read_text("utf-8"))
    except OSError as error:
        raise RefusedError("there are no such weights", 404) from error
    return Adapters(**written)


def sharing(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model that has its weights in common with it."""
    twin: PreTrainedModel = copy.deepcopy(model, _kept(model, adapters=True))
    return twin


def _kept(model: PreTrainedModel, *, adapters: bool) -> dict[int, Any]:
    """Return what a copy is not to copy, as :func:`copy.deepcopy` takes it."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {id(tensor): tensor for name, tensor in named if adapters or not is_adapter(name)}


def _passes(examples: Sequence[Example]) -> list[list[Example]]:
    """Return examples in passes of so many tokens, padding included, in their order."""
    passes: list[list[Example]] = []
    longest = 0
    for example in examples:
        longest = max(longest, len(example.token_ids))
        if passes and longest * (len(passes[-1]) + 1) <= _TOKENS:
            passes[-1].append(example)
        else:
            passes.append([example])
            longest = len(example.token_ids)
    return passes
