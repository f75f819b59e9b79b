"""Random batches for the property tests: float64, a mask with gaps, groups interleaved, turns along the rows."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from roll.algorithms.advantages import AdvantageInputs
from roll.algorithms.losses import expert_mixture

F64 = torch.float64


@dataclass
class Batch:
    mask: Tensor
    token_rewards: Tensor
    scores: Tensor
    values: Tensor
    baselines: Tensor
    turn_ids: Tensor
    state_hashes: Tensor
    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    expert: Tensor
    mixture: Tensor
    step: Tensor
    groups: Tensor
    cov_tokens: Tensor
    group_ids: list[str]
    trajectory_ids: list[tuple[str, int]]

    def inputs(self) -> AdvantageInputs:
        names = {f.name for f in fields(AdvantageInputs)} & {f.name for f in fields(Batch)}
        return AdvantageInputs(**{name: getattr(self, name) for name in names})

    def rows(self, order: list[int]) -> Batch:
        index = torch.tensor(order, dtype=torch.int64)
        picked = {}
        for f in fields(self):
            value = getattr(self, f.name)
            picked[f.name] = value[index] if isinstance(value, Tensor) else [value[i] for i in order]
        return Batch(**picked)


def make_batch(seed: int, rows: int, width: int, groups: int, equal_scores: bool = False) -> Batch:
    noise = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=noise, dtype=F64)

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=noise)

    mask = integers(3, rows, width) > 0
    # Turn numbers grow along the row; a new one starts at random.
    turn_ids = torch.where(mask, integers(2, rows, width).cumsum(1), -1)
    # A turn's state is one number on all its tokens.
    state_hashes = turn_ids.clamp_min(0) % 3
    old = -normal(rows, width).abs()
    compared = integers(groups, rows)
    batch = Batch(
        mask=mask,
        token_rewards=normal(rows, width) * (integers(3, rows, width) == 0),
        scores=torch.full((rows,), 0.1, dtype=F64) if equal_scores else normal(rows),
        values=normal(rows, width),
        baselines=normal(rows),
        turn_ids=turn_ids,
        state_hashes=state_hashes,
        log_probs=old + 0.3 * normal(rows, width),
        old_log_probs=old,
        advantages=normal(rows, width),
        expert=integers(2, rows) > 0,
        groups=compared,
        group_ids=[f"g{int(g)}" for g in compared],
        trajectory_ids=[("trajectory", i) for i in range(rows)],
        mixture=torch.empty(0),
        step=torch.full((rows,), 3),
        cov_tokens=mask & (torch.arange(rows * width).view(rows, width) % 3 == 0),
    )
    return replace(batch, mixture=expert_mixture(batch.expert, mask))


batches = st.builds(
    make_batch,
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 7),
    width=st.integers(1, 9),
    groups=st.integers(1, 3),
    equal_scores=st.booleans(),
)


def pad(batch: Batch, left: int, right: int, garbage: float) -> Batch:
    """Add columns under a zero mask, and put garbage under every zero mask."""
    changed = {}
    for f in fields(batch):
        value = getattr(batch, f.name)
        if not isinstance(value, Tensor) or value.dim() < 2:
            continue
        if f.name == "mask":
            changed[f.name] = torch.nn.functional.pad(value, (left, right), value=False)
            continue
        kind = {torch.int64: int, torch.bool: bool}.get(value.dtype, float)
        fill = -1 if f.name == "turn_ids" else kind(garbage)
        padded = torch.nn.functional.pad(value, (left, right), value=fill)
        mask = torch.nn.functional.pad(batch.mask, (left, right), value=False)
        changed[f.name] = torch.where(mask, padded, torch.full_like(padded, fill))
    return replace(batch, **changed)
