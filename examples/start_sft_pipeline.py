"""Imitate demonstrations: ``python examples/start_sft_pipeline.py --config-name sft_sokoban``."""

from pathlib import Path

from roll.config import launch

if __name__ == "__main__":
    launch("sft", config_dir=Path(__file__).parent / "config")
