"""Learning-rate schedules: those of transformers where it has them, and where they end."""

import pytest
import torch
from transformers import get_scheduler

from roll.strategies.jobs import TrainOptions
from roll.strategies.training.schedules import learning_rate_factor, make_schedule

STEPS, WARMUP = 23, 4


def rates(schedule: torch.optim.lr_scheduler.LRScheduler) -> list[float]:
    found = []
    for _ in range(STEPS + 2):
        found.append(schedule.get_last_lr()[0])
        schedule.optimizer.step()
        schedule.step()
    return found


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=3e-4)


@pytest.mark.parametrize(
    ("ours", "theirs", "specific"),
    [
        ({"lr_scheduler_type": "constant"}, "constant", {}),
        ({"lr_scheduler_type": "constant_with_warmup"}, "constant_with_warmup", {}),
        ({"lr_scheduler_type": "linear"}, "linear", {}),
        ({"lr_scheduler_type": "cosine"}, "cosine", {}),
        ({"lr_scheduler_type": "cosine", "min_lr_ratio": 0.1}, "cosine_with_min_lr", {"min_lr_rate": 0.1}),
        ({"lr_scheduler_type": "wsd", "decay_steps": 6}, "warmup_stable_decay", {"num_decay_steps": 6}),
    ],
)
def test_schedules_are_those_of_transformers(ours: dict, theirs: str, specific: dict) -> None:
    options = TrainOptions(warmup_steps=WARMUP, total_steps=STEPS, **ours)
    peer = get_scheduler(theirs, optimizer(), WARMUP, STEPS, scheduler_specific_kwargs=specific)

    assert rates(make_schedule(optimizer(), options))[:STEPS] == rates(peer)[:STEPS]


@pytest.mark.parametrize("kind", ["linear", "cosine", "wsd"])
def test_a_decay_goes_from_the_peak_to_its_share(kind: str) -> None:
    factors = [
        learning_rate_factor(step, kind=kind, warmup_steps=2, total_steps=12, decay_steps=5, min_ratio=0.25)
        for step in range(13)
    ]

    assert factors[:3] == [0.0, 0.5, 1.0] and factors[12] == pytest.approx(0.25)
    assert sorted(factors[2:], reverse=True) == factors[2:]
    assert kind != "wsd" or factors[2:8] == [1.0] * 6


def test_a_schedule_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match="'polynomial'"):
        learning_rate_factor(0, kind="polynomial", warmup_steps=0, total_steps=1)
