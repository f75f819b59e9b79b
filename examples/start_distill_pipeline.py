"""Learn from a teacher: ``python examples/start_distill_pipeline.py --config-name distill_sokoban``."""

from pathlib import Path

from roll.config import launch

if __name__ == "__main__":
    launch("distill", config_dir=Path(__file__).parent / "config")
