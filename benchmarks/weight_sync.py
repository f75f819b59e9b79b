"""Weight sync beside a plain copy of the same bytes: ``python benchmarks/weight_sync.py``.

One trainer sends a model of 500 MB (124 M float32 parameters in the shapes of GPT-2 small, embeddings tied) to one and
to two engines, each a process of its own on this machine. Ours is the whole sync over gloo: packing into buckets,
sending, loading into the engine's parameters, and its answer.

The plain copy is one gloo broadcast of the same number of bytes in a single flat tensor, which nobody packs, unpacks or
loads. Both alternate in the same processes; a round that only warms up comes first, and medians count. Every engine
checks that it has the trainer's weights, bit for bit.

Prints a table; always exits with 0.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from ratios import leave
from torch import distributed, multiprocessing

from roll.distributed.weight_sync import (
    Place,
    WeightOffer,
    WeightReceiver,
    WeightSender,
    WeightSyncSettings,
    describe,
)

TARGET = 2.0
TIMEOUT = 300.0


@dataclass(frozen=True)
class Size:
    """Of a model in the shapes of GPT-2 small: words of its vocabulary, and layers."""

    words: int
    layers: int


def make_model(seed: int, size: Size) -> dict[str, torch.Tensor]:
    """Return parameters in the shapes of GPT-2 small."""
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (size.words, 768), "wpe.weight": (1024, 768)}
    for layer in range(size.layers):
        for name, wide, high in (
            ("attn.c_attn", 768, 2304),
            ("attn.c_proj", 768, 768),
            ("mlp.c_fc", 768, 3072),
            ("mlp.c_proj", 3072, 768),
        ):
            shapes[f"h.{layer}.{name}.weight"] = (wide, high)
            shapes[f"h.{layer}.{name}.bias"] = (high,)
        for name in ("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"):
            shapes[f"h.{layer}.{name}"] = (768,)
    generator = torch.Generator().manual_seed(seed)
    model = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return model | {"lm_head.weight": model["wte.weight"]}


def plain_group(port: int, rank: int, size: int) -> tuple[Any, Any]:
    """Return a gloo group, as simple as it gets, and the store to meet in."""
    store = distributed.TCPStore(
        "127.0.0.1", port, is_master=rank == 0, timeout=timedelta(seconds=TIMEOUT), wait_for_workers=False
    )
    return store, lambda: distributed.ProcessGroupGloo(store, rank, size, timedelta(seconds=TIMEOUT))


def engine(offer: WeightOffer, name: str, port: int, rounds: int, nbytes: int, size: Size, results: Any) -> None:
    """Receive in alternation, ours and plain."""
    torch.set_num_threads(1)
    model = make_model(1, size)
    flat = torch.zeros(nbytes, dtype=torch.uint8)
    _, make_group = plain_group(port, offer.receivers.index(name) + 1, len(offer.receivers) + 1)
    group = make_group()
    receiver = WeightReceiver(offer, name)
    for _ in range(rounds):
        group.barrier().wait()
        group.broadcast(flat, 0).wait()
        group.barrier().wait()
        with receiver.receive() as update:
            for key, tensor in update.named_tensors:
                model[key].copy_(tensor)
    wanted = make_model(0, size)
    results.put((all(torch.equal(model[key], wanted[key]) for key in wanted), receiver.peak_buffer_bytes))
    receiver.close()


@dataclass
class Result:
    """Seconds of each round, and what was moved."""

    ours: list[float]
    plain: list[float]
    nbytes: int
    same: bool
    buffer_bytes: int


def measure(engines: int, rounds: int, bucket_bytes: int | None, size: Size) -> Result:
    """Run ours and the plain copy in alternation."""
    context = multiprocessing.get_context("spawn")
    model = make_model(0, size)
    manifest = describe(model.items()) if bucket_bytes is None else describe(model.items(), bucket_bytes=bucket_bytes)
    elsewhere = Place("another process", os.getpid())
    sender = WeightSender(
        manifest,
        {f"engine {index}": elsewhere for index in range(engines)},
        WeightSyncSettings(method="broadcast", host="127.0.0.1", timeout=TIMEOUT),
    )
    store, make_group = plain_group(0, 0, engines + 1)
    results = context.Queue()
    arguments = (store.port, rounds, manifest.nbytes, size, results)
    processes = [
        context.Process(target=engine, args=(sender.offer, name, *arguments)) for name in sender.offer.receivers
    ]
    for process in processes:
        process.start()
    group = make_group()
    flat = torch.zeros(manifest.nbytes, dtype=torch.uint8)
    ours, plain = [], []
    for version in range(rounds):
        group.barrier().wait()
        start = time.perf_counter()
        group.broadcast(flat, 0).wait()
        # Without it the time would end when the last byte is in a socket, not when it has arrived.
        group.barrier().wait()
        plain.append(time.perf_counter() - start)
        ours.append(sender.send(version, model.items())["weight_sync/seconds"])
    received = [results.get(timeout=TIMEOUT) for _ in processes]
    for process in processes:
        process.join()
    sender.close()
    same, peaks = all(same for same, _ in received), [peak for _, peak in received]
    return Result(ours[1:], plain[1:], manifest.nbytes, same, max(peaks))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bucket-mib", type=int, help="most MiB of a bucket (default: as in a run)")
    parser.add_argument("--vocabulary", type=int, default=50257, help="a smaller model has fewer words")
    parser.add_argument("--layers", type=int, default=12, help="and fewer layers")
    arguments = parser.parse_args()
    bucket_bytes = arguments.bucket_mib * 1024**2 if arguments.bucket_mib else None
    torch.set_num_threads(1)
    print("engines      MB    ours s   plain s  ours GB/s   ratio  target  verdict")
    for engines in (1, 2):
        result = measure(engines, arguments.rounds + 1, bucket_bytes, Size(arguments.vocabulary, arguments.layers))
        ours, plain = statistics.median(result.ours), statistics.median(result.plain)
        leave(f"weight_sync: {engines} engines", [p / o for o, p in zip(result.ours, result.plain, strict=True)])
        verdict = ("PASS" if ours / plain <= TARGET else "FAIL") if result.same else "FAIL: weights differ"
        print(
            f"{engines:>7}{result.nbytes / 1e6:>8.0f}{ours:>10.3f}{plain:>10.3f}"
            f"{result.nbytes / ours / 1e9:>11.2f}{ours / plain:>7.2f}x{TARGET:>7.1f}x  {verdict}"
            f"   (ours {min(result.ours):.3f}-{max(result.ours):.3f} s, plain {min(result.plain):.3f}-"
            f"{max(result.plain):.3f} s; an engine's buffers {result.buffer_bytes / 1e6:.0f} MB)"
        )


if __name__ == "__main__":
    main()
