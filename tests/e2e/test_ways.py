"""How far it is from a program to the two places where its work is done, and which way."""

from __future__ import annotations

import json
import sys

import pytest

from tests.e2e.support import HERE, ROOT, start

PLACES = {
    "the optimiser step": ("torch.optim.adam", "Adam.step", 14, 8),
    "the environment's step": ("roll.envs.base", "TextEnv.step", 18, 9),
}
"""Module and function, and the most calls and files of this library on the way there, the function itself included."""

Way = list[tuple[str, str]]


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Way]:
    """The way to each place, all of one run."""
    folder = tmp_path_factory.mktemp("ways")
    asked = [word for module, function, *_ in PLACES.values() for word in (module, function)]
    program = [str(ROOT / "examples" / "start_agentic_pipeline.py"), "--config-name", "sokoban"]
    small = ["max_steps=1", "eval_steps=0", "train_env_manager.env_groups=2", "train_env_manager.group_size=2"]
    small += ["rollout_batch_size=4", "progress=none", f"output_dir={folder / 'out'}"]
    done = start([sys.executable, str(HERE / "ways.py"), *asked, "--", *program, *small], folder)
    found = [json.loads(line.removeprefix("WAY ")) for line in done.stdout.splitlines() if line.startswith("WAY ")]
    assert len(found) == len(PLACES), done.stdout + done.stderr
    return {place: next(way for way in found if way[-1][1] == PLACES[place][1]) for place in PLACES}


@pytest.mark.exhaustive
@pytest.mark.processes
@pytest.mark.parametrize("place", PLACES)
def test_the_way_from_the_program_is_short(place: str, ways: dict[str, Way]) -> None:
    *_, most_calls, most_files = PLACES[place]
    # A list comprehension is a call of its own before Python 3.12.
    way = [(where, name) for where, name in ways[place] if where.startswith("roll/") and "<listcomp>" not in name]
    shown = "\n".join(f"{number:3} {where} {name}" for number, (where, name) in enumerate(way, start=1))
    print(f"From the program to {place}:\n{shown}")
    assert way[0][1] == "launch"
    assert len(way) <= most_calls, shown
    assert len({where for where, _ in way}) <= most_files, shown
