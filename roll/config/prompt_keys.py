"""The keys of pipelines that answer prompts from files."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from roll.config.base import ConfigModel
from roll.config.batch_plan import PromptPlan
from roll.config.grading_keys import GradedKeys
from roll.config.tool_use import ToolNames, ToolUse
from roll.config.worker import DataArgs, GeneratingArgs, NonNegative, Seconds

PROMPTS = "prompts"
"""Name of the source of prompts, beside those of environment tags."""

ANY_TAG = "*"
"""Stands among the tags of a domain for all that no other domain names."""


class ValidationConfig(ConfigModel):
    """Evaluation on prompts."""

    data_args: DataArgs = Field(default_factory=DataArgs, description="Validation files; metrics are per tag.")
    generating_args: GeneratingArgs | None = Field(
        None,
        description="Sampling of evaluations; unset keys are those of training. `num_return_sequences` responses per "
        "prompt give mean@k and pass@k.",
    )


class PromptKeys(GradedKeys):
    """The keys of prompts, beside those of their data (``actor_train.data_args``) and of rewards."""

    validation: ValidationConfig | None = Field(None, description="Evaluation on prompts. null: none.")
    tools: ToolNames = Field(
        default_factory=list,
        description="Tools that the policy may call before it answers a prompt: names, or a name with its options. "
        "Tags of environments have tools of their own.",
    )
    tool_use: ToolUse = Field(default_factory=ToolUse, description="How calls of these are read, limited and charged.")
    max_retries: NonNegative = Field(
        2, description="How often the answer to a prompt is begun again whose tool was gone, with the same noise."
    )
    retry_wait: Seconds = Field(1.0, description="Seconds before the first of them; doubled before each further one.")

    @property
    def prompt_tags(self) -> dict[str, list[str]]:
        """The domains that prompts may belong to, with the tags of their rows."""
        return {domain: reward.tags(domain) for domain, reward in self.rewards.items()}

    @property
    def validation_generating(self) -> GeneratingArgs:
        """How validation prompts are answered: as ``validation.generating_args`` says, else as in any evaluation."""
        changes = self.validation.generating_args if self.validation is not None else None
        base = super().val_generating
        return base if changes is None else base.model_copy(update=changes.model_dump(exclude_unset=True))

    @property
    def answers_prompts(self) -> bool:
        """Whether a training step answers prompts of data files."""
        return True

    @property
    def image_key_of_rows(self) -> str | None:
        """The key by which rows of data files show pictures; ``None`` where they show none."""
        if not self.answers_prompts:
            return None
        if self.actor_train.data_args.image_key is not None:
            return "actor_train.data_args.image_key"
        measured = self.validation is not None and self.val_data_args.image_key is not None
        return "validation.data_args.image_key" if measured else None

    def text_readers(self) -> Iterator[tuple[str | None, str]]:
        """Yield what of the run reads text alone: tools."""
        yield from super().text_readers()
        if self.tools:
            yield "tools", "tools are called in conversations of text"

    def prompt_plan(self, prompts: int) -> PromptPlan:
        """Return the responses of a training step that answers so many prompts."""
        sampling = self.dynamic_sampling
        refill = prompts * sampling.max_batches if sampling.enable else None
        return PromptPlan(prompts, self.num_return_sequences_in_group, refill)

    def validation_plan(self) -> PromptPlan | None:
        """Return the responses of an evaluation on prompts; ``None`` where there is none."""
        return PromptPlan(None, self.validation_generating.num_return_sequences) if self.validation else None

    @property
    def val_data_args(self) -> DataArgs:
        """The validation data; how rows are read is as in training where ``validation.data_args`` does not say."""
        own = self.validation.data_args if self.validation is not None else DataArgs()
        given = own.model_fields_set
        keys = {"ground_truth", "image_key", "tag", "system_prompt", "template", "enable_thinking"} - given
        if not given & {"prompt", "messages"}:
            keys |= {"prompt", "messages"}
        return own.model_copy(update={key: getattr(self.actor_train.data_args, key) for key in keys})
