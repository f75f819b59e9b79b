"""Train on verifiable rewards: ``python examples/start_rlvr_pipeline.py --config-name rlvr_math``."""

from pathlib import Path

from roll.config import launch

if __name__ == "__main__":
    launch("rlvr", config_dir=Path(__file__).parent / "config")
