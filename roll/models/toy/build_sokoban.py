"""Make ``toy_sokoban`` from nothing: ``python -m roll.models.toy.build_sokoban --out DIR``.

``toy_larger_sokoban`` takes the first two from ``toy_sokoban``.

1. A byte-level BPE tokenizer is trained on the project's own prompts; every cell of a board is at a fixed place.
2. A 4-layer, 128-wide Qwen3 model is drawn at random.
3. It learns the odds that a perfect teacher gives each move, at every turn of games that the teacher plays.
4. Then it learns those of a near-sighted teacher, and forgets to look ahead. What it is worth to do so is left to
   reinforcement learning to find out.
"""

from __future__ import annotations

import argparse
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from roll.envs.sokoban import SokobanEnv
from roll.envs.sokoban_solver import DIRECTIONS
from roll.models.toy import LARGER_SOKOBAN_WEIGHTS_DIRECTORY, SOKOBAN_WEIGHTS_DIRECTORY, games
from roll.models.toy.build import build_model, save
from roll.models.toy.muon import Muon
from roll.models.toy.sokoban import NOISE, Demonstration, Teacher, demonstrations, near_sighted, perfect, sokoban
from roll.models.toy.tokenizer import build_tokenizer, grid_pattern, split_by
from roll.rendering.chat import ChatRenderer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the schooling.

    Attributes:
        teacher: Who is imitated.
        noise: Random moves in the games; only the boards come from them, they are not imitated.
        steps: Optimiser steps, with a cosine schedule of their own.
        learning_rate: Its peak.
    """

    teacher: Teacher
    noise: float
    steps: int
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Recipe:
    """What makes one policy.

    Attributes:
        weights: Where the shipped one is.
        levels: Returns the game whose levels it learns on.
        stages: What is taught, one after the other.
        side: Rows and columns of a board.
        start: The policy to go on from, with its tokens; ``None`` to begin from nothing.
    """

    weights: Path
    levels: Callable[[], SokobanEnv]
    stages: tuple[Stage, ...]
    side: int
    start: Path | None = None


RECIPES = {
    "toy_sokoban": Recipe(
        SOKOBAN_WEIGHTS_DIRECTORY,
        sokoban,
        (Stage(perfect, NOISE, 3000, 2.5e-3), Stage(near_sighted, 0.0, 60, 1e-3)),
        side=6,
    ),
    "toy_larger_sokoban": Recipe(
        LARGER_SOKOBAN_WEIGHTS_DIRECTORY,
        partial(sokoban, "LargerSokoban", search_depth=10, max_steps=15),
        (Stage(perfect, NOISE, 700, 2.5e-3), Stage(near_sighted, 0.0, 40, 1e-3)),
        side=8,
        start=SOKOBAN_WEIGHTS_DIRECTORY,
    ),
}
BATCH_SIZE = 16
"""Games per optimiser step."""
MICRO_BATCH_TOKENS = 8192


class Schooling:
    """Minimises the cross-entropy to the teacher's odds."""

    def __init__(self, model: Qwen3ForCausalLM, moves: Sequence[int], stage: Stage) -> None:
        self.model, self.moves = model, list(moves)
        self.optimizer = Muon(model, stage.steps, stage.learning_rate)

    def step(self, number: int, batch: Sequence[Demonstration]) -> float:
        """Take step ``number`` of the stage (from 0) and return the loss per answer."""
        self.optimizer.begin(number)
        answers = sum(len(game.answers) for game in batch)
        total = 0.0
        for rows in _micro_batches(batch):
            loss = self._loss(rows) / answers
            loss.backward()
            total += float(loss.detach())
        self.optimizer.step()
        return total

    def _loss(self, rows: Sequence[Demonstration]) -> Tensor:
        """Return the summed cross-entropy of all answers: of moves to their odds, of other tokens to what they are."""
        longest = max(len(game.token_ids) for game in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        for row, game in enumerate(rows):
            ids[row, : len(game.token_ids)] = torch.tensor(game.token_ids)
        row_of = torch.tensor([row for row, game in enumerate(rows) for _ in game.answers])
        place = torch.tensor([place for game in rows for place in game.answers])
        odds = torch.from_numpy(np.concatenate([game.odds for game in rows])).float()
        with torch.autocast("cpu", torch.bfloat16):
            # Padding is on the right, where no answer sees it.
            states = self.model.model(input_ids=ids).last_hidden_state
        states = states.float()
        head = self.model.lm_head
        moves = torch.log_softmax(head(states[row_of, place - 1]), dim=-1)[:, self.moves]
        loss = -(odds * moves).sum()
        for offset in (-1, 1, 2):
            logits = head(states[row_of, place + offset - 1])
            loss = loss + torch.nn.functional.cross_entropy(logits, ids[row_of, place + offset], reduction="sum")
        return loss


def _micro_batches(batch: Sequence[Demonstration]) -> list[list[Demonstration]]:
    """Split into groups of similar length whose padded size is limited."""
    groups: list[list[Demonstration]] = [[]]
    for game in sorted(batch, key=lambda each: len(each.token_ids)):
        if groups[-1] and (len(groups[-1]) + 1) * len(game.token_ids) > MICRO_BATCH_TOKENS:
            groups.append([])
        groups[-1].append(game)
    return groups


def build(
    directory: Path,
    policy: str = "toy_sokoban",
    *,
    stages: Sequence[Stage] | None = None,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
) -> None:
    """Build tokenizer and model and save both in Hugging Face format.

    Args:
        directory: Where to write.
        policy: A key of :data:`RECIPES`.
        stages: What is taught, one after the other; ``None`` for the recipe's.
        batch_size: Games per optimiser step.
        seed: Fixes weights and games.
    """
    torch.set_num_threads(1)  # the same sums in the same order on any number of cores
    recipe = RECIPES[policy]
    model, tokenizer = _start(recipe, seed)
    encode = partial(tokenizer.encode, add_special_tokens=False)
    renderer = ChatRenderer(tokenizer)
    moves = [token for name in DIRECTIONS for token in encode(name)]
    for number, stage in enumerate(recipe.stages if stages is None else stages):
        random = np.random.default_rng([seed, number])
        played = demonstrations(renderer, encode, stage.teacher, noise=stage.noise, random=random, env=recipe.levels())
        schooling = Schooling(model, moves, stage)
        for step in range(stage.steps):
            loss = schooling.step(step, list(itertools.islice(played, batch_size)))
            if (step + 1) % 25 == 0 or step + 1 == stage.steps:
                logger.info("%s: step %d of %d: loss %.4f", stage.teacher.__name__, step + 1, stage.steps, loss)
    save(directory, model, tokenizer)


def _start(recipe: Recipe, seed: int) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    if recipe.start is not None:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(recipe.start)
        split_by(tokenizer.backend_tokenizer, grid_pattern(recipe.side))
        return Qwen3ForCausalLM.from_pretrained(recipe.start), tokenizer
    tokenizer = build_tokenizer(games.corpus(), pattern=grid_pattern(recipe.side))
    # Games are a few hundred tokens long: the longest wave is of that size, not of a book's.
    waves = {"rope_type": "default", "rope_theta": 100.0}
    return build_model(tokenizer, seed, layers=4, rope_parameters=waves), tokenizer


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(description="Make a policy that plays Sokoban.")
    parser.add_argument("--policy", choices=sorted(RECIPES), default="toy_sokoban", help="which one")
    parser.add_argument("--out", type=Path, help="where to write (default: the package)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    build(arguments.out or RECIPES[arguments.policy].weights, arguments.policy, seed=arguments.seed)


if __name__ == "__main__":
    main()
