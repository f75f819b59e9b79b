"""Do the values of ``roll branch`` know what Sokoban's solver knows?

For every turn of episodes of a Sokoban run (one box), the value is the mean score of continuations, and the solver says
how many moves the position is away from the solution. Positions from which the turns that are left do not suffice, or
which have no solution, are hopeless.

    python benchmarks/branch_values.py output/sokoban --episodes 40 --n 16
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from roll.envs import make
from roll.envs.sokoban import SokobanEnv
from roll.models.toy.sokoban import TAG, Puzzle, measure
from roll.replay.branching import branch
from roll.runs.stored import StoredRun
from roll.trajectories.model import Trajectory

_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Position:
    """A position before a turn.

    Attributes:
        episode: Number of the episode.
        moves: Moves to the solution; ``None`` where it is hopeless.
        value: Mean score of the continuations.
        solved: Share of them that was solved.
    """

    episode: int
    moves: int | None
    value: float
    solved: float


def moves_left(stored: Trajectory, limit: int) -> list[int | None]:
    """Return for each turn how many moves the position is away from the solution, ``None`` where it is hopeless."""
    env = make(TAG)
    assert isinstance(env, SokobanEnv)
    shown, _ = env.reset(seed=stored.seed)
    puzzle: Puzzle = measure(env.state())
    found: list[int | None] = []
    for index, turn in enumerate(stored.turns):
        assert shown == turn.observation, "the tag of the run is not the one that comes with the package"
        level = env.state()
        moves = puzzle.left.get((level.boxes, level.player))
        found.append(moves if moves is not None and moves <= limit - index else None)
        shown = env.step(turn.response)[0]
    return found


def episodes_of(run: StoredRun, count: int) -> Iterator[tuple[str, int, str, Trajectory]]:
    """Yield one episode of each level: phase, step, name, episode; evaluations once, then training."""
    seen: set[int] = set()
    for file in [*run.trajectory_files(phase="val")[::-1], *run.trajectory_files(phase="train")]:
        phase, step = ("val" if file.name.startswith("val") else "train"), int(file.stem.rpartition("=")[2])
        for each in run.episodes(step, phase):  # type: ignore[arg-type]
            if len(seen) < count and each.seed not in seen and each.tag == TAG and not each.status.is_error:
                seen.add(each.seed)
                yield phase, step, f"{each.group_id}/{each.episode}", each


def measured(run: StoredRun, count: int, n: int, limit: int) -> Iterator[Position]:
    """Yield every position of the episodes with its value and what the solver says."""
    for number, (phase, step, name, stored) in enumerate(episodes_of(run, count)):
        found = branch(run, name, n=n, step=step, phase=phase, policy=str(run.checkpoint))  # type: ignore[arg-type]
        for fan, moves in zip(found.fans, moves_left(stored, limit), strict=True):
            yield Position(number, moves, fan.mean, fan.successes)


def rank_correlation(positions: Sequence[Position]) -> float:
    """Return Spearman's correlation of value and nearness to the solution; hopeless positions are the farthest."""
    near = np.array([-1e9 if each.moves is None else -each.moves for each in positions], dtype=np.float64)
    return float(np.corrcoef(_ranks(near), _ranks(np.array([each.value for each in positions])))[0, 1])


def separation(positions: Sequence[Position]) -> float:
    """Return the probability that a position with hope has the higher value than a hopeless one (ties count half)."""
    hope = np.array([each.value for each in positions if each.moves is not None])
    none = np.array([each.value for each in positions if each.moves is None])
    higher = (hope[:, None] > none[None]).mean() + 0.5 * (hope[:, None] == none[None]).mean()
    return float(higher)


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def with_error(figure, positions: Sequence[Position]) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    """Return a figure and its standard error, by drawing whole episodes again."""
    by_episode = {each.episode: [one for one in positions if one.episode == each.episode] for each in positions}
    random, episodes = np.random.default_rng(0), list(by_episode)
    drawn = []
    for _ in range(_DRAWS):
        chosen = random.choice(episodes, len(episodes))
        drawn.append(figure([one for episode in chosen for one in by_episode[int(episode)]]))
    return figure(positions), float(np.nanstd(drawn))


def main() -> None:
    """Measure, and write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--turns", type=int, default=10, help="turns of an episode")
    parser.add_argument("--positions", type=Path, help="write every position there")
    asked = parser.parse_args()
    positions = list(measured(StoredRun.open(asked.run), asked.episodes, asked.n, asked.turns))
    if asked.positions:
        asked.positions.write_text("".join(f"{json.dumps(asdict(each))}\n" for each in positions), encoding="utf-8")
    hopeless = [each for each in positions if each.moves is None]
    report = {
        "episodes": len({each.episode for each in positions}),
        "positions": len(positions),
        "hopeless": len(hopeless),
        "rank_correlation": with_error(rank_correlation, positions),
        "separation": with_error(separation, positions),
        "solved_from_hopeless": max((each.solved for each in hopeless), default=0.0),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
