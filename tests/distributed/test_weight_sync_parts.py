"""Weight sync inside one process: layout, memory, hand-over, choice of method, and the order of CUDA IPC messages."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weight_sync_support import ELSEWHERE, make_model, model_bits

from roll.distributed.weight_sync import (
    Manifest,
    Place,
    WeightReceiver,
    WeightSender,
    WeightSyncError,
    WeightSyncSettings,
    WeightSyncTimeoutError,
    choose_method,
    cuda_ipc,
    describe,
)
from roll.distributed.weight_sync.buffers import BufferPool, pack, view_of
from roll.distributed.weight_sync.manifest import ALIGNMENT
from roll.distributed.weight_sync.settings import choose_backend
from roll.strategies.base import WeightUpdate

GPUS = [Place("a", 1, "gpu-0"), Place("a", 2, "gpu-1"), Place("b", 3, "gpu-0")]


class Engine:
    """Loads what it is given."""

    def __init__(self) -> None:
        self.model: dict[str, torch.Tensor] = {}
        self.version = -1

    async def update_weights(self, update: WeightUpdate) -> None:
        self.model = {name: tensor.clone() for name, tensor in update.named_tensors}
        self.version = update.version


@given(
    sizes=st.lists(st.integers(0, 70), max_size=30),
    bucket_bytes=st.integers(1, 600),
    wire=st.sampled_from([None, torch.bfloat16]),
)
@settings(max_examples=60, deadline=None)
def test_packing_and_unpacking_is_the_identity_for_every_layout(
    sizes: list[int], bucket_bytes: int, wire: torch.dtype | None
) -> None:
    kinds = [torch.float32, torch.bfloat16, torch.int64, torch.bool]
    model = {f"p{i}": torch.arange(n).to(kinds[i % len(kinds)]) for i, n in enumerate(sizes)}
    manifest = describe(model.items(), bucket_bytes=bucket_bytes, wire_dtype=wire)
    assert Manifest.from_json(manifest.to_json()) == manifest
    unpacked = {}
    for bucket, flat in pack(manifest, model.items(), BufferPool()):
        assert flat.nbytes == bucket.nbytes
        # Empty tensors take no room, but a bucket of them is sent as one alignment unit.
        assert len(bucket.specs) == 1 or bucket.nbytes <= max(bucket_bytes, ALIGNMENT)
        unpacked |= {spec.name: view_of(spec, flat).clone() for spec in bucket.specs}
    cast = {n: t.to(wire) if wire is not None and t.dtype.is_floating_point else t for n, t in model.items()}
    assert model_bits(unpacked) == model_bits(cast)
    assert list(unpacked) == list(model)


def test_a_large_contiguous_tensor_is_sent_from_where_it_is() -> None:
    tensor = torch.rand(1024, 1025)
    manifest = describe([("small", torch.zeros(3)), ("large", tensor), ("last", torch.zeros(3))])
    assert [[spec.name for spec in bucket.specs] for bucket in manifest.buckets] == [["small"], ["large"], ["last"]]
    parts = [("small", torch.zeros(3)), ("large", tensor), ("last", torch.zeros(3))]
    sent = [flat.data_ptr() for _, flat in pack(manifest, parts, BufferPool())]
    assert sent[1] == tensor.data_ptr()


def test_only_the_same_memory_counts_as_tied_never_the_same_address_again() -> None:
    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        for number in range(50):
            # Freed before the next one is made, as in a strategy that gathers shards: addresses come again.
            tensor = torch.full((1000,), float(number))
            addresses.append(tensor.data_ptr())
            yield f"layer.{number}", tensor
            del tensor

    addresses: list[int] = []
    manifest = describe(gathered())
    assert len(set(addresses)) < 50, "this test needs an allocator that gives out an address twice"
    assert all(spec.aliases == () for spec in manifest.specs())
    tied = torch.rand(4)
    # A new Python object each, like named_parameters() of a trainer that detaches.
    manifest = describe((name, tied.detach()) for name in ("a", "b", "c"))
    assert [spec.aliases for spec in manifest.specs()] == [("b", "c")]
    # Other parts of the same memory, or another shape of it, are tensors of their own.
    assert all(s.aliases == () for s in describe([("a", tied), ("b", tied[:2]), ("c", tied.view(2, 2))]).specs())


@pytest.mark.long
def test_describing_keeps_no_tensor_alive() -> None:
    gone: list[torch.multiprocessing.reductions.StorageWeakRef] = []

    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        for name in "abc":
            tensor = torch.rand(10)
            gone.append(torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage()))
            yield name, tensor
            del tensor
            assert all(reference.expired() for reference in gone[:-1])

    describe(stream())
    gc.collect()
    assert all(reference.expired() for reference in gone)


def test_a_layout_that_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match="bucket_bytes is 0"):
        describe([], bucket_bytes=0)
    with pytest.raises(ValueError, match="wire_dtype is torch.int8"):
        describe([], wire_dtype=torch.int8)
    with pytest.raises(ValueError, match="'a' twice"):
        describe([("a", torch.zeros(1)), ("a", torch.zeros(1))])


def test_a_parameter_that_was_not_described_is_refused() -> None:
    manifest = describe([("a", torch.zeros(1))])
    with pytest.raises(ValueError, match="now yields 'b'"):
        list(pack(manifest, [("a", torch.zeros(1)), ("b", torch.zeros(1))], BufferPool()))
    with pytest.raises(ValueError, match="parameters ends"):
        list(pack(manifest, [], BufferPool()))


def test_memory_is_used_again_only_when_no_tensor_is_left_on_it() -> None:
    pool = BufferPool()
    first = pool.take(1000)
    part = first[16:32].view(torch.float32)
    address = first.data_ptr()
    del first
    second = pool.take(1000)
    assert second.data_ptr() != address and part.numel() == 4
    del part
    assert pool.take(900).data_ptr() == address
    assert pool.peak_bytes == 2000


def test_the_method_follows_from_where_everybody_is() -> None:
    here = Place("a", 1)
    assert choose_method(here, [Place("a", 1)]) == "in_process"
    assert choose_method(here, [Place("a", 1), Place("a", 2)]) == "broadcast"
    assert choose_method(here, [Place("b", 1)]) == "broadcast"
    assert choose_method(GPUS[0], [Place("a", 9, "gpu-0")]) == "cuda_ipc"
    assert choose_method(GPUS[0], [Place("a", 9, "gpu-0"), GPUS[1]]) == "broadcast"
    assert choose_method(GPUS[0], [GPUS[2]]) == "broadcast"
    assert choose_method(here, [Place("a", 2)], "checkpoint") == "checkpoint"
    assert choose_backend(GPUS[0], GPUS[1:]) == "nccl"
    assert choose_backend(GPUS[0], [GPUS[0]]) == "gloo"
    assert choose_backend(here, GPUS[1:]) == "gloo"
    assert choose_backend(GPUS[0], GPUS[1:], "gloo") == "gloo" and choose_backend(GPUS[0], GPUS[1:], "nccl") == "nccl"
    with pytest.raises(ValueError, match="2 of 2 processes have one, 1 in all; use gloo"):
        choose_backend(GPUS[0], [GPUS[0]], "nccl")
    with pytest.raises(ValueError, match="one process; use broadcast"):
        choose_method(here, [Place("a", 2)], "in_process")
    with pytest.raises(ValueError, match="weights are on the CPU; use broadcast"):
        choose_method(here, [Place("a", 2)], "cuda_ipc")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "carrier_pigeon"}, "choose one of auto, in_process, broadcast"),
        ({"timeout": 0}, "timeout is 0 s"),
        ({"method": "checkpoint"}, "needs a directory"),
    ],
)
def test_settings_that_cannot_work_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WeightSyncSettings(**arguments)


def test_in_process_hands_over_the_tensors_themselves() -> None:
    model = make_model(0)
    sender = WeightSender(describe(model.items()), {"one": Place.here(), "two": Place.here()})
    assert sender.offer.method == "in_process"
    receivers = [WeightReceiver(sender.offer, name) for name in ("one", "two")]
    for version in (1, 2):
        metrics = sender.send(version, iter(model.items()))
        assert metrics["weight_sync/bytes"] == describe(model.items()).nbytes
        for receiver in receivers:
            with receiver.receive() as update:
                received = dict(update.named_tensors)
            assert update.version == version
            assert all(received[name] is model[name] for name in model)
    with pytest.raises(TypeError, match="use method broadcast"):
        pickle.dumps(sender.offer)


def test_in_process_weights_that_nobody_took_are_replaced() -> None:
    sender = WeightSender(describe([("a", torch.zeros(1))]), {"one": Place.here()}, WeightSyncSettings(timeout=0.1))
    receiver = WeightReceiver(sender.offer, "one")
    for version in (1, 2):
        sender.send(version, [("a", torch.zeros(1))])
    engine = Engine()
    assert asyncio.run(receiver.update(engine)) == 2 == engine.version
    with pytest.raises(WeightSyncTimeoutError, match=r"one waited 0.1 s for the trainer"):
        asyncio.run(receiver.update(engine))


def test_the_event_loop_of_an_engine_is_free_while_it_waits_for_the_trainer() -> None:
    model = make_model(0)
    sender = WeightSender(describe(model.items()), {"one": ELSEWHERE}, WeightSyncSettings(host="127.0.0.1", timeout=20))
    receiver, engine = WeightReceiver(sender.offer, "one"), Engine()

    async def serve() -> int:
        update = asyncio.create_task(receiver.update(engine))
        for _ in range(20):
            await asyncio.sleep(0.005)
        # Nothing was sent so far, and this coroutine ran twenty times.
        assert not update.done()
        await asyncio.to_thread(sender.send, 7, model.items())
        return await update

    assert asyncio.run(serve()) == 7 == engine.version
    assert model_bits(engine.model) == model_bits(model)
    receiver.close()
    sender.close()


def test_a_real_engine_samples_from_the_new_weights() -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from roll.generation import Completion, GenerationRequest, SamplingParams
    from roll.strategies.generation.hf_infer.strategy import HfInferStrategy

    def make(seed: int) -> Qwen3ForCausalLM:
        torch.manual_seed(seed)
        sizes = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.5}
        return Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, tie_word_embeddings=True)).eval()

    trained, stale = make(0), make(1)
    engine, witness = (HfInferStrategy(model, max_slots=2, max_length=64) for model in (stale, make(0)))
    request = GenerationRequest("r", [3, 1, 4, 1, 5], SamplingParams(max_new_tokens=12, temperature=0.0))
    # state_dict names the tied head as well, the engine's model knows it as the embedding only.
    weights = trained.state_dict()
    assert "lm_head.weight" in weights and "lm_head.weight" not in dict(stale.named_parameters())
    sender = WeightSender(
        describe(weights.items()), {"one": ELSEWHERE}, WeightSyncSettings(host="127.0.0.1", timeout=20)
    )
    receiver = WeightReceiver(sender.offer, "one")

    async def sample_sync_sample() -> tuple[Completion, Completion, Completion]:
        before = await engine.generate(request)
        await asyncio.gather(asyncio.to_thread(sender.send, 5, weights.items()), receiver.update(engine))
        return before, await engine.generate(request), await witness.generate(request)

    before, after, wanted = asyncio.run(sample_sync_sample())
    assert (after.token_ids, after.logprobs) == (wanted.token_ids, wanted.logprobs)
    assert after.policy_version == (5, 5)
    assert before.token_ids != after.token_ids
    receiver.close()
    sender.close()


def test_an_unknown_receiver_and_none_at_all_are_refused() -> None:
    manifest = describe([("a", torch.zeros(1))])
    sender = WeightSender(manifest, {"one": Place.here()})
    with pytest.raises(ValueError, match=r"no receiver 'two'; it knows \['one'\]"):
        WeightReceiver(sender.offer, "two")
    with pytest.raises(ValueError, match="no receivers"):
        WeightSender(manifest, {})


@pytest.mark.long
def test_a_trainer_that_is_not_there_is_named_with_its_address() -> None:
    sender = WeightSender(
        describe([("a", torch.zeros(1))]), {"one": ELSEWHERE}, WeightSyncSettings(host="127.0.0.1", timeout=1)
    )
    receiver = WeightReceiver(sender.offer, "one")
    port = sender.offer.port
    sender.close()
    with pytest.raises(WeightSyncError, match=f"one could not reach the trainer at 127.0.0.1:{port}"):
        receiver.receive().__enter__()


def test_cuda_ipc_on_cpu_says_what_to_use() -> None:
    with pytest.raises(ValueError, match="cuda_ipc shares the memory of one GPU"):
        WeightSender(describe([]), {"one": ELSEWHERE}, WeightSyncSettings(method="cuda_ipc"))


def test_cuda_ipc_never_overwrites_a_buffer_that_somebody_still_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With files in the place of GPU memory: who may write when is the same."""
    same_gpu = Place("a", 1, "gpu-0")
    monkeypatch.setattr(Place, "here", classmethod(lambda cls, device="cpu": same_gpu))
    monkeypatch.setattr(cuda_ipc, "require_cuda", lambda device: None)
    monkeypatch.setattr(cuda_ipc, "synchronize", lambda device: None)
    files: dict[str, torch.Tensor] = {}

    def allocate(size: int, device: torch.device) -> torch.Tensor:
        path = tmp_path / f"buffer{len(files)}"
        files[str(path)] = torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
        return files[str(path)]

    def share(buffer: torch.Tensor) -> dict[str, Any]:
        path = next(path for path, tensor in files.items() if tensor is buffer)
        return {"path": path, "size": buffer.nbytes}

    monkeypatch.setattr(cuda_ipc, "allocate", allocate)
    monkeypatch.setattr(cuda_ipc, "share", share)
    monkeypatch.setattr(
        cuda_ipc,
        "open_shared",
        lambda shared: torch.from_file(shared["path"], shared=True, size=shared["size"], dtype=torch.uint8),
    )
    models = [{f"p{i}": torch.full((100,), 100.0 * seed + i) for i in range(12)} for seed in range(2)]
    sender = WeightSender(
        describe(models[0].items(), bucket_bytes=900),
        {name: Place("a", 2 + index, "gpu-0") for index, name in enumerate(("one", "two"))},
        WeightSyncSettings(timeout=20, host="127.0.0.1"),
    )
    assert sender.offer.method == "cuda_ipc"
    started = threading.Barrier(2)

    def receive(name: str) -> list[Any]:
        receiver, received = WeightReceiver(sender.offer, name), []
        started.wait(10)
        for _ in models:
            with receiver.receive() as update:
                received.append(model_bits(dict(update.named_tensors)))
        receiver.close()
        return received

    with ThreadPoolExecutor(2) as threads:
        results = [threads.submit(receive, name) for name in ("one", "two")]
        for version, model in enumerate(models):
            sender.send(version, model.items())
        assert [result.result(20) for result in results] == [[model_bits(model) for model in models]] * 2
    sender.close()
