"""Grade a policy or recorded responses: ``python examples/start_evaluation.py --config-name eval_math``."""

from pathlib import Path

from roll.config import EvaluationConfig, launch


def run(config: EvaluationConfig) -> object:
    """Evaluate. The heavy imports happen only once the configuration is known to be good."""
    from roll.pipelines.evaluation import run_evaluation

    return run_evaluation(config)


if __name__ == "__main__":
    launch(run, config_dir=Path(__file__).parent / "config", kind=EvaluationConfig)
