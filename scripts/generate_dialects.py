"""Write the tables of other guides' keys into docs/dialects.md; ``--check`` only tells whether it is current."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from roll.config.dialects import insert_dialects

PAGE = Path(__file__).resolve().parent.parent / "docs" / "dialects.md"


def main() -> int:
    """Return 0 if the page is current (or was just written), 1 if ``--check`` found it out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    page = PAGE.read_text(encoding="utf-8")
    wanted = insert_dialects(page)
    if check and wanted != page:
        sys.stderr.write(f"{PAGE} is out of date: run python scripts/generate_dialects.py\n")
        return 1
    if not check:
        PAGE.write_text(wanted, encoding="utf-8")
        sys.stdout.write(f"{PAGE} {'was current' if wanted == page else 'written'}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
