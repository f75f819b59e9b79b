"""Write the table of configuration keys into docs/configuration.md, and the keys that a shell completes.

``--check`` only tells whether they are current.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from roll.cli.completion import KNOWN_KEYS
from roll.config.explaining import completions
from roll.config.reference import insert_reference, write_reference
from roll.envs import list_tags

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"


def known_keys() -> str:
    """Return the keys and tags that a shell completes, a line each."""
    keys = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(completions().items()))
    return f'{{"tags": {json.dumps(list_tags())}, "keys": {{\n{keys}\n}}}}\n'


def main() -> int:
    """Return 0 if page and keys are current (or were just written), 1 if ``--check`` found them out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    if parser.parse_args().check:
        page = PAGE.read_text(encoding="utf-8")
        if insert_reference(page) != page:
            sys.stderr.write(f"{PAGE} is out of date: run python scripts/generate_config_reference.py\n")
            return 1
        if KNOWN_KEYS.read_text(encoding="utf-8") != known_keys():
            sys.stderr.write(f"{KNOWN_KEYS} is out of date: run python scripts/generate_config_reference.py\n")
            return 1
        return 0
    KNOWN_KEYS.write_text(known_keys(), encoding="utf-8")
    sys.stdout.write(f"{PAGE} {'written' if write_reference(PAGE) else 'was current'}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
