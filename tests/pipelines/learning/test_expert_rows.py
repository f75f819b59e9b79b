"""Expert rows beside sampled ones: what the objective makes of them, however a step is split."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor

from roll.config.worker import DataArgs
from roll.data.supervised import DemonstrationTable
from roll.distributed.sharding import shard
from roll.pipelines.learning.batches import mini_batches
from roll.pipelines.learning.expert_rows import joined
from roll.pipelines.learning.learner import Learner
from roll.pipelines.learning.objective import PolicyObjective
from roll.pipelines.sampling.expert_answers import ExpertAnswers
from roll.rendering.supervised import TokenSequence
from roll.tracking.progress import NullProgress
from tests.pipelines.learning.test_learner import config_of, core_of, group
from tests.rings import exhaustive_but

F64 = torch.float64
OBJECTIVE = {"kl_weight": 0.3, "entropy_weight": 0.05, "supervised_weight": 0.2, "max_length": 11}
LOSSES = {"mix": {"mu": 0.3}, "chord": {"mu_warmup_steps": 2, "mu_decay_steps": 4, "mu_peak": 0.8}}


def sampled(seed: int, rows: int = 5, width: int = 7) -> TensorDict:
    noise = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, width, generator=noise) < 0.7
    mask[:, 0] = True
    old = -torch.rand(rows, width, generator=noise, dtype=F64)
    columns = {
        "input_ids": torch.randint(5, 60, (rows, width), generator=noise),
        "response_mask": mask,
        "lengths": torch.full((rows,), width),
        "old_log_probs": old,
        "ref_log_probs": old - 0.1,
        "advantages": torch.randn(rows, width, generator=noise, dtype=F64),
        "turn_index": torch.where(mask, 0, -1),
        "positive": torch.rand(rows, generator=noise) < 0.5,
        "sample_weights": torch.rand(rows, generator=noise, dtype=F64) + 0.5,
    }
    return TensorDict(columns, batch_size=[rows])


def written(seed: int, rows: int = 3, width: int = 9) -> TensorDict:
    noise = torch.Generator().manual_seed(seed + 1000)
    mask = torch.rand(rows, width, generator=noise) < 0.5
    mask[:, -1] = True
    ids = torch.randint(5, 60, (rows, width), generator=noise)
    return TensorDict(
        {"input_ids": ids, "response_mask": mask, "lengths": torch.full((rows,), width)}, batch_size=[rows]
    )


def whole_step(seed: int) -> TensorDict:
    """A step with the policy's own log-probs and entropies as columns, so that it can be cut."""
    batch = joined(sampled(seed), written(seed), step=3, padding=0)
    noise = torch.Generator().manual_seed(seed + 2000)
    batch["new"] = batch["old_log_probs"] + 0.3 * torch.randn(batch["input_ids"].shape, generator=noise, dtype=F64)
    batch["entropy"] = torch.rand(batch["input_ids"].shape, generator=noise, dtype=F64)
    return batch


def slopes(loss: PolicyObjective, batch: TensorDict, parts: list[TensorDict]) -> tuple[Tensor, dict[str, float]]:
    """The gradient by each row's log-probs, and the sums of loss and metrics, from parts with a column ``row``."""
    totals, found, sums = loss.totals(batch), torch.zeros(batch["new"].shape, dtype=F64), dict[str, float]()
    for part in parts:
        if not len(part):
            continue
        leaf = part["new"].clone().requires_grad_()
        value, metrics = loss(leaf, part["entropy"], part, totals)
        value.backward()
        assert leaf.grad is not None
        found[part["row"], : leaf.shape[1]] = leaf.grad
        for name, share in {"loss": value, **metrics}.items():
            if not name.endswith("_max"):
                sums[name] = sums.get(name, 0.0) + float(share.detach())
    return found, sums


@pytest.mark.long
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
@pytest.mark.parametrize("name", sorted(LOSSES))
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31), order=st.permutations(range(8)), size=st.integers(1, 4), ranks=st.integers(2, 4))
def test_micro_batches_and_ranks_change_nothing(
    name: str, mode: str, seed: int, order: list[int], size: int, ranks: int
) -> None:
    loss = PolicyObjective(policy_loss=name, options=LOSSES[name], aggregation=mode, **OBJECTIVE)
    batch = whole_step(seed)
    loss.prepare(batch, torch.Generator())
    batch["row"] = torch.arange(len(batch))
    whole, sums = slopes(loss, batch, [batch])
    shuffled = batch[torch.tensor(order)]
    micro = [shuffled[start : start + size] for start in range(0, len(batch), size)]
    spread = [part.batch for part in shard(batch, batch["lengths"], ranks)]
    for parts in (micro, spread):
        found, same = slopes(loss, batch, parts)
        torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-12)
        assert same == pytest.approx(sums, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_padding_changes_nothing(name: str) -> None:
    loss = PolicyObjective(policy_loss=name, options=LOSSES[name], **OBJECTIVE)
    batch = whole_step(4)
    wide = {
        key: torch.nn.functional.pad(value, (0, 3), value=7) if value.ndim > 1 else value
        for key, value in batch.items()
    }
    wide["response_mask"] = torch.nn.functional.pad(batch["response_mask"], (0, 3))
    padded = TensorDict(wide, batch_size=[len(batch)])
    results = []
    for each in (batch, padded):
        loss.prepare(each, torch.Generator())
        each["row"] = torch.arange(len(each))
        results.append(slopes(loss, each, [each]))
    torch.testing.assert_close(results[1][0][:, : batch["new"].shape[1]], results[0][0], rtol=1e-12, atol=1e-12)
    assert results[1][1] == pytest.approx(results[0][1], rel=1e-12)


def test_an_experts_rows_are_seen_by_the_policy_term_only() -> None:
    loss = PolicyObjective(policy_loss="mix", options={"mu": 0.3}, **OBJECTIVE)
    batch = whole_step(2)
    loss.prepare(batch, torch.Generator())
    totals = loss.totals(batch)
    value, metrics = loss(batch["new"], batch["entropy"], batch, totals)
    own: list[tuple[int, int]] = []
    theirs: list[tuple[int, int]] = []
    for i, t in batch["response_mask"].nonzero().tolist():
        (own if i < 5 else theirs).append((i, t))

    def mean(places: list[tuple[int, int]], column: str) -> float:
        return math.fsum(float(batch[column][place]) for place in places) / len(places)

    policy = 0.0
    for i, t in own:
        a, r = float(batch["advantages"][i, t]), math.exp(float(batch["new"][i, t] - batch["old_log_probs"][i, t]))
        weight = float(batch["sample_weights"][i])
        policy += 0.7 * weight * max(-a * r, -a * min(max(r, 0.8), 1.2)) / len(own)
    policy += 0.3 * -mean(theirs, "new")
    kl = 0.0
    for place in own:
        d = float(batch["new"][place] - batch["ref_log_probs"][place])
        kl += (math.exp(-d) + d - 1) / len(own)
    good = [place for place in own if batch["positive"][place[0]]]
    nll = math.fsum(-float(batch["new"][place]) for place in good) / len(own)
    assert float(metrics["loss/policy"]) == pytest.approx(policy, rel=1e-9)
    assert float(metrics["loss/kl"]) == pytest.approx(kl, rel=1e-9)
    assert float(metrics["loss/sft"]) == pytest.approx(nll, rel=1e-9)
    assert float(metrics["policy/entropy"]) == pytest.approx(mean(own, "entropy"), rel=1e-9)
    assert float(metrics["expert/nll"]) == pytest.approx(-mean(theirs, "new"), rel=1e-9)
    expected = policy + 0.3 * kl - 0.05 * mean(own, "entropy") + 0.2 * nll
    assert float(value) == pytest.approx(expected, rel=1e-9)


def test_rows_of_experts_stand_below_and_nothing_but_their_tokens_is_known() -> None:
    own, theirs = sampled(1), written(1)
    own["loss_mask"] = own["response_mask"] & (torch.arange(5) > 0).unsqueeze(1)
    batch = joined(own, theirs, step=4, padding=2)
    assert batch["expert"].tolist() == [False] * 5 + [True] * 3 and batch["step"].tolist() == [4] * 8
    assert (batch["input_ids"][:5, 7:] == 2).all() and torch.equal(batch["input_ids"][5:], theirs["input_ids"])
    for name in own.keys():  # noqa: SIM118  (a TensorDict iterates over rows)
        kept = batch[name][:5]
        assert torch.equal(kept[:, :7] if kept.ndim > 1 else kept, own[name]), name
    assert torch.equal(batch["response_mask"][5:], theirs["response_mask"])
    assert torch.equal(batch["loss_mask"][5:], theirs["response_mask"])
    assert batch["sample_weights"][5:].tolist() == [1.0] * 3
    assert (batch["turn_index"][5:] == -1).all() and (batch["advantages"][5:] == 0).all()


def test_every_optimiser_step_has_its_share_of_experts() -> None:
    batch = joined(sampled(3, rows=12), written(3, rows=6), step=1, padding=0)
    batch["row"] = torch.arange(18)
    parts = list(mini_batches(batch, 3, (1, 2, 3)))
    assert [int(part["expert"].sum()) for part in parts] == [2, 2, 2] and [len(part) for part in parts] == [6, 6, 6]
    assert sorted(row for part in parts for row in part["row"].tolist()) == list(range(18))


def test_rows_that_are_compared_stay_in_one_optimiser_step() -> None:
    batch = sampled(3, rows=12)
    batch["pair"] = torch.arange(12) % 4
    parts = [set(part["pair"].tolist()) for part in mini_batches(batch, 2, (1, 2, 3))]
    assert len(parts) == 2 and not parts[0] & parts[1]


def table_of(*rows: tuple[list[int], list[int]]) -> DemonstrationTable:
    """Prompts and answers, in tokens."""
    table = DemonstrationTable(DataArgs(), 64)
    for prompt, answer in rows:
        table.add([TokenSequence(prompt + answer, [False] * len(prompt) + [True] * len(answer))])
    return table


def test_an_experts_answer_is_a_member_of_the_group_of_its_prompt(tmp_path: Path) -> None:
    groups = [group(0, [0.0, 0.5, 0.0]), group(1, [1.0, 0.0])]
    prompt = groups[0].trajectories[0].turns[0].prompt_ids
    for member in groups[0].trajectories:
        member.turns[0].prompt_ids = list(prompt)
    other = ([9, 9, 9], [7, 8])
    config = config_of(tmp_path, **{"policy_loss": "luffy", "adv_estimator": "grpo", "train_env_manager.group_size": 4})

    async def learn() -> tuple[TensorDict, dict[str, float]]:
        answers = ExpertAnswers(table_of((prompt, [7, 8, 9]), other), score=2.0)
        learner = Learner(config, await core_of(config), NullProgress(), answers=answers)
        batch = learner.make_batch(groups)
        assert [sample.trajectory for sample in batch.samples][-1] == "train-0/expert"
        return batch.tensors, await learner.learn(batch, 1)

    tensors, metrics = asyncio.run(learn())
    scores = [0.0, 0.5, 0.0, 2.0]
    mean = sum(scores) / 4
    deviation = math.sqrt(sum((score - mean) ** 2 for score in scores) / 3)
    expected = [(score - mean) / (deviation + 1e-6) for score in scores]
    assert tensors["expert"].tolist() == [False] * 5 + [True]
    for row, advantage in zip((0, 1, 2, 5), expected, strict=True):
        found = tensors["advantages"][row][tensors["response_mask"][row]]
        assert found.tolist() == pytest.approx([advantage] * len(found), rel=1e-5)
    assert float(tensors["advantages"][3].max()) == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-6), rel=1e-5)
    width = len(prompt)
    assert tensors["response_mask"][5].nonzero().flatten().tolist() == [width, width + 1, width + 2]
    assert metrics["expert/rows"] == 1.0 and metrics["train/grad_norm"] > 0


class Writer:
    """An expert of this test."""

    def take(self) -> tuple[TensorDict, dict[str, float]]:
        return written(7), {}


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"actor_train.training_args.max_tokens_per_microbatch": 24},
        {"actor_train.training_args.per_device_train_batch_size": 2},
        {"actor_train.use_sequence_packing": "true"},
    ],
    ids=["tokens", "rows", "packed"],
)
@pytest.mark.parametrize("name", exhaustive_but(["mix", "luffy", "opmd_pairwise"], "mix"))
def test_the_step_of_a_model_does_not_depend_on_how_it_is_computed(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    groups = [group(0, [1.0, -0.5, 0.25]), group(1, [-1.0, 0.5])]
    plain = {"policy_loss": name, "adv_estimator": "opmd", "train_env_manager.group_size": 4}
    if name == "opmd_pairwise":
        plain["old_log_probs"] = "sampler"  # which is another policy here, so that the pull towards it counts

    async def learn(folder: Path, **keys: Any) -> dict[str, float]:
        config = config_of(folder, **{"actor_train.training_args.max_tokens_per_microbatch": 1000, **plain, **keys})
        learner = Learner(config, await core_of(config), NullProgress())
        if name == "mix":
            learner.experts = Writer()  # type: ignore[assignment]
        if name == "luffy":
            prompt = groups[1].trajectories[0].turns[0].prompt_ids
            learner.answers = ExpertAnswers(table_of((prompt, [7, 8, 9])), score=1.0)
        return await learner.learn(learner.make_batch(groups), 1)

    whole = asyncio.run(learn(tmp_path / "whole"))
    cut = asyncio.run(learn(tmp_path / "cut", **changes))
    assert whole["train/grad_norm"] > 0
    assert cut == pytest.approx(whole, rel=1e-4, abs=1e-6)
