"""Write the table of configuration keys into docs/configuration.md; ``--check`` only tells whether it is current."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from roll.config.reference import insert_reference, write_reference

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"


def main() -> int:
    """Return 0 if the page is current (or was just written), 1 if ``--check`` found it out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    if parser.parse_args().check:
        page = PAGE.read_text(encoding="utf-8")
        if insert_reference(page) != page:
            sys.stderr.write(f"{PAGE} is out of date: run python scripts/generate_config_reference.py\n")
            return 1
        return 0
    sys.stdout.write(f"{PAGE} {'written' if write_reference(PAGE) else 'was current'}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
