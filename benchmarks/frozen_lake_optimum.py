"""How often can the slippery lake of `frozen_lake_slippery` be crossed at all?

python benchmarks/frozen_lake_optimum.py

Value iteration on Gymnasium's own table of transitions: the best policy that knows how many turns are left, and one
that moves at random. What the job learns is measured against the former (docs/experiments/frozen_lake.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import gymnasium

from roll.config import AgenticConfig, load

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
    return _iterate(table, turns, max)


def random_success(table: Table, turns: int) -> float:
    """Return the same of a policy that moves at random."""
    return _iterate(table, turns, lambda values: sum(values) / len(values))


def _iterate(table: Table, turns: int, choose: Callable[[list[float]], float]) -> float:
    values = dict.fromkeys(table, 0.0)

    def worth(outcomes: Sequence[tuple[float, int, float, bool]]) -> float:
        return sum(chance * (reward + (0.0 if ends else values[there])) for chance, there, reward, ends in outcomes)

    for _ in range(turns):
        values = {state: choose([worth(outcomes) for outcomes in actions.values()]) for state, actions in table.items()}
    return values[0]


def lake_of_the_job() -> tuple[Table, int]:
    """Return the transitions of the map that the job plays, and how many turns an episode has."""
    config = load(JOB)
    assert isinstance(config, AgenticConfig)
    tag = config.tags()[config.val_env_manager.tags[0]]
    options = tag.env_config
    return transitions(options["desc"], float(options["success_rate"])), int(options["max_steps"])


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    table, turns = lake_of_the_job()
    print("| turns | at random | best policy |\n|---|---|---|")
    for count in sorted({10, turns, 50, 100}):
        print(f"| {count} | {100 * random_success(table, count):.1f} % | {100 * optimal_success(table, count):.1f} % |")


if __name__ == "__main__":
    main()
