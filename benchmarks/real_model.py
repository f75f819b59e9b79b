"""Tokens per second of ``hf_infer`` and of other engines, with a real model on this machine's processors.

    OMP_NUM_THREADS=2 python benchmarks/real_model.py [--requests 1 8 32 128] [--dtypes fp32 bf16] [--engines …]

SmolLM2-135M-Instruct (``make smollm``) completes random prompts of 64 tokens by 48 more, greedily, all requests at
once:

* ``hf_infer``: our engine;
* ``packed``: our engine with ``pack_weights``, a second copy of its weights;
* ``compiled``: the same with ``torch_compile``, which takes some minutes and a C++ compiler;
* ``generate``: ``model.generate`` of transformers, all prompts as one batch;
* ``continuous``: ``model.generate_batch`` of transformers, continuous batching over a paged cache;
* ``vllm``: vLLM for CPUs with its own defaults (``make vllm``), by ``LLM.generate``;
* ``llama.cpp``: with ``--llama``, a folder with its programs ``llama-batched-bench`` and ``convert_hf_to_gguf.py``.

Each has a process of its own, with the variables that a run has, and is warmed up with the same work once. In each of
``--rounds`` rounds all are asked in turn, since the memory of a machine that others use too is not always as fast; what
counts is the median. ``bound`` is what one request could have if nothing took time but reading each weight once per
token, as fast as this machine reads in a dot product of a large tensor with itself.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from roll.config.process import prepare_process

prepare_process()

import torch  # noqa: E402
from ratios import leave  # noqa: E402

PROMPT = 64
NEW = 48
MARK = "MEASURED "

Prompts = list[list[int]]
Complete = Callable[[Prompts], None]


def prompts(count: int) -> Prompts:
    """Return random prompts."""
    noise = torch.Generator().manual_seed(count)
    return torch.randint(1000, 40_000, (count, PROMPT), generator=noise).tolist()


def hf_infer(dtype: str, **options: bool) -> Complete:
    """Return what completes prompts with our engine."""
    from roll.generation import GenerationRequest, SamplingParams
    from roll.models.loading import load_model
    from roll.strategies.generation.hf_infer.strategy import HfInferStrategy

    engine = HfInferStrategy(load_model("smollm2", dtype=dtype), max_slots=128, max_length=PROMPT + NEW, **options)
    sampling = SamplingParams(max_new_tokens=NEW, temperature=0.0)

    async def complete(asked: Prompts) -> None:
        requests = [GenerationRequest(str(number), prompt, sampling) for number, prompt in enumerate(asked)]
        answers = await asyncio.gather(*(engine.generate(request) for request in requests))
        assert all(len(answer.token_ids) == NEW for answer in answers)

    return lambda asked: asyncio.run(complete(asked))


def generate(dtype: str) -> Complete:
    """Return what completes prompts with one call of ``model.generate``."""
    from roll.models.loading import load_model

    model = load_model("smollm2", dtype=dtype)

    def complete(asked: Prompts) -> None:
        ids = torch.tensor(asked)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                do_sample=False,
                pad_token_id=0,
            )
        assert out.shape == (len(asked), PROMPT + NEW)

    return complete


def continuous(dtype: str) -> Complete:
    """Return what completes prompts with continuous batching of transformers."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    from roll.models.loading import load_model

    model = load_model("smollm2", dtype=dtype)
    # No token ends it: the engine has no least number of tokens.
    wanted = GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)

    def complete(asked: Prompts) -> None:
        # What it infers from the memory of a GPU: as much as these prompts need.
        cache = ContinuousBatchingConfig(
            page_size=32,
            num_blocks=len(asked) * -(-(PROMPT + NEW) // 32) + 1,
            max_batch_tokens=max(512, len(asked)),
            max_requests_per_batch=len(asked),
        )
        answers = model.generate_batch(asked, generation_config=wanted, continuous_batching_config=cache)
        assert [len(answer.generated_tokens) for answer in answers.values()] == [NEW] * len(asked)

    return complete


def vllm(dtype: str) -> Complete:
    """Return what completes prompts with vLLM."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # as many threads as the others
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from vllm import LLM, SamplingParams

    from roll.models.finding import resolve_pretrain

    named = {"fp32": "float32", "bf16": "bfloat16"}[dtype]
    engine = LLM(
        model=resolve_pretrain("smollm2"),
        dtype=named,
        max_model_len=PROMPT + NEW,
        max_num_seqs=128,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True, detokenize=False)

    def complete(asked: Prompts) -> None:
        answers = engine.generate([{"prompt_token_ids": prompt} for prompt in asked], sampling, use_tqdm=False)
        assert all(len(answer.outputs[0].token_ids) == NEW for answer in answers)

    return complete


OURS = {
    "hf_infer": hf_infer,
    "packed": partial(hf_infer, pack_weights=True),
    "compiled": partial(hf_infer, pack_weights=True, torch_compile=True),
}
ENGINES = {**OURS, "generate": generate, "continuous": continuous, "vllm": vllm}


def serve(engine: str, dtype: str) -> None:
    """Tell the tokens per second of each number of requests that a line of the input names."""
    complete = ENGINES[engine](dtype)
    for line in sys.stdin:
        count = int(line)
        asked = prompts(count)
        begun = time.perf_counter()
        complete(asked)
        print(f"{MARK}{count * NEW / (time.perf_counter() - begun)}", flush=True)


class Apart:
    """An engine in a process of its own."""

    def __init__(self, engine: str, dtype: str) -> None:
        words = [sys.executable, __file__, "--alone", engine, "--dtypes", dtype]
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            words, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said
        )
        self._name = f"{engine} with {dtype}"

    def ask(self, count: int) -> float:
        """Return the tokens per second of so many requests."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(MARK):
                return float(line.removeprefix(MARK))
        self._said.seek(0)
        sys.exit(f"{self._name} failed:\n{self._said.read()[-3000:]}")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


class Llama:
    """llama.cpp, by its own benchmark.

    Args:
        folder: Where its programs are.
        model: Where the model in its format is written.
        dtype: Of the weights.
    """

    def __init__(self, folder: Path, model: Path, dtype: str) -> None:
        from roll.models.finding import resolve_pretrain

        self._folder, self._model = folder, model
        kind = {"fp32": "f32", "bf16": "bf16"}[dtype]
        convert = [sys.executable, folder / "convert_hf_to_gguf.py", resolve_pretrain("smollm2")]
        subprocess.run([*convert, "--outtype", kind, "--outfile", model], check=True, capture_output=True)

    def ask(self, count: int) -> float:
        """Return the tokens per second of so many requests, from its table."""
        size, threads = str(count * (PROMPT + NEW)), str(torch.get_num_threads())
        words = [self._folder / "llama-batched-bench", "-m", self._model, "-t", threads, "-tb", threads, "-c", size]
        words += f"-npp {PROMPT} -ntg {NEW} -npl {count} --output-format jsonl".split()
        told = subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)
        (row,) = re.findall(r"^\{.*\}$", told.stdout, re.MULTILINE)
        return float(count * NEW / json.loads(row)["t"])

    def close(self) -> None:
        """Do nothing: each answer was a process of its own."""


def contest(
    engines: Mapping[str, Apart | Llama], counts: Sequence[int], rounds: int
) -> dict[str, dict[int, list[float]]]:
    """Return the tokens per second of each round, by engine and number of requests."""
    found: dict[str, dict[int, list[float]]] = {name: {count: [] for count in counts} for name in engines}
    for count in counts:
        for engine in engines.values():
            engine.ask(count)
        for _ in range(rounds):
            for name, engine in engines.items():
                found[name][count].append(engine.ask(count))
    return found


def bandwidth() -> float:
    """Return the bytes that all threads together read in a second."""
    much = torch.ones(1 << 28)
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        torch.dot(much, much)
        seconds.append(time.perf_counter() - begun)
    return much.nbytes / min(seconds)


def main() -> None:
    """Ask every engine, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    installed = [name for name in ENGINES if name != "vllm" or importlib.util.find_spec("vllm")]
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--dtypes", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=installed, help="those installed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama", type=Path, help="folder with the programs of llama.cpp")
    parser.add_argument("--alone", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        serve(args.alone, args.dtypes[0])
        return
    from roll.models.loading import load_model

    weights = sum(parameter.numel() for parameter in load_model("smollm2").parameters())
    read = bandwidth()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, which read {read / 1e9:.1f} GB/s; tokens/s")
    print(f"{'':18}" + "".join(f"{count:>9}" for count in args.requests))
    for dtype in args.dtypes:
        print(f"{dtype} {'bound':13}{read / weights / (4 if dtype == 'fp32' else 2):9.1f}", flush=True)
        with tempfile.TemporaryDirectory() as made:
            engines: dict[str, Apart | Llama] = {name: Apart(name, dtype) for name in args.engines}
            if args.llama:
                engines["llama.cpp"] = Llama(args.llama, Path(made, "model.gguf"), dtype)
            speeds = contest(engines, args.requests, args.rounds)
            for engine in engines.values():
                engine.close()
        for name, found in speeds.items():
            print(f"{dtype} {name:13}" + "".join(f"{statistics.median(each):9.1f}" for each in found.values()))
        # Of ours what one has who sets nothing, and the quickest.
        own = [name for name in speeds if name in ("hf_infer", "compiled")]
        for ours, peer in itertools.product(own, [name for name in speeds if name not in OURS]):
            for count, rounds in speeds[ours].items():
                ratios = [mine / other for mine, other in zip(rounds, speeds[peer][count], strict=True)]
                leave(f"real_model: {dtype}, {count} requests, {ours} against {peer}", ratios)


if __name__ == "__main__":
    main()
