"""Make the toy policy from nothing: ``python -m roll.models.toy.build --out DIR``.

1. A byte-level BPE tokenizer is trained on the project's own prompts and boards.
2. A 2-layer, 128-wide Qwen3 model is drawn at random.
3. Supervised steps on a solver's games teach it the answer format and how to read a board.
4. In the last third the teacher is careless: every other action it demonstrates is random. The policy imitates that,
   so it starts out as a mediocre player; telling good actions from bad ones is left to reinforcement learning.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from tensordict import TensorDict
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from roll.envs import make
from roll.models.toy import WEIGHTS_DIRECTORY
from roll.models.toy.demonstrations import Course, Demonstration, demonstrations
from roll.models.toy.tokenizer import build_tokenizer
from roll.rendering.chat import ChatRenderer
from roll.strategies.base import BatchTotals
from roll.strategies.fsdp_train import FsdpTrainStrategy, TrainOptions

logger = logging.getLogger(__name__)

COURSES = (
    Course("SimpleSokoban", 0.85, "Solve the Sokoban puzzle."),
    Course("FrozenLake", 0.15, "Cross the frozen lake."),
)
NOISE = 0.15
"""Random actions in the games of the perfect teacher; not imitated, they only vary the boards."""
CARELESSNESS = 0.5
"""Random actions in the games of the careless teacher; imitated."""


class SupervisedLoss:
    """Mean negative log-likelihood of the response tokens."""

    needs_entropy = False

    def totals(self, batch: TensorDict) -> BatchTotals:
        """Count the trained tokens."""
        tokens = int(batch["response_mask"].sum())
        return BatchTotals(tokens=tokens, sequences=len(batch), measured_tokens=tokens)

    def contributing_rows(self, batch: TensorDict) -> None:
        """All rows have a gradient."""

    def __call__(
        self, log_probs: torch.Tensor, entropy: torch.Tensor | None, batch: TensorDict, totals: BatchTotals
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return this micro-batch's share of the mean."""
        return -(log_probs * batch["response_mask"]).sum() / totals.tokens, {}


def corpus() -> Iterator[str]:
    """Yield the texts the tokenizer is trained on: instructions, prompts and boards of every built-in tag."""
    words = (
        "system user assistant think answer Up Down Left Right Turn actions left tokens Solve the puzzle reward".split()
    )
    for course in COURSES:
        env = make(course.tag)
        for seed in range(50):
            yield env.reset(seed=seed)[0]
        # On lines of their own, as roles and answers stand in a conversation, and after a space, as in prose.
        yield from ["\n".join(words), " ".join(words), env.instruction, course.system] * 20


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Draw the model at random."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def collate(games: list[Demonstration], pad_token_id: int) -> TensorDict:
    """Pad demonstrations on the right: ``input_ids``, ``response_mask`` ``[batch, sequence]``, ``lengths``."""
    lengths = torch.tensor([len(game.token_ids) for game in games])
    shape = (len(games), int(lengths.max()))
    input_ids = torch.full(shape, pad_token_id)
    mask = torch.zeros(shape, dtype=torch.bool)
    for row, game in enumerate(games):
        input_ids[row, : len(game.token_ids)] = torch.tensor(game.token_ids)
        mask[row, : len(game.trained)] = torch.tensor(game.trained)
    return TensorDict({"input_ids": input_ids, "response_mask": mask, "lengths": lengths}, batch_size=[len(games)])


def build(directory: Path, *, steps: int, batch_size: int = 64, learning_rate: float = 2e-3, seed: int = 0) -> None:
    """Build tokenizer and model and save both in Hugging Face format.

    Args:
        directory: Where to write.
        steps: Supervised optimiser steps.
        batch_size: Games per step.
        learning_rate: Peak learning rate (cosine, 10 % warm-up).
        seed: Fixes weights and games.
    """
    tokenizer = build_tokenizer(corpus())
    model = build_model(tokenizer, seed)
    options = TrainOptions(
        learning_rate=learning_rate,
        weight_decay=0.01,
        betas=(0.9, 0.95),
        lr_scheduler_type="cosine",
        warmup_steps=steps // 10,
        total_steps=steps,
        max_tokens_per_microbatch=8_192,
    )
    trainer = FsdpTrainStrategy(model, options)
    encode = partial(tokenizer.encode, add_special_tokens=False)
    teach = partial(demonstrations, COURSES, ChatRenderer(tokenizer), encode)
    perfect = teach(seed=seed, noise=NOISE)
    careless = teach(seed=seed + 1, noise=CARELESSNESS, imitate_noise=True)
    for step in range(1, steps + 1):
        games = perfect if step <= 2 * steps // 3 else careless
        batch = collate(list(itertools.islice(games, batch_size)), tokenizer.pad_token_id)
        metrics = trainer.train_step(batch, SupervisedLoss())
        if step % 25 == 0 or step == steps:
            logger.info("step %d of %d: loss %.4f", step, steps, metrics["loss"])
    if directory.exists():
        shutil.rmtree(directory)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(description="Make the toy policy (about ten minutes on two cores).")
    parser.add_argument("--out", type=Path, default=WEIGHTS_DIRECTORY, help="where to write (default: the package)")
    parser.add_argument("--steps", type=int, default=600, help="supervised optimiser steps")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    build(arguments.out, steps=arguments.steps, seed=arguments.seed)


if __name__ == "__main__":
    main()
