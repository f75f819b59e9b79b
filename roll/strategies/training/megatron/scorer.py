"""`megatron_infer`: scoring tokens with a model that is spread over ranks by Megatron-Core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor, nn
from transformers import PreTrainedModel

from roll.algorithms.distillation import REVERSE_KL, Divergence
from roll.strategies.base import Classifier, Prediction
from roll.strategies.parking import Parking
from roll.strategies.training.comparing import Reference, compared_columns
from roll.strategies.training.log_probs import TokenOutputs
from roll.strategies.training.megatron.architecture import transformer_config
from roll.strategies.training.megatron.comparing import SplitComparison
from roll.strategies.training.megatron.core import (
    get_forward_backward_func,
    mpu,
    reduce_from_tensor_model_parallel_region,
)
from roll.strategies.training.megatron.hf_weights import HfWeights, HfWriter, torch_dtype_name
from roll.strategies.training.megatron.lora import Adapt, Adapters, adapted_model
from roll.strategies.training.megatron.megatron_format import load_model
from roll.strategies.training.megatron.model import LayerSpec, Stage, build_stages, can_pack, transformer_engine_spec
from roll.strategies.training.megatron.options import MegatronOptions
from roll.strategies.training.megatron.parallel import Place, default_device, open_parallel
from roll.strategies.training.megatron.passes import Pass, PassPlanner
from roll.strategies.training.megatron.weights import WeightMap
from roll.strategies.training.values import classifier_config

Outputs = Callable[[Pass, Stage, Tensor], tuple[Tensor, Any]]
"""From a micro-batch and the states of the last stage to what the backward pass starts from, and what to keep."""


class MegatronScorer:
    """Computes what a model says of tokens (see :class:`roll.strategies.training.pytorch.scoring.Scorer`).

    Every rank of the default process group makes it with the same model and options, and calls every method, in the
    same order. Ranks with the same ``data_rank`` are given the same rows, any number of them, and all of them get the
    results of these rows; ``speaks`` picks one of them.

    Args:
        model: A folder in Hugging Face format, of which every rank reads what it needs; or a loaded model, which is
            copied from and can be dropped afterwards.
        predicts: ``log_probs`` of a language model, or ``values`` of a critic, whose value head is 0 if the model has
            none.
        megatron: How the model is spread over ranks.
        temperature: Logits are divided by it, so that log-probs are those of the distribution sampled from.
        max_tokens_per_microbatch: Hard cap on tokens per forward, padding included; ``None`` for none. Ranks that
            share sequences (``context_parallel_size``) count them once, not each its part.
        max_samples_per_microbatch: Hard cap on sequences per forward; ``None`` for none.
        max_samples_per_scoring: The same where nothing is trained; ``None`` takes ``max_samples_per_microbatch``.
        mixed_precision: Weights and arithmetic in bf16.
        use_sequence_packing: Lay the sequences of a micro-batch end to end instead of padding them.
        share_prefixes: Refused: these layers compute every sequence whole.
        log_prob_chunk_size: Most tokens whose logits are held at once; ``None`` chooses by vocabulary.
        layer_spec: Makes the layers of a stage; ``None`` takes those of Transformer Engine.
        device: Where this rank computes; ``None`` takes its CUDA device.
        seed: Of the generators for dropout.
        recompute: Recompute every layer in the backward pass, unless ``megatron`` says what to recompute.
        adapt: Gives a Hugging Face model LoRA adapters, in place (:func:`roll.models.lora.add_adapters`); is given one
            whose weights are all 0. ``None`` leaves it at the adapters that a loaded ``model`` has.
        classifier: What a model that predicts ``values`` is saved as.
        pad_token_id: What fills up sequences, where a classifier of them has to know it.

    Attributes:
        adapters: The LoRA adapters; ``None`` where there are none.

    Raises:
        RuntimeError: There is no process group, no CUDA device where one is needed, or the process divides its ranks
            in another way already.
        ValueError: The model cannot be converted or adapted, or sizes do not divide.
        FixableError: The checkpoint of ``megatron.load`` cannot be had, or is of another model.
    """

    def __init__(
        self,
        model: PreTrainedModel | str | Path,
        *,
        predicts: Prediction = "log_probs",
        megatron: MegatronOptions | None = None,
        temperature: float = 1.0,
        max_tokens_per_microbatch: int | None = 8192,
        max_samples_per_microbatch: int | None = None,
        max_samples_per_scoring: int | None = None,
        mixed_precision: bool = False,
        use_sequence_packing: bool = False,
        share_prefixes: bool = False,
        log_prob_chunk_size: int | None = None,
        layer_spec: LayerSpec | None = None,
        device: torch.device | None = None,
        seed: int = 0,
        recompute: bool = False,
        adapt: Adapt | None = None,
        classifier: Classifier = "token",
        pad_token_id: int | None = None,
    ) -> None:
        if share_prefixes:
            raise ValueError("share_prefixes: Megatron-Core computes every sequence whole. Switch it off.")
        self.megatron = megatron or MegatronOptions()
        self.device = device if device is not None else default_device()
        self.predicts = predicts
        self.temperature = temperature
        self.max_samples = max_samples_per_microbatch
        self.max_scored_samples = max_samples_per_scoring or max_samples_per_microbatch
        self.chunk_size = log_prob_chunk_size
        self.place: Place = open_parallel(self.megatron, seed)
        self._planner = PassPlanner(
            self.megatron, self.place, self.device, packed=use_sequence_packing, max_tokens=max_tokens_per_microbatch
        )
        weights = HfWeights(model)
        self.hf_config, self._generation_config = weights.config, weights.generation_config
        self.config = transformer_config(
            weights.config, self.megatron, self.device, bf16=mixed_precision, recompute=recompute
        )
        self.stages = build_stages(
            self.config,
            weights.config,
            layer_spec or transformer_engine_spec,
            predicts=predicts,
            classifier=classifier,
            device=self.device,
        )
        if use_sequence_packing:
            self._check_packing()
        self.weights = WeightMap(self.stages, weights.config)
        if self.megatron.load is None:
            self.weights.load(weights)
        else:
            load_model(self.megatron.load, self.stages)
        adapted = adapted_model(model, weights.config, predicts, adapt, classifier)
        self._saved_as = weights.config
        if predicts == "values":
            self._saved_as = classifier_config(weights.config, classifier, pad_token_id)
        self.adapters = None if adapted is None else Adapters(adapted, self.stages, self.weights)
        self.chunks: list[Any] = list(self.stages)
        self._comparison = self._make_comparison()
        self._parking = Parking()
        self._handed_over = False

    def _check_packing(self) -> None:
        """Refuse what cannot be computed with sequences laid end to end.

        Raises:
            ValueError: The layers would mix them, or ranks need micro-batches of one shape.
        """
        if not can_pack(self.stages):
            raise ValueError(
                "use_sequence_packing: the attention of these layers cannot keep packed sequences apart. "
                "Switch use_sequence_packing off, or use layers of Transformer Engine."
            )
        if self._planner.same_shapes:
            raise ValueError(
                "use_sequence_packing: the allgather dispatcher needs micro-batches of one shape on all ranks. "
                "Set moe_token_dispatcher_type to alltoall, or switch use_sequence_packing off."
            )

    @property
    def data_rank(self) -> int:
        """Which share of a batch this rank computes, below :attr:`data_size`."""
        return self.place.data_rank

    @property
    def data_size(self) -> int:
        """Into how many shares a batch is dealt; ranks with the same :attr:`data_rank` get the same rows."""
        return self.place.data_size

    @property
    def speaks(self) -> bool:
        """Whether this rank's outputs count: true on one of the ranks that share rows, and all of them have them."""
        return self.place.speaks

    @property
    def offloaded(self) -> bool:
        """Whether the weights have been handed over, so that nothing can be computed."""
        return self._handed_over

    def offload(self) -> None:
        """Move the weights to CPU memory, so that others can use the device; on the CPU they stay where they are."""
        if self.device.type == "cuda" and not self._handed_over:
            self._parking.park(tensor for stage in self.stages for tensor in (*stage.parameters(), *stage.buffers()))
            torch.cuda.empty_cache()
        self._handed_over = True

    def reload(self) -> None:
        """Take the weights back to the device, exactly as they were."""
        self._parking.restore()
        self._handed_over = False

    def compute_log_probs(self, batch: TensorDict) -> Tensor:
        """Return log p(token t | tokens < t), ``[batch, sequence]`` float32, 0 where the response mask is 0."""
        self._must_predict("log_probs")
        return self._compute(batch, lambda one, outputs: outputs.log_probs)

    def compute_values(self, batch: TensorDict) -> Tensor:
        """Return the value of the state before token t, ``[batch, sequence]`` float32, 0 where the mask is 0."""
        self._must_predict("values")
        return self._compute(batch, lambda one, outputs: outputs.log_probs)

    def compute_divergence(self, batch: TensorDict) -> Tensor:
        """Return the divergence from frozen models at each token of the mask, ``[batch, sequence]``, 0 elsewhere.

        Reads the columns of :mod:`roll.strategies.training.comparing`, after :meth:`measure_from`.
        """
        self._must_predict("log_probs")
        return self._compute(batch, lambda one, outputs: one.micro["divergence"])

    def measure_from(self, *heads: nn.Module, divergence: Divergence = REVERSE_KL) -> None:
        """Let batches say what their ``divergence`` is measured from (:mod:`roll.strategies.training.comparing`)."""
        if self._comparison is not None:
            self._comparison.measure_from(*heads, divergence=divergence)

    @torch.no_grad()
    def compute_states(self, batch: TensorDict) -> Tensor:
        """Return the hidden states before each token of the mask, ``[batch, sequence, hidden]``, 0 elsewhere."""

        def states(one: Pass, stage: Stage, output: Tensor) -> tuple[Tensor, Any]:
            found = stage.states_at(output, one.inputs.sources)
            return output, (one, self._placed(found.float(), one))

        result = torch.zeros(*batch["input_ids"].shape, self.hf_config.hidden_size)
        return self._collect(result, self.run(self.passes(batch, scoring=True), states, train=False))

    def score(self, one: Pass, stage: Stage, output: Tensor, *, with_entropy: bool = False) -> TokenOutputs:
        """Return the predictions for a micro-batch, ``[batch, sequence]`` each, equal on all ranks that share rows.

        Gradients are recorded if they are enabled. Where the micro-batch says what to compare with, its ``divergence``
        becomes that of these predictions.

        Args:
            one: The micro-batch.
            stage: The last stage.
            output: Its states.
            with_entropy: Also return entropies, of a policy.
        """
        outputs = stage.score(
            output,
            one.inputs.sources,
            one.inputs.targets,
            temperature=self.temperature,
            with_entropy=with_entropy,
            chunk_size=self.chunk_size,
            reference=self._reference(one),
        )
        placed = [None if column is None else self._placed(column, one) for column in outputs]
        if placed[2] is not None:
            one.micro["divergence"] = placed[2]
        assert placed[0] is not None
        return TokenOutputs(placed[0], placed[1], placed[2])

    def _make_comparison(self) -> SplitComparison | None:
        """Return what compares with frozen models, on ranks that have a head over the vocabulary."""
        last = self.stages[-1]
        if self.predicts != "log_probs" or not last.post_process:
            return None
        first, width = last.own_vocabulary()
        return SplitComparison(
            self.temperature,
            first=first,
            width=width,
            vocabulary=last.vocabulary,
            group=mpu.get_tensor_model_parallel_group(),
            device=self.device,
        )

    def _reference(self, one: Pass) -> Reference | None:
        """Return what a micro-batch is compared with at its tokens, ``[n, ...]`` each."""
        if self._comparison is None:
            return None
        found = self._comparison.reference(compared_columns(one.micro))
        if found is None:
            return None
        return Reference(tuple(column.flatten(0, 1)[one.inputs.cells] for column in found.columns), found.measure)

    def passes(self, batch: TensorDict, *, scoring: bool = False) -> list[Pass]:
        """Split a batch into micro-batches, as many on every rank.

        Stages wait for each other, and so do ranks that share experts; a rank that has no rows left goes through the
        layers with the others all the same.

        Raises:
            ValueError: A row does not fit, or ranks with the same ``data_rank`` were given different rows.
            RuntimeError: The weights are handed over.
        """
        if self._handed_over:
            raise RuntimeError("The weights have been handed over by offload(). Call reload() before computing.")
        return self._planner.plan(batch, self.max_scored_samples if scoring else self.max_samples)

    def run(self, passes: Sequence[Pass], outputs: Outputs, *, train: bool) -> list[Any]:
        """Send micro-batches through the stages, and in training gradients back.

        Args:
            passes: What :meth:`passes` returned.
            outputs: Called on the last stage for each micro-batch; with ``train``, the tensor that it returns is what
                the backward pass starts from.
            train: Record gradients and add them up.

        Returns:
            What ``outputs`` returned besides, in order, on ranks of the last stage; an empty list on others.
        """
        for chunk in self.chunks:
            chunk.train(train)
        kept: list[Any] = []

        def finish(one: Pass, chunk: nn.Module, output: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
            value, keep = outputs(one, _bare(chunk), output)
            kept.append(keep)
            # A count of tokens says that the value is a share of the loss of the whole batch, not a mean.
            return value, torch.zeros((), dtype=torch.int32, device=value.device), {}

        def forward(data: Iterator[Pass], chunk: nn.Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
            one = next(data)
            inputs = one.inputs
            output = chunk(inputs.input_ids, inputs.position_ids, None, packed_seq_params=inputs.packing)
            return output, partial(finish, one, chunk)

        several = len(self.chunks) > 1
        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=[iter(passes) for _ in self.chunks] if several else iter(passes),
            model=self.chunks if several else self.chunks[0],
            num_microbatches=len(passes),
            # The interleaved schedule has one shape; the others are told the shape with each micro-batch.
            seq_length=passes[0].inputs.input_ids.shape[1] * self.megatron.context_parallel_size,
            micro_batch_size=passes[0].inputs.input_ids.shape[0],
            forward_only=not train,
        )
        return kept

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Stream whole weights under the Hugging Face names of a model in memory, one parameter at a time.

        Every rank must iterate to the end. The tensors are copies, and the experts of a layer come as one tensor. LoRA
        adapters are merged.
        """
        return self.weights.stream()

    def save_hf(self, directory: Path) -> None:
        """Write weights, adapters merged, and config in Hugging Face format; of several ranks the first one writes.

        Files of bounded size are written as the weights come, so no rank ever holds the whole model.
        """
        first = dist.get_rank() == 0
        stream = self.weights.stream(fused_experts=False)
        if first:
            writer = HfWriter(directory)
            writer.write(stream)
            writer.close()
            config = type(self._saved_as).from_dict(self._saved_as.to_dict())
            config.dtype = torch_dtype_name(self.config.params_dtype)
            config.save_pretrained(directory)
            if self._generation_config is not None:
                self._generation_config.save_pretrained(directory)
        else:
            for _ in stream:
                pass
        dist.barrier()

    @torch.no_grad()
    def _compute(self, batch: TensorDict, column: Callable[[Pass, TokenOutputs], Tensor]) -> Tensor:
        def outputs(one: Pass, stage: Stage, output: Tensor) -> tuple[Tensor, Any]:
            return output, (one, column(one, self.score(one, stage, output)))

        result = torch.zeros(batch["input_ids"].shape, dtype=torch.float32)
        return self._collect(result, self.run(self.passes(batch, scoring=True), outputs, train=False))

    def _collect(self, result: Tensor, kept: list[tuple[Pass, Tensor]]) -> Tensor:
        """Put the results of micro-batches where their rows are, and hand them to the other stages."""
        for one, found in kept:
            if len(one.rows):
                result[one.rows, : found.shape[1]] = found.to(result)
        group = mpu.get_pipeline_model_parallel_group()
        if group.size() > 1:
            everywhere = result.to(self.device)
            dist.broadcast(everywhere, src=mpu.get_pipeline_model_parallel_last_rank(), group=group)
            result = everywhere.cpu()
        return result

    def _placed(self, column: Tensor, one: Pass) -> Tensor:
        """Put ``[n, ...]`` at the cells of a micro-batch, those of other context ranks included."""
        rows, width = one.micro["input_ids"].shape
        empty = column.new_zeros(rows * width, *column.shape[1:])
        cells = empty.index_put((one.inputs.cells,), column).view(rows, width, *column.shape[1:])
        # Each of these ranks computes the same loss: a gradient belongs to the rank whose cell it is.
        whole: Tensor = reduce_from_tensor_model_parallel_region(cells, group=mpu.get_context_parallel_group())
        return whole

    def _must_predict(self, wanted: Prediction) -> None:
        if wanted != self.predicts:
            raise TypeError(f"{self.hf_config.model_type} is used here for its {self.predicts}, not for {wanted}.")


def _bare(chunk: nn.Module) -> Stage:
    """Return the stage inside its wrapper."""
    stage = chunk if isinstance(chunk, Stage) else chunk.module
    assert isinstance(stage, Stage)
    return stage
