"""A loss that goes through a batch in blocks of rows gives what it gives of all rows at once."""

from __future__ import annotations

import pytest
import torch

from roll.algorithms import losses, masking
from roll.algorithms.registry import registry

from .batches import Batch, make_batch

ROW_WISE = [name for name in registry("loss").names() if hasattr(registry("loss").get(name).function, "__wrapped__")]


def loss_and_gradient(name: str, batch: Batch, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaf = batch.log_probs.clone().requires_grad_()
    loss, metrics = losses.compute(name, leaf, batch.old_log_probs, batch.advantages, mask, turn_ids=batch.turn_ids)
    loss.sum().backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad, torch.stack([torch.as_tensor(metrics[key]) for key in sorted(metrics)])


def test_the_losses_that_multiply_by_the_advantage_go_in_blocks() -> None:
    assert {"gspo", "gspo_segment", "gmpo", "cispo", "sapo", "vanilla", "topr", "tis", "sppo"} == set(ROW_WISE)


@pytest.mark.parametrize("name", ["ppo", *ROW_WISE])
def test_blocks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch(seed=5, rows=7, width=9, groups=2)
    mask = batch.mask.clone()
    mask[2:4] = False  # a block without a token
    whole = loss_and_gradient(name, batch, mask)
    monkeypatch.setattr(masking, "_SLAB_ELEMENTS", 2 * 9)
    in_blocks = loss_and_gradient(name, batch, mask)
    assert torch.equal(in_blocks[0], whole[0])
    assert torch.equal(in_blocks[1], whole[1])
    torch.testing.assert_close(in_blocks[2], whole[2], rtol=1e-6, atol=1e-7)


def test_nothing_of_the_size_of_the_batch_is_made_per_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_SLAB_ELEMENTS", 9)
    batch = make_batch(seed=5, rows=64, width=9, groups=2)
    leaf = batch.log_probs.clone().requires_grad_()
    loss, _ = losses.gspo(leaf, batch.old_log_probs, batch.advantages, batch.mask)
    seen, following = set(), [loss.grad_fn]
    while following:
        node = following.pop()
        if node is not None and node not in seen:
            seen.add(node)
            following += [parent for parent, _ in node.next_functions]
    assert "SliceBackward0" not in {type(node).__name__ for node in seen}


@pytest.mark.parametrize("dual_clip", [None, 1.5])
@pytest.mark.parametrize("per_sample", [False, True])
def test_the_gradient_of_ppo_is_that_of_its_loss(
    per_sample: bool, dual_clip: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "_SLAB_ELEMENTS", 2 * 9)
    batch = make_batch(seed=7, rows=7, width=9, groups=2)
    advantages = batch.advantages[:, 0] if per_sample else batch.advantages
    # One token so far that its log-ratio is limited, and one outside the mask that is no number.
    near = batch.old_log_probs + 0.5 * batch.log_probs
    first, last = batch.mask.nonzero()[0].tolist(), (~batch.mask).nonzero()[-1].tolist()
    near[first[0], first[1]] += 50
    near[last[0], last[1]] = torch.nan

    def loss(inside: torch.Tensor) -> torch.Tensor:
        moved = near.masked_scatter(batch.mask, inside)
        return losses.ppo(moved, batch.old_log_probs, advantages, batch.mask, dual_clip=dual_clip)[0]

    assert torch.autograd.gradcheck(loss, near[batch.mask].clone().requires_grad_())


def test_the_gradient_of_what_is_no_number_is_none_either() -> None:
    batch = make_batch(seed=7, rows=7, width=9, groups=2)
    place = tuple(batch.mask.nonzero()[0].tolist())
    spoilt = batch.log_probs.clone()
    spoilt[place] = torch.nan
    loss, _ = losses.ppo(spoilt.requires_grad_(), batch.old_log_probs, batch.advantages, batch.mask)
    (gradient,) = torch.autograd.grad(loss.sum(), spoilt)
    # Who looks at gradients alone must see it.
    assert gradient.isnan().nonzero().tolist() == [list(place)]
