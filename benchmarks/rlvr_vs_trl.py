"""Samples per second of the RLVR pipeline against TRL's ``GRPOTrainer``: same policy, prompts, sampling and updates.

    OMP_NUM_THREADS=2 python benchmarks/rlvr_vs_trl.py [uniform] [mixed] [--steps 4] [--rounds 2]

Needs ``trl>=1.16,<2``. The toy model (0.4 M parameters, float32) is taught to recite a list (``recitation.py``): where
it stops follows from the prompt, for both sides alike. ``uniform``: every response is cut at 32 tokens. ``mixed``: the
policy stops by itself after 8 to 256 tokens, log-normal. A training step is 64 prompts x 8 responses and one optimiser
step of AdamW on GRPO advantages, without a reference model. Sides alternate, each round from the taught policy; the
first step of a run is left out (warm-up). ``TRL`` runs without gradient checkpointing and in the micro-batch that is
fastest for it here; ours computes the prompt of a group once (``share_prefixes``), which TRL cannot.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roll.config.process import prepare_process

prepare_process()  # the same OpenMP settings for both sides, before torch is imported

import numpy as np  # noqa: E402
from contest import beyond_warm_up  # noqa: E402
from ratios import leave  # noqa: E402
from recitation import TEACHING_STEPS, Recitation, correct_share, mixed_lengths, teach, uniform_lengths  # noqa: E402

from roll.config import RLVRConfig, load  # noqa: E402
from roll.models.loading import load_model, load_tokenizer  # noqa: E402
from roll.pipelines.checks.rlvr import check_rlvr  # noqa: E402
from roll.pipelines.rlvr import RlvrPipeline  # noqa: E402
from roll.tracking import Progress  # noqa: E402

GROUP = 8
LEARNING_RATE = 1e-3
SEQUENCE = 320


@dataclass(frozen=True)
class Case:
    """How long responses are, and how much faster than TRL we want to be."""

    name: str
    cap: int
    lengths: Callable[[int, int], list[int]]
    wanted: float


CASES = [
    Case("uniform", 32, lambda count, seed: uniform_lengths(count, 32, seed), 2.0),
    Case("mixed", 256, mixed_lengths, 4.0),
]


@dataclass
class Record:
    """What one side did: per training step, wall and CPU seconds, mean reward, mean response length, stages."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    length: list[float] = field(default_factory=list)
    stages: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def begin(self) -> None:
        """Start the clock of a run."""
        self._last, self._steps = (time.perf_counter(), time.process_time()), 0

    def step(self, reward: float, length: float, stages: Mapping[str, float] | None = None) -> None:
        """End a training step; the first of a run is warm-up."""
        now = time.perf_counter(), time.process_time()
        assert self._last is not None
        self.reward.append(reward)
        self.length.append(length)
        if self._steps:
            self.wall.append(now[0] - self._last[0])
            self.cpu.append(now[1] - self._last[1])
            for name, seconds in (stages or {}).items():
                self.stages.setdefault(name, []).append(seconds)
        self._last, self._steps = now, self._steps + 1

    @property
    def seconds(self) -> float:
        """Median wall seconds of a step."""
        return float(np.median(self.wall))

    @property
    def cpu_seconds(self) -> float:
        """Median CPU seconds of a step, all threads."""
        return float(np.median(self.cpu))


class Ours(Progress):
    """Runs the RLVR pipeline and records its steps.

    Args:
        config: The run.
        record: Where to.
    """

    def __init__(self, config: RLVRConfig, record: Record) -> None:
        super().__init__()
        self.pipeline = RlvrPipeline(config, self)
        self.samples = config.rollout_batch_size * config.num_return_sequences_in_group
        self.record = record
        self._engine: dict[str, float] = {}

    def run(self) -> None:
        """Run to the end."""
        asyncio.run(self.pipeline.run())

    def start(self, *_: Any, **__: Any) -> None:
        """Called when models and data are loaded."""
        self.record.begin()

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called at the end of each training step."""
        # The engine's own totals; a run reports what its requests see, which is less.
        totals = self.pipeline.core.engines.group.worker(0)._engine.metrics()  # type: ignore[attr-defined]
        engine = {name: totals[name] - self._engine.get(name, 0.0) for name in totals}
        self._engine = totals
        rollout = metrics["time/rollout"]
        stages = {
            "generate: model": engine["forward_seconds"],
            "generate: draw tokens": engine["sampling_seconds"],
            "generate: schedule, decode, grade": rollout - engine["forward_seconds"] - engine["sampling_seconds"],
            "log-probs": metrics["time/log_probs"],
            "advantages": metrics["time/advantages"],
            "update": metrics["time/update"],
        }
        self.record.step(metrics["reward/mean"], engine["generated_tokens"] / self.samples, stages)


def ours(case: Case, policy: Path, data: Path, folder: Path, steps: int, prompts: int, record: Record) -> None:
    """Run our side once."""
    config = load(
        {
            "pretrain": str(policy),
            "output_dir": str(folder / "ours"),
            "seed": 1,
            "max_steps": steps,
            "track_with": [],
            "progress": "none",
            "trajectory_dump_steps": 0,
            "save_steps": 0,
            "sequence_length": SEQUENCE,
            "max_running_requests": prompts * GROUP,
            "rollout_batch_size": prompts,
            "num_return_sequences_in_group": GROUP,
            "custom_reward_function": {"path": str(Path(__file__).with_name("recitation.py")), "name": "grade"},
            "adv_estimator": "grpo",
            "old_log_probs": "sampler",
            "loss_agg_mode": "token-mean",
            "actor_train": {
                "share_prefixes": True,
                "model_args": {"dtype": "fp32", "disable_gradient_checkpointing": True},
                "data_args": {"file_name": str(data), "shuffle": False},
                "training_args": {
                    "learning_rate": LEARNING_RATE,
                    "lr_scheduler_type": "constant",
                    "max_tokens_per_microbatch": 2048,
                },
                "strategy_args": {"strategy_name": "fsdp_train"},
            },
            "actor_infer": {
                "generating_args": {"max_new_tokens": case.cap, "temperature": 1.0},
                "strategy_args": {"strategy_name": "hf_infer"},
            },
        },
        kind=RLVRConfig,
    )
    check_rlvr(config)
    Ours(config, record).run()


def peer(
    case: Case, policy: Path, data: Path, folder: Path, steps: int, samples: int, record: Record, micro: int
) -> None:
    """Run TRL's side once."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    seen: dict[str, float] = {}

    def reward(completions: list[Any], ground_truth: list[str], completion_ids: list[Any], **_: Any) -> list[float]:
        pairs = zip(completions, ground_truth, strict=True)
        rewards = [correct_share(completion[0]["content"], right) for completion, right in pairs]
        seen["reward"] = float(np.mean(rewards))
        seen["length"] = float(np.mean([len(ids) for ids in completion_ids]))
        return rewards

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            record.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            record.step(seen["reward"], seen["length"])

    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    prompts = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
    arguments = GRPOConfig(
        output_dir=str(folder / "trl"),
        seed=1,
        max_steps=steps,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=samples // micro,
        num_generations=GROUP,
        max_completion_length=case.cap,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        shuffle_dataset=False,
    )
    tokenizer = load_tokenizer(str(policy))
    tokenizer.padding_side = "left"
    trainer = GRPOTrainer(
        model=load_model(str(policy)),
        args=arguments,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(prompts),
        reward_funcs=reward,
        callbacks=[Clock()],
    )
    trainer.log = lambda *_, **__: None  # type: ignore[method-assign]  # it would print
    trainer.train()


def compare(case: Case, task: Recitation, policy: Path, folder: Path, arguments: argparse.Namespace) -> bool:
    """Alternate the two sides and print the table of one case."""
    us, them = Record(), Record()
    prompts, samples = arguments.prompts, arguments.prompts * GROUP
    for number in range(arguments.rounds):
        data = folder / f"{case.name}{number}.jsonl"
        task.write(data, case.lengths(arguments.steps * prompts, number), case.cap)
        ours(case, policy, data, folder, arguments.steps, prompts, us)
        peer(case, policy, data, folder, arguments.steps, samples, them, min(arguments.peer_micro_batch, samples))
    ratio, cpu_ratio = them.seconds / us.seconds, them.cpu_seconds / us.cpu_seconds
    pairs = zip(us.wall, them.wall, strict=True)
    leave(f"rlvr_vs_trl: {case.name}", [theirs / own for own, theirs in pairs])
    rewards = np.mean(us.reward), np.mean(them.reward)
    # Both sample; the standard error of a mean over prompts is what a difference has to exceed.
    error = 2 * np.sqrt(np.var(us.reward) / len(us.reward) + np.var(them.reward) / len(them.reward))
    passed = bool(ratio >= case.wanted and rewards[0] >= rewards[1] - error)
    print(f"\n{case.name}: {samples} samples per step, {np.mean(us.length):.0f} tokens on average ", end="")
    print(f"(TRL {np.mean(them.length):.0f}), {len(us.wall)} steps each")
    print(f"{'':28}{'ours':>10}{'TRL':>10}{'ratio':>8}")
    print(f"{'samples/s':28}{samples / us.seconds:>10.1f}{samples / them.seconds:>10.1f}{ratio:>8.2f}", end="")
    print(f"   (wanted {case.wanted:.1f})  {'PASS' if passed else 'FAIL'}")
    print(f"{'samples per CPU second':28}{samples / us.cpu_seconds:>10.1f}{samples / them.cpu_seconds:>10.1f}", end="")
    print(f"{cpu_ratio:>8.2f}")
    print(f"{'reward per step':28}{rewards[0]:>10.3f}{rewards[1]:>10.3f}")
    for step in range(arguments.steps):
        at = np.mean(us.reward[step :: arguments.steps]), np.mean(them.reward[step :: arguments.steps])
        print(f"{f'  reward of step {step + 1}':28}{at[0]:>10.3f}{at[1]:>10.3f}")
    print("our step, seconds (median)")
    known = sum(float(np.median(seconds)) for seconds in us.stages.values())
    for name, seconds in {**us.stages, "make the batch, report": [us.seconds - known]}.items():
        print(f"  {name:36}{np.median(seconds):>8.3f}  {np.median(seconds) / us.seconds:>5.0%}")
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=[case.name for case in CASES])
    parser.add_argument("--steps", type=beyond_warm_up, default=4, help="training steps per run, the first is warm-up")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each side")
    parser.add_argument("--prompts", type=int, default=64, help=f"of a training step, {GROUP} responses to each")
    parser.add_argument("--teaching-steps", type=int, default=TEACHING_STEPS, help="fewer make a worse reciter")
    parser.add_argument("--peer-micro-batch", type=int, default=64, help="TRL's per_device_train_batch_size")
    parser.add_argument("--policy", type=Path, help="folder to keep the taught policy in, and to take it from")
    arguments = parser.parse_args()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        policy = arguments.policy or folder / "policy"
        task = (
            Recitation(load_tokenizer(str(policy)))
            if (policy / "config.json").is_file()
            else teach(policy, arguments.teaching_steps)
        )
        results = [compare(c, task, policy, folder, arguments) for c in CASES if c.name in arguments.cases]
    raise SystemExit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
