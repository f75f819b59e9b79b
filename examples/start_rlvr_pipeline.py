"""Train on verifiable rewards: ``python examples/start_rlvr_pipeline.py --config-name rlvr_math``."""

from pathlib import Path

from roll.config import RLVRConfig, launch


def run(config: RLVRConfig) -> object:
    """Train. The heavy imports happen only once the configuration is known to be good."""
    from roll.pipelines.rlvr import run_rlvr

    return run_rlvr(config)


if __name__ == "__main__":
    launch(run, config_dir=Path(__file__).parent / "config", kind=RLVRConfig)
