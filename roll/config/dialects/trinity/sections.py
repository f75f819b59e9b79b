"""Trinity-RFT: the names of its sections, and what conversions ask of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.engines import Engine
from roll.config.dialects.rows import GENERATION_STRATEGIES, Look, Sets, Unused

ALGO: Final = "algorithm"
TRAIN: Final = "actor_train.training_args"
SAMPLING: Final = "actor_infer.generating_args"
TASKS: Final = "buffer.explorer_input.taskset"
INPUT: Final = "buffer.explorer_input"
STORE: Final = "buffer.trainer_input.experience_buffer"
EXPERTS: Final = "buffer.trainer_input.auxiliary_buffers.sft_dataset"
ROLLOUT: Final = "explorer.rollout_model"
DATA: Final = "actor_train.data_args"
STRATEGY: Final = "actor_train.strategy_args"

VLLM: Final = {"actor_infer.strategy_args.strategy_name": "vllm"}

DISTILLING: Final = ("on_policy_distill", "jsd")
"""Types of algorithms whose samples teachers score."""


def engine(look: Look) -> str | None:
    """Return the engine that samples: vLLM, where options of one are set and nothing else is said."""
    name = look(f"{ROLLOUT}.engine_type", look.native("actor_infer.strategy_args.strategy_name"))
    if name is None:
        return "vllm" if look.has(ROLLOUT) else None
    native = GENERATION_STRATEGIES.get(name, name) if isinstance(name, str) else None
    return native if native in ("vllm", "sglang") else None


_: Engine = engine


def algorithm(look: Look) -> str:
    """Return the type of the algorithm, empty where none is named."""
    return str(look(f"{ALGO}.algorithm_type", ""))


def distils(look: Look) -> bool:
    """Tell whether teachers say what is learned."""
    return look.kind_has("teachers")


def compares_pairs(look: Look) -> bool:
    """Tell whether pairs of answers are compared."""
    return look.kind_has("chosen_key")


def samples(look: Look) -> bool:
    """Tell whether the run samples from its policy."""
    return look.kind_has("rollout_batch_size")


def mode(look: Look) -> Any:
    """Return what the run does; beside native keys, the key is the native one."""
    return look("mode", look.native("mode"))


def two_programs(look: Look) -> bool:
    """Tell whether who samples and who trains are programs of their own."""
    return mode(look) in ("explore", "train")


def in_database(look: Look) -> bool:
    """Tell whether what lies between two programs is in a database, whatever its path looks like."""
    return look(f"{STORE}.storage_type") == "sql"


def through_cluster(look: Look) -> bool:
    """Tell whether two programs hand weights over inside their Ray cluster, with a store there between them."""
    method = look("synchronizer.sync_method")
    return two_programs(look) and method in ("memory", "nccl") and not in_database(look)


def only_sampling(value: Any, look: Look) -> Any:
    """Convert a key that has a meaning only where the policy samples."""
    return value if samples(look) else Unused("nothing is sampled")


def first_of(value: Any) -> Mapping[str, Any]:
    """Return the first section of a list of sections, an empty one where there is none."""
    found = value[0] if isinstance(value, list) and value else value
    return found if isinstance(found, Mapping) else {}


def trainer_option(name: str, value: Any, engine_name: str = "fsdp_train") -> Sets:
    """Return an option of the trainer, with the trainer that has it."""
    return Sets({f"{STRATEGY}.strategy_config.{name}": value}, {f"{STRATEGY}.strategy_name": engine_name})
