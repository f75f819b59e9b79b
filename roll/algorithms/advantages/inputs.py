"""How a pipeline computes advantages, whatever the estimator: ``compute(name, inputs, options)``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from roll.algorithms.groups import AlgorithmWarning, GroupIds, Groups, encode, representatives
from roll.algorithms.masking import as_bool, blank, broadcast, by_slabs, masked_whiten, tokens_per_row
from roll.algorithms.registry import ADVANTAGES


@dataclass(frozen=True, slots=True)
class AdvantageInputs:
    """What estimators may read. Give what you have; an estimator that needs more says so.

    Attributes:
        mask: ``[batch, sequence]``, nonzero on trained tokens.
        token_rewards: ``[batch, sequence]`` float; the reward of a turn sits on the last response token of the turn.
        scores: ``[batch]`` float, of each sample's trajectory; without it the masked sum of its ``token_rewards``.
        group_ids: One hashable per sample.
        values: ``[batch, sequence]`` float, the critic's.
        lengths: ``[batch]``; without it the trained tokens of each row.
        turn_ids: ``[batch, sequence]`` int, on response tokens the turn's number within its trajectory, -1 elsewhere.
        trajectory_ids: One hashable per sample; without it every sample is its own trajectory. Samples that are single
            steps, or pieces of one trajectory, share it.
        state_hashes: ``[batch, sequence]`` int, a hash of the state before the turn, on the turn's response tokens.
        baselines: ``[batch]`` float, the score of the greedy answer.
    """

    mask: Tensor
    token_rewards: Tensor | None = None
    scores: Tensor | None = None
    group_ids: GroupIds | None = None
    values: Tensor | None = None
    lengths: Tensor | None = None
    turn_ids: Tensor | None = None
    trajectory_ids: GroupIds | None = None
    state_hashes: Tensor | None = None
    baselines: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AdvantageOutput:
    """What :func:`compute` returns.

    Attributes:
        advantages: ``[batch, sequence]``, 0 outside the mask.
        returns: ``[batch, sequence]`` for the critic, where the estimator has them.
        metrics: Mean, standard deviation and extremes of the advantages, share of groups without variance.
    """

    advantages: Tensor
    returns: Tensor | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnTable:
    """The turns of a batch as flat entries.

    Attributes:
        row: ``[turns]`` int64, the sample of each turn.
        index: ``[turns]`` int64, its number within the trajectory.
        rewards: ``[turns]``, the masked sum of its token rewards.
        state: ``[turns]`` int64, its state hash (0 where none is given).
        entry: ``[batch, sequence]`` int64, the entry each token belongs to, -1 for none.
    """

    row: Tensor
    index: Tensor
    rewards: Tensor
    state: Tensor
    entry: Tensor

    def scatter(self, per_turn: Tensor) -> Tensor:
        """Spread ``[turns]`` over the tokens of the turns, ``[batch, sequence]``."""
        if per_turn.numel() == 0:
            return torch.zeros(self.entry.shape, dtype=per_turn.dtype, device=per_turn.device)
        return blank(per_turn[self.entry.clamp_min(0)], self.entry >= 0)

    def select(self, ids: GroupIds) -> list[Any]:
        """Return the sample's id for every turn."""
        members = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        return [members[row] for row in self.row.tolist()]


def turn_table(inputs: AdvantageInputs) -> TurnTable:
    """List the turns that have a trained token."""
    assert inputs.turn_ids is not None and inputs.token_rewards is not None
    inside = as_bool(inputs.mask) & (inputs.turn_ids >= 0)
    rows, _ = inside.nonzero(as_tuple=True)
    turns = inputs.turn_ids[inside].long()
    width = int(turns.max()) + 1 if turns.numel() else 1
    cells, which = torch.unique(rows * width + turns, return_inverse=True)
    rewards = torch.zeros(cells.numel(), dtype=torch.float64, device=rows.device)
    rewards.index_add_(0, which, inputs.token_rewards[inside].double())
    state = torch.zeros_like(cells)
    if inputs.state_hashes is not None:
        state[which] = inputs.state_hashes[inside].long()
    entry = torch.full(inside.shape, -1, dtype=torch.int64, device=rows.device)
    entry[inside] = which
    row = torch.div(cells, width, rounding_mode="floor")
    return TurnTable(row, cells % width, rewards.to(inputs.token_rewards.dtype), state, entry)


@torch.no_grad()
def compute(name: str, inputs: AdvantageInputs, options: Mapping[str, Any] | None = None) -> AdvantageOutput:
    """Compute advantages with the estimator registered as ``name``.

    Samples that share a trajectory are its pieces. An estimator that gives one advantage per sample sees the trajectory
    once, with its score, the sum of its rewards and its whole length, and all pieces get its advantage: otherwise a
    trajectory in three pieces would weigh three times in the mean of its group.

    Args:
        name: The configuration's ``adv_estimator``.
        inputs: The batch.
        options: Only options that the estimator reads; :func:`roll.algorithms.registry.used_options` selects them from
            a larger set and ``unused_options`` names the rest.

    Returns:
        Advantages on the tokens, 0 outside the mask, never NaN for finite inputs.

    Raises:
        UnknownNameError: No estimator is called ``name``.
        ValueError: An input it needs is missing, an option is unknown, or it returned another shape than it promised.
    """
    entry = ADVANTAGES.get(name)
    options = dict(options or {})
    entry.check_options(options)
    inputs = _complete(inputs)
    trajectories = _encoded(inputs.trajectory_ids, inputs.mask, "trajectory_ids")
    if entry.level == "outcome" and trajectories.count < inputs.mask.shape[0]:
        whole = compute(name, _per_trajectory(inputs, trajectories), options)
        spread = broadcast(whole.advantages[trajectories.codes, 0], inputs.mask)
        return AdvantageOutput(spread, metrics=whole.metrics)
    missing = sorted(need for need in entry.needs if getattr(inputs, need) is None)
    if missing:
        raise ValueError(f"adv_estimator {name!r} needs {', '.join(missing)} in its inputs; none given.")
    result = entry.function(inputs, **options)
    advantages, returns = result if isinstance(result, tuple) else (result, None)
    batch, sequence = inputs.mask.shape
    expected = (batch,) if entry.level == "outcome" else (batch, sequence)
    if tuple(advantages.shape) != expected:
        raise ValueError(f"adv_estimator {name!r} returned shape {tuple(advantages.shape)}, expected {expected}.")
    spread = broadcast(advantages, inputs.mask) if advantages.dim() == 1 else blank(advantages, inputs.mask)
    returns = None if returns is None else blank(returns, inputs.mask)
    return AdvantageOutput(spread, returns, _report(name, spread, inputs))


@torch.no_grad()
def finish(advantages: Tensor, mask: Tensor, *, whiten: bool = False, clip: float | None = None) -> Tensor:
    """Whiten (``whiten_advantages``) and then clamp to +-``clip`` (``advantage_clip``); ``[batch, sequence]``.

    Raises:
        ValueError: ``clip`` is not positive.

    Source: Huang et al. 2022, PPO implementation details (advantage normalisation).
    """
    if clip is not None and clip <= 0:
        raise ValueError(f"advantage_clip must be positive, got {clip}.")
    if whiten:
        advantages = masked_whiten(advantages, mask)
    if clip is not None:
        advantages = advantages.clamp(-clip, clip)
    return blank(advantages, mask)


@torch.no_grad()
def zero_variance_share(scores: Tensor, group_ids: GroupIds | Groups) -> float:
    """Return the share of groups whose ``scores`` ``[batch]`` are all equal: they teach a group estimator nothing."""
    groups = group_ids if isinstance(group_ids, Groups) else encode(group_ids, scores.shape[0], device=scores.device)
    if groups.count == 0:
        return 0.0
    return float((groups.std(scores) == 0).double().mean())


def _complete(inputs: AdvantageInputs) -> AdvantageInputs:
    """Fill in what follows from the rest: scores, lengths, trajectory ids."""
    batch = inputs.mask.shape[0]
    scores, lengths, trajectories = inputs.scores, inputs.lengths, inputs.trajectory_ids
    if trajectories is None:
        trajectories = range(batch)
    if scores is None and inputs.token_rewards is not None:
        scores = blank(inputs.token_rewards, inputs.mask).sum(1)
        pieces = _encoded(trajectories, inputs.mask, "trajectory_ids")
        if pieces.count < batch:
            scores = pieces.sum(scores)[pieces.codes].to(scores.dtype)
    if lengths is None:
        lengths = tokens_per_row(inputs.mask)
    fields = {name: getattr(inputs, name) for name in AdvantageInputs.__slots__}
    return AdvantageInputs(**{**fields, "scores": scores, "lengths": lengths, "trajectory_ids": trajectories})


def _encoded(ids: GroupIds | None, mask: Tensor, name: str) -> Groups:
    assert ids is not None
    return encode(ids, mask.shape[0], device=mask.device, name=name)


def _per_trajectory(inputs: AdvantageInputs, trajectories: Groups) -> AdvantageInputs:
    """Return the inputs with one row of one token per trajectory; what only samples have is left out."""

    def total(values: Tensor) -> Tensor:
        return trajectories.sum(values).to(values.dtype)

    def shared(values: Tensor | None) -> Tensor | None:
        return None if values is None else trajectories.mean(values).to(values.dtype)

    rewards, lengths = inputs.token_rewards, inputs.lengths
    return AdvantageInputs(
        mask=torch.ones(trajectories.count, 1, dtype=torch.bool, device=inputs.mask.device),
        token_rewards=None if rewards is None else total(blank(rewards, inputs.mask).sum(1)).unsqueeze(1),
        scores=shared(inputs.scores),
        group_ids=None if inputs.group_ids is None else _groups_of(inputs.group_ids, inputs.mask, trajectories),
        lengths=None if lengths is None else total(lengths),
        baselines=shared(inputs.baselines),
    )


def _groups_of(ids: GroupIds, mask: Tensor, trajectories: Groups) -> Sequence[Any]:
    """Return the group id of each trajectory."""
    members = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    groups = _encoded(members, mask, "group_ids")
    names = dict(zip(groups.codes.tolist(), members, strict=True))
    return [names[code] for code in representatives(groups, trajectories).codes.tolist()]


def _report(name: str, advantages: Tensor, inputs: AdvantageInputs) -> dict[str, float]:
    """Summarise the advantages, and warn when they are all zero."""
    trained = by_slabs(lambda values, inside: values[inside], advantages, as_bool(inputs.mask))
    equal = None
    if inputs.group_ids is not None and inputs.scores is not None:
        equal = zero_variance_share(inputs.scores, inputs.group_ids)
    if trained.numel() == 0 or not bool(trained.any()):
        warnings.warn(
            f"{name}: every advantage of the batch is zero, nothing will be learnt; "
            f"{_cause(name, trained, inputs, equal)}.",
            AlgorithmWarning,
            stacklevel=3,
        )
    if trained.numel() == 0:
        return {}
    metrics = {
        "advantages/mean": float(trained.mean()),
        "advantages/std": float(trained.std(correction=0)),
        "advantages/min": float(trained.min()),
        "advantages/max": float(trained.max()),
    }
    return metrics if equal is None else {**metrics, "advantages/zero_variance_groups": equal}


def _cause(name: str, trained: Tensor, inputs: AdvantageInputs, equal: float | None) -> str:
    """Return the likely cause of a batch whose advantages are all zero."""
    if trained.numel() == 0:
        return "no token is trained: every response is empty or masked"
    if equal != 1.0 or inputs.group_ids is None or inputs.scores is None:
        return "the rewards are all zero or equal"
    compares = "group_ids" in ADVANTAGES.get(name).needs
    if compares and encode(inputs.group_ids, len(inputs.mask)).count == len(inputs.mask):
        return "every group has one sample: sample more (num_return_sequences_in_group, group_size)"
    if bool((inputs.scores == inputs.scores[0]).all()):
        return (
            f"every score is {float(inputs.scores[0]):.4g}: tasks too easy or too hard, a grader that accepts no "
            "answer, or responses cut off too early"
        )
    return "the scores of every group are equal: no sampling noise (temperature), or tasks always or never solved"
