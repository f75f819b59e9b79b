"""Train a policy on environments: ``python examples/start_agentic_pipeline.py --config-name sokoban``."""

from pathlib import Path

from roll.config import AgenticConfig, launch


def run(config: AgenticConfig) -> object:
    """Train. The heavy imports happen only once the configuration is known to be good."""
    from roll.pipelines.agentic import run_agentic

    return run_agentic(config)


if __name__ == "__main__":
    launch(run, config_dir=Path(__file__).parent / "config")
