"""What every rank runs, where CUDA is the CPU (see ``megatron_support.ranks``)."""

from __future__ import annotations

import gc
import multiprocessing
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from tensordict import TensorDict
from transformers import PreTrainedModel

from megatron_support.lora_runs import LoraOutcome, steps_and_files, train_as_configured
from megatron_support.normed_layers import hidden_norm_layers, normed_layers
from megatron_support.scenarios import Case, Outcome
from roll.algorithms.distillation import Divergence
from roll.planning.training_states import Training
from roll.rehearsal.megatron_on_cpu import cpu_layers, megatron_on_cpu
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.distilled import DistillationLoss
from roll.strategies.training.megatron.options import MegatronOptions
from roll.strategies.training.megatron.parallel import close_parallel
from roll.strategies.training.megatron.scorer import MegatronScorer
from roll.strategies.training.megatron.train import MegatronTrainStrategy
from roll.strategies.training.megatron.weights import WeightMap
from tests.planning.measuring import measured

CPU = torch.device("cpu")


@contextmanager
def trainer(
    case: Case, seed: int = 3, model: Any = None, layers: Any = cpu_layers, device: Any = CPU
) -> Iterator[MegatronTrainStrategy]:
    """A strategy whose groups of ranks end with it."""
    try:
        yield MegatronTrainStrategy(
            case.model(seed) if model is None else model,
            case.options,
            predicts="values" if case.critic else "log_probs",
            megatron=MegatronOptions.from_mapping(case.megatron),
            layer_spec=layers,
            device=device,
            adapt=None if case.lora is None else case.adapt,
        )
    finally:
        close_parallel()


def share(strategy: MegatronTrainStrategy, case: Case, batch: TensorDict) -> TensorDict:
    return batch[case.own_rows(strategy.data_rank, strategy.data_size)]


def outcome(strategy: MegatronTrainStrategy, case: Case, steps: list[dict[str, float]]) -> Outcome:
    # Weights first: a pass would gather those that are gathered late.
    parameters = {name: tensor.float().numpy().copy() for name, tensor in strategy.named_parameters()}
    own = share(strategy, case, case.batch(77))
    outputs = strategy.compute_values(own) if case.critic else strategy.compute_log_probs(own)
    return Outcome(steps, outputs.numpy().copy(), parameters, case.own_rows(strategy.data_rank, strategy.data_size))


def take_steps(strategy: MegatronTrainStrategy, case: Case, batches: list[TensorDict]) -> list[dict[str, float]]:
    return [strategy.train_step(share(strategy, case, batch), case.loss()) for batch in batches]


def train(case: Case, batches: list[TensorDict]) -> Outcome:
    with trainer(case) as strategy:
        return outcome(strategy, case, take_steps(strategy, case, batches))


def train_and_save(case: Case, batches: list[TensorDict], directory: Path) -> Outcome:
    """Take steps, write a checkpoint and the model, and return what was written."""
    with trainer(case) as strategy:
        torch.manual_seed(11 + torch.distributed.get_rank())
        steps = take_steps(strategy, case, batches)
        strategy.save_checkpoint(directory)
        strategy.save_hf(directory / "hf")
        return outcome(strategy, case, steps)


def save_and_go_on(case: Case, directory: Path, before: list[TensorDict], after: list[TensorDict]) -> Outcome:
    """Take steps, write a checkpoint, and take more: what a resumed run must equal."""
    with trainer(case) as strategy:
        steps = take_steps(strategy, case, before)
        strategy.save_checkpoint(directory)
        return outcome(strategy, case, steps + take_steps(strategy, case, after))


def resume(case: Case, directory: Path, batches: list[TensorDict], steps_before: int = 0) -> Outcome:
    """Load a checkpoint into other weights, of a trainer that has taken steps of its own, and go on."""
    with trainer(case, seed=99) as strategy:
        torch.manual_seed(1000)
        take_steps(strategy, case, [case.batch(50 + step) for step in range(steps_before)])
        strategy.load_checkpoint(directory)
        return outcome(strategy, case, take_steps(strategy, case, batches))


def resume_from_folder(case: Case, folder: Path, batches: list[TensorDict]) -> Outcome:
    """Start from a model folder in Hugging Face format."""
    with trainer(case, model=folder) as strategy:
        return outcome(strategy, case, take_steps(strategy, case, batches))


def train_with_breaks(case: Case, batches: list[TensorDict]) -> Outcome:
    """Between steps, score, stream the weights, hand the device over and take it back."""
    with trainer(case) as strategy:
        steps = []
        for batch in batches:
            strategy.compute_log_probs(share(strategy, case, batch))
            for _ in strategy.named_parameters():
                pass
            strategy.offload()
            strategy.reload()
            steps += take_steps(strategy, case, [batch])
        return outcome(strategy, case, steps)


def survive_a_bad_step(case: Case, batches: list[TensorDict]) -> tuple[str, Outcome]:
    """Take a step, then one that is not finite in the last row, then the others."""
    with trainer(case) as strategy:
        steps = take_steps(strategy, case, batches[:1])
        bad = batches[1].clone()
        bad["advantages"][-1] = float("inf")
        message = error_of(lambda: take_steps(strategy, case, [bad]))
        return message, outcome(strategy, case, steps + take_steps(strategy, case, batches[1:]))


def tensors_gathered_ahead(case: Case) -> tuple[int, int]:
    """Return how many tensors are gathered before the reader asks for them, and how many exist if it keeps none."""
    waiting, most_waiting, most_alive = 0, 0, 0
    seen: list[weakref.ref[torch.Tensor]] = []
    gather = WeightMap._gather

    def counted(*arguments: Any) -> list[torch.Tensor]:
        nonlocal waiting
        tensors = gather(*arguments)
        waiting += len(tensors)
        return tensors

    with trainer(case) as strategy, patch.object(WeightMap, "_gather", counted):
        for _, tensor in strategy.named_parameters():
            most_waiting, waiting = max(most_waiting, waiting), waiting - 1
            seen.append(weakref.ref(tensor))
            del tensor
            most_alive = max(most_alive, _alive(seen, expected=3))
    return most_waiting, most_alive


def _alive(seen: list[weakref.ref[torch.Tensor]], expected: int) -> int:
    """Return how many tensors are there; what threads of a collective call still hold for a moment is waited for."""
    until = time.monotonic() + 200
    while True:
        seen[:] = [reference for reference in seen if reference() is not None]
        if len(seen) <= expected or time.monotonic() > until:
            return len(seen)
        gc.collect()
        time.sleep(0.01)


def calls_and_widest_logits(case: Case, batch: TensorDict) -> tuple[int, int, int]:
    """Take a step; return calls of a norm and of an attention, and rows of the widest logits."""
    counts = {"norm": 0, "attention": 0, "logits": 0}
    with trainer(case) as strategy:
        layer = strategy.stages[0].decoder.layers[0]
        layer.input_layernorm.register_forward_hook(lambda *_: _count(counts, "norm"))
        layer.self_attention.core_attention.register_forward_hook(lambda *_: _count(counts, "attention"))
        strategy.stages[0].output_layer.register_forward_hook(
            lambda module, inputs, output: counts.update(logits=max(counts["logits"], output[0].shape[0]))
        )
        take_steps(strategy, case, [batch])
    return counts["norm"], counts["attention"], counts["logits"]


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] += 1


def divergence(case: Case, reference: Case, batch: TensorDict) -> Outcome:
    """Score a reference's states with the megatron scorer, and measure the policy from them."""
    head = reference.model(seed=5).get_output_embeddings()
    try:
        scorer = MegatronScorer(
            reference.model(seed=5),
            megatron=MegatronOptions.from_mapping(case.megatron),
            max_tokens_per_microbatch=40,
            layer_spec=cpu_layers,
            device=CPU,
        )
        own = batch[case.own_rows(scorer.data_rank, scorer.data_size)].clone()
        own["ref_states"] = scorer.compute_states(own)
        with trainer(case) as strategy:
            strategy.measure_from(head)
            found = strategy.compute_divergence(own)
            return Outcome([], found.numpy().copy(), {}, case.own_rows(strategy.data_rank, strategy.data_size))
    finally:
        close_parallel()


def distil(case: Case, heads: list[torch.nn.Linear], choice: Divergence, batches: list[TensorDict]) -> Outcome:
    """Take steps towards teachers whose states, or likeliest tokens, the batches have."""
    with trainer(case) as strategy:
        strategy.measure_from(*heads, divergence=choice)
        steps = [strategy.train_step(share(strategy, case, batch), DistillationLoss()) for batch in batches]
        return outcome(strategy, case, steps)


def take_over(case: Case, directory: Path, batches: list[TensorDict]) -> Outcome:
    """Begin with the optimiser of a checkpoint, from other weights, and go on."""
    with trainer(case, seed=99) as strategy:
        strategy.load_optimizer(directory)
        return outcome(strategy, case, take_steps(strategy, case, batches))


def places(case: Case) -> tuple[int, int, bool]:
    with trainer(case) as strategy:
        return strategy.data_rank, strategy.data_size, strategy.speaks


def construction_error(case: Case, **options: Any) -> str:
    def make() -> None:
        with trainer(case, **options):
            pass

    return error_of(make)


def different_rows_error(case: Case, batch: TensorDict) -> str:
    """Give ranks that hold one copy of the model rows of their own."""
    with trainer(case) as strategy:
        rank = torch.distributed.get_rank()
        return error_of(lambda: strategy.compute_log_probs(batch[rank : rank + 2]))


def refusals(case: Case, batch: TensorDict, directory: Path) -> dict[str, str]:
    """Return what strategies say where something cannot be done."""
    said = {"packing": construction_error(replace(case, train={"use_sequence_packing": True}), layers=plain_layers)}
    said["device"] = construction_error(case, device=None)
    said["layers"] = construction_error(case, layers=None)
    said["long row"] = construction_error_of_step(replace(case, train={"max_tokens_per_microbatch": 10}), batch)
    with trainer(case) as strategy:
        said["other division"] = error_of(
            lambda: MegatronScorer(
                case.model(),
                megatron=MegatronOptions(sequence_parallel=True, tensor_model_parallel_size=2),
                layer_spec=cpu_layers,
                device=CPU,
            )
        )
        said["values"] = error_of(lambda: strategy.compute_values(batch))
        said["no checkpoint"] = error_of(lambda: strategy.load_checkpoint(directory))
        strategy.save_checkpoint(directory / "saved")
        strategy.offload(weights=False)
        said["optimizer handed over"] = error_of(lambda: strategy.train_step(batch, case.loss()))
        strategy.offload()
        said["weights handed over"] = error_of(lambda: strategy.compute_log_probs(batch))
    other = replace(case, megatron={**case.megatron, "use_distributed_optimizer": False})
    with trainer(other) as strategy:
        said["other optimizer"] = error_of(lambda: strategy.load_checkpoint(directory / "saved"))
    return said


def construction_error_of_step(case: Case, batch: TensorDict) -> str:
    with trainer(case) as strategy:
        return error_of(lambda: strategy.train_step(batch, case.loss()))


def plain_layers(config: Any, virtual_stage: int | None) -> Any:
    """Megatron-Core's own layers, whose attention knows no packed sequences."""
    return get_gpt_decoder_block_spec(config, False, normalization="RMSNorm", vp_stage=virtual_stage)


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def train_lora(case: Case, batches: list[TensorDict], directory: Path | None = None) -> LoraOutcome:
    with trainer(case) as strategy:
        return steps_and_files(strategy, case, batches, directory)


def train_lora_from(case: Case, batches: list[TensorDict], start: str | Path, directory: Path) -> LoraOutcome:
    """Start from a folder, from a loaded model that has its adapters, or with layers that have their norm inside."""
    options: dict[str, Any] = {"layers": normed_layers} if start == "normed" else {}
    if start == "adapted":
        options["model"] = case.adapt(case.model())
    elif isinstance(start, Path):
        options["model"] = start
    with trainer(replace(case, lora=None) if start == "adapted" else case, **options) as strategy:
        return steps_and_files(strategy, case, batches, directory)


def train_lora_with_breaks(case: Case, batches: list[TensorDict]) -> LoraOutcome:
    """Between steps, ask the base model, stream the weights, hand the device over and take it back."""
    with trainer(case) as strategy:
        steps = []
        for batch in batches:
            with strategy.adapters_disabled():
                strategy.compute_log_probs(share(strategy, case, batch))
            for _ in strategy.named_parameters():
                pass
            strategy.offload()
            strategy.reload()
            steps += take_steps(strategy, case, [batch])
        after = steps_and_files(strategy, case, [], None)
        return replace(after, steps=steps)


def what_is_trained(case: Case, batch: TensorDict) -> dict[str, Any]:
    """Take a step and say of the parameters which are trained, have gradient buffers and are in the optimiser."""
    with trainer(case) as strategy:
        take_steps(strategy, case, [batch])
        named = {name: parameter for stage in strategy.stages for name, parameter in stage.named_parameters()}
        trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
        frozen = [parameter for name, parameter in named.items() if name not in trained]
        buffers = [buffer for chunk in strategy.stepper.chunks for buffer in chunk.buffers]
        states = [state for part in strategy.stepper.parts for state in part.optimizer.state.values()]
        return {
            "trained": sorted(trained),
            "numbers": sum(parameter.numel() for parameter in trained.values()),
            "dtypes": sorted({str(parameter.dtype) for parameter in trained.values()}),
            "in buffers": sum(parameter.numel() for buffer in buffers for parameter in buffer.params),
            "moments": sum(state["exp_avg"].numel() for state in states),
            "gradients of frozen": sum(p.grad is not None or hasattr(p, "main_grad") for p in frozen),
        }


def bytes_of_a_step(name: str, megatron: dict[str, Any]) -> tuple[int, Training]:
    """Return the most bytes of a step with short passes, and the plan of it."""

    def make(model: PreTrainedModel, options: TrainOptions) -> MegatronTrainStrategy:
        given = MegatronOptions.from_mapping(megatron)
        return MegatronTrainStrategy(model, options, megatron=given, layer_spec=cpu_layers, device=CPU)

    try:
        most, training, _ = measured("megatron_train", megatron, name, make, ranks=2, pass_size=(1, 8))
        return most, training
    finally:
        close_parallel()


def factory_lora(settings: dict[str, Any], case: Case, batches: list[TensorDict]) -> LoraOutcome:
    """Let the factory of roles make the strategy, with the device and layers of the CPU for those of GPUs."""
    try:
        with megatron_on_cpu():
            return train_as_configured(settings, case, batches)
    finally:
        close_parallel()


def lora_refusals(case: Case, directory: Path) -> dict[str, str]:
    """Return what strategies say where adapters cannot be had."""
    said = {"hidden norm": construction_error(case, layers=hidden_norm_layers)}
    with trainer(replace(case, lora=None)) as strategy:
        said["no adapters"] = error_of(lambda: strategy.save_adapters(directory))
    dropping = case.adapt(case.model())
    layer = dropping.get_submodule("model.layers.0.self_attn.q_proj")
    layer.lora_dropout["default"] = torch.nn.Dropout(0.1)
    said["dropout"] = construction_error(replace(case, lora=None), model=dropping)
    said["twice"] = construction_error(case, model=dropping)
    return said


def save_megatron(case: Case, directory: Path, step: int) -> Outcome:
    """Take a step, and write the model in Megatron-Core's format."""
    with trainer(case) as strategy:
        steps = take_steps(strategy, case, [case.batch(0)])
        strategy.save_megatron(directory, step)
        return outcome(strategy, case, steps)


def begin_with_megatron(case: Case, folder: Path) -> Outcome:
    """Load such a model, into a trainer of a model with other weights."""
    with trainer(replace(case, megatron={**case.megatron, "load": str(folder)}), seed=99) as strategy:
        return outcome(strategy, case, [])


def stage_parameters(case: Case, folder: Path) -> dict[str, np.ndarray]:
    """Load such a model, and return the parameters of this rank's stage under Megatron-Core's names."""
    with trainer(replace(case, megatron={**case.megatron, "load": str(folder)}), seed=99) as strategy:
        return {name: value.detach().numpy().copy() for name, value in strategy.stages[0].named_parameters()}


def write_as_megatron(case: Case, folder: Path, vocabulary: int, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """Write a model with Megatron-Core alone: one process, random weights; return them as fp32.

    Args:
        case: Says the sizes of the model.
        folder: A checkpoint; must be there.
        vocabulary: With padding.
        dtype: Of the weights.
    """
    from argparse import Namespace

    from megatron.core import dist_checkpointing
    from megatron.core import parallel_state as mpu
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
    from megatron.core.transformer import TransformerConfig

    sizes = case.model().config
    mpu.initialize_model_parallel()
    try:
        model_parallel_cuda_manual_seed(7)
        config = TransformerConfig(
            num_layers=sizes.num_hidden_layers,
            hidden_size=sizes.hidden_size,
            num_attention_heads=sizes.num_attention_heads,
            num_query_groups=sizes.num_key_value_heads,
            kv_channels=sizes.head_dim,
            ffn_hidden_size=sizes.intermediate_size,
            gated_linear_unit=True,
            add_bias_linear=False,
            normalization="RMSNorm",
            qk_layernorm=True,
            use_cpu_initialization=True,
            params_dtype=dtype,
        )
        model = GPTModel(
            config,
            get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm"),
            vocab_size=vocabulary,
            max_sequence_length=64,
            position_embedding_type="rope",
            share_embeddings_and_output_weights=False,
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape))
        state = {"model": model.sharded_state_dict(), "iteration": 5, "args": Namespace(tensor_model_parallel_size=1)}
        # Its writer starts processes, which those of a pool may not.
        with patch.dict(multiprocessing.current_process()._config, daemon=False):
            dist_checkpointing.save(state, str(folder))
        return {name: value.detach().float().numpy().copy() for name, value in model.named_parameters()}
    finally:
        close_parallel()


def load_error(case: Case, folder: Path) -> str:
    """Return what is said of a folder that cannot be loaded."""
    return error_of(lambda: begin_with_megatron(case, folder))
