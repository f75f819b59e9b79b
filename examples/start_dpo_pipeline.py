"""Learn from pairs of answers: ``python examples/start_dpo_pipeline.py --config-name dpo_sokoban``."""

from pathlib import Path

from roll.config import launch

if __name__ == "__main__":
    launch("dpo", config_dir=Path(__file__).parent / "config")
