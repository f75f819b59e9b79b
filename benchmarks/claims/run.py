"""Try on a laptop what papers claim of the methods that ship: trains each arm with some seeds and writes its page anew.

python benchmarks/claims/run.py clip_higher                 # five seeds of each arm, some ten minutes on two cores
python benchmarks/claims/run.py clip_higher --seeds 1 2     # what has been measured with other seeds is kept

Figures go to docs/experiments/claims/<name>.json, the table of means and standard errors into the page beside it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml
from claims import CLAIMS


def main() -> None:
    """Measure what is asked for, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=list(CLAIMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--folder", type=Path, default=Path("output") / "claims", help="where the runs go")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="try it with other keys; not kept")
    arguments = parser.parse_args()
    changes = {key: yaml.safe_load(value) for key, _, value in (text.partition("=") for text in arguments.set)}
    for name in arguments.names:
        claim = CLAIMS[name]
        for seed in arguments.seeds:
            for arm in claim.arms:
                if not changes and str(seed) in claim.read().get(arm, {}):
                    continue
                values = claim.run(arm, seed, arguments.folder / name / f"{arm}-{seed}".replace(" ", "_"), changes)
                print(f"{name}, {arm}, seed {seed}: {values}", flush=True)
                if not changes:
                    claim.keep(arm, seed, values)
        if not changes:
            claim.write()


if __name__ == "__main__":
    main()
