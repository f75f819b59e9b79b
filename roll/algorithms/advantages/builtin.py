"""The built-in estimators under the names of ``adv_estimator``: each adapts one pure function to the common inputs.

Options carry the configuration's names (``lambd``, not ``lam``).
"""

from __future__ import annotations

from typing import Literal, TypeVar

from torch import Tensor

from roll.algorithms.advantages import outcome, token, turn
from roll.algorithms.advantages.inputs import AdvantageInputs, turn_table
from roll.algorithms.advantages.outcome import Scale
from roll.algorithms.groups import GroupIds
from roll.algorithms.registry import register_advantage

_T = TypeVar("_T")
_GROUPED = ("scores", "group_ids")
_TURNS = ("token_rewards", "turn_ids", "group_ids")


def _ids(value: GroupIds | None) -> GroupIds:
    """Narrow ids, as :func:`_need`."""
    return [] if value is None else value


def _need(value: _T | None) -> _T:
    """Narrow a field whose presence ``compute`` has checked."""
    if value is None:
        raise ValueError("an input the estimator needs is None: call it through roll.algorithms.advantages.compute.")
    return value


@register_advantage("gae", needs=("token_rewards", "values"), level="token")
def _gae(inputs: AdvantageInputs, *, gamma: float = 1.0, lambd: float = 0.95) -> tuple[Tensor, Tensor]:
    return token.gae(_need(inputs.token_rewards), _need(inputs.values), inputs.mask, gamma, lambd)


@register_advantage("reinforce", needs=("token_rewards",), level="token")
def _reinforce(inputs: AdvantageInputs, *, gamma: float = 1.0) -> tuple[Tensor, Tensor]:
    returns = token.reinforce(_need(inputs.token_rewards), inputs.mask, gamma)
    return returns, returns


@register_advantage("reinforce_plus_plus", needs=("token_rewards",), level="token")
def _reinforce_plus_plus(inputs: AdvantageInputs, *, gamma: float = 1.0) -> Tensor:
    return token.reinforce_plus_plus(_need(inputs.token_rewards), inputs.mask, gamma)


@register_advantage("reinforce_plus_plus_baseline", needs=_GROUPED, level="token")
def _reinforce_plus_plus_baseline(inputs: AdvantageInputs) -> Tensor:
    scores, groups = _need(inputs.scores), _ids(inputs.group_ids)
    return token.reinforce_plus_plus_baseline(scores, groups, inputs.mask, inputs.trajectory_ids)


@register_advantage("grpo", needs=_GROUPED)
def _grpo(inputs: AdvantageInputs, *, scale: Scale = "std", ddof: int = 1, eps: float = 1e-6) -> Tensor:
    return outcome.grpo(_need(inputs.scores), _ids(inputs.group_ids), scale=scale, ddof=ddof, eps=eps)


@register_advantage("grpo_passk", needs=_GROUPED)
def _grpo_passk(inputs: AdvantageInputs, *, scale: Scale = "std", ddof: int = 1, eps: float = 1e-6) -> Tensor:
    return outcome.grpo_passk(_need(inputs.scores), _ids(inputs.group_ids), scale=scale, ddof=ddof, eps=eps)


@register_advantage("gpg", needs=_GROUPED)
def _gpg(inputs: AdvantageInputs, *, f_norm: float = 1.0) -> Tensor:
    return outcome.gpg(_need(inputs.scores), _ids(inputs.group_ids), f_norm=f_norm)


@register_advantage("rloo", needs=_GROUPED)
def _rloo(inputs: AdvantageInputs) -> Tensor:
    return outcome.rloo(_need(inputs.scores), _ids(inputs.group_ids))


@register_advantage("remax", needs=("scores", "baselines"))
def _remax(inputs: AdvantageInputs) -> Tensor:
    return outcome.remax(_need(inputs.scores), _need(inputs.baselines))


@register_advantage("opo", needs=_GROUPED)
def _opo(inputs: AdvantageInputs) -> Tensor:
    return outcome.opo(_need(inputs.scores), _need(inputs.lengths), _ids(inputs.group_ids))


@register_advantage("opmd", needs=_GROUPED)
def _opmd(inputs: AdvantageInputs, *, tau: float = 1.0, baseline: Literal["mean", "logsumexp"] = "mean") -> Tensor:
    return outcome.opmd(_need(inputs.scores), _ids(inputs.group_ids), tau, baseline)


@register_advantage("asymre", needs=_GROUPED)
def _asymre(inputs: AdvantageInputs, *, baseline_shift: float = -0.1) -> Tensor:
    return outcome.asymre(_need(inputs.scores), _ids(inputs.group_ids), baseline_shift)


@register_advantage("rec", needs=_GROUPED)
def _rec(
    inputs: AdvantageInputs,
    *,
    drop: Literal["none", "balance"] = "none",
    scale: Scale = "none",
    eps: float = 1e-6,
) -> Tensor:
    return outcome.rec(_need(inputs.scores), _ids(inputs.group_ids), drop=drop, scale=scale, eps=eps)


@register_advantage("agentic_reinforce", needs=("token_rewards", "turn_ids"), level="turn")
def _agentic_reinforce(inputs: AdvantageInputs, *, gamma: float = 1.0) -> Tensor:
    table = turn_table(inputs)
    return table.scatter(
        turn.agentic_reinforce(table.rewards, table.index, table.select(_ids(inputs.trajectory_ids)), gamma)
    )


@register_advantage("step_reinforce", needs=_TURNS, level="turn")
def _step_reinforce(
    inputs: AdvantageInputs,
    *,
    gamma: float = 1.0,
    baseline: Literal["group_turn", "none"] = "group_turn",
    single: Literal["group", "zero"] = "group",
) -> Tensor:
    table = turn_table(inputs)
    trajectories = table.select(_ids(inputs.trajectory_ids))
    groups = table.select(_ids(inputs.group_ids))
    return table.scatter(turn.step_reinforce(table.rewards, table.index, trajectories, groups, gamma, baseline, single))


@register_advantage("step_wise_grpo", needs=(*_TURNS, "scores"), level="turn")
def _step_wise_grpo(
    inputs: AdvantageInputs,
    *,
    scale: Scale = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    divide_by_steps: bool = False,
) -> Tensor:
    table = turn_table(inputs)
    advantages = turn.step_wise_grpo(
        _need(inputs.scores)[table.row],
        table.select(_ids(inputs.group_ids)),
        table.select(_ids(inputs.trajectory_ids)),
        table.index,
        scale=scale,
        ddof=ddof,
        eps=eps,
        divide_by_steps=divide_by_steps,
    )
    return table.scatter(advantages)


@register_advantage("gigpo", needs=(*_TURNS, "state_hashes"), level="turn")
def _gigpo(
    inputs: AdvantageInputs,
    *,
    step_reward_weight: float = 1.0,
    step_reward_gamma: float = 0.95,
    scale: Scale = "std",
    ddof: int = 1,
    eps: float = 1e-6,
) -> Tensor:
    table = turn_table(inputs)
    advantages = turn.gigpo(
        table.rewards,
        table.index,
        table.select(_ids(inputs.trajectory_ids)),
        table.select(_ids(inputs.group_ids)),
        table.state,
        step_reward_weight=step_reward_weight,
        step_reward_gamma=step_reward_gamma,
        scale=scale,
        ddof=ddof,
        eps=eps,
    )
    return table.scatter(advantages)
