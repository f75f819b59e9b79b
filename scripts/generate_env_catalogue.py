"""Write docs/env_catalogue.md: the tags that come with the package, and how each begins."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import roll.envs
from roll.certificates import Target
from roll.cli.envs_text import shown

PAGE = Path(__file__).resolve().parent.parent / "docs" / "env_catalogue.md"
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
HEAD = """# Catalogue of environments

The tags that come with the package; `scripts/generate_env_catalogue.py` writes this page. The prompt is what a policy
is told once and in its first turn with seed 0, in characters. What is not from roll or gymnasium needs
`pip install 'roll-rl[envs]'`; TextWorld needs `'roll-rl[textworld]'`, and the cave Debian's package open-adventure.
[Environments](environments.md) says what the options mean, and how to make tags of other games, data sets and worlds of
these libraries. `SimpleSokoban`, `LargerSokoban` and `Boxoban` go from easy to hard:
[a curriculum](environments.md#easy-tags-first) plays them in this order; `levels` plays files of Boxoban.

| Tag | From | Options | Actions | Turns | Prompt |
|---|---|---|---|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    rows, examples = [], []
    for name in sorted(roll.envs.TAGS, key=lambda each: (list(SOURCES).index(roll.envs.get_tag(each).env_type), each)):
        tag, facts = roll.envs.get_tag(name), shown(Target(name), 0)
        options = ", ".join(
            f"`{key}: {value}`" for key, value in tag.env_config.items() if isinstance(value, int | float | str)
        )
        actions = facts["actions"]
        named = ", ".join(actions) if len(actions) <= 8 else f"{actions[0]} … {actions[-1]}"
        size = len(facts["system"]) + len(facts["user"])
        link = f"[`{name}`](#{name.lower()})"
        cells = [link, SOURCES[tag.env_type], options, named or "free text", str(facts["max_steps"]), f"{size:,}"]
        rows.append(f"| {' | '.join(each.replace('|', '&#124;') for each in cells)} |")
        told = "\n\n".join([facts["system"], facts["user"]])
        examples.append(f"## {name}\n\n```text\n{_trimmed(told)}\n```")
    return HEAD + "\n".join(rows) + "\n\n" + "\n\n".join(examples) + "\n"


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines())


def main() -> int:
    """Write the page, or say whether it is current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is out of date")
    only_check, text = parser.parse_args().check, page()
    if not only_check:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.stderr.write(f"{PAGE} is out of date: run python scripts/generate_env_catalogue.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
