"""Engines for the weight sync tests, each in a process of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

from roll.distributed.weight_sync import Place, WeightOffer, WeightReceiver, WeightSender, WeightSyncSettings, describe

CONTEXT = multiprocessing.get_context("spawn")
ELSEWHERE = Place("127.0.0.1", 0)
Model = dict[str, torch.Tensor]


def make_model(seed: int) -> Model:
    """Return tensors with everything that layouts get wrong: odd sizes, scalars, nothing, ties, views, many types."""
    generator = torch.Generator().manual_seed(seed)
    random = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    embedding = random(37, 5)
    return {
        "embed.weight": embedding,
        "scalar": random(),
        "empty": torch.empty(0, 3),
        "odd": random(3, 1, 7).to(torch.bfloat16),
        "half": random(13).to(torch.float16),
        "double": random(3).to(torch.float64),
        "count": torch.randint(0, 2**40, (3,), generator=generator),
        "flag": torch.rand(5, generator=generator) > 0.5,
        "transposed": random(4, 9).t(),
        "large": random(100, 30),
        "nan": torch.tensor([float("nan"), float("-inf"), -0.0]),
        "head.weight": embedding,
    }


def bits(tensor: torch.Tensor) -> bytes:
    """Return the exact bytes of the values."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def model_bits(model: Model) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return type, shape and bytes of every tensor."""
    return {name: (str(tensor.dtype), tuple(tensor.shape), bits(tensor)) for name, tensor in model.items()}


@dataclass
class Answer:
    """What an engine process says at its end."""

    name: str
    versions: list[int]
    models: list[Any]
    error: str = ""
    error_type: str = ""
    seconds: float = 0.0
    peak_buffer_bytes: int = 0
    peak_growth_bytes: int = 0


def collect(receiver: WeightReceiver, answer: Answer) -> None:
    """Keep a copy of what arrives."""
    with receiver.receive() as update:
        model = {name: tensor.clone() for name, tensor in update.named_tensors}
    answer.versions.append(update.version)
    answer.models.append(model_bits(model))


def receive_syncs(receiver: WeightReceiver, answer: Answer, syncs: int) -> None:
    """Receive a number of syncs."""
    for _ in range(syncs):
        collect(receiver, answer)


def die_at_second_tensor(receiver: WeightReceiver, answer: Answer, victim: str) -> None:
    """End the process of ``victim`` in the middle of a sync, without a word."""
    with receiver.receive() as update:
        for number, _ in enumerate(update.named_tensors):
            if receiver.name == victim and number == 1:
                os._exit(9)


def refuse_at_second_tensor(receiver: WeightReceiver, answer: Answer, culprit: str) -> None:
    """Fail as an engine may: in its own code."""
    with receiver.receive() as update:
        for number, (name, _) in enumerate(update.named_tensors):
            if receiver.name == culprit and number == 1:
                raise KeyError(f"no place for {name}")


def stop_early(receiver: WeightReceiver, answer: Answer) -> None:
    """Read one tensor and be content."""
    with receiver.receive() as update:
        next(iter(update.named_tensors))


def keep_all(receiver: WeightReceiver, answer: Answer) -> None:
    """Keep the tensors themselves, no copies, until all have come."""
    with receiver.receive() as update:
        model = dict(update.named_tensors)
    answer.models.append(model_bits(model))


def load_large(receiver: WeightReceiver, answer: Answer, tensors: int, shape: tuple[int, ...]) -> None:
    """Load a large model and watch the memory of the process."""
    model = {f"layer.{number}": torch.zeros(shape) for number in range(tensors)}
    for attempt in range(2):
        # The first sync also loads libraries and makes connections; the second shows what a sync needs.
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_bytes("VmHWM")
        with receiver.receive() as update:
            for name, tensor in update.named_tensors:
                model[name].copy_(tensor)
        if attempt == 0:
            receiver._link.pool._free.clear()  # type: ignore[union-attr]
            receiver._link.pool._lent.clear()  # type: ignore[union-attr]
    answer.peak_growth_bytes = _status_bytes("VmHWM") - before
    answer.peak_buffer_bytes = receiver.peak_buffer_bytes
    answer.models.append(sum(tensor.double().sum().item() for tensor in model.values()))


def _status_bytes(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key + ":"))
    return int(line.split()[1]) * 1024


@dataclass
class Job:
    """What an engine process is to do."""

    offer: WeightOffer
    name: str
    behave: Callable[..., None]
    arguments: tuple[Any, ...]


def engine_process(jobs: Any) -> None:
    """Do jobs until the pipe closes."""
    torch.set_num_threads(1)
    while True:
        try:
            job: Job = jobs.recv()
        except EOFError:
            return
        answer = Answer(job.name, [], [])
        start = time.monotonic()
        receiver = WeightReceiver(job.offer, job.name)
        try:
            job.behave(receiver, answer, *job.arguments)
        except Exception as error:
            answer.error, answer.error_type = str(error), type(error).__name__
        answer.seconds = time.monotonic() - start
        receiver.close()
        jobs.send(answer)


class Crew:
    """Engine processes that serve one test after another, for they take seconds to start."""

    def __init__(self) -> None:
        self._members: list[tuple[Any, Any]] = []

    def member(self, index: int) -> Any:
        """Return the pipe to a living process, started anew if its predecessor died."""
        while len(self._members) <= index:
            self._members.append(self._start())
        if not self._members[index][0].is_alive():
            self._members[index] = self._start()
        return self._members[index][1]

    def _start(self) -> tuple[Any, Any]:
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=engine_process, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def close(self) -> None:
        """End all processes."""
        for process, pipe in self._members:
            pipe.close()
            process.join(timeout=10)
            if process.is_alive():
                process.kill()


class Engines:
    """Engines at work, and the sender that serves them."""

    def __init__(self, sender: WeightSender, pipes: dict[str, Any]) -> None:
        self.sender, self._pipes = sender, pipes

    def answer(self, name: str = "engine 0") -> Answer:
        """Return what an engine says at its end."""
        pipe = self._pipes.pop(name)
        assert pipe.poll(300), f"{name} said nothing"
        answer: Answer = pipe.recv()
        return answer

    def answers(self) -> list[Answer]:
        """Return what all engines say."""
        return [self.answer(name) for name in list(self._pipes)]

    def forget(self, name: str) -> None:
        """Expect no answer of an engine."""
        del self._pipes[name]


@contextmanager
def engines(
    crew: Crew,
    model: Model,
    behave: Callable[..., None],
    *arguments: Any,
    count: int = 2,
    bucket_bytes: int = 512,
    wire_dtype: torch.dtype | None = None,
    settings: WeightSyncSettings | None = None,
    absent: str | None = None,
) -> Iterator[Engines]:
    """Have ``count`` engines ``behave(receiver, answer, *arguments)``, all but ``absent``, and make their sender."""
    manifest = describe(model.items(), bucket_bytes=bucket_bytes, wire_dtype=wire_dtype)
    settings = settings or WeightSyncSettings(timeout=30, host="127.0.0.1")
    sender = WeightSender(manifest, {f"engine {index}": ELSEWHERE for index in range(count)}, settings)
    pipes = {name: crew.member(index) for index, name in enumerate(sender.offer.receivers) if name != absent}
    for name, pipe in pipes.items():
        pipe.send(Job(sender.offer, name, behave, arguments))
    running = Engines(sender, pipes)
    try:
        yield running
    finally:
        sender.close()
        # The next test needs them idle.
        running.answers()
