"""Train a policy on environments: ``python examples/start_agentic_pipeline.py --config-name sokoban``."""

from pathlib import Path

from roll.config import launch

if __name__ == "__main__":
    launch("agentic", config_dir=Path(__file__).parent / "config")
