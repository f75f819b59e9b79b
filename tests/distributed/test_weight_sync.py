"""Weights between processes: one trainer (this process) and engines in processes of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from weight_sync_support import (
    Crew,
    die_at_second_tensor,
    engines,
    keep_all,
    load_large,
    make_model,
    model_bits,
    receive_syncs,
    refuse_at_second_tensor,
    stop_early,
)

from roll.distributed.weight_sync import (
    WeightSyncError,
    WeightSyncSettings,
    WeightSyncTimeoutError,
)
from roll.distributed.weight_sync.settings import local_address

pytestmark = pytest.mark.processes

LONG = WeightSyncSettings(timeout=200, host="127.0.0.1")
"""So long that who waited for all of it is told from who did not, on any machine."""


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Two engine processes."""
    members = Crew()
    yield members
    members.close()


def test_every_engine_gets_every_version_bit_for_bit(crew: Crew) -> None:
    models = [make_model(seed) for seed in range(3)]
    with engines(crew, models[0], receive_syncs, 3) as started:
        metrics = [started.sender.send(10 + index, model.items()) for index, model in enumerate(models)]
        answers = started.answers()
    for answer in answers:
        assert answer.error == ""
        assert answer.versions == [10, 11, 12]
        assert answer.models == [model_bits(model) for model in models]
    assert len(answers) == 2
    # Ties are sent once: the embedding's 740 bytes are not in there twice.
    payload = sum(tensor.nbytes for name, tensor in models[0].items() if name != "head.weight")
    for one in metrics:
        assert payload <= one["weight_sync/bytes"] < payload + 64 * len(models[0])
        assert one["weight_sync/seconds"] >= one["weight_sync/wait_seconds"] >= 0
        assert one["weight_sync/gbytes_per_second"] > 0


def test_a_checkpoint_folder_delivers_the_same_and_is_gone_afterwards(crew: Crew, tmp_path: Path) -> None:
    models = [make_model(seed) for seed in range(2)]
    settings = WeightSyncSettings(method="checkpoint", directory=tmp_path / "sync", timeout=30, host="127.0.0.1")
    with engines(crew, models[0], receive_syncs, 2, settings=settings) as started:
        for version, model in enumerate(models):
            started.sender.send(version, model.items())
        answers = started.answers()
    for answer in answers:
        assert answer.models == [model_bits(model) for model in models], answer.error
    assert list((tmp_path / "sync").iterdir()) == []


def test_a_wire_type_casts_floating_point_tensors_only(crew: Crew) -> None:
    model = make_model(0)
    with engines(crew, model, receive_syncs, 1, count=1, wire_dtype=torch.bfloat16) as started:
        started.sender.send(1, model.items())
        answer = started.answer()
    cast = {name: t.to(torch.bfloat16) if t.dtype.is_floating_point else t for name, t in model.items()}
    assert answer.models == [model_bits(cast)], answer.error


def test_tensors_that_an_engine_keeps_are_never_overwritten(crew: Crew) -> None:
    model = {f"layer.{number}": torch.full((64,), float(number)) for number in range(40)}
    with engines(crew, model, keep_all, count=1, bucket_bytes=512) as started:
        started.sender.send(1, model.items())
        answer = started.answer()
    assert answer.models == [model_bits(model)], answer.error


def test_memory_stays_at_a_few_buckets_however_large_the_model(crew: Crew) -> None:
    shape, tensors, bucket = (512, 1024), 96, 8 * 1024**2
    model = {f"layer.{number}": torch.rand(shape) for number in range(tensors)}
    total = sum(tensor.nbytes for tensor in model.values())
    with engines(crew, model, load_large, tensors, shape, count=1, bucket_bytes=bucket) as started:
        for version in range(2):
            started.sender.send(version, model.items())
        answer = started.answer()
    assert answer.error == ""
    assert answer.models == [sum(tensor.double().sum().item() for tensor in model.values())]
    assert started.sender.peak_buffer_bytes <= 2 * bucket
    assert answer.peak_buffer_bytes <= 3 * bucket
    # What the whole process took on top of its model, of 192 MiB that came through.
    assert answer.peak_growth_bytes < 4 * bucket < total / 4


def test_an_engine_that_cannot_load_tells_trainer_and_other_engines_why(crew: Crew) -> None:
    model = make_model(0)
    with engines(crew, model, refuse_at_second_tensor, "engine 1") as started:
        with pytest.raises(WeightSyncError, match=r"engine 1 failed: KeyError: .*no place for"):
            started.sender.send(1, model.items())
        answers = started.answers()
    assert answers[1].error_type == "KeyError"


def test_an_engine_that_reads_only_a_part_is_an_error_on_both_sides(crew: Crew) -> None:
    model = make_model(0)
    with engines(crew, model, stop_early, count=1) as started:
        with pytest.raises(WeightSyncError, match="engine 0 read 1 of 11 tensors"):
            started.sender.send(1, model.items())
        assert "must read all" in started.answer().error


def test_a_trainer_that_fails_in_a_sync_tells_the_engines_why(crew: Crew) -> None:
    model = make_model(0)
    wrong = {name: tensor for name, tensor in model.items() if name != "odd"}
    # Long before the end of the patience they would have otherwise.
    with engines(crew, model, receive_syncs, 1, settings=LONG) as started:
        with pytest.raises(ValueError, match=r"expected 'odd' \[3, 1, 7\].* has 'half'"):
            started.sender.send(1, wrong.items())
        answers = started.answers()
    for answer in answers:
        assert answer.error_type in ("PeerFailedError", "WeightSyncError")
        assert "the trainer failed" in answer.error and "'odd'" in answer.error
        assert answer.seconds < LONG.timeout / 2


def test_a_trainer_that_waits_for_an_engine_that_never_joins_names_it(crew: Crew) -> None:
    model = make_model(0)
    settings = WeightSyncSettings(timeout=3, host="127.0.0.1")
    with engines(crew, model, receive_syncs, 1, settings=settings, absent="engine 1") as started:
        with pytest.raises(WeightSyncTimeoutError, match=r"waited 3 s for engine 1 to join.*No word from engine 1"):
            started.sender.send(1, model.items())
        assert "engine 1" in started.answer().error


def test_an_engine_whose_trainer_is_gone_says_so_within_its_deadline(crew: Crew) -> None:
    model = make_model(0)
    with engines(crew, model, receive_syncs, 2, count=1) as started:
        started.sender.send(1, model.items())
        started.sender.close()
        answer = started.answer()
    assert answer.error_type == "WeightSyncError" and "lost the trainer's message store" in answer.error
    assert len(answer.models) == 1


def test_a_new_sender_serves_engines_after_a_failure(crew: Crew) -> None:
    model = make_model(0)
    with engines(crew, model, stop_early, count=1) as started, pytest.raises(WeightSyncError):
        started.sender.send(1, model.items())
    with engines(crew, model, receive_syncs, 1, count=1) as started:
        started.sender.send(2, model.items())
        assert started.answer().models == [model_bits(model)]


def test_the_default_process_group_is_left_alone(crew: Crew) -> None:
    if torch.distributed.is_initialized():  # a test of another file has made one in this process
        torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = make_model(0)
        with engines(crew, model, receive_syncs, 1, count=1) as started:
            started.sender.send(1, model.items())
            assert started.answer().error == ""
        assert torch.distributed.get_world_size() == 1
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


def test_the_address_towards_this_machine_is_this_machine() -> None:
    assert local_address("127.0.0.1", 80) == "127.0.0.1"


@pytest.mark.exhaustive
@pytest.mark.parametrize("victim", ["engine 0", "engine 1"])
def test_an_engine_that_dies_in_a_sync_ends_it_for_all_with_its_name(crew: Crew, victim: str) -> None:
    model = {f"layer.{number}": torch.rand(256, 1024) for number in range(40)}
    survivor = {"engine 0": "engine 1", "engine 1": "engine 0"}[victim]
    with engines(crew, model, die_at_second_tensor, victim, bucket_bytes=1024**2, settings=LONG) as started:
        started.forget(victim)
        begun = []

        def tensors() -> Iterator[tuple[str, torch.Tensor]]:
            # Asked for when all engines are ready, however long their processes took to start.
            begun.append(time.monotonic())
            yield from model.items()

        with pytest.raises(WeightSyncError, match=f"No word from {victim}"):
            started.sender.send(1, tensors())
        assert time.monotonic() - begun[0] < LONG.timeout / 2
        answer = started.answer(survivor)
        with pytest.raises(WeightSyncError, match="no more use"):
            started.sender.send(2, model.items())
    assert answer.error_type in ("WeightSyncError", "PeerFailedError") and answer.seconds < LONG.timeout / 2
