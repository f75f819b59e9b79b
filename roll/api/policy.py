"""A policy to talk to: what a run has learned, a built-in model, or any other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from transformers import PreTrainedModel

from roll.api.sources import PolicySource
from roll.config import AgenticConfig, RLConfig, load
from roll.config.worker import WorkerConfig
from roll.generation import Completion, GenerationRequest, SamplingParams, generation_seed
from roll.pipelines.run.interrupts import runner
from roll.pipelines.run.terminal import quiet_transformers
from roll.runs.stored import StoredRun
from roll.strategies import EngineJob
from roll.strategies.building import build_engine
from roll.workers.loading import Text, load_role_model, load_text

Message = Mapping[str, str]
Conversation = str | Sequence[Message]

_ENGINE = WorkerConfig().strategy_args.strategy_name
_ONE = {"tags": ["FrozenLake"], "env_groups": 1, "group_size": 1}
_NEUTRAL = {
    "train_env_manager": _ONE,
    "val_env_manager": _ONE,
    "rollout_batch_size": 1,
    "val_batch_size": 1,
    "adv_estimator": "reinforce",
}
"""What a configuration must say, for policies that were trained elsewhere; nothing of it is played."""


@dataclass(frozen=True)
class Policy:
    """A model that answers, with the tokens, the chat template and the sampling that training has; :func:`load_policy`.

    Attributes:
        source: Its folder, or the name of a built-in model or one of the hub.
        config: The configuration that it was trained with; of other models, defaults.
        text: Tokenizer and chat template.
        model: The weights, frozen.
        written: The file of that configuration, ``None`` where it comes from no run.
    """

    source: str
    config: RLConfig
    text: Text
    model: PreTrainedModel
    written: Path | None

    def __repr__(self) -> str:
        return f"<policy {self.source}, {self.model.num_parameters() / 1e6:.1f} million parameters>"

    @overload
    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        max_new_tokens: int = ...,
        temperature: float = ...,
        top_p: float = ...,
        top_k: int = ...,
        seed: int = ...,
    ) -> str: ...

    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Message]],
        *,
        max_new_tokens: int = ...,
        temperature: float = ...,
        top_p: float = ...,
        top_k: int = ...,
        seed: int = ...,
    ) -> list[str]: ...

    def chat(
        self,
        messages: str | Sequence[Message] | Sequence[Sequence[Message]],
        *,
        max_new_tokens: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
    ) -> str | list[str]:
        """Answer a conversation, or several at the same time.

        Example:
            >>> policy.chat("What is 2 + 2?", temperature=0)
            >>> policy.chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}])

        Args:
            messages: What the user says, or a list of messages with ``role`` and ``content``, or a list of such lists.
            max_new_tokens: Tokens of an answer, at most.
            temperature: 0 takes the likeliest token each time.
            top_p: See :class:`roll.generation.SamplingParams`.
            top_k: See there.
            seed: The same seed gives the same answer.

        Returns:
            The answer as text; of several conversations a list.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        one = not messages or isinstance(messages[0], Mapping)
        conversations = [messages] if one else messages
        prompts = [self.text.renderer.render_ids(each) for each in conversations]  # type: ignore[arg-type]
        sampling = SamplingParams(max_new_tokens, temperature, top_p, top_k)
        answers = [self.text.renderer.decode(done.token_ids) for done in self.complete(prompts, sampling, seed)]
        return answers[0] if one else answers

    def generate(
        self, prompt: str, *, max_new_tokens: int = 256, temperature: float = 1.0, top_p: float = 1.0, seed: int = 0
    ) -> str:
        """Go on with a text as it is, without a chat template; see :meth:`chat`."""
        ids = list(self.text.tokenizer(prompt)["input_ids"])
        [done] = self.complete([ids], SamplingParams(max_new_tokens, temperature, top_p), seed)
        return self.text.renderer.decode(done.token_ids)

    def complete(self, prompts: Sequence[list[int]], sampling: SamplingParams, seed: int = 0) -> list[Completion]:
        """Return what follows each list of token ids, as token ids with their log-probs.

        Args:
            prompts: Token ids, at least one of each.
            sampling: How tokens are drawn.
            seed: Keys the noise; each prompt has noise of its own.
        """
        return runner()(self._complete(prompts, sampling, seed))

    async def _complete(self, prompts: Sequence[list[int]], sampling: SamplingParams, seed: int) -> list[Completion]:
        limits = sampling.within(sampling.max_new_tokens, self.text.renderer.stop_token_ids)
        longest = max((len(prompt) for prompt in prompts), default=0) + limits.max_new_tokens
        job = EngineJob(folder=lambda: self.source, load=lambda: self.model, max_length=longest, seed=seed)
        engine = build_engine(_ENGINE, job)
        requests = [
            GenerationRequest(f"policy/{number}", list(prompt), limits, generation_seed(seed, "policy", number, 0))
            for number, prompt in enumerate(prompts)
        ]
        try:
            return list(await asyncio.gather(*map(engine.generate, requests)))
        finally:
            await engine.close()


def load_policy(source: str | Path | StoredRun, *, dtype: str = "fp32") -> Policy:
    """Load a policy.

    Example:
        >>> policy = roll.load_policy(run.checkpoint)
        >>> policy = roll.load_policy("toy")

    Args:
        source: A checkpoint, a run or its folder (its newest checkpoint is taken), a folder in Hugging Face format, the
            name of a built-in model (``toy``, ``toy_math``), or of one of the hub.
        dtype: ``fp32``, ``bf16`` or ``fp16``.

    Raises:
        ConfigError: There is no model; the message says what there is.
    """
    found = PolicySource.of(source)
    own = _sampled_from(found.folder(), dtype)
    config: RLConfig = load(_NEUTRAL | own, kind=AgenticConfig) if found.written is None else load(found.written, **own)
    with quiet_transformers():
        text, model = load_text(config), load_role_model(config, "actor_train")
    return Policy(found.pretrain, config, text, model, found.written)


def _sampled_from(folder: str, dtype: str) -> dict[str, Any]:
    """Return the keys of a run that samples from what is in ``folder``, in this process."""
    own = {"model_args": {"model_name_or_path": folder, "dtype": dtype}}
    return {
        "pretrain": folder,
        "actor_train": own,
        "actor_infer": {"strategy_args": {"strategy_name": _ENGINE, "strategy_config": {}}},
        "cluster": "local",
        "resume_from_checkpoint": False,
    }
