"""Weights that a trainer offers in a real Ray cluster arrive at engines elsewhere as they were, bit for bit."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from roll.distributed.weight_sync import Place, WeightReceiver, WeightsGoneError, WeightSyncError, WeightSyncSettings
from tests.distributed.weight_sync_support import make_model, model_bits

pytest.importorskip("ray")

from roll.distributed.weight_exchange import WeightExchange  # noqa: E402
from roll.workers.offered_weights import OfferedWeights, Offering  # noqa: E402
from roll.workers.weights import WholeWeights  # noqa: E402
from roll.workers.weights_elsewhere import DistantTrainer, StoredWeights, WeightsElsewhere  # noqa: E402
from tests.experience.ray_session import ray_session  # noqa: E402

pytestmark = pytest.mark.processes

KEPT = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with ray_session():
        yield


class Trainer:
    """One rank of a trainer whose weights are those of a seed."""

    def __init__(self, exchange: WeightExchange, method: Any, step: int = 0) -> None:
        self.seed = step
        self.offering = Offering(exchange, uuid.uuid4().hex, method, KEPT, None, 2**10)
        self.offered = OfferedWeights(WholeWeights(lambda: make_model(self.seed).items(), True, torch.device("cpu")))
        exchange.call("begin", self.offering.trainer, step)

    def learn(self, version: int) -> None:
        self.seed = version
        self.offered.offer(self.offering, version)


async def taken(source: WeightsElsewhere, version: int, link: str = "all") -> Any:
    """What an engine of this process loads of a version: its version, and the bits of all tensors."""
    await source.take(version)
    places = {"engine": Place.here()}
    (offer,) = await source.all("open_weights", link, places, WeightSyncSettings(timeout=20), None, 2**10)
    receiver = WeightReceiver(offer, "engine")

    def receive() -> Any:
        with receiver.receive() as update:
            return update.version, model_bits({name: tensor.clone() for name, tensor in update.named_tensors})

    sending = asyncio.ensure_future(source.all("send_weights", link, version))
    found = await asyncio.to_thread(receive)
    await sending
    receiver.close()
    await source.all("close_weights", link)
    return found


def source_of(exchange: WeightExchange, method: Any) -> WeightsElsewhere:
    return StoredWeights(exchange) if method == "memory" else DistantTrainer(exchange, "explorer", method, 20)


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["memory", "gloo"])
def test_the_newest_versions_are_taken_as_they_were_and_older_ones_are_gone(cluster: None, method: Any) -> None:
    exchange = WeightExchange(f"weights-{method}", "roll")
    trainer, source = Trainer(exchange, method), source_of(exchange, method)
    for version in (1, 2, 3):
        trainer.learn(version)
    for version in (3, 2):
        assert asyncio.run(taken(source, version)) == (version, model_bits(make_model(version)))
    with pytest.raises(WeightsGoneError):
        asyncio.run(source.take(1))
    trainer.learn(5)
    assert asyncio.run(taken(source, 5)) == (5, model_bits(make_model(5)))
    trainer.offered.close()
    again = Trainer(exchange, method, step=5)
    if method == "memory":
        assert asyncio.run(taken(source, 5)) == (5, model_bits(make_model(5))), "it outlives who put it there"
    else:
        with pytest.raises(WeightsGoneError, match="the trainer that offered the weights has ended"):
            asyncio.run(source.all("send_weights", "all", 5))
        again.learn(5)
        assert asyncio.run(taken(source, 5)) == (5, model_bits(make_model(5)))
    again.offered.close()


@pytest.mark.exhaustive
def test_a_trainer_without_a_gpu_does_not_send_over_nccl_and_says_so(cluster: None) -> None:
    exchange = WeightExchange("weights-nccl", "roll")
    trainer = Trainer(exchange, "nccl")
    trainer.learn(1)
    with pytest.raises(WeightSyncError, match="nccl sends between GPUs .* 0 of 2 processes have one.*use gloo"):
        asyncio.run(taken(DistantTrainer(exchange, "explorer", "nccl", 20), 1))
    trainer.offered.close()
