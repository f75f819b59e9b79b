"""A file of Trinity-RFT, and changes to files of other systems."""

from __future__ import annotations

from typing import Any

TRINITY_FILE: dict[str, Any] = {
    "project": "p",
    "name": "n",
    "algorithm": {"algorithm_type": "grpo", "repeat_times": 8, "optimizer": {"lr": 1e-6}},
    "model": {"model_path": "some/model", "max_response_tokens": 512, "max_model_len": 2048},
    "cluster": {"node_num": 1, "gpu_per_node": 8},
    "buffer": {
        "batch_size": 96,
        "explorer_input": {
            "taskset": {"storage_type": "file", "path": "tasks.jsonl", "format": {"prompt_key": "question"}},
            "default_workflow_type": "math_boxed_workflow",
        },
        "trainer_input": {"experience_buffer": {"name": "b", "storage_type": "queue"}},
    },
    "explorer": {"rollout_model": {"engine_num": 2, "tensor_parallel_size": 2, "enforce_eager": True}},
    "synchronizer": {"sync_method": "nccl", "sync_style": "fixed"},
}


def merged(base: Any, change: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    return {**base, **{key: merged(base.get(key), item) for key, item in change.items()}}
