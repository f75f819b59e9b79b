"""Train a reward model: ``python examples/start_reward_pipeline.py --config-name reward_model_math``."""

from pathlib import Path

from roll.config import launch

if __name__ == "__main__":
    launch("reward_model", config_dir=Path(__file__).parent / "config")
