"""The model side of the engine: one forward pass over planned tokens, and new weights."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from transformers import AttentionInterface

from roll.generation.pictures import Picture
from roll.strategies.attention_kernels import without_plans_for_each_shape
from roll.strategies.calling import cache_argument, keep_activations
from roll.strategies.compilers import missing_compiler
from roll.strategies.fingerprints import Fingerprints, fingerprint
from roll.strategies.generation.hf_infer import compiling
from roll.strategies.generation.hf_infer.batch_plan import AttentionGroup, BatchPlan, IntArray, plan_batch
from roll.strategies.generation.hf_infer.compiling import CannotCompileError
from roll.strategies.generation.hf_infer.cpu_products import PackedWeights, check_packing, quicken
from roll.strategies.generation.hf_infer.picture_inputs import PictureInputs, for_language
from roll.strategies.generation.hf_infer.slot_cache import SlotCache

Layout = Literal["flat", "padded"]
_ATTENTION = "roll_slot_attention"
_PROBE_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_PROBE_TOLERANCE_HALF = 5e-2


def slot_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention function in the form of transformers' ``AttentionInterface`` that reads the slot cache.

    Of ``query`` ``[1, heads, tokens, head_dim]`` it makes ``[1, tokens, heads, value_dim]``; ``key`` and ``value`` of
    the new tokens go to the cache.

    Raises:
        NotImplementedError: If the model asks for something the slot attention does not compute.
    """
    for name in ("softcap", "s_aux", "position_bias", "head_mask"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"slot attention has no {name!r}")
    cache: SlotCache = module.slot_cache  # type: ignore[assignment]
    layer: int = module.layer_idx  # type: ignore[assignment]
    if torch.compiler.is_compiling():
        return compiling.attend(query, key, value, cache.number, layer, scaling, sliding_window), None
    return cache.attend(layer, query, key, value, scaling, sliding_window), None


class ModelRunner:
    """Runs a Hugging Face causal language model over slots.

    It works on a copy of the module tree that shares the parameters, so that a trainer's mode, hooks, gradient
    checkpointing and attention implementation on the same model stay untouched, and weights trained in place are used
    without a copy.

    Args:
        model: A causal language model from transformers.
        max_slots: Rows of the cache.
        max_length: Positions per row.
        layout: ``flat`` lays all new tokens end to end (needs the attention interface of transformers), ``padded`` uses
            the model's own attention on padded rows; ``None`` takes ``flat`` if that reproduces the model, else
            ``padded``.
        pack_weights: Keep a second copy of a large model's linear weights, in an order in which a CPU multiplies
            sooner.
        torch_compile: Compile the base model, all but attention and products, at the first passes.

    Raises:
        ValueError: If neither layout reproduces the model's own forward pass.
        CannotPackError: If its weights cannot be packed.
        CannotCompileError: If it would run in the padded layout, or what compiles is missing.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        max_slots: int,
        max_length: int,
        layout: Layout | None = None,
        pack_weights: bool = False,
        torch_compile: bool = False,
    ) -> None:
        without_plans_for_each_shape()
        if pack_weights:
            check_packing(model)
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._original: Any = model
        self.device = next(iter(self._parameters.values())).device
        self.dtype = next(iter(self._parameters.values())).dtype
        config: Any = model.config
        self._view: Any = None
        self._pack_weights = pack_weights
        self._packed: list[PackedWeights] = []
        self._in_graph: list[PackedWeights] = []
        self.vocabulary = int(config.get_text_config().vocab_size)
        self.layers = int(config.get_text_config().num_hidden_layers)
        self._accepts_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._cache_argument = cache_argument(self._original)
        on_cpu = self.device.type == "cpu"
        # Small groups have less padding and smaller masks; on accelerators launches cost more than padding.
        self._group_rows = 256 if on_cpu else 1024
        self._group_scores = 2**20 if on_cpu else 2**25
        self.layout: Layout = self._choose_layout(layout)
        self.cache = SlotCache(self.layers, max_slots, max_length)
        self._bind(self.layout, self.cache)
        if torch_compile:
            self._compile()

    @functools.cached_property
    def pictures(self) -> PictureInputs:
        """What the model takes in place of tokens where there are pictures; made when the first come.

        Raises:
            PictureError: The model cannot be shown any.
        """
        return PictureInputs.of(self._original, self._view, self.layout)

    def forward(
        self,
        slots: IntArray,
        starts: IntArray,
        lengths: IntArray,
        tokens: list[list[int]],
        pictures: Sequence[Sequence[Picture]] = (),
        wanted: IntArray | None = None,
    ) -> torch.Tensor:
        """Run new tokens and return the logits of the last tokens of each row, ``[wanted, vocabulary]``.

        Args:
            slots: ``[rows]`` slot of each row, all different.
            starts: ``[rows]`` tokens of the row already in the cache.
            lengths: ``[rows]`` new tokens.
            tokens: New token ids of each row; what stands for a picture is below 0.
            pictures: Of each row, with those that are in the cache; none for text alone.
            wanted: ``[rows]`` of how many last tokens; ``None`` for one each, as the padded layout always has it.
        """
        self.cache.reserve(int(slots.max()) + 1, int((starts + lengths).max()))
        plan = plan_batch(
            slots,
            starts,
            lengths,
            self.device,
            group_rows=self._group_rows,
            group_scores=self._group_scores,
            wanted=wanted,
        )
        ordered = chain.from_iterable(tokens[row] for row in plan.order.tolist())
        flat = np.fromiter(ordered, dtype=np.int64, count=int(lengths.sum()))
        ids = torch.from_numpy(flat).to(self.device)
        try:
            if self.layout == "padded":
                return self._forward_padded(plan, ids)
            if any(pictures):
                return self._forward_flat(plan, self.pictures.inputs(plan, ids, starts, lengths, pictures))
            return self._forward_flat(plan, {"input_ids": ids[None], "position_ids": plan.positions[None]})
        finally:
            self.cache.end()

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` cached positions of one slot to another."""
        self.cache.reserve(max(source, target) + 1, length)
        self.cache.copy_prefix(source, target, length)

    def _forward_flat(self, plan: BatchPlan, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        self.cache.begin(plan)
        for weights in self._in_graph:
            if plan.positions.shape[0] > weights.few:
                weights.make()
        keep = {"logits_to_keep": plan.wanted_index} if self._accepts_keep else {}
        logits = self._view(**inputs, **self._cached(), **keep).logits[0]
        return logits if self._accepts_keep else logits.index_select(0, plan.wanted_index)

    def _cached(self) -> dict[str, Any]:
        return {self._cache_argument: self.cache, "use_cache": True}

    def _forward_padded(self, plan: BatchPlan, ids: torch.Tensor) -> torch.Tensor:
        """One forward pass per group with the model's own attention.

        A padded query repeats the last token of its row, so the last column holds every row's result.
        """
        results: torch.Tensor | None = None
        for group in plan.groups:
            self.cache.begin(plan, group)
            logits = self._padded_group(group, ids)
            if results is None:
                results = logits.new_zeros(plan.wanted_index.shape[0], logits.shape[-1])
            members = ((plan.wanted_index >= group.first) & (plan.wanted_index < group.stop)).nonzero().squeeze(1)
            place = plan.wanted_index[members] - group.first
            if group.output_index is not None:
                place = group.output_index[place]
            results[members] = logits[place // group.positions.shape[1]]
        assert results is not None
        return results

    def _padded_group(self, group: AttentionGroup, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits at the end of each row of the group, ``[rows, vocabulary]``."""
        chosen = ids[group.first : group.stop] if group.query_index is None else ids[group.query_index]
        keep = {"logits_to_keep": 1} if self._accepts_keep else {}
        output = self._view(
            input_ids=chosen.view(group.rows, -1),
            position_ids=group.positions,
            attention_mask=self.cache.causal.mask(group.positions, group.keys, None, self.dtype),
            **self._cached(),
            **keep,
        )
        return output.logits[:, -1]

    def weights(self) -> Iterator[torch.Tensor]:
        """Yield everything the model keeps on its device: parameters and buffers of any shape."""
        yield from self._original.parameters()
        yield from self._original.buffers()

    def fingerprints(self) -> Fingerprints:
        """Return fingerprints of the parameters, by name."""
        return {name: fingerprint(parameter) for name, parameter in self._parameters.items()}

    def load_weights(self, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy new values into the parameters, by name; a tensor that already is the parameter costs nothing.

        Args:
            named_tensors: Names and tensors of any shape, that of the parameter.

        Raises:
            KeyError: If a name is unknown or a parameter gets no value.
            ValueError: If a shape differs, or tied parameters get different values.
        """
        self.forget_copies()
        filled: set[int] = set()
        for name, tensor in named_tensors:
            parameter = self._parameters.get(name)
            if parameter is None:
                raise KeyError(f"weight update has {name!r}, which the model has not; names must be Hugging Face's")
            if parameter.shape != tensor.shape:
                raise ValueError(f"weight {name!r} has shape {tuple(tensor.shape)}, expected {tuple(parameter.shape)}")
            with torch.no_grad():
                if id(parameter) in filled and not torch.equal(parameter, tensor.to(parameter)):
                    raise ValueError(f"weight {name!r} is tied to another one that got different values")
                if parameter.data_ptr() != tensor.data_ptr():
                    parameter.copy_(tensor)
            filled.add(id(parameter))
        missing = [name for name, parameter in self._parameters.items() if id(parameter) not in filled]
        if missing:
            raise KeyError(f"weight update lacks {len(missing)} parameters, first {missing[:3]}; send all of them")

    def forget_copies(self) -> None:
        """Drop packed weights; the next forward pass makes them of the weights that there are then."""
        for weights in self._packed:
            weights.forget()

    def _bind(self, layout: Layout, cache: SlotCache) -> None:
        """Make the view that runs with ``cache``."""
        memo: dict[int, Any] = {id(parameter): parameter for parameter in self._parameters.values()}
        self._view = copy.deepcopy(self._original, memo).eval()
        keep_activations(self._view)
        if layout == "flat":
            AttentionInterface.register(_ATTENTION, slot_attention)
            self._view.set_attn_implementation(for_language(self._view, _ATTENTION))
            for module in self._view.modules():
                if hasattr(module, "layer_idx"):
                    module.slot_cache = cache
        elif self._view.config._attn_implementation not in ("sdpa", "eager"):
            self._view.set_attn_implementation("sdpa")
        self._packed = quicken(self._view, pack=self._pack_weights)

    def _compile(self) -> None:
        """Have the first passes make one graph of the base model."""
        if missing := missing_compiler(self.device):
            raise CannotCompileError(missing)
        if self.layout == "padded":
            name = type(self._original).__name__
            raise CannotCompileError(f"{name} runs with its own attention here, on padded rows, which change shape")
        if self._packed:
            compiling.call_packed_products_directly()
        inside = {id(module) for module in self._view.base_model.modules()}
        # No graph contains how copies are made: they are there before it.
        self._in_graph = [weights for weights in self._packed if id(weights.layers[0]) in inside]
        compiling.compile_in_place(self._view.base_model)

    def _choose_layout(self, wanted: Layout | None) -> Layout:
        kinds = set(getattr(self._original.config.get_text_config(), "layer_types", None) or ["full_attention"])
        reasons = []
        for layout in (wanted,) if wanted else ("flat", "padded"):
            allowed = {"full_attention", "sliding_attention"} if layout == "flat" else {"full_attention"}
            if not kinds <= allowed:
                reasons.append(f"{layout}: layers of type {sorted(kinds - allowed)}")
                continue
            try:
                difference = self._probe(layout)
            except Exception as error:  # noqa: BLE001 - any failure of a foreign model means: not with this layout
                reasons.append(f"{layout}: {type(error).__name__}: {error}")
                continue
            if difference <= _PROBE_TOLERANCE.get(self.dtype, _PROBE_TOLERANCE_HALF):
                return layout
            reasons.append(f"{layout}: logits differ from the model's own by {difference:.2g} (relative)")
        name = type(self._original).__name__
        raise ValueError(f"hf_infer cannot run {name}: {'; '.join(reasons)}. Use the vllm or sglang strategy instead.")

    @torch.inference_mode()
    def _probe(self, layout: Layout) -> float:
        """Return the largest relative difference to plain forward passes over ragged rows, in two steps."""
        self.layout = layout
        self.cache = SlotCache(self.layers, 4, 64)
        self._bind(layout, self.cache)
        rows = [[(7 * i + 3 * j) % self.vocabulary for i in range(4 + 3 * j)] for j in range(3)]
        slots, firsts = np.array([2, 0, 1]), np.array([3, 5, 2])
        self.forward(slots, np.zeros(3, dtype=np.int64), firsts, [r[:f] for r, f in zip(rows, firsts, strict=True)])
        rest = [r[f:] for r, f in zip(rows, firsts, strict=True)]
        got = self.forward(slots, firsts, np.array([len(r) for r in rest]), rest)
        plain = copy.deepcopy(self._original, {id(p): p for p in self._parameters.values()}).eval()
        worst = 0.0
        for row, logits in zip(rows, got, strict=True):
            ids = torch.tensor([row], device=self.device)
            expected = plain(input_ids=ids, use_cache=False).logits[0, -1].float()
            scale = max(float(expected.abs().max()), 1e-6)
            worst = max(worst, float((logits.float() - expected).abs().max()) / scale)
        return worst
