"""Optimiser steps of each train strategy beside a plain PyTorch loop: ``python benchmarks/train_step.py``.

Every contestant is a process of its own with the same model and the same batch. They take steps in turn, so that other
work on the machine hits all of them alike; the first round only warms up, and medians count. On the CPU, with one
thread each, time is the processor's, which other work on the machine does not count into; on a GPU it is the clock's.

1. Uniform: rows of one length, in micro-batches of as many rows. The plain loop is a forward pass of the model, the
   cross-entropy of all logits, backward, clipping, AdamW. What `fsdp_train` adds may cost 5 %.
2. Mixed: log-normal lengths. "plain" is the common practice: a fixed number of rows per micro-batch, in the order in
   which they arrived, padded to the longest. The strategies have the same number of tokens per micro-batch as a cap,
   with padding ("padded") or with the rows end to end ("packed"). Tokens per second count tokens that are no padding.
3. Memory of log-probs: forward and backward pass of `forward_log_probs` at two vocabularies and two lengths, in chunks
   of a fixed number of logits and whole. What counts is the peak beyond what was there before the pass.

On a CUDA device the peak is that of the device and the model FLOPs utilisation is reported as well: the arithmetic that
the model needs for a step (6 per weight and token, and causal attention), divided by what the device can do in that
time. All contestants of a table have their models on it at once: fewer ``--strategies`` at a time where it is small.

Prints tables; always exits with 0.
"""

from __future__ import annotations

import argparse
import importlib
import math
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from roll.strategies.base import BatchTotals
from roll.strategies.calling import recompute_activations
from roll.strategies.training.log_probs import forward_log_probs

PARITY_TARGET, PACKING_TARGET, MFU_TARGET, GROWTH_TARGET = 0.95, 1.5, 0.45, 2.0
DEADLINE = 900.0
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12}
"""Dense bf16 arithmetic per second of a device, by a part of its name, from the data sheets of NVIDIA."""

SIZES: dict[str, dict[str, int]] = {
    "tiny": dict(hidden_size=64, num_hidden_layers=2, intermediate_size=192, vocab_size=512, heads=4, key_heads=2),
    "small": dict(hidden_size=256, num_hidden_layers=4, intermediate_size=768, vocab_size=4096, heads=4, key_heads=2),
    "0.5b": dict(
        hidden_size=896, num_hidden_layers=24, intermediate_size=4864, vocab_size=151936, heads=14, key_heads=2
    ),
    "1.5b": dict(
        hidden_size=1536, num_hidden_layers=28, intermediate_size=8960, vocab_size=151936, heads=12, key_heads=2
    ),
}


@dataclass(frozen=True)
class Setup:
    """What a contestant is to do.

    Attributes:
        strategy: ``plain``, or the name of a strategy.
        size: A key of :data:`SIZES`.
        dtype: ``fp32``, or ``bf16`` for mixed precision.
        layout: ``arrival`` (rows as they come), ``padded`` or ``packed`` (up to a number of tokens).
        samples: Rows per micro-batch of ``arrival``.
        tokens: Most tokens per micro-batch otherwise.
        lengths: Tokens of each row of the batch.
        recompute: Gradient checkpointing.
        compile: Compile each layer.
    """

    strategy: str
    size: str
    dtype: str
    layout: str
    samples: int
    tokens: int
    lengths: tuple[int, ...]
    recompute: bool = False
    compile: bool = False

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.strategy}, {self.layout}"


Step = Callable[[TensorDict], None]


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_model(size: str) -> PreTrainedModel:
    values = dict(SIZES[size])
    heads, key_heads = values.pop("heads"), values.pop("key_heads")
    torch.manual_seed(0)
    config = Qwen3Config(
        **values,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=values["hidden_size"] // heads,
        tie_word_embeddings=True,
        max_position_embeddings=32768,
        attn_implementation="sdpa",
    )
    with device():  # drawn there too: half a billion numbers take a processor half a minute
        return Qwen3ForCausalLM(config)


def make_batch(lengths: tuple[int, ...], vocabulary: int) -> TensorDict:
    """Return rows of random tokens, trained on all but the first."""
    noise, width = torch.Generator().manual_seed(0), max(lengths)
    sizes = torch.tensor(lengths)
    inside = torch.arange(width) < sizes.unsqueeze(1)
    ids = torch.randint(1, vocabulary, (len(lengths), width), generator=noise) * inside
    mask = inside.clone()
    mask[:, 0] = False
    return TensorDict({"input_ids": ids, "response_mask": mask, "lengths": sizes}, batch_size=[len(lengths)])


class NegativeLogLikelihood:
    """Mean over the trained tokens of the batch."""

    needs_entropy = False

    def totals(self, batch: TensorDict) -> BatchTotals:
        """Count."""
        tokens = int(batch["response_mask"].sum())
        return BatchTotals(tokens, len(batch), measured_tokens=tokens)

    def contributing_rows(self, batch: TensorDict) -> None:
        """All of them."""
        return None

    def __call__(
        self, outputs: Tensor, entropy: Tensor | None, batch: TensorDict, totals: BatchTotals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a micro-batch's share."""
        return -(outputs * batch["response_mask"]).sum() / totals.tokens, {}


def plain(setup: Setup, model: PreTrainedModel) -> Step:
    """The loop that one writes by hand."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": vectors}], lr=1e-5, weight_decay=0.0)
    if setup.recompute:
        recompute_activations(model)
    model.train()

    def step(batch: TensorDict) -> None:
        tokens = int(batch["response_mask"].sum())
        for start in range(0, len(batch), setup.samples):
            rows = slice(start, start + setup.samples)
            width = int(batch["lengths"][rows].max())
            ids = batch["input_ids"][rows, :width].to(device())
            targets = ids[:, 1:].masked_fill(~batch["response_mask"][rows, 1:width].to(device()), -100)
            with torch.autocast(device().type, torch.bfloat16, enabled=setup.dtype == "bf16"):
                logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100, reduction="sum"
            )
            (loss / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _options(setup: Setup) -> Any:
    from roll.strategies.jobs import TrainOptions

    # The cap on samples stands for the order of arrival: all rows of a uniform batch are equal.
    arrival = setup.layout == "arrival"
    return TrainOptions(
        learning_rate=1e-5,
        max_tokens_per_microbatch=None if arrival else setup.tokens,
        max_samples_per_microbatch=setup.samples if arrival else None,
        use_sequence_packing=setup.layout == "packed",
        mixed_precision=setup.dtype == "bf16",
        gradient_checkpointing=setup.recompute,
    )


def _steps_of(trainer: Any) -> Step:
    loss = NegativeLogLikelihood()
    return lambda batch: trainer.train_step(batch, loss)


def fsdp_train(setup: Setup, model: PreTrainedModel) -> Step:
    from roll.strategies.training.pytorch.options import FsdpOptions
    from roll.strategies.training.pytorch.train import FsdpTrainStrategy

    return _steps_of(FsdpTrainStrategy(model, _options(setup), fsdp=FsdpOptions(torch_compile=setup.compile)))


def deepspeed_train(setup: Setup, model: PreTrainedModel) -> Step:
    """ZeRO stage 0: nothing to spread in one process."""
    strategy = importlib.import_module("roll.strategies.training.deepspeed.train").DeepSpeedTrainStrategy
    return _steps_of(strategy(model, _options(setup), config={"zero_optimization": {"stage": 0}}))


def megatron_train(setup: Setup, model: PreTrainedModel) -> Step:
    strategy = importlib.import_module("roll.strategies.training.megatron.train").MegatronTrainStrategy
    return _steps_of(strategy(model, _options(setup)))


CONTESTANTS: dict[str, Callable[[Setup, PreTrainedModel], Step]] = {
    "plain": plain,
    "fsdp_train": fsdp_train,
    "deepspeed_train": deepspeed_train,
    "megatron_train": megatron_train,
}
"""From what to do and a model to a function that takes one optimiser step; engines are imported when called."""

PACKAGES = {"deepspeed_train": "deepspeed", "megatron_train": "megatron.core"}


def missing(strategy: str) -> str | None:
    """Return why a strategy cannot run here, or ``None``."""
    if strategy == "megatron_train" and device().type != "cuda":
        return "Megatron-Core needs a CUDA device (its tests on the CPU replace parts of it)"
    try:
        importlib.import_module(PACKAGES.get(strategy, "torch"))
    except ImportError as error:
        return str(error)
    return None


def memory_now() -> int:
    """Return bytes in use: of the device, else resident ones of this process."""
    if device().type == "cuda":
        return torch.cuda.memory_allocated()
    return _status("VmRSS")


def reset_peak() -> None:
    if device().type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def peak_memory() -> int:
    """Return the largest number of bytes in use since :func:`reset_peak`."""
    return torch.cuda.max_memory_allocated() if device().type == "cuda" else _status("VmHWM")


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def contestant(pipe: Connection, setup: Setup, threads: int) -> None:
    """Take a step whenever asked, and say how long it took; at the end, what it took of memory and padding."""
    torch.set_num_threads(threads)
    clock = time.process_time if device().type == "cpu" and threads == 1 else time.perf_counter
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1", **where)
    before = memory_now()
    model = make_model(setup.size)
    computed = [0]
    model.get_input_embeddings().register_forward_pre_hook(
        lambda module, arguments: computed.__setitem__(0, computed[0] + arguments[0].numel())
    )
    step = CONTESTANTS[setup.strategy](setup, model)
    batch = make_batch(setup.lengths, model.config.vocab_size)
    pipe.send("ready")
    reset_peak()
    while pipe.recv() == "step":
        computed[0] = 0
        _wait()
        start = clock()
        step(batch)
        _wait()
        pipe.send(clock() - start)
    recomputed = 2 if setup.recompute and computed[0] > 1.5 * sum(setup.lengths) else 1
    pipe.send((peak_memory() - before, 1 - sum(setup.lengths) * recomputed / computed[0], flops(model, setup.lengths)))


def _wait() -> None:
    if device().type == "cuda":
        torch.cuda.synchronize()


def flops(model: PreTrainedModel, lengths: tuple[int, ...]) -> float:
    """Return the arithmetic of one step: 6 per weight that multiplies a token, and that of causal attention."""
    config = model.config
    weights = sum(p.numel() for name, p in model.named_parameters() if p.ndim >= 2 and "embed_tokens" not in name)
    weights += config.vocab_size * config.hidden_size if config.tie_word_embeddings else 0
    width = config.num_attention_heads * config.head_dim
    # Scores and their product with the values: 2 x 2 x length / 2 each, three times that with the backward pass.
    return sum(6.0 * weights * n + 6.0 * config.num_hidden_layers * width * n**2 for n in lengths)


@dataclass
class Result:
    """What was measured of a contestant."""

    setup: Setup
    seconds: list[float]
    peak: int
    padding: float
    flops: float

    @property
    def tokens_per_second(self) -> float:
        """Of those that are no padding."""
        return sum(self.setup.lengths) / statistics.median(self.seconds)

    def ratio_to(self, other: Result) -> float:
        """Return how many times as fast, the median over rounds: both took a step right after each other."""
        return statistics.median(theirs / ours for ours, theirs in zip(self.seconds, other.seconds, strict=True))


def measure(setups: list[Setup], rounds: int, threads: int) -> list[Result]:
    """Let contestants take steps in turn, each in a fresh process."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    try:
        for setup in setups:
            ours, theirs = context.Pipe()
            process = context.Process(target=contestant, args=(theirs, setup, threads), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
            _receive(ours, setup)
        seconds: list[list[float]] = [[] for _ in setups]
        for number in range(rounds + 1):
            # The order turns round, so that nobody is always first.
            turn = list(zip(setups, pipes, seconds, strict=True))
            for setup, pipe, taken in turn if number % 2 else reversed(turn):
                pipe.send("step")
                taken.append(_receive(pipe, setup))
        results = []
        for setup, pipe, taken in zip(setups, pipes, seconds, strict=True):
            pipe.send("stop")
            results.append(Result(setup, taken[1:], *_receive(pipe, setup)))
        return results
    finally:
        for process in processes:
            process.join(5)
            process.kill()


def _receive(pipe: Connection, setup: Setup) -> Any:
    if not pipe.poll(DEADLINE):
        raise TimeoutError(f"{setup.name} did not answer within {DEADLINE:.0f} s")
    return pipe.recv()


def table(title: str, results: list[Result], wanted: dict[str, float]) -> None:
    """Print results beside the first of them."""
    first = results[0]
    print(f"\n{title}\n{'':<26}{'tokens/s':>10}{'to plain':>10}{'target':>9}{'peak MB':>9}{'padding':>9}  verdict")
    for result in results:
        ratio, target = result.ratio_to(first), wanted.get(result.setup.name)
        line = f"{result.setup.name:<26}{result.tokens_per_second:>10.0f}{ratio:>9.2f}x"
        line += f"{target:>8.2f}x" if target else " " * 9
        line += f"{result.peak / 1e6:>9.0f}{result.padding:>9.1%}"
        line += f"  {'PASS' if ratio >= target else 'FAIL'}" if target else "  "
        print(f"{line}   (steps {min(result.seconds):.3f}-{max(result.seconds):.3f} s{utilisation(result)})")


def utilisation(result: Result) -> str:
    """Return the model FLOPs utilisation in words; nothing on a CPU."""
    if device().type != "cuda":
        return ""
    name = torch.cuda.get_device_name()
    peak = next((value for key, value in PEAK_FLOPS.items() if key in name), None)
    if peak is None:
        return f"; {name} is not in PEAK_FLOPS"
    share = result.flops / statistics.median(result.seconds) / peak
    return f"; MFU {share:.1%}, target {MFU_TARGET:.0%} in bf16"


def log_normal_lengths(rows: int, low: int, high: int) -> tuple[int, ...]:
    """Return lengths whose median is an eighth of the longest, in the order of their arrival."""
    noise = torch.Generator().manual_seed(1)
    drawn = torch.exp(math.log(high / 8) + 0.9 * torch.randn(rows, generator=noise))
    return tuple(int(length) for length in drawn.round().clamp(low, high))


def log_prob_pass(pipe: Connection, vocabulary: int, tokens: int, chunk: int | None, threads: int) -> None:
    """Send the peak of one forward and backward pass beyond what was there before it."""
    torch.set_num_threads(threads)
    sizes = dict(SIZES["tiny"], vocab_size=vocabulary)
    SIZES["of this pass"] = sizes
    model = make_model("of this pass")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    batch = make_batch((tokens // 4,) * 4, vocabulary).to(device())
    before = memory_now()
    reset_peak()
    outputs = forward_log_probs(model, batch["input_ids"], batch["response_mask"], with_entropy=True, chunk_size=chunk)
    (outputs.log_probs.sum() + outputs.entropy.sum()).backward()  # type: ignore[union-attr]
    pipe.send(peak_memory() - before)


def log_prob_memory(logits: int, threads: int) -> None:
    """Print peaks at two vocabularies and two numbers of tokens, in chunks and whole."""
    # Read when a process starts: freed blocks go back to the system at once, so that they do not count as in use.
    os.environ.update(MALLOC_MMAP_THRESHOLD_="1000000", MALLOC_TRIM_THRESHOLD_="1000000")
    context = multiprocessing.get_context("spawn")
    print(f"\nMemory of log-probs and entropies, forward and backward; chunks of {logits / 2**20:.0f} M logits")
    chunked: list[float] = []
    print(f"{'vocabulary':>10}{'tokens':>8}{'all logits MB':>15}{'chunked peak MB':>17}{'whole peak MB':>15}")
    for vocabulary in (16384, 65536):
        for tokens in (1024, 4096):
            peaks = []
            for chunk in (logits // vocabulary, tokens):
                ours, theirs = context.Pipe()
                process = context.Process(target=log_prob_pass, args=(theirs, vocabulary, tokens, chunk, threads))
                process.start()
                theirs.close()
                try:
                    if not ours.poll(DEADLINE):
                        raise TimeoutError(f"a pass did not end within {DEADLINE:.0f} s")
                    peaks.append(ours.recv() / 1e6)
                finally:
                    process.join(5)
                    process.kill()
            chunked.append(peaks[0])
            held = vocabulary * tokens * 4 / 1e6
            print(f"{vocabulary:>10}{tokens:>8}{held:>15.0f}{peaks[0]:>17.0f}{peaks[1]:>15.0f}")
    growth = max(chunked) / min(chunked)
    verdict = "PASS" if growth <= GROWTH_TARGET else "FAIL"
    print(f"16 times the logits: chunked peak {growth:.1f} times, target {GROWTH_TARGET:.0f} at most: {verdict}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", default="fsdp_train,deepspeed_train,megatron_train")
    parser.add_argument("--model-size", choices=SIZES, default="small")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rows", type=int, default=16, help="rows of the uniform batch; twice as many mixed ones")
    parser.add_argument("--length", type=int, default=256, help="tokens of the longest row")
    parser.add_argument("--samples", type=int, default=8, help="rows of a micro-batch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="threads of a contestant on the CPU")
    parser.add_argument("--only", choices=["uniform", "mixed", "memory"])
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing, in the plain loop too")
    parser.add_argument("--compile", action="store_true", help="compile the layers of fsdp_train")
    arguments = parser.parse_args()
    strategies = []
    for name in arguments.strategies.split(","):
        reason = missing(name) if name in CONTESTANTS else f"not one of {', '.join(CONTESTANTS)}"
        if reason is not None:
            print(f"skipped {name}: {reason}")
        else:
            strategies.append(name)
    print(f"model {arguments.model_size} in {arguments.dtype} on {device().type}, {arguments.rounds} rounds")
    common: dict[str, Any] = dict(
        size=arguments.model_size,
        dtype=arguments.dtype,
        samples=arguments.samples,
        tokens=arguments.samples * arguments.length,
        recompute=arguments.recompute,
        compile=arguments.compile,
    )

    def run(layouts: list[tuple[str, str]], lengths: tuple[int, ...]) -> list[Result]:
        setups = [Setup(strategy=name, layout=layout, lengths=lengths, **common) for name, layout in layouts]
        return measure(setups, arguments.rounds, arguments.threads)

    if arguments.only in (None, "uniform"):
        even = run([(name, "arrival") for name in ("plain", *strategies)], (arguments.length,) * arguments.rows)
        table("Uniform lengths", even, {"fsdp_train, arrival": PARITY_TARGET})
    if arguments.only in (None, "mixed"):
        mixed = log_normal_lengths(2 * arguments.rows, 8, arguments.length)
        layouts = [(name, layout) for name in strategies for layout in ("padded", "packed")]
        results = run([("plain", "arrival"), *layouts], mixed)
        table("Log-normal lengths", results, {f"{name}, packed": PACKING_TARGET for name in strategies})
    if arguments.only in (None, "memory"):
        log_prob_memory(2**22, arguments.threads)


if __name__ == "__main__":
    main()
