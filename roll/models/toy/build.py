"""Make a toy policy from nothing: ``python -m roll.models.toy.build --policy games --out DIR``.

1. A byte-level BPE tokenizer is trained on the project's own prompts.
2. A 2-layer, 128-wide Qwen3 model is drawn at random. (``mixed`` takes both from ``toy_sokoban``.)
3. Supervised steps on a perfect teacher's demonstrations teach it the answer format and how to read a prompt.
4. In the last third the teacher is careless. The policy imitates that, so it starts out mediocre; telling good from bad
   is left to reinforcement learning.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from roll.models.toy import (
    COUNTDOWN_WEIGHTS_DIRECTORY,
    DUEL_WEIGHTS_DIRECTORY,
    MATH_WEIGHTS_DIRECTORY,
    MIXED_WEIGHTS_DIRECTORY,
    SOKOBAN_WEIGHTS_DIRECTORY,
    TAXI_WEIGHTS_DIRECTORY,
    TOOLS_WEIGHTS_DIRECTORY,
    WEIGHTS_DIRECTORY,
    arithmetic,
    calls,
    duel,
    games,
    mixed,
    taxi,
    tries,
)
from roll.models.toy.demonstrations import Encode
from roll.models.toy.tokenizer import CHAT_TEMPLATE, SPLIT_PATTERN, build_tokenizer
from roll.rendering.chat import ChatRenderer
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from roll.strategies.training.supervised import SupervisedLoss
from roll.trajectories.batch import collate
from roll.trajectories.samples import Sample

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What makes one policy.

    Attributes:
        weights: Where the shipped one is.
        corpus: Texts for the tokenizer.
        vocabulary_size: Most tokens of the tokenizer.
        teachers: Endless demonstrations of a perfect and of a careless teacher, from renderer, encoder and seed.
        steps: Supervised optimiser steps.
        batch_size: Demonstrations per step.
        learning_rate: Peak learning rate (cosine, 10 % warm-up).
        start: The policy to go on from, with its tokenizer; ``None`` to begin from nothing.
        pattern: What may become a token.
        template: The chat template.
    """

    weights: Path
    corpus: Callable[[], Iterator[str]]
    vocabulary_size: int
    teachers: Callable[[ChatRenderer, Encode, int], tuple[Iterator[Sample], Iterator[Sample]]]
    steps: int
    batch_size: int
    learning_rate: float
    start: Path | None = None
    pattern: str = SPLIT_PATTERN
    template: str = CHAT_TEMPLATE


RECIPES = {
    "games": Recipe(WEIGHTS_DIRECTORY, games.corpus, 512, games.teachers, 600, 64, 2e-3),
    "math": Recipe(MATH_WEIGHTS_DIRECTORY, arithmetic.corpus, 512, arithmetic.teachers, 700, 128, 3e-3),
    "duel": Recipe(DUEL_WEIGHTS_DIRECTORY, duel.corpus, 512, duel.teachers, 96, 32, 3e-3, pattern=duel.PATTERN),
    "mixed": Recipe(
        MIXED_WEIGHTS_DIRECTORY, games.corpus, 512, mixed.teachers, 420, 128, 2e-3, start=SOKOBAN_WEIGHTS_DIRECTORY
    ),
    "tools": Recipe(
        *(TOOLS_WEIGHTS_DIRECTORY, calls.corpus, 768, calls.teachers, 1200, 64, 3e-3),
        pattern=calls.PATTERN,
        template=calls.CHAT_TEMPLATE,
    ),
    "taxi": Recipe(TAXI_WEIGHTS_DIRECTORY, taxi.corpus, 768, taxi.teachers, 600, 32, 3e-3, pattern=taxi.PATTERN),
    "countdown": Recipe(
        *(COUNTDOWN_WEIGHTS_DIRECTORY, tries.corpus, 768, tries.teachers, 1500, 64, 3e-3),
        pattern=tries.PATTERN,
        template=calls.CHAT_TEMPLATE,
    ),
}


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int, layers: int = 2, **options: Any) -> Qwen3ForCausalLM:
    """Draw the model at random; ``options`` are further ones of ``Qwen3Config``."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **options,
    )
    return Qwen3ForCausalLM(config)


def save(directory: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a policy in Hugging Face format, in place of whatever was there."""
    if directory.exists():
        shutil.rmtree(directory)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def build(
    directory: Path, policy: str = "games", *, steps: int | None = None, batch_size: int | None = None, seed: int = 0
) -> None:
    """Build tokenizer and model and save both in Hugging Face format.

    Args:
        directory: Where to write.
        policy: A key of :data:`RECIPES`.
        steps: Supervised optimiser steps; ``None`` for the recipe's.
        batch_size: Demonstrations per step; ``None`` for the recipe's.
        seed: Fixes weights and demonstrations.
    """
    recipe = RECIPES[policy]
    steps = recipe.steps if steps is None else steps
    batch_size = recipe.batch_size if batch_size is None else batch_size
    if recipe.start is None:
        tokenizer = build_tokenizer(recipe.corpus(), recipe.vocabulary_size, recipe.pattern)
        tokenizer.chat_template = recipe.template
        model = build_model(tokenizer, seed)
    else:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(recipe.start)
        model = Qwen3ForCausalLM.from_pretrained(recipe.start)
    options = TrainOptions(
        learning_rate=recipe.learning_rate,
        weight_decay=0.01,
        betas=(0.9, 0.95),
        lr_scheduler_type="cosine",
        warmup_steps=steps // 10,
        total_steps=steps,
        max_tokens_per_microbatch=8_192,
    )
    trainer = FsdpTrainStrategy(model, options)
    encode = partial(tokenizer.encode, add_special_tokens=False)
    perfect, careless = recipe.teachers(ChatRenderer(tokenizer), encode, seed)
    for step in range(1, steps + 1):
        teacher = perfect if step <= 2 * steps // 3 else careless
        batch = collate(list(itertools.islice(teacher, batch_size)), tokenizer.pad_token_id)
        metrics = trainer.train_step(batch, SupervisedLoss())
        if step % 25 == 0 or step == steps:
            logger.info("step %d of %d: loss %.4f", step, steps, metrics["loss"])
    save(directory, model, tokenizer)


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(description="Make a toy policy (about ten minutes on two cores).")
    parser.add_argument("--policy", choices=sorted(RECIPES), default="games", help="which one (default: games)")
    parser.add_argument("--out", type=Path, help="where to write (default: the package)")
    parser.add_argument("--steps", type=int, help="supervised optimiser steps")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    directory = arguments.out or RECIPES[arguments.policy].weights
    build(directory, arguments.policy, steps=arguments.steps, seed=arguments.seed)


if __name__ == "__main__":
    main()
