"""Grade a policy or recorded responses: ``python examples/start_evaluation.py --config-name eval_math``."""

from pathlib import Path

from roll.config import launch

if __name__ == "__main__":
    launch("evaluation", config_dir=Path(__file__).parent / "config")
