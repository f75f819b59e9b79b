"""The keys of one role: its model, training, data, sampling and engine options, and the devices it owns."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from roll.config.base import ConfigModel, EnvironmentVariables, NameList
from roll.config.device_mapping import parse_device_mapping
from roll.config.rope import ScalesRope
from roll.config.strategies import STRATEGIES, StrategyDescription

MOST = 2**31 - 1
"""Largest whole number of a key: what counts steps, tokens or devices is never larger, and engines keep 32 bits."""

Positive = Annotated[int, Field(ge=1, le=MOST)]
NonNegative = Annotated[int, Field(ge=0, le=MOST)]
AtOnce = Annotated[int, Field(ge=1, le=1_000_000)]
"""What is held in memory at the same time: requests, episodes, prompts."""
NonNegativeFloat = Annotated[float, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
DeviceMapping = Annotated[list[int], BeforeValidator(parse_device_mapping)]


def _auto(value: object) -> object:
    return "auto" if value is None else value


class ModelArgs(ConfigModel):
    """Which model a role loads, and how."""

    model_name_or_path: str | None = Field(
        None, description="Path or hub id of the model. null: `pretrain` (critic and reward: `reward_pretrain`)."
    )
    dtype: Annotated[Literal["auto", "fp32", "bf16", "fp16"], BeforeValidator(_auto)] = Field(
        "auto",
        description="Number format in which the model computes. auto or null: that of `actor_train` where the role has "
        "the policy's model, else that of the model's config.json (bf16 for either half format). bf16 is very slow on "
        "most CPUs.",
    )
    attn_implementation: Literal["auto", "eager", "sdpa", "fa2"] = Field(
        "auto", description="Attention kernel; auto leaves the choice to the engine, fa2 is FlashAttention 2."
    )
    rope_scaling: ScalesRope | None = Field(
        None,
        description="Longer sequences than the model was trained with (`{rope_type: yarn, factor: 4}`), for trainer "
        "and engines alike. null: as `actor_train` where the role has the policy's model, else as its config.json.",
    )
    rope_theta: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Base of the lengths of its rotary waves. null: likewise."
    )
    disable_gradient_checkpointing: bool = Field(
        False, description="Keep activations instead of computing them again: faster, more memory."
    )
    model_type: str | None = Field(None, description="Model family, where the checkpoint does not say.")
    lora_rank: Positive | None = Field(None, description="Rank of LoRA adapters. null trains all weights.")
    lora_alpha: Annotated[float, Field(gt=0)] | None = Field(None, description="LoRA scale. null: the rank.")
    lora_target: NameList | None = Field(None, description="Modules that get LoRA adapters. null: all linear layers.")


class TrainingArgs(ConfigModel):
    """Optimiser, schedule and batch sizes of a trained role."""

    learning_rate: NonNegativeFloat = Field(1e-6, description="Peak learning rate.")
    weight_decay: NonNegativeFloat = Field(0.0, description="Decoupled weight decay of AdamW.")
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="AdamW beta1.")
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = Field(0.999, description="AdamW beta2.")
    adam_epsilon: Annotated[float, Field(gt=0)] = Field(1e-8, description="AdamW epsilon.")
    per_device_train_batch_size: Positive = Field(1, description="Samples of one forward/backward pass on a device.")
    gradient_accumulation_steps: Positive | None = Field(
        None, description="Passes per optimiser step. null: from `mini_batches`; without that, one step per rollout."
    )
    max_tokens_per_microbatch: Positive | None = Field(
        None,
        description="Token budget of one pass; replaces `per_device_train_batch_size` as its limit. Never changes a "
        "gradient.",
    )
    warmup_steps: NonNegative = Field(0, description="Steps of linear warm-up.")
    warmup_ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="Warm-up as a share of all steps, used where `warmup_steps` is 0."
    )
    num_train_epochs: Annotated[float, Field(gt=0)] | None = Field(
        None, description="SFT: passes over the rows, where `max_steps` is not set. null: 1."
    )
    lr_scheduler_type: Literal["constant", "constant_with_warmup", "linear", "cosine", "wsd"] = Field(
        "constant_with_warmup",
        description="Learning-rate schedule after the warm-up; `wsd` stays at the peak and decays at the end.",
    )
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="Where `linear`, `cosine` and `wsd` end, over `learning_rate`."
    )
    lr_decay_ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1, description="Share of all steps at the end in which `wsd` decays."
    )


class CustomClass(ConfigModel):
    """A class or function of your own in a Python file."""

    path: str = Field(description="Path of the Python file, or an import path (`my_package.my_module`).")
    name: str = Field(description="Name of the class or function in it.")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments handed to it.")


class DataArgs(ConfigModel):
    """The data set of a role."""

    template: str | None = Field(
        None,
        description="Chat template of the policy: `chatml`, `qwen2_5`, `qwen2-vl`, `qwen3`, `llama3`, `plain`, "
        "`user_assistant`, a Jinja template or its file; `native` or null is the tokenizer's own.",
    )
    enable_thinking: bool | None = Field(
        None,
        description="Whether the policy thinks before it answers, for chat templates that have a choice (Qwen3's). "
        "null: as the template has it.",
    )
    history: Literal["template", "keep"] = Field(
        "template",
        description="Turns that the chat template would write otherwise later (without their thinking): `template` "
        "does so and begins a new sample, `keep` leaves them as they were sampled.",
    )
    file_name: NameList | None = Field(
        None,
        description="Data files (JSON, JSONL, CSV or parquet), folders of such, ids of data sets of a hub, or what the "
        "names of Megatron's `.bin` and `.idx` files begin with.",
    )
    subset: str | None = Field(
        None, description="Of a folder or hub id that holds several data sets: the folder of one (`main`)."
    )
    split: str | None = Field(
        None, description="Of a folder or hub id: the files whose names begin so (`train`, `test`). null: all."
    )
    prompt: str | None = Field(None, description="Column with the prompt. Excludes `messages`.")
    messages: str | None = Field(None, description="Column with chat messages. Excludes `prompt`.")
    image_key: str | None = Field(
        None,
        description="Column with the pictures of a prompt: a path, base64, a data URI, bytes, or a list of these. They "
        "are shown where the prompt says `<image>`, else before its text. Takes a vision-language model.",
    )
    ground_truth: str = Field("ground_truth", description="Column with the right answer; dots go into mappings.")
    tag: str = Field("tag", description="Column with the label of a row: which domain of `rewards` it belongs to.")
    system_prompt: str | None = Field(None, description="System message before every prompt that has none.")
    domain_interleave_probs: dict[str, NonNegativeFloat] | None = Field(
        None, description="Share of each domain in the prompts, kept exactly. null: in proportion to their rows."
    )
    shuffle: bool = Field(True, description="Draw rows in an order of their own in each epoch; false keeps the file's.")
    selector: Literal["learning_progress"] | None = Field(
        None,
        description="Which prompt of a domain comes next: `learning_progress`: more often those whose success changes. "
        "null: all in turn.",
    )
    max_samples: Positive | None = Field(None, description="Use only the first rows of each file.")
    truncation: Literal["error", "left", "right"] = Field(
        "error",
        description="Prompts longer than `prompt_length`: refuse the data, or cut their content at one end. SFT: "
        "sequences longer than `sequence_length`; `right` cuts off their last tokens.",
    )
    filter_overlong_prompts: bool = Field(
        False, description="Leave out prompts longer than `prompt_length` (SFT: rows longer than `sequence_length`)."
    )
    on_bad_row: Literal["error", "skip"] = Field(
        "error", description="Rows that cannot be used (no prompt, broken JSON): stop, or count them and go on."
    )
    custom_cls: CustomClass | None = Field(
        None, description="Data set class of your own, called with its `kwargs`, and `file_name` where that is set."
    )


class GeneratingArgs(ConfigModel):
    """How tokens are sampled."""

    max_new_tokens: Positive = Field(
        128, description="Most tokens of one response, the stop token included. RLVR, unset: `response_length`."
    )
    temperature: NonNegativeFloat = Field(1.0, description="Sampling temperature; 0 is greedy.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Keep the likeliest tokens up to this mass.")
    top_k: Annotated[int, Field(ge=-1)] = Field(0, description="Keep the k likeliest tokens; 0 or -1 keeps all.")
    min_p: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="Keep tokens that are at least this share as likely as the likeliest; 0 keeps all."
    )
    min_new_tokens: NonNegative = Field(
        0, description="Least tokens of one response: before them no stop token is drawn and no stop string ends it."
    )
    num_beams: Positive = Field(1, description="Beams; only 1 samples from the policy.")
    num_return_sequences: Positive = Field(1, description="Responses per request.")
    repetition_penalty: Annotated[float, Field(gt=0)] = Field(
        1.0, description="Penalty of tokens that are there already; 1 is off."
    )
    stop_strings: NameList | None = Field(None, description="Texts that end a response, in which they stay.")


class StrategyArgs(ConfigModel):
    """Which engine runs a role, and its own options."""

    strategy_name: str = Field(description=f"Engine: {', '.join(f'`{name}`' for name in STRATEGIES)}.")
    strategy_config: dict[str, Any] | None = Field(
        None, description="Options handed to the engine (`tensor_model_parallel_size`, `gpu_memory_utilization`, …)."
    )

    @property
    def about(self) -> StrategyDescription:
        """What the strategy says of itself."""
        return STRATEGIES.get(self.strategy_name)

    @property
    def starts_with_random_weights(self) -> bool:
        """Whether the engine must be given weights before it answers anything."""
        return self.about.starts_with_random_weights(self.strategy_config)

    @property
    def begins_with_own_weights(self) -> bool:
        """Whether its options name weights to begin with, in place of those of its model."""
        return bool((self.strategy_config or {}).get(self.about.own_weights))

    def parallel_size(self, *names: str) -> int:
        """Return the product of the named sizes in ``strategy_config`` (1 where one is not set)."""
        product = 1
        for name in names:
            size = (self.strategy_config or {}).get(name, 1)
            product *= size if isinstance(size, int) and size > 0 else 1
        return product


class WorkerConfig(ConfigModel):
    """One role."""

    model_args: ModelArgs = Field(default_factory=ModelArgs, description="The model of the role.")
    training_args: TrainingArgs = Field(default_factory=TrainingArgs, description="Optimiser and batch sizes.")
    data_args: DataArgs = Field(default_factory=DataArgs, description="The data set of the role.")
    generating_args: GeneratingArgs = Field(default_factory=GeneratingArgs, description="Sampling options.")
    strategy_args: StrategyArgs = Field(
        default_factory=lambda: StrategyArgs(strategy_name="hf_infer"), description="The engine of the role."
    )
    name: str | None = Field(None, description="Name of the role in logs.")
    worker_cls: str | None = Field(None, description="Import path of the worker class. null: that of the role.")
    infer_batch_size: Positive = Field(
        8,
        description="Samples of one forward pass when scoring log-probs or values, where no "
        "`training_args.max_tokens_per_microbatch` limits it. Trained roles that do not set it take "
        "`per_device_train_batch_size`. A teacher that is an engine: sequences that it reads at a time.",
    )
    device_mapping: DeviceMapping | None = Field(
        None, description="Devices of the role: `list(range(0,16))`, a list, `0-7`, `0,2`. null: the CPU, or device 0."
    )
    world_size: Positive | None = Field(
        None, description="Number of workers. null: devices divided by `num_gpus_per_worker`, or 1."
    )
    num_gpus_per_worker: Positive = Field(
        1, description="Devices of one worker; an engine divides its matrices among them."
    )
    model_update_frequency: Positive = Field(1, description="Steps between two weight updates of the role.")
    system_envs: EnvironmentVariables = Field(default_factory=dict, description="Environment of the role's processes.")
    use_sequence_packing: bool = Field(
        False, description="Lay the samples of a pass end to end instead of padding them. Changes no number."
    )
    use_remove_padding: bool = Field(False, description="Another name of `use_sequence_packing`.")
    share_prefixes: bool | None = Field(
        False,
        description="Pack, and compute equal beginnings of the samples of a pass once: prompts of a group, the history "
        "of turns. Changes no number but by rounding. null: where the strategy can.",
    )
    log_prob_chunk_size: Positive | None = Field(
        None, description="Most tokens whose logits are held at once. null: as many as make 1 GiB in fp32."
    )
    use_dynamic_batching_in_train: bool = Field(False, description="Build training passes by length.")
    use_dynamic_batching_in_infer: bool = Field(False, description="Build scoring passes by length.")

    @property
    def scores_in_own_batches(self) -> bool:
        """Whether ``infer_batch_size`` was set."""
        return "infer_batch_size" in self.model_fields_set

    @property
    def packs(self) -> bool:
        """Whether the samples of a pass are laid end to end."""
        return any((self.use_sequence_packing, self.use_remove_padding, self.shares_prefixes))

    @property
    def shares_prefixes(self) -> bool:
        """Whether equal beginnings of the samples of a pass are computed once."""
        if self.share_prefixes is None:
            return self.strategy_args.about.shares_prefixes
        return self.share_prefixes

    @property
    def workers(self) -> int:
        """Number of workers: ``world_size``, else what the devices make, else 1."""
        if self.world_size is not None:
            return self.world_size
        return max(1, len(self.device_mapping or []) // self.num_gpus_per_worker)

    @property
    def data_parallel_size(self) -> int:
        """Number of model replicas that split a batch: devices / (tensor · pipeline · context or Ulysses parallel)."""
        devices = len(self.device_mapping) if self.device_mapping else self.workers
        split = self.strategy_args.parallel_size(
            "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "ulysses_size"
        )
        return max(1, devices // split)


class TrainWorkerConfig(WorkerConfig):
    """A role that is trained (``actor_train``, ``critic``)."""

    strategy_args: StrategyArgs = Field(
        default_factory=lambda: StrategyArgs(strategy_name="fsdp_train"), description="The engine of the role."
    )
