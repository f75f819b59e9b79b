"""What Trinity-RFT does where a file says nothing: the defaults of its dataclasses and of its kinds of algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roll.config.dialects.paths import value_at
from roll.convert.reading.assumed import set_in

_TYPE: Final = "algorithm.algorithm_type"
_OPTIMISER: Final = "algorithm.optimizer.weight_decay"
_OF_VERL: Final = "trainer.trainer_config.actor_rollout_ref.actor.optim.weight_decay"
"""Where files of before ``algorithm.optimizer`` have it."""

_WITH_REFERENCE: Final = frozenset(
    "ppo grpo grpo_verl reinforceplusplus rloo opmd topr cispo gspo sapo mix mix_chord multi_step_grpo gigpo".split()
)
"""Kinds of algorithm with k2 in their loss, unless a file says ``none``."""

_TASKS: Final = "buffer.explorer_input.taskset"
_SELECTOR: Final = f"{_TASKS}.data_selector.selector_type"
_OLD_SELECTOR: Final = f"{_TASKS}.task_selector.selector_type"
_WITH_CRITIC: Final[Mapping[str, Any]] = {"algorithm.advantage_fn_args.lam": 1.0, "whiten_advantages": True}


def of_trinity(pipeline: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a file that trains by reinforcement, by path, whether or not it says the key itself."""
    if pipeline not in ("rlvr", "agentic") or tree.get("mode", "both") not in ("both", "train"):
        return {}
    kind = value_at(tree, _TYPE) or "ppo"
    keys: dict[str, Any] = {_TYPE: kind}
    if not set_in(tree, _OF_VERL):
        keys[_OPTIMISER] = 0.01
    if set_in(tree, f"{_TASKS}.path") and not set_in(tree, _OLD_SELECTOR):
        keys[_SELECTOR] = "sequential"
    if kind in _WITH_REFERENCE and value_at(tree, "algorithm.kl_loss_fn_args.kl_coef") != 0:
        keys["algorithm.kl_loss_fn"] = "k2"
    if (value_at(tree, "algorithm.advantage_fn") or kind) == "ppo":
        keys |= _WITH_CRITIC
    return keys
