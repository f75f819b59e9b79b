"""Time and memory of the algorithm library beside straightforward loops; prints a table and PASS or FAIL per target.

    python benchmarks/algorithms.py [--threads 1] [--shapes 3]

Peers: ``per-token`` walks the columns of ``[batch, sequence]`` tensors from the right, ``time-major`` does the same
over contiguous rows of transposed copies (the copies are timed), ``per-group`` selects each group's members with a
comparison of ids and ``per-sample`` handles one row at a time (without the metrics that ours reports), with the way
back where ``gradient`` is named. Whitening and the masked mean have the one-line formula as their peer. Every peer is
timed in full, with the variables that a run has, large pages among them; its result is compared with ours first.

``largest`` is the largest tensor made along the way and ``peak`` the most tensor memory alive at once beyond the
inputs, both in units of one ``[batch, sequence]`` float32 input (``[batch]`` for the group estimators), as seen by the
dispatcher.
"""

from __future__ import annotations

import argparse
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from roll.config.process import prepare_process

prepare_process()

import torch  # noqa: E402
from ratios import leave  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from roll.algorithms import advantages, losses  # noqa: E402
from roll.algorithms.masking import masked_mean  # noqa: E402

SHAPES = ((64, 1024), (512, 4096), (1024, 8192))
GAMMA, LAM = 0.99, 0.95


class MemoryMeter(TorchDispatchMode):
    """Records the largest storage made and the peak of storage alive while it is active."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in inputs}
        self.alive = self.peak = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in self.known:
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self.known.add(key)
        self.alive += size
        self.peak, self.largest = max(self.peak, self.alive), max(self.largest, size)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.alive -= size


@dataclass
class Case:
    """One row of the table: ours, its peers, and the inputs that give the unit of memory."""

    name: str
    ours: Callable[[], Tensor]
    peers: dict[str, Callable[[], Tensor]]
    inputs: list[Tensor]
    seconds: dict[str, float] = field(default_factory=dict)


def reverse_loop(rewards: Tensor, values: Tensor, mask: Tensor, decay: float, gamma: float, dim: int) -> Tensor:
    """The plain recurrence, along columns (``dim=1``) or along rows of transposed tensors (``dim=0``)."""
    result = torch.zeros_like(rewards)
    batch = rewards.shape[1 - dim]
    following, next_value = torch.zeros(batch), torch.zeros(batch)
    for t in range(rewards.shape[dim] - 1, -1, -1):
        inside, value = mask.select(dim, t), values.select(dim, t)
        step = rewards.select(dim, t) + gamma * next_value - value + decay * following
        following = torch.where(inside, step, following)
        next_value = torch.where(inside, value, next_value)
        result.select(dim, t).copy_(following * inside)
    return result


def time_major(rewards: Tensor, values: Tensor, mask: Tensor, decay: float, gamma: float) -> Tensor:
    """The same over transposed copies."""
    turned = [tensor.t().contiguous() for tensor in (rewards, values, mask)]
    return reverse_loop(*turned, decay, gamma, 0).t().contiguous()


def group_loop(scores: Tensor, ids: list[str], formula: Callable[[Tensor], Tensor]) -> Tensor:
    """One group at a time."""
    result = torch.zeros_like(scores)
    for group in dict.fromkeys(ids):
        chosen = torch.tensor([other == group for other in ids])
        result[chosen] = formula(scores[chosen])
    return result


def plain_whiten(x: Tensor, mask: Tensor) -> Tensor:
    """The one-line formula."""
    kept = x[mask]
    return (x - kept.mean()) * torch.rsqrt(kept.var() + 1e-8) * mask


def ppo_loop(new: Tensor, old: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """One sample at a time."""
    rows = []
    # Not by index: the gradient of each row would be as large as the whole.
    for now, before, weight, inside in zip(*(x.unbind() for x in (new, old, advantage, mask)), strict=True):
        ratio = (now - before).clamp(-20, 20).exp()
        rows.append(torch.maximum(-weight * ratio, -weight * ratio.clamp(0.8, 1.2)) * inside)
    return torch.stack(rows)


def gradient(loss: Callable[[Tensor], Tensor], new: Tensor) -> Tensor:
    """Return the gradient of the mean loss by the log-probs."""
    leaf = new.detach().requires_grad_()
    return torch.autograd.grad(loss(leaf).mean(), leaf)[0]


def cases(batch: int, sequence: int) -> list[Case]:
    noise = torch.Generator().manual_seed(0)
    rewards, values, old = (torch.randn(batch, sequence, generator=noise) for _ in range(3))
    new = old + 0.1 * torch.randn(batch, sequence, generator=noise)
    # Eight turns per row, an observation before each, and rows of different length.
    position = torch.arange(sequence)
    length = torch.randint(sequence // 2, sequence + 1, (batch, 1), generator=noise)
    turns = (position % (sequence // 8) >= sequence // 32) & (position < length)
    span = (position >= sequence // 8) & (position < length)
    scores = torch.randn(batch, generator=noise)
    ids = [f"group-{i // 8}" for i in range(batch)]
    zeros = torch.zeros_like(values)

    def loops(
        mask: Tensor, value: Tensor, lam: float, then: Callable[[Tensor], Tensor] = lambda x: x
    ) -> dict[str, Any]:
        return {
            "per-token": lambda: then(reverse_loop(rewards, value, mask, GAMMA * lam, gamma_of(value), 1)),
            "time-major": lambda: then(time_major(rewards, value, mask, GAMMA * lam, gamma_of(value))),
        }

    def gamma_of(value: Tensor) -> float:
        return 0.0 if value is zeros else GAMMA

    wide = [rewards, values, old, new, turns, span]
    return [
        Case(
            "GAE, turns", lambda: advantages.gae(rewards, values, turns, GAMMA, LAM)[0], loops(turns, values, LAM), wide
        ),
        Case(
            "GAE, one span",
            lambda: advantages.gae(rewards, values, span, GAMMA, LAM)[0],
            loops(span, values, LAM),
            wide,
        ),
        Case(
            "REINFORCE++",
            lambda: advantages.reinforce_plus_plus(rewards, turns, GAMMA),
            loops(turns, zeros, 1.0, lambda x: plain_whiten(x, turns)),
            wide,
        ),
        Case(
            "whitening",
            lambda: advantages.masked_whiten(rewards, turns),
            {"formula": lambda: plain_whiten(rewards, turns)},
            wide,
        ),
        Case(
            "PPO loss",
            lambda: losses.ppo(new, old, values, turns)[0],
            {"per-sample": lambda: ppo_loop(new, old, values, turns)},
            wide,
        ),
        Case(
            "PPO, gradient",
            lambda: gradient(lambda leaf: losses.ppo(leaf, old, values, turns)[0], new),
            {"per-sample": lambda: gradient(lambda leaf: ppo_loop(leaf, old, values, turns), new)},
            wide,
        ),
        Case(
            "masked mean",
            lambda: masked_mean(rewards, turns),
            {"formula": lambda: (rewards * turns).sum() / turns.sum()},
            wide,
        ),
        Case(
            "GRPO",
            lambda: advantages.grpo(scores, ids),
            {"per-group": lambda: group_loop(scores, ids, lambda s: (s - s.mean()) / (s.std() + 1e-6))},
            [scores],
        ),
        Case(
            "RLOO",
            lambda: advantages.rloo(scores, ids),
            {"per-group": lambda: group_loop(scores, ids, lambda s: len(s) / (len(s) - 1) * (s - s.mean()))},
            [scores],
        ),
    ]


def best_of(function: Callable[[], Tensor], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(case: Case, repeats: int, slow_repeats: int) -> tuple[float, float]:
    """Fill in the seconds of a case; return largest tensor and peak in units of one float32 input."""
    expected = case.ours()  # also the warm-up
    for name, peer in case.peers.items():
        error = (peer() - expected).abs().max() / expected.abs().max().clamp_min(1)
        if not error < 1e-4:
            raise RuntimeError(f"{case.name}: {name} differs from ours by {float(error):.1e}: nothing to compare.")
        case.seconds[name] = best_of(peer, slow_repeats)
    case.seconds["ours"] = best_of(case.ours, repeats)
    unit = case.inputs[0].numel() * 4
    meter = MemoryMeter(case.inputs)
    with meter:
        case.ours()
    return meter.largest / unit, meter.peak / unit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="how many of the shapes, smallest first")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} thread(s), float32, CPU")
    print(f"{'shape':>13} {'function':<14} {'ours ms':>9} {'largest':>8} {'peak':>6}   peers: ms (times ours)")
    verdicts: list[tuple[bool, str]] = []
    for batch, sequence in SHAPES[: arguments.shapes]:
        repeats, slow_repeats = (5, 1) if batch * sequence > 1 << 22 else (9, 3)
        for case in cases(batch, sequence):
            largest, peak = measure(case, repeats, slow_repeats)
            ours = case.seconds.pop("ours")
            shape = f"[{batch}, {sequence}]"
            peers = ", ".join(f"{name} {s * 1e3:.1f} ({s / ours:.1f}x)" for name, s in case.seconds.items())
            print(f"{shape:>13} {case.name:<14} {ours * 1e3:9.2f} {largest:8.2f} {peak:6.2f}   {peers}", flush=True)
            verdicts.append(
                (largest <= 3.0, f"{case.name} {shape}: largest intermediate {largest:.2f}x <= 3x the input")
            )
            if batch == 1024:
                for name, seconds in case.seconds.items():
                    leave(f"algorithms: {case.name} against {name}", [seconds / ours])
            if case.name.startswith("GAE"):
                slowest = min(s / ours for s in case.seconds.values())
                verdicts.append((slowest >= 1.0, f"{case.name} {shape}: never slower than a loop ({slowest:.1f}x)"))
                if batch == 1024:
                    factor = case.seconds["per-token"] / ours
                    verdicts.append((factor >= 10, f"{case.name} {shape}: {factor:.1f}x >= 10x the per-token loop"))
            if case.name.startswith(("PPO", "whitening", "masked")):
                slowest = min(s / ours for s in case.seconds.values())
                verdicts.append((slowest >= 1.0, f"{case.name} {shape}: {slowest:.1f}x >= 1x its peer"))
            if case.name in ("GRPO", "RLOO") and batch == 1024:
                verdicts.append(
                    (ours < 3e-3, f"{case.name}: {ours * 1e3:.2f} ms < 3 ms at 1024 samples in groups of 8")
                )
    for good, text in verdicts:
        print("PASS" if good else "FAIL", text)
    return 0 if all(good for good, _ in verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
