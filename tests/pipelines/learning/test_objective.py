"""Every term of the objective against loops over tokens, written from the formulas."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from roll.algorithms.aggregation import MODES
from roll.common.registry import UnknownNameError
from roll.config import AgenticConfig, RLConfig, RLVRConfig
from roll.pipelines.learning.objective import PolicyObjective, merge_metrics
from roll.strategies.base import BatchTotals

F64 = torch.float64
ROWS, WIDTH, MAX_LENGTH = 4, 7, 11


def make_batch(seed: int = 0) -> tuple[Tensor, Tensor, TensorDict]:
    """Random log-probs, entropies and batch; row 3 has no trained token."""
    noise = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(ROWS, WIDTH, generator=noise, dtype=F64)

    mask = torch.rand(ROWS, WIDTH, generator=noise) < 0.6
    mask[3] = False
    old = -normal().abs()
    log_probs = (old + 0.5 * normal()).requires_grad_()
    batch = TensorDict(
        {
            "response_mask": mask,
            "old_log_probs": old,
            "ref_log_probs": old + 0.3 * normal(),
            "advantages": normal(),
            "positive": torch.tensor([True, False, True, False]),
            "turn_index": torch.where(mask, torch.arange(WIDTH) // 3, -1),
        },
        batch_size=[ROWS],
    )
    return log_probs, normal().abs(), batch


def aggregate(per_token: list[list[float]], mask: list[list[bool]], mode: str, tokens: int, sequences: int) -> float:
    """The four modes from their definitions; the totals are given because they may be those of a larger batch."""
    total = 0.0
    for values, inside in zip(per_token, mask, strict=True):
        kept = [value for value, trained in zip(values, inside, strict=True) if trained]
        if mode == "token-mean":
            total += sum(kept) / tokens
        elif kept:
            divisor = {
                "seq-mean-token-sum": 1,
                "seq-mean-token-mean": len(kept),
                "seq-mean-token-sum-norm": MAX_LENGTH,
            }[mode]
            total += sum(kept) / divisor / sequences
    return total


def ppo(log_prob: float, old: float, advantage: float, low: float, high: float, dual: float | None) -> float:
    ratio = math.exp(log_prob - old)
    loss = max(-advantage * ratio, -advantage * min(max(ratio, 1 - low), 1 + high))
    return min(loss, -advantage * dual) if dual is not None and advantage < 0 else loss


def over_tokens(function, *tensors: Tensor) -> list[list[float]]:
    columns = [tensor.tolist() for tensor in tensors]
    return [[function(*(each[row][t] for each in columns)) for t in range(WIDTH)] for row in range(ROWS)]


@pytest.mark.parametrize("mode", MODES)
def test_every_term_by_hand(mode: str) -> None:
    log_probs, entropy, batch = make_batch()
    loss = PolicyObjective(
        options={"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 1.4},
        aggregation=mode,
        max_length=MAX_LENGTH,
        policy_weight=0.7,
        entropy_weight=0.05,
        kl_weight=0.4,
        kl_kind="low_var_kl",
        supervised_weight=0.3,
    )
    mask = batch["response_mask"].tolist()
    totals = loss.totals(batch)
    assert totals == BatchTotals(sum(map(sum, mask)), 3, measured_tokens=sum(map(sum, mask)))

    def mean(values: list[list[float]], where: list[list[bool]] = mask) -> float:
        return aggregate(values, where, mode, totals.tokens, totals.sequences)

    old, advantages = batch["old_log_probs"], batch["advantages"]
    plain = log_probs.detach()
    policy = mean(over_tokens(lambda p, o, a: ppo(p, o, a, 0.1, 0.3, 1.4), plain, old, advantages))
    kl = mean(over_tokens(lambda p, r: math.exp(r - p) - (r - p) - 1, plain, batch["ref_log_probs"]))
    positive = [row if good else [False] * WIDTH for row, good in zip(mask, batch["positive"].tolist(), strict=True)]
    nll = mean(over_tokens(lambda p: -p, plain), positive)
    expected = 0.7 * policy - 0.05 * mean(entropy.tolist()) + 0.4 * kl + 0.3 * nll
    value, metrics = loss(log_probs, entropy, batch, totals)
    assert float(value.detach()) == pytest.approx(expected, rel=1e-12)
    assert float(metrics["loss/policy"]) == pytest.approx(policy, rel=1e-12)
    assert float(metrics["loss/kl"]) == pytest.approx(kl, rel=1e-12)
    assert float(metrics["loss/sft"]) == pytest.approx(nll, rel=1e-12)
    assert not any(metric.requires_grad for metric in metrics.values())
    # The metric is the mean over tokens in every mode, so that runs can be compared.
    entropies = [float(entropy[row, t]) for row in range(ROWS) for t in range(WIDTH) if mask[row][t]]
    assert float(metrics["policy/entropy"]) == pytest.approx(sum(entropies) / len(entropies), rel=1e-12)


def test_weights_of_samples_and_of_tokens_multiply_the_policy_term_and_no_other() -> None:
    log_probs, entropy, batch = make_batch()
    noise = torch.Generator().manual_seed(1)
    batch["sample_weights"] = torch.rand(ROWS, generator=noise, dtype=F64)
    batch["sampler_weights"] = torch.rand(ROWS, WIDTH, generator=noise, dtype=F64)
    loss = PolicyObjective(policy_weight=2.0, entropy_weight=0.1, supervised_weight=0.5)
    totals, mask = loss.totals(batch), batch["response_mask"].tolist()
    weights = (batch["sample_weights"].unsqueeze(1) * batch["sampler_weights"]).tolist()
    plain = over_tokens(lambda p, o, a: ppo(p, o, a, 0.2, 0.2, None), log_probs.detach(), *_two(batch))
    expected = 0.0
    for row, good in enumerate(batch["positive"].tolist()):
        for t in range(WIDTH):
            if mask[row][t]:
                expected += 2.0 * weights[row][t] * plain[row][t] - 0.1 * float(entropy[row, t])
                expected -= 0.5 * good * float(log_probs.detach()[row, t])
    value, _ = loss(log_probs, entropy, batch, totals)
    assert float(value.detach()) == pytest.approx(expected / totals.tokens, rel=1e-12)


@pytest.mark.parametrize("kind", ["kl", "low_var_kl"])
def test_the_divergence_is_weighed_by_the_ratio_to_the_policy_that_sampled(kind: str) -> None:
    log_probs, entropy, batch = make_batch()
    loss = PolicyObjective(policy_weight=0.0, kl_weight=0.4, kl_kind=kind, kl_correction=True)
    totals = loss.totals(batch)

    def corrected(p: float, o: float, r: float) -> float:
        estimate = p - r if kind == "kl" else math.exp(r - p) - (r - p) - 1
        return math.exp(p - o) * estimate

    per_token = over_tokens(corrected, log_probs.detach(), batch["old_log_probs"], batch["ref_log_probs"])
    expected = aggregate(per_token, batch["response_mask"].tolist(), "token-mean", totals.tokens, totals.sequences)
    value, metrics = loss(log_probs, entropy, batch, totals)
    assert float(metrics["loss/kl"]) == pytest.approx(expected, rel=1e-12)
    assert float(value.detach()) == pytest.approx(0.4 * expected, rel=1e-12)


def test_the_policy_term_alone_is_the_default() -> None:
    log_probs, entropy, batch = make_batch()
    for name in ("ref_log_probs", "positive", "turn_index"):
        del batch[name]
    loss = PolicyObjective()
    value, metrics = loss(log_probs, entropy, batch, loss.totals(batch))
    expected = over_tokens(lambda p, o, a: ppo(p, o, a, 0.2, 0.2, None), log_probs.detach(), *_two(batch))
    tokens = loss.totals(batch).tokens
    assert float(value.detach()) == pytest.approx(
        aggregate(expected, batch["response_mask"].tolist(), "token-mean", tokens, 3), rel=1e-12
    )
    assert not {"loss/kl", "loss/sft"} & metrics.keys()


def _two(batch: TensorDict) -> tuple[Tensor, Tensor]:
    return batch["old_log_probs"], batch["advantages"]


def test_the_supervised_term_reaches_positive_samples_only() -> None:
    log_probs, entropy, batch = make_batch()
    loss = PolicyObjective(policy_weight=0.0, supervised_weight=1.0)
    loss(log_probs, entropy, batch, loss.totals(batch))[0].backward()
    gradient = log_probs.grad
    assert gradient is not None
    trained = batch["response_mask"] & batch["positive"].unsqueeze(1)
    assert trained.any() and (batch["response_mask"] & ~trained).any()
    torch.testing.assert_close(gradient, torch.where(trained, -1 / loss.totals(batch).tokens, 0.0).to(F64))


def test_values_outside_the_mask_do_not_matter() -> None:
    loss = PolicyObjective(entropy_weight=0.1, kl_weight=0.1, supervised_weight=0.1)
    log_probs, entropy, batch = make_batch()
    totals = loss.totals(batch)
    value, metrics = loss(log_probs, entropy, batch, totals)
    outside = ~batch["response_mask"]
    for name in ("old_log_probs", "ref_log_probs", "advantages"):
        batch[name] = batch[name].masked_fill(outside, 1e30)
    changed, changed_metrics = loss(
        log_probs.detach().masked_fill(outside, -1e30), entropy.masked_fill(outside, 1e30), batch, totals
    )
    assert float(changed) == float(value.detach())
    assert {k: float(v) for k, v in changed_metrics.items()} == {k: float(v) for k, v in metrics.items()}


def test_shares_of_micro_batches_add_up_and_extremes_stay_extremes() -> None:
    loss = PolicyObjective(entropy_weight=0.1, kl_weight=0.2, supervised_weight=0.3)
    log_probs, entropy, batch = make_batch()
    totals = loss.totals(batch)
    whole, metrics = loss(log_probs, entropy, batch, totals)
    parts = [loss(log_probs[rows], entropy[rows], batch[rows], totals) for rows in (slice(0, 1), slice(1, 4))]
    assert float(sum(part[0] for part in parts).detach()) == pytest.approx(float(whole.detach()), rel=1e-12)
    for name, value in metrics.items():
        shares = [float(part[1][name]) for part in parts]
        together = max(shares) if name.endswith("_max") else sum(shares)
        assert together == pytest.approx(float(value), rel=1e-6), name


@pytest.mark.parametrize(
    ("name", "options"),
    [("clip_cov", {"clip_cov_ratio": 0.3, "clip_cov_lb": 0.05}), ("kl_cov", {"kl_cov_ratio": 0.3, "ppo_kl_coef": 1.0})],
)
def test_what_is_chosen_among_all_tokens_of_a_step_does_not_depend_on_micro_batches(
    name: str, options: dict[str, float]
) -> None:
    log_probs, entropy, batch = make_batch()
    loss = PolicyObjective(policy_loss=name, options=options)
    loss.prepare(batch, torch.Generator().manual_seed(1))
    chosen = batch["cov_tokens"] & batch["response_mask"]
    assert int(chosen.sum()) == int(0.3 * int(batch["response_mask"].sum()))
    totals = loss.totals(batch)
    loss(log_probs, entropy, batch, totals)[0].backward()
    assert log_probs.grad is not None
    whole, log_probs.grad = log_probs.grad, None
    for rows in ([0], [1, 2], [3]):
        loss(log_probs[rows], entropy[rows], batch[rows], totals)[0].backward()
    torch.testing.assert_close(log_probs.grad, whole)
    plain = PolicyObjective(options={} if name == "clip_cov" else {"clip_low": 1.0, "clip_high": 1e9})
    other = log_probs.detach().clone().requires_grad_()
    plain(other, entropy, batch, totals)[0].backward()
    assert other.grad is not None and ((other.grad != whole) <= chosen).all(), "the others are left alone"


def test_a_loss_per_turn_reads_the_turns_of_the_batch() -> None:
    log_probs, entropy, batch = make_batch()
    loss = PolicyObjective(policy_loss="gspo_segment", options={"clip_low": 9.0, "clip_high": 9.0})
    value, _ = loss(log_probs, entropy, batch, loss.totals(batch))
    expected = 0.0
    for row in range(ROWS):
        for turn in range(3):
            tokens = [t for t in range(WIDTH) if batch["response_mask"][row, t] and batch["turn_index"][row, t] == turn]
            if tokens:
                shift = [float((log_probs.detach() - batch["old_log_probs"])[row, t]) for t in tokens]
                ratio = math.exp(sum(shift) / len(shift))
                expected -= ratio * sum(float(batch["advantages"][row, t]) for t in tokens)
    assert float(value.detach()) == pytest.approx(expected / loss.totals(batch).tokens, rel=1e-9)


def test_a_loss_whose_input_is_missing_says_so() -> None:
    log_probs, entropy, batch = make_batch()
    loss = PolicyObjective(policy_loss="mix")
    with pytest.raises(ValueError, match="'mix' needs expert in the batch"):
        loss(log_probs, entropy, batch, loss.totals(batch))


def test_the_configuration_is_read_key_by_key() -> None:
    config = AgenticConfig(
        policy_loss="ppo",
        pg_clip=0.15,
        pg_clip_high=0.28,
        dual_clip_loss=True,
        loss_agg_mode="seq-mean-token-sum-norm",
        sequence_length=777,
        rl_loss_coef=0.8,
        entropy_loss_coef=0.01,
        use_kl_loss=True,
        kl_loss_coef=0.02,
        kl_penalty="k3",
        use_bias_correction_kl=True,
        sft_loss_coef=0.03,
    )
    assert PolicyObjective.from_config(config) == PolicyObjective(
        policy_loss="ppo",
        options={"clip_low": 0.15, "clip_high": 0.28, "dual_clip": 3.0},
        aggregation="seq-mean-token-sum-norm",
        max_length=777,
        policy_weight=0.8,
        entropy_weight=0.01,
        kl_weight=0.02,
        kl_kind="low_var_kl",
        kl_correction=True,
        supervised_weight=0.03,
    )


def test_a_divergence_without_use_kl_loss_has_no_weight_and_losses_get_only_the_options_they_read() -> None:
    objective = PolicyObjective.from_config(AgenticConfig(kl_loss_coef=0.5, use_topr_loss=True))
    assert objective.kl_weight == 0.0
    assert objective.policy_loss == "topr" and objective.options == {}


@pytest.mark.parametrize("kind", [AgenticConfig, RLVRConfig])
@pytest.mark.parametrize(
    ("loss", "keys", "options"),
    [
        ("gspo", {}, {}),
        ("gmpo", {}, {}),
        ("gspo", {"pg_clip": 0.2}, {"clip_low": 0.2, "clip_high": 0.2}),
        ("gspo", {"pg_clip_high": 0.001}, {"clip_high": 0.001}),
        ("gmpo", {"pg_clip": 0.3, "pg_clip_low": 0.1}, {"clip_low": 0.1, "clip_high": 0.3}),
        ("ppo", {"dual_clip_loss": 2.5}, {"dual_clip": 2.5}),
        ("topr", {"policy_loss_options": {"level": "sequence"}}, {"level": "sequence"}),
        ("cispo", {"pg_clip_low": 0.9, "dual_clip_loss": True}, {"clip_low": 0.9}),
    ],
)
def test_a_clip_range_that_is_not_set_is_that_of_the_loss(
    kind: type[RLConfig], loss: str, keys: dict[str, object], options: dict[str, object]
) -> None:
    assert PolicyObjective.from_config(kind(policy_loss=loss, **keys)).options == options


def test_metrics_of_several_steps_keep_extremes_and_average_the_rest() -> None:
    records = [{"loss": 1.0, "ratio_max": 3.0, "ratio_min": 0.5}, {"loss": 2.0, "ratio_max": 2.0, "ratio_min": 0.1}]
    assert merge_metrics([*records, {"loss": 6.0}]) == {"loss": 3.0, "ratio_max": 3.0, "ratio_min": 0.1}
    assert merge_metrics([]) == {}


def test_unknown_names_are_errors_that_list_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="unknown loss 'ppoo'. Did you mean 'ppo'"):
        PolicyObjective.from_config(AgenticConfig(policy_loss="ppoo"))
    log_probs, entropy, batch = make_batch()
    totals = BatchTotals(1, 1, 1)
    with pytest.raises(ValueError, match="unknown 'mean'; known: token-mean"):
        PolicyObjective(aggregation="mean")(log_probs, entropy, batch, totals)
    with pytest.raises(ValueError, match="unknown kind 'k9'; known: kl"):
        PolicyObjective(kl_weight=1.0, kl_kind="k9")(log_probs, entropy, batch, totals)
