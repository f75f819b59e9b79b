"""Makes simulated time importable, which tests share with a benchmark."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
