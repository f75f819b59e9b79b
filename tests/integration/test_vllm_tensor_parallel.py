"""The real vLLM engine with its model divided between two processes."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch
from transformers import PreTrainedModel
from vllm_support import (
    Harness,
    changed_model,
    check_answers,
    needs_vllm,
    sender_to,
    sync_processes,
    worker_place,
    worker_receiver,
)

from roll.distributed.weight_sync import WeightSyncSettings
from roll.strategies.fingerprints import fingerprint

pytestmark = needs_vllm


def check_fingerprints(vllm: Harness, model: PreTrainedModel) -> None:
    """Of a divided engine they are those of the whole model."""
    found = vllm.run(vllm.engine.fingerprints())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], fingerprint(parameter), atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.exhaustive
def test_a_divided_engine_answers_as_the_whole_model_and_each_part_takes_its_share_of_new_weights() -> None:
    before = dict(os.environ)
    vllm = Harness(tensor_parallel_size=2)
    try:
        ranks = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
        assert ranks == {name: before.get(name) for name in ranks}, "this process is no rank of the engine's"
        assert os.environ.get("LD_PRELOAD") == before.get("LD_PRELOAD"), "nor does what it starts load what that does"
        check_answers(vllm, vllm.model, 0)
        vllm.use(changed_model(1))
        check_answers(vllm, vllm.model, 1)

        places = vllm.run(vllm.engine.call_workers(worker_place))
        assert len({place.pid for place in places}) == 2
        model = changed_model(2)
        sender = sender_to(places, model, WeightSyncSettings(method="broadcast", timeout=60))
        try:
            vllm.run(vllm.engine.connect_workers(partial(worker_receiver, sender.offer)))
            vllm.run(sync_processes(vllm, sender, model, 2))
        finally:
            sender.close()
        check_answers(vllm, model, 2)
        check_fingerprints(vllm, model)
    finally:
        vllm.close()
