"""How often can the slippery lake of `frozen_lake_slippery` be crossed at all?

python benchmarks/frozen_lake_optimum.py
python benchmarks/frozen_lake_optimum.py output/frozen_lake_slippery/checkpoints/step=000048/hf   # and a policy

Value iteration on Gymnasium's own table of transitions: the best policy that knows how many turns are left, and one
that moves at random. What the job learns is measured against the former (docs/experiments/frozen_lake.md). A policy is
asked about each cell as if the game began there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

import gymnasium
import torch

from roll.config import AgenticConfig, load
from roll.config.env_manager import CustomEnvConfig
from roll.envs.frozen_lake import ACTION_LOOKUP, FrozenLakeEnv
from roll.models.loading import load_model, load_tokenizer
from roll.rendering.chat import ChatRenderer

JOB = "frozen_lake_slippery"
Table = dict[int, dict[int, list[tuple[float, int, float, bool]]]]
"""By state and action: what may happen, as (probability, next state, reward, whether the episode ends)."""


def transitions(lake: Sequence[str], success_rate: float) -> Table:
    """Return the table of Gymnasium's ``FrozenLake-v1`` on a map; states count row by row."""
    env = gymnasium.make("FrozenLake-v1", desc=list(lake), is_slippery=True, success_rate=success_rate)
    table: Table = env.unwrapped.P  # type: ignore[attr-defined]
    return table


def optimal_success(table: Table, turns: int) -> float:
    """Return the probability that the best policy reaches the goal from state 0 within so many turns."""
    return _iterate(table, turns, lambda state, values: max(values))[0]


def random_success(table: Table, turns: int) -> float:
    """Return the same of a policy that moves at random."""
    return _iterate(table, turns, lambda state, values: sum(values) / len(values))[0]


def success_of(table: Table, turns: int, moves: Mapping[int, Sequence[float]]) -> float:
    """Return the same of a policy, from the odds of its four moves in each state; it ignores the turns left."""
    return _iterate(table, turns, lambda state, values: _mean(values, moves[state]) if state in moves else 0.0)[0]


def worth_of_moves(table: Table, turns: int) -> dict[int, list[float]]:
    """Return for each state how likely the goal is after each move, if all later ones are the best."""
    values = _iterate(table, turns - 1, lambda state, values: max(values))
    return {state: [_worth(outcomes, values) for outcomes in actions.values()] for state, actions in table.items()}


def _mean(values: Sequence[float], odds: Sequence[float]) -> float:
    return sum(chance * value for chance, value in zip(odds, values, strict=True))


def _worth(outcomes: Sequence[tuple[float, int, float, bool]], values: Mapping[int, float]) -> float:
    return sum(chance * (reward + (0.0 if ends else values[there])) for chance, there, reward, ends in outcomes)


def _iterate(table: Table, turns: int, choose: Callable[[int, list[float]], float]) -> dict[int, float]:
    values = dict.fromkeys(table, 0.0)
    for _ in range(turns):
        values = {
            state: choose(state, [_worth(outcomes, values) for outcomes in actions.values()])
            for state, actions in table.items()
        }
    return values


def tag_of_the_job() -> CustomEnvConfig:
    """Return what the job is validated on: the lake, and the words it is told in."""
    config = load(JOB)
    assert isinstance(config, AgenticConfig)
    return config.tags()[config.val_env_manager.tags[0]]


def lake_of_the_job() -> tuple[Table, int]:
    """Return the transitions of the map that the job plays, and how many turns an episode has."""
    options = tag_of_the_job().env_config
    return transitions(options["desc"], float(options["success_rate"])), int(options["max_steps"])


@torch.no_grad()
def moves_of(pretrain: str) -> dict[int, list[float]]:
    """Return the odds that a policy gives the four moves on each cell of ice, those of the four alone."""
    model, tokenizer, tag = load_model(pretrain), load_tokenizer(pretrain), tag_of_the_job()
    renderer, lake = ChatRenderer(tokenizer), list(tag.env_config["desc"])
    answers = [tokenizer.encode(f"<answer>{name}", add_special_tokens=False) for name in ACTION_LOOKUP.values()]
    moves = {}
    for state, letter in enumerate("".join(lake)):
        if letter in "HG":
            continue
        cells = "".join(lake).replace("S", "F")
        begun = f"{cells[:state]}S{cells[state + 1 :]}"
        width = len(lake[0])
        env = FrozenLakeEnv(desc=[begun[at : at + width] for at in range(0, len(begun), width)])
        messages = [
            {"role": "system", "content": tag.agent_system_template or ""},
            {"role": "user", "content": (tag.agent_template or "").replace("{observation}", env.reset(seed=0)[0])},
        ]
        prompt = renderer.initial_ids(messages) + answers[0][:-1]
        logits = model(torch.tensor([prompt])).logits[0, -1]
        moves[state] = torch.softmax(logits[[answer[-1] for answer in answers]].float(), dim=0).tolist()
    return moves


def show_policy(pretrain: str) -> None:
    """Print what a policy does on each cell, beside what each move is worth, and how often it crosses."""
    table, turns = lake_of_the_job()
    moves, worth = moves_of(pretrain), worth_of_moves(table, turns)
    names, width = list(ACTION_LOOKUP.values()), len(tag_of_the_job().env_config["desc"][0])
    print(f"\n| cell | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for state, odds in moves.items():
        shown = (f"{100 * chance:.0f} % (worth {value:.2f})" for chance, value in zip(odds, worth[state], strict=True))
        print(f"| {divmod(state, width)} | {' | '.join(shown)} |")
    print(f"\nIt crosses in {100 * success_of(table, turns, moves):.1f} %, ", end="")
    likeliest = {state: [float(chance == max(odds)) for chance in odds] for state, odds in moves.items()}
    print(f"with its likeliest moves in {100 * success_of(table, turns, likeliest):.1f} %.")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pretrain", nargs="?", help="a policy, as the key pretrain names it")
    arguments = parser.parse_args()
    table, turns = lake_of_the_job()
    print("| turns | at random | best policy |\n|---|---|---|")
    for count in sorted({10, turns, 50, 100}):
        print(f"| {count} | {100 * random_success(table, count):.1f} % | {100 * optimal_success(table, count):.1f} % |")
    if arguments.pretrain:
        show_policy(arguments.pretrain)


if __name__ == "__main__":
    main()
