"""Weights go from one process to another through memory of the GPU that both see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from roll.distributed.weight_sync import Place, WeightReceiver, WeightSender, WeightSyncSettings, describe
from tests.distributed.weight_sync_support import CONTEXT, Model, make_model, model_bits

SYNCS = 3


def on(device: torch.device, model: Model) -> Model:
    moved: dict[int, torch.Tensor] = {}
    return {name: moved.setdefault(id(tensor), tensor.to(device)) for name, tensor in model.items()}


def receive(pipe: Any) -> None:
    device = torch.device("cuda")
    pipe.send(Place.here(device))
    receiver = WeightReceiver(pipe.recv(), "engine", device=device)
    for _ in range(SYNCS):
        with receiver.receive() as update:
            model = {name: tensor.clone().cpu() for name, tensor in update.named_tensors}
        pipe.send((update.version, model_bits(model)))
    pipe.recv()
    receiver.close()
    pipe.send(torch.cuda.memory_allocated())


@pytest.fixture
def engine() -> Iterator[Any]:
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=receive, args=(theirs,), daemon=True)
    process.start()
    yield ours
    process.kill()
    process.join()


@pytest.mark.parametrize("bucket_bytes", [512, 1 << 24])
def test_every_bit_arrives(cuda: torch.device, engine: Any, bucket_bytes: int) -> None:
    place = engine.recv()
    models = [on(cuda, make_model(seed)) for seed in range(SYNCS)]
    settings = WeightSyncSettings(timeout=60, host="127.0.0.1")
    sender = WeightSender(
        describe(models[0].items(), bucket_bytes=bucket_bytes), {"engine": place}, settings, device=cuda
    )
    assert sender.offer.method == "cuda_ipc", "two processes on one GPU"
    engine.send(sender.offer)
    for version, model in enumerate(models):
        sender.send(version, model.items())
        expected = {name: tensor.cpu() for name, tensor in model.items()}
        assert engine.recv() == (version, model_bits(expected))
    engine.send("close")
    assert engine.recv() == 0, "nothing is left on the device"
    sender.close()
