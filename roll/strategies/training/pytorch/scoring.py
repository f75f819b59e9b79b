"""Scoring tokens with a model, in micro-batches: log-probs and entropies of a policy, values of a critic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from transformers import PreTrainedModel

from roll.algorithms.distillation import REVERSE_KL, Divergence
from roll.strategies.base import Prediction
from roll.strategies.parking import Parking
from roll.strategies.pictures import marked_rows
from roll.strategies.training.balance import spread
from roll.strategies.training.comparing import compared_columns
from roll.strategies.training.log_probs import TokenOutputs
from roll.strategies.training.micro_batches import Units, iterate_micro_batches, split_by_tokens
from roll.strategies.training.packing import PackingProbe, check_packing, pack_by_tokens, prepare_packing
from roll.strategies.training.predictor import Layout, Predictor
from roll.strategies.training.prefix_tree import PrefixOrder, pack_by_prefixes
from roll.strategies.training.pytorch.options import FsdpOptions
from roll.strategies.training.ranks import Ranks
from roll.strategies.training.ulysses import SequenceRanks, prepare_ulysses
from roll.strategies.training.values import value_head
from roll.trajectories.picture_column import PICTURES, picture_column, pictures_of


class Pass(NamedTuple):
    """One forward pass.

    Attributes:
        rows: Which rows of the batch it computes, ``[n]``; none where only other ranks have rows left.
        micro: These rows; one row without a response where there are none.
        last: Whether it is the last one of the batch.
    """

    rows: Tensor
    micro: TensorDict
    last: bool


class Scorer:
    """Computes what a model that somebody else owns says of tokens; a frozen reference policy needs nothing more.

    Args:
        model: A Hugging Face model on its device: a causal language model, or a critic
            (:func:`roll.models.critic.load_critic`).
        predicts: ``log_probs`` of a language model, or ``values`` of a critic.
        temperature: Logits are divided by it, so that log-probs are those of the distribution sampled from.
        max_tokens_per_microbatch: Hard cap on tokens per forward, padding included; ``None`` for none.
        max_samples_per_microbatch: Hard cap on sequences per forward, or on pairs; ``None`` for none.
        max_samples_per_scoring: The same where nothing is trained; ``None`` takes ``max_samples_per_microbatch``.
        mixed_precision: Compute in bf16, with the weights as they are.
        use_sequence_packing: Lay the sequences of a micro-batch end to end instead of padding them.
        share_prefixes: Pack, and compute equal beginnings of the sequences of a micro-batch once.
        log_prob_chunk_size: Most tokens whose logits are held at once; ``None`` chooses by vocabulary.
        fsdp: Share the model with the other ranks of the default process group, if there are any: it is sharded in
            place. Then every method is to be called on every rank, with a share of the batch that may be empty.
            ``None`` leaves the model alone.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        predicts: Prediction = "log_probs",
        temperature: float = 1.0,
        max_tokens_per_microbatch: int | None = 8192,
        max_samples_per_microbatch: int | None = None,
        max_samples_per_scoring: int | None = None,
        mixed_precision: bool = False,
        use_sequence_packing: bool = False,
        share_prefixes: bool = False,
        log_prob_chunk_size: int | None = None,
        fsdp: FsdpOptions | None = None,
    ) -> None:
        use_sequence_packing = use_sequence_packing or share_prefixes
        compiled, ulysses = (False, 1) if fsdp is None else (fsdp.torch_compile, fsdp.ulysses_size)
        if share_prefixes and ulysses > 1:
            raise ValueError("share_prefixes does not work with ulysses_size above 1. Switch one of them off.")
        if use_sequence_packing:
            prepare_packing(model, shared=share_prefixes, trim=not compiled)
        self.model = model
        self.predicts = predicts
        self.temperature = temperature
        self.max_tokens = max_tokens_per_microbatch
        self.max_samples = max_samples_per_microbatch
        self.max_scored_samples = max_samples_per_scoring or max_samples_per_microbatch
        self.mixed_precision = mixed_precision
        self.predictor = Predictor(
            model,
            predicts=predicts,
            temperature=temperature,
            packed=use_sequence_packing,
            chunk_size=log_prob_chunk_size,
            shared=share_prefixes,
        )
        self.ranks = Ranks() if fsdp is not None else None
        self.shards = None
        self._parking = Parking()
        self._handed_over = False
        if ulysses > 1:
            self.predictor.sequence_ranks = SequenceRanks.of(ulysses)
            prepare_ulysses(model, ulysses)
        if compiled:
            compile_layers(model)
        if fsdp is not None and self.ranks is not None and self.ranks.size > 1:
            # Imported here: a single process needs nothing of it.
            from roll.strategies.training.pytorch.sharding import Shards

            self.shards = Shards(
                self.predictor,
                model,
                fsdp,
                self.ranks,
                mixed_precision=mixed_precision,
                full_precision=(value_head(model),) if predicts == "values" else (),
            )
            self.predictor.shares_weights = True
        self.device = self.shards.device if self.shards is not None else next(model.parameters()).device
        if use_sequence_packing or ulysses > 1:
            self._check_layout()

    @property
    def data_rank(self) -> int:
        """Which share of a batch this rank computes, below :attr:`data_size`."""
        return 0 if self.ranks is None else self.ranks.rank // self._share_size

    @property
    def data_size(self) -> int:
        """Into how many shares a batch is dealt; ranks with the same :attr:`data_rank` get the same rows."""
        return 1 if self.ranks is None else self.ranks.size // self._share_size

    @property
    def speaks(self) -> bool:
        """Whether this rank's outputs count: true on one of the ranks that share rows, and all of them have them."""
        return self.predictor.sequence_ranks is None or self.predictor.sequence_ranks.rank == 0

    @property
    def _share_size(self) -> int:
        return 1 if self.predictor.sequence_ranks is None else self.predictor.sequence_ranks.size

    @property
    def offloaded(self) -> bool:
        """Whether the weights have been handed over, so that nothing can be computed."""
        return self._handed_over

    def offload(self) -> None:
        """Move the weights to CPU memory, so that others can use the device; on the CPU they stay where they are."""
        if self.shards is not None:
            self.shards.reshard()
        if self.device.type == "cuda" and not self._handed_over and not (self.shards and self.shards.offloaded):
            self._parking.park([*self.predictor.parameters(), *self.predictor.buffers()])
            torch.cuda.empty_cache()
        self._handed_over = True

    def reload(self) -> None:
        """Take the weights back to the device, exactly as they were."""
        self._parking.restore()
        self._handed_over = False

    def compute_log_probs(self, batch: TensorDict) -> Tensor:
        """Return log p(token t | tokens < t), ``[batch, sequence]`` float32, 0 where the response mask is 0."""
        return self._compute(batch, "log_probs")

    def compute_values(self, batch: TensorDict) -> Tensor:
        """Return the value of the state before token t, ``[batch, sequence]`` float32, 0 where the mask is 0."""
        return self._compute(batch, "values")

    def measure_from(self, *heads: nn.Module, divergence: Divergence = REVERSE_KL) -> None:
        """Let batches say what their ``divergence`` is measured from (:mod:`roll.strategies.training.comparing`)."""
        self.predictor.comparison.measure_from(*heads, divergence=divergence)

    @torch.no_grad()
    def compute_states(self, batch: TensorDict) -> Tensor:
        """Return the hidden states before each token of the mask, ``[batch, sequence, hidden]``, 0 elsewhere.

        With the model's head they stand for its distributions over the vocabulary, in a fraction of the memory.
        """
        result = torch.zeros(*batch["input_ids"].shape, self.model.config.get_text_config().hidden_size)
        for rows, micro, _ in self.passes(batch, scoring=True):
            mask = micro["response_mask"].bool().clone()
            mask[:, 0] = False
            with self._precision():
                states = self.predictor(
                    micro["input_ids"], mask, micro["lengths"], False, self._layout, pictures=pictures_of(micro)
                )[0]
            places, columns = mask.nonzero(as_tuple=True)
            result[rows[places.cpu()], columns.cpu()] = states.to(result)
        return result

    def compute_divergence(self, batch: TensorDict) -> Tensor:
        """Return ``sum_v pi * (log pi - log pi_ref)`` at each token of the mask, ``[batch, sequence]``, 0 elsewhere."""
        return self._compute(batch, "log_probs", "divergence")

    def forward(self, micro: TensorDict, *, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
        """Return the predictions for a micro-batch, and the entropies if asked of a policy, ``[batch, sequence]`` each.

        Gradients are recorded if they are enabled. Where the batch says what to compare with, ``divergence`` of the
        micro-batch becomes that of these predictions.
        """
        with self._precision():
            outputs: TokenOutputs = self.predictor(
                micro["input_ids"],
                micro["response_mask"],
                micro["lengths"],
                with_entropy,
                compared=compared_columns(micro),
                pictures=pictures_of(micro),
            )
        if outputs.divergence is not None:
            micro["divergence"] = outputs.divergence
        return outputs.log_probs, outputs.entropy

    def passes(self, batch: TensorDict, *, scoring: bool = False) -> Iterator[Pass]:
        """Split a batch into micro-batches, to train on or for ``scoring``; all ranks make the same number of passes.

        Ranks gather the weights of a layer together, so one that has no rows left must go through the layers with the
        others all the same.

        Raises:
            RuntimeError: The weights are handed over.
            ValueError: Ranks that compute parts of the same rows were given different ones.
        """
        if self._handed_over:
            raise RuntimeError("The weights have been handed over by offload(). Call reload() before computing.")
        lengths, packed = batch["lengths"].tolist(), self.predictor.packed
        most = self.max_scored_samples if scoring else self.max_samples
        units = Units.of(batch, lengths, packed=packed)
        if self.predictor.shared:
            pictures = pictures_of(batch)
            ids = batch["input_ids"] if pictures is None else marked_rows(batch["input_ids"], pictures)
            order = PrefixOrder.of(ids, batch["lengths"])
            groups = pack_by_prefixes(order, units.rows, units.lengths, self.max_tokens, most)
        else:
            groups = (pack_by_tokens if packed else split_by_tokens)(units.lengths, self.max_tokens, most)
        count = len(groups)
        if self.shards is not None and self.ranks is not None:
            shares = self.ranks.gather((count, sum(lengths), int(batch["input_ids"].sum())))
            self._check_shares(shares)
            count = max(groups for groups, *_ in shares)
            caps = {"max_tokens": self.max_tokens, "max_samples": most}
            # Halves of neighbours still begin alike; dealing them out one by one would take them apart.
            dealt = packed and not self.predictor.shared
            groups = spread(groups, units.lengths, count, packed=dealt, **caps)
        for number, group in enumerate(units.rows_of(groups), start=1):
            rows = torch.tensor(group)
            taken, micro = next(iterate_micro_batches(batch[rows], self.device, max_tokens=None))
            yield Pass(rows[taken], micro, number == count)
        for number in range(len(groups) + 1, count + 1):
            yield Pass(torch.empty(0, dtype=torch.int64), no_response(self.device, batch), number == count)

    def _check_shares(self, shares: list[tuple[int, int, int]]) -> None:
        """Raise where ranks that compute parts of the same rows were given different ones."""
        size = self._share_size
        for rank, share in enumerate(shares):
            first = rank - rank % size
            if share != shares[first]:
                raise ValueError(
                    f"Ranks {first} and {rank} share rows (ulysses_size={size}) and were given different ones. "
                    "Deal batches by data_rank and data_size, not by rank."
                )

    @property
    def _layout(self) -> Layout:
        return Layout(self.predictor.packed, self.predictor.sequence_ranks is not None, self.predictor.shared)

    @torch.no_grad()
    def _check_layout(self) -> None:
        def states(probe: PackingProbe, as_computed: bool) -> Tensor:
            layout = self._layout if as_computed else Layout(packed=False, spread=False)
            with self._precision():
                result: Tensor = self.predictor(probe.input_ids, probe.mask, probe.lengths, False, layout)[0]
            return result.float()

        training = self.model.training
        self.model.eval()
        probe = PackingProbe.of(self.model, self.device, mixed_precision=self.mixed_precision)
        option = "use_sequence_packing" if self.predictor.packed else "ulysses_size"
        check_packing(self.model, states, probe, option="share_prefixes" if self.predictor.shared else option)
        self.model.train(training)
        if self.shards is not None:
            self.shards.reshard()

    @torch.no_grad()
    def _compute(self, batch: TensorDict, wanted: Prediction, column: str | None = None) -> Tensor:
        """Compute predictions of the kind ``wanted``, or the ``column`` that the forward pass leaves in the batch."""
        if wanted != self.predicts:
            raise TypeError(f"{type(self.model).__name__} is used here for its {self.predicts}, not for {wanted}.")
        result = torch.zeros(batch["input_ids"].shape, dtype=torch.float32)
        for rows, micro, _ in self.passes(batch, scoring=True):
            predicted, _ = self.forward(micro, with_entropy=False)
            if len(rows):
                found = predicted if column is None else micro[column]
                result[rows, : micro["input_ids"].shape[1]] = found.to(result)
        if self.shards is not None:
            self.shards.reshard()
        return result

    def _precision(self) -> AbstractContextManager[object]:
        # Shards are gathered in bf16 and need no autocast.
        if self.mixed_precision and self.shards is None:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()


def compile_layers(model: PreTrainedModel) -> None:
    """Compile each transformer layer of a model in place, once for all lengths."""
    from roll.strategies.training.pytorch.sharding import layers

    for layer in layers(model):
        layer.compile(dynamic=True)


def no_response(device: torch.device, batch: TensorDict | None = None) -> TensorDict:
    """Return a batch of one row without a response, for a rank that has nothing to do while others compute.

    Args:
        device: Where it goes.
        batch: What others compute; where that may have pictures, the row says that it has none.
    """
    ids = torch.zeros(1, 2, dtype=torch.int64)
    columns = {"input_ids": ids, "response_mask": ids.bool(), "lengths": torch.tensor([2])}
    if batch is not None and batch.get(PICTURES, None) is not None:
        columns[PICTURES] = picture_column([()])
    return TensorDict(columns, batch_size=[1]).to(device)
