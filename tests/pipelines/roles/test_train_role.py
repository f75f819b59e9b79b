"""A trained role over several ranks: who gets which rows, what comes back, and whose word counts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from roll.algorithms.distillation import REVERSE_KL, Divergence
from roll.distributed import LocalGroup, WorkerSpec, worker_context
from roll.distributed.placement import RolePlan, WorkerPlace
from roll.pipelines.roles.models import ScoreRole, TrainRole
from roll.strategies.base import BatchTotals
from roll.workers.train import DataPlace

PER_MODEL = 2
"""Ranks that hold parts of one model, and so work on the same rows."""


class Rank:
    """Computes with the numbers of its rows; remembers what it was given."""

    def __init__(self, sharing: int = 1) -> None:
        self.number, self.ranks = worker_context().rank, worker_context().size
        self.sharing = sharing
        self.seen: list[tuple[str, Any]] = []

    def data_place(self) -> DataPlace:
        # The last of the ranks that share rows speaks, as the last stage of a pipeline does.
        speaks = self.number % self.sharing == self.sharing - 1
        return DataPlace(self.number // self.sharing, self.ranks // self.sharing, speaks)

    def compute_log_probs(self, batch: TensorDict) -> torch.Tensor:
        self.seen.append(("compute_log_probs", batch["input_ids"].tolist(), set(batch.keys())))
        if not self.data_place().speaks:
            return torch.full((len(batch), 3), torch.nan)
        return batch["input_ids"].float()[:, None].expand(-1, 3)

    compute_values = compute_log_probs

    def train_step(self, batch: TensorDict, loss: Any, totals: BatchTotals) -> dict[str, float]:
        self.seen.append(("train_step", batch["input_ids"].tolist()))
        return {"loss": float(totals.tokens), "rank": float(self.number)}

    def fingerprints(self, dtype: torch.dtype | None) -> dict[str, str]:
        return {"weight": f"of rank {self.number}"} if self.data_place().speaks else {}

    def measure_from(self, heads: Any, divergence: Divergence) -> None:
        self.seen.append(("measure_from", heads, divergence))

    def head(self) -> tuple[str, None]:
        return f"head of rank {self.number}", None

    def save(self, directory: Path) -> None:
        self.seen.append(("save", directory))

    def load(self, directory: Path) -> None:
        self.seen.append(("load", directory))


class CountsTokens:
    """A loss as far as a role looks at one."""

    def totals(self, batch: TensorDict) -> BatchTotals:
        return BatchTotals(int(batch["lengths"].sum()), len(batch), 0)


def group(ranks: int, sharing: int = 1) -> LocalGroup:
    places = tuple(WorkerPlace(rank, 0, (), rank, ranks) for rank in range(ranks))
    return LocalGroup(RolePlan("actor_train", places), WorkerSpec(cls=Rank, args=(sharing,)), rpc_timeout=60)


def batch(lengths: list[int]) -> TensorDict:
    rows = len(lengths)
    return TensorDict({"input_ids": torch.arange(rows), "lengths": torch.tensor(lengths)}, batch_size=[rows])


def role_of(workers: LocalGroup) -> TrainRole:
    return TrainRole(workers, [workers.worker(rank).data_place() for rank in range(workers.size)])


def rows_of(workers: LocalGroup, call: int = 0) -> list[Any]:
    return [workers.worker(rank).seen[call][1] for rank in range(workers.size)]


@pytest.mark.parametrize(("ranks", "sharing"), [(1, 1), (3, 1), (2, PER_MODEL), (4, PER_MODEL)])
def test_outputs_come_back_in_the_order_of_the_rows_whoever_computed_them(ranks: int, sharing: int) -> None:
    workers, lengths = group(ranks, sharing), [5, 1, 9, 3, 7, 2, 8]

    async def main() -> tuple[torch.Tensor, torch.Tensor]:
        role = await TrainRole.over(workers)
        return await role.compute_log_probs(batch(lengths)), await role.compute_values(batch(lengths))

    for output in asyncio.run(main()):
        assert output.tolist() == [[float(row)] * 3 for row in range(len(lengths))], "only those that speak count"


def test_ranks_are_sent_no_column_that_an_answer_about_tokens_does_not_take() -> None:
    workers, given = group(2), batch([4, 2])
    given["response_mask"] = given["state_hashes"] = given["advantages"] = torch.ones(2, 4)
    asyncio.run(role_of(workers).compute_log_probs(given))
    assert workers.worker(0).seen[0][2] == {"input_ids", "lengths", "response_mask"}
    assert "advantages" in given.keys(), "the batch keeps them"  # noqa: SIM118


def test_ranks_that_share_a_model_get_the_same_rows_and_others_equal_work() -> None:
    workers = group(4, PER_MODEL)
    asyncio.run(role_of(workers).compute_log_probs(batch([4, 4, 2, 2, 1, 1])))
    first, second, third, fourth = rows_of(workers)
    assert first == second and third == fourth
    assert sorted(first + third) == list(range(6))
    tokens = [sum([4, 4, 2, 2, 1, 1][row] for row in rows) for rows in (first, third)]
    assert tokens == [7, 7]


def test_a_rank_may_have_no_rows() -> None:
    workers = group(3)
    output = asyncio.run(role_of(workers).compute_log_probs(batch([4, 4])))
    assert output.tolist() == [[0.0] * 3, [1.0] * 3] and sorted(rows_of(workers)) == [[], [0], [1]]


@pytest.mark.parametrize(("ranks", "sharing"), [(1, 1), (4, PER_MODEL)])
def test_every_rank_trains_with_the_counts_of_the_whole_batch(ranks: int, sharing: int) -> None:
    workers = group(ranks, sharing)
    report = asyncio.run(role_of(workers).train_step(batch([5, 1, 9, 3]), CountsTokens()))  # type: ignore[arg-type]
    assert report == {"loss": 18.0, "rank": float(sharing - 1)}, "the report is that of a rank that speaks"
    trained = {row for rows in rows_of(workers) for row in rows}
    assert trained == {0, 1, 2, 3}


def test_fingerprints_are_those_of_a_rank_that_has_some() -> None:
    assert asyncio.run(role_of(group(2, PER_MODEL)).fingerprints(None)) == {"weight": "of rank 1"}


def test_every_rank_takes_over_the_head_of_the_reference_and_saves_to_the_same_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workers = group(2)

    async def main() -> None:
        role = role_of(workers)
        await role.measure_from(await ScoreRole.over(group(2)))
        await role.save(Path("here"))
        await role.load(Path("here"))

    asyncio.run(main())
    heads = ("measure_from", [("head of rank 0", None)], REVERSE_KL)
    wanted = [heads, ("save", tmp_path / "here"), ("load", tmp_path / "here")]
    assert [workers.worker(rank).seen for rank in range(2)] == [wanted] * 2
