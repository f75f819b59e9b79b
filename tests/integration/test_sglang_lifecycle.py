"""The real SGLang engine: what it would do to the process that starts it, and weights that are refused."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
import torch
from engines import LONG, random_prompt
from sglang_support import RealSglang, needs_sglang

from roll.generation import SamplingParams
from roll.strategies.base import WeightUpdate
from roll.strategies.generation.sglang.errors import GenerationError, WeightLoadError

pytestmark = [pytest.mark.sglang, needs_sglang]


@pytest.fixture(scope="module")
def sglang() -> Iterator[RealSglang]:
    """An engine of these tests' own, which starts with random weights."""
    logging_before = (logging.getLogger().handlers, logging.getLogger().level)
    started = RealSglang(load_format="dummy")
    assert (logging.getLogger().handlers, logging.getLogger().level) == logging_before
    yield started
    started.close()


def test_random_weights_answer_nothing_until_an_update(sglang: RealSglang) -> None:
    with pytest.raises(RuntimeError, match="load_format=dummy made random weights"):
        sglang.generate([5, 6])
    sglang.run(sglang.update(sglang.at_first))
    prompt = random_prompt(20, 1)
    got = sglang.generate(prompt, max_new_tokens=12, temperature=0.0)
    assert got.token_ids == sglang.says.greedy(prompt, 12)
    assert sglang.difference(prompt, got, SamplingParams(temperature=0.0)) < 1e-4


def test_signals_of_the_process_stay_its_own(sglang: RealSglang) -> None:
    async def scenario() -> None:
        heard = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard.set)
        await sglang.engine.generate(sglang.request([5], max_new_tokens=2))
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(heard.wait(), 100)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)

    sglang.run(scenario())


def test_an_engine_that_has_nothing_to_do_leaves_the_processor_alone(sglang: RealSglang) -> None:
    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in sglang.own_processes())

    said = sglang.generate([5], max_new_tokens=2, temperature=0.0)
    before = used()
    time.sleep(5)
    assert used() - before < 1, "of 5 seconds"
    sglang.run(sglang.engine.pause())
    before = used()
    time.sleep(5)
    assert used() - before < 1, "of 5 seconds in which it is paused"
    sglang.run(sglang.engine.resume())
    assert sglang.generate([5], max_new_tokens=2, temperature=0.0).token_ids == said.token_ids


def test_an_engine_that_dies_fails_its_requests_and_nothing_else(sglang: RealSglang) -> None:
    """Last. At a wrong shape SGLang ends, would end this process too, and all of its children when it is closed."""
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    tensors = dict(sglang.says.named_parameters())
    tensors["model.layers.1.mlp.down_proj.weight"] = torch.zeros(3, 5)

    async def scenario() -> None:
        _, task = await sglang.started(random_prompt(20, 1), max_new_tokens=LONG)
        with pytest.raises(WeightLoadError, match="ended while it loaded new weights"):
            await asyncio.wait_for(sglang.engine.update_weights(WeightUpdate(9, tensors.items())), 40)
        with pytest.raises(GenerationError, match="a process of sglang ended"):
            await asyncio.wait_for(task, 20)
        with pytest.raises(RuntimeError, match="no valid weights"):
            await sglang.engine.generate(sglang.request([5]))

    processes = sglang.own_processes()
    assert processes
    sglang.run(scenario())
    sglang.close()
    _, alive = psutil.wait_procs(processes, timeout=150)
    assert alive == []
    assert bystander.poll() is None
    bystander.communicate(b"\n", timeout=200)
