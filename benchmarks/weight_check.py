"""What it costs to check the engine after every update: ``python benchmarks/weight_check.py``.

Runs the `sokoban` example as it is shipped, for a few steps, and counts the processor seconds of the check (its prompts
before and after the update, the trainer's scoring, the comparison) and of whole steps. Processor seconds, because other
work on the machine does not change them much. The first step, which warms up, does not count.

Prints a table; exits with 1 if the check takes more of a step than the target.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from roll.config import AgenticConfig, load

TARGET = 0.01
CONFIG = Path(__file__).resolve().parents[1] / "roll" / "presets" / "config"


def configuration(folder: Path, steps: int, groups: int | None) -> AgenticConfig:
    """Return the example, shortened."""
    from hydra import compose, initialize_config_dir

    changes = {"output_dir": folder, "max_steps": steps, "eval_steps": 0, "save_steps": 1000, "progress": "none"}
    if groups is not None:
        changes |= {"train_env_manager.env_groups": groups, "rollout_batch_size": groups * 8, "mini_batches": 1}
        changes["train_env_manager.group_size"] = 8
    with initialize_config_dir(str(CONFIG), version_base="1.3"):
        return load(compose("sokoban", [f"++{key}={value}" for key, value in changes.items()]))


def counted(method: Callable[..., Awaitable[Any]], spent: list[float]) -> Callable[..., Awaitable[Any]]:
    """Return a coroutine function that adds its processor seconds to the last entry of ``spent``."""

    async def call(*arguments: Any) -> Any:
        before = time.process_time()
        try:
            return await method(*arguments)
        finally:
            spent[-1] += time.process_time() - before

    return call


def measure(config: AgenticConfig) -> list[tuple[float, float]]:
    """Run; return processor seconds of each step and of the check in it."""
    from roll.pipelines.agentic import AgenticPipeline, run_agentic
    from roll.pipelines.roles.weight_check import WeightCheck

    checks: list[float] = []
    steps: list[tuple[float, float]] = []
    honest = AgenticPipeline.step

    async def timed(self: AgenticPipeline, step: int) -> None:
        checks.append(0.0)
        before = time.process_time()
        await honest(self, step)
        steps.append((time.process_time() - before, checks[-1]))

    AgenticPipeline.step = timed  # type: ignore[method-assign]
    for name in ("prepare", "run"):
        setattr(WeightCheck, name, counted(getattr(WeightCheck, name), checks))
    run_agentic(config)
    return steps


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4, help="that count")
    parser.add_argument("--groups", type=int, help="groups of eight episodes (default: as the example has them)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps = measure(configuration(Path(folder) / "run", arguments.steps + 1, arguments.groups))[1:]
    share = sum(check for _, check in steps) / sum(step for step, _ in steps)
    print("step    processor s   of the check   share")
    for number, (step, check) in enumerate(steps, 2):
        print(f"{number:>4}{step:>15.2f}{check:>15.4f}{check / step:>8.2%}")
    verdict = "PASS" if share <= TARGET else "FAIL"
    print(f"all {share:.2%} of a step, target {TARGET:.0%}  {verdict}")
    sys.exit(0 if share <= TARGET else 1)


if __name__ == "__main__":
    main()
