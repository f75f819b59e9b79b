"""Make ``toy_choices`` from nothing: ``python -m roll.models.toy.build_choices --out DIR``.

1. A byte-level BPE tokenizer is trained on the project's own problems, as that of ``toy_math``.
2. A 3-layer, 128-wide Qwen3 model is drawn at random.
3. Drills teach it to find a number in a list; then a perfect teacher's answers, to calculate as well.
4. Then it imitates a careless teacher, who mostly guesses. When it is worth to work a question out is left to
   reinforcement learning to find out.
"""

from __future__ import annotations

import argparse
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from roll.models.toy import CHOICES_WEIGHTS_DIRECTORY, arithmetic
from roll.models.toy.arithmetic import PERFECT, Habits
from roll.models.toy.build import build_model, save
from roll.models.toy.choices import CARELESS, demonstrations, drills
from roll.models.toy.muon import Muon
from roll.models.toy.tokenizer import build_tokenizer
from roll.rendering.chat import ChatRenderer
from roll.trajectories.samples import Sample

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the schooling.

    Attributes:
        habits: Those of the teacher.
        drilled: Optimiser steps of drills alone.
        mixed: Optimiser steps, after them, that are a quarter drills, the rest answers of the teacher.
        answered: Optimiser steps, after them, of the teacher's answers alone.
        learning_rate: Its peak.
    """

    habits: Habits
    drilled: int
    mixed: int
    answered: int
    learning_rate: float

    @property
    def shares(self) -> list[float]:
        """Which part of each batch are drills."""
        return [1.0] * self.drilled + [0.25] * self.mixed + [0.0] * self.answered


STAGES = (Stage(PERFECT, 160, 1400, 0, 3e-3), Stage(CARELESS, 0, 0, 60, 1e-3))
BATCH_SIZE = 64
DRILL_TOKENS, ANSWER_TOKENS = 2, 4
"""By what the summed losses are divided, so that letters of drills count for more than tokens of answers."""


def loss_of(model: Qwen3ForCausalLM, batch: Sequence[Sample]) -> Tensor:
    """Return the summed cross-entropy of what is imitated, a scalar."""
    if not batch:
        return torch.zeros(())
    longest = max(map(len, batch))
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    imitated = torch.zeros(len(batch), longest, dtype=torch.bool)
    for row, sample in enumerate(batch):
        ids[row, : len(sample)] = torch.tensor(sample.token_ids)
        imitated[row, : len(sample)] = torch.tensor(sample.response_mask, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        # Padding is on the right, where no answer sees it.
        states = model.model(input_ids=ids).last_hidden_state
    logits = model.lm_head(states[:, :-1][imitated[:, 1:]].float())
    return torch.nn.functional.cross_entropy(logits, ids[:, 1:][imitated[:, 1:]], reduction="sum")


def build(directory: Path, *, stages: Sequence[Stage] = STAGES, batch_size: int = BATCH_SIZE, seed: int = 0) -> None:
    """Build tokenizer and model and save both in Hugging Face format.

    Args:
        directory: Where to write.
        stages: What is taught, one after the other.
        batch_size: Demonstrations per optimiser step.
        seed: Fixes weights and demonstrations.
    """
    torch.set_num_threads(1)  # the same sums in the same order on any number of cores
    tokenizer = build_tokenizer(arithmetic.corpus())
    # Questions are less than a hundred tokens long: the longest wave is of that size, not of a book's.
    waves = {"rope_type": "default", "rope_theta": 100.0}
    model = build_model(tokenizer, seed, layers=3, rope_parameters=waves)
    encode, renderer = partial(tokenizer.encode, add_special_tokens=False), ChatRenderer(tokenizer)
    drilled = drills(renderer, encode, Random(f"{seed}/drills"))
    for number, stage in enumerate(stages):
        answered = demonstrations(renderer, encode, stage.habits, Random(f"{seed}/{number}"))
        optimizer = Muon(model, len(stage.shares), stage.learning_rate)
        for step, share in enumerate(stage.shares):
            count = int(share * batch_size)
            optimizer.begin(step)
            drill = loss_of(model, list(itertools.islice(drilled, count))) / (DRILL_TOKENS * max(count, 1))
            rest = batch_size - count
            answer = loss_of(model, list(itertools.islice(answered, rest))) / (ANSWER_TOKENS * max(rest, 1))
            (drill + answer).backward()
            optimizer.step()
            if (step + 1) % 25 == 0:
                logger.info("stage %d, step %d: drills %.3f, answers %.3f", number, step + 1, drill, answer)
    save(directory, model, tokenizer)


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(description="Make the policy toy_choices.")
    parser.add_argument(
        "--out", type=Path, default=CHOICES_WEIGHTS_DIRECTORY, help="where to write (default: the package)"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    build(arguments.out, seed=arguments.seed)


if __name__ == "__main__":
    main()
