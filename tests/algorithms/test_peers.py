"""Estimators, losses and divergences against the code of verl, TRL and Trinity-RFT, on the same random batches.

Their packages are not dependencies; ``peers.txt`` says how they are installed. Without them these tests are skipped.
"""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from roll.algorithms import advantages, kl, losses
from roll.algorithms.aggregation import MODES, aggregate

PEERS = Path(sys.prefix) / "peers"
F64 = torch.float64
ROWS, WIDTH = 12, 9

pytestmark = [
    pytest.mark.skipif(not PEERS.is_dir(), reason="tests/algorithms/peers.txt is not installed"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module", autouse=True)
def on_the_path() -> Any:
    # Behind everything else: verl brings packages that are called `tests` and `scripts`.
    sys.path.append(str(PEERS))
    yield
    sys.path.remove(str(PEERS))


@pytest.fixture(scope="module")
def verl(on_the_path: None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from verl.trainer.ppo import core_algos
    return core_algos


class Batch:
    """Groups of four, interleaved; responses padded on the right; drift wide enough for every clip to act."""

    def __init__(self, seed: int) -> None:
        noise = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=noise, dtype=F64)

        lengths = torch.randint(2, WIDTH + 1, (ROWS,), generator=noise)
        self.mask = torch.arange(WIDTH) < lengths[:, None]
        self.float_mask = self.mask.to(F64)
        self.groups = [f"g{row % 3}" for row in range(ROWS)]
        self.scores = torch.where(torch.rand(ROWS, generator=noise) < 0.3, 0.0, normal(ROWS))
        self.rewards = torch.zeros(ROWS, WIDTH, dtype=F64)
        self.rewards[torch.arange(ROWS), lengths - 1] = self.scores
        self.values = normal(ROWS, WIDTH)
        self.old = -normal(ROWS, WIDTH).abs()
        self.new = self.old + 0.6 * normal(ROWS, WIDTH)
        self.reference = self.old + 0.6 * normal(ROWS, WIDTH)
        self.advantages = normal(ROWS, WIDTH) * self.mask
        self.expert = torch.arange(ROWS) % 5 == 0

    def inputs(self) -> advantages.AdvantageInputs:
        return advantages.AdvantageInputs(
            self.mask,
            token_rewards=self.rewards,
            scores=self.scores,
            group_ids=self.groups,
            values=self.values,
            baselines=self.values[:, 0],
        )

    def index(self) -> Any:
        import numpy

        return numpy.array(self.groups, dtype=object)


def same_gradient(ours: Tensor, theirs: Tensor, leaf: Tensor, rtol: float = 1e-7) -> None:
    """Both losses and both gradients by the same log-probs agree."""
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=rtol, atol=1e-9)
    mine, his = (torch.autograd.grad(loss, leaf, retain_graph=True)[0] for loss in (ours, theirs))
    assert his.count_nonzero() > 10
    torch.testing.assert_close(mine, his, rtol=max(rtol, 1e-6), atol=1e-9)


class TestVerl:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize(
        ("name", "function", "options", "theirs"),
        [
            ("grpo", "grpo_outcome", {}, {}),
            ("grpo", "grpo_outcome", {"scale": "none"}, {"norm_adv_by_std_in_grpo": False}),
            ("grpo_passk", "grpo_passk_outcome", {}, {"config": {}}),
            ("grpo_passk", "grpo_passk_outcome", {"scale": "none"}, {"config": {"norm_adv_by_std_in_grpo": False}}),
            ("gpg", "gpg_outcome", {}, {}),
            ("gpg", "gpg_outcome", {"f_norm": 2.5}, {"f_norm": 2.5}),
            ("rloo", "rloo_outcome", {}, {}),
            ("opo", "opo_outcome", {}, {}),
            ("reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline_outcome", {}, {}),
        ],
    )
    def test_estimators_of_groups(
        self, verl: Any, seed: int, name: str, function: str, options: dict[str, Any], theirs: dict[str, Any]
    ) -> None:
        batch = Batch(seed)
        ours = advantages.compute(name, batch.inputs(), options).advantages
        compute = getattr(verl, f"compute_{function}_advantage")
        expected = compute(batch.rewards.clone(), batch.float_mask, batch.index(), **theirs)[0]
        assert expected.count_nonzero() > 5
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("gamma", [1.0, 0.9])
    def test_estimators_along_tokens(self, verl: Any, gamma: float) -> None:
        batch = Batch(3)
        ours = advantages.compute("reinforce_plus_plus", batch.inputs(), {"gamma": gamma}).advantages
        theirs, _ = verl.compute_reinforce_plus_plus_outcome_advantage(
            batch.rewards, batch.float_mask, config=SimpleNamespace(gamma=gamma)
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
        output = advantages.compute("gae", batch.inputs(), {"gamma": gamma, "lambd": 0.8})
        theirs, returns = verl.compute_gae_advantage_return(batch.rewards, batch.values, batch.float_mask, gamma, 0.8)
        assert output.returns is not None
        # verl whitens in the same breath; its returns outside the mask mean nothing.
        whitened = advantages.finish(output.advantages, batch.mask, whiten=True)
        torch.testing.assert_close(whitened, theirs * batch.mask, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(output.returns, returns * batch.mask, rtol=1e-6, atol=1e-6)

    def test_remax_subtracts_the_greedy_score(self, verl: Any) -> None:
        batch = Batch(4)
        ours = advantages.compute("remax", batch.inputs()).advantages
        theirs, _ = verl.compute_remax_outcome_advantage(batch.rewards, batch.values[:, 0], batch.float_mask)
        torch.testing.assert_close(ours, theirs)

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize(
        ("name", "theirs", "options"),
        [
            ("ppo", "vanilla", {"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 2.0}),
            ("gspo", "gspo", {"clip_low": 0.1, "clip_high": 0.3}),
            ("cispo", "cispo", {"clip_low": 0.1, "clip_high": 0.3}),
            ("sapo", "sapo", {}),
            ("vanilla", "gpg", {}),
            ("clip_cov", "clip_cov", {"clip_low": 0.1, "clip_high": 0.3, "clip_cov_ratio": 0.1, "clip_cov_lb": 0.1}),
            ("kl_cov", "kl_cov", {"kl_cov_ratio": 0.1, "ppo_kl_coef": 0.7}),
        ],
    )
    def test_policy_losses(self, verl: Any, seed: int, name: str, theirs: str, options: dict[str, float]) -> None:
        batch, mode = Batch(seed), "seq-mean-token-mean"
        leaf = batch.new.clone().requires_grad_()
        torch.manual_seed(seed)
        per_token, _ = losses.compute(name, leaf, batch.old, batch.advantages, batch.mask, options)
        torch.manual_seed(seed)
        expected, _ = verl.get_policy_loss_fn(theirs)(
            batch.old, leaf, batch.advantages, batch.float_mask, loss_agg_mode=mode, config=self.actor(options)
        )
        same_gradient(aggregate(per_token, batch.mask, mode), expected, leaf)

    @staticmethod
    def actor(options: dict[str, float]) -> Any:
        from verl.workers.config import ActorConfig
        from verl.workers.config.actor import PolicyLossConfig

        special = {key: value for key, value in options.items() if key in PolicyLossConfig.__dataclass_fields__}
        return ActorConfig(
            strategy="fsdp",
            rollout_n=1,
            use_dynamic_bsz=True,
            clip_ratio_low=options.get("clip_low", 0.2),
            clip_ratio_high=options.get("clip_high", 0.2),
            clip_ratio_c=options.get("dual_clip", 3.0),
            policy_loss=PolicyLossConfig(**special),
        )

    def test_the_geometric_mean_of_gmpo(self, verl: Any) -> None:
        batch = Batch(5)
        per_row = batch.advantages[:, 0]
        leaf = batch.new.clone().requires_grad_()
        per_token, _ = losses.gmpo(leaf, batch.old, per_row, batch.mask, 0.1, 0.3)
        spread = per_row[:, None].expand(ROWS, WIDTH)
        expected, _ = verl.get_policy_loss_fn("geo_mean")(
            batch.old, leaf, spread, batch.float_mask, config=self.actor({"clip_low": 0.1, "clip_high": 0.3})
        )
        same_gradient(aggregate(per_token, batch.mask, "seq-mean-token-mean"), expected, leaf)

    @pytest.mark.parametrize("mode", MODES)
    def test_aggregation(self, verl: Any, mode: str) -> None:
        batch = Batch(6)
        batch.mask[2] = False
        theirs = verl.agg_loss(batch.values, batch.mask.to(F64), mode, loss_scale_factor=17)
        torch.testing.assert_close(aggregate(batch.values, batch.mask, mode, max_length=17), theirs)

    @pytest.mark.parametrize("kind", ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k1+", "k3+", "low_var_kl+"])
    def test_divergences_and_their_gradients(self, verl: Any, kind: str) -> None:
        batch = Batch(7)
        leaf = batch.new.clone().requires_grad_()
        ours = kl.kl_penalty(leaf, batch.reference, kind)
        theirs = verl.kl_penalty(leaf, batch.reference, kind)
        assert float(ours.max()) < 10.0
        same_gradient(ours.sum(), theirs.sum(), leaf)

    def test_beyond_its_bound_verl_has_no_gradient_and_we_have(self, verl: Any) -> None:
        leaf = torch.tensor([[-5.0]], dtype=F64, requires_grad=True)
        reference = torch.tensor([[-1.0]], dtype=F64)
        theirs = verl.kl_penalty(leaf, reference, "k3")
        assert float(theirs.detach()) == float(kl.reward_divergence(leaf, reference, "k3")) == 10.0
        assert float(torch.autograd.grad(theirs.sum(), leaf)[0]) == 0.0
        assert float(torch.autograd.grad(kl.kl_penalty(leaf, reference, "k3").sum(), leaf)[0]) < -50


@pytest.mark.processes  # importing TRL starts one
class TestTRL:
    """The loss of TRL's GRPO trainer, called with a stand-in for the trainer that has its log-probs ready."""

    @staticmethod
    def loss(batch: Batch, leaf: Tensor, **settings: Any) -> Tensor:
        from trl.trainer.grpo_trainer import GRPOTrainer

        defaults = {"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1}
        given = {"loss_type": "grpo", "beta": 0.0, "importance_sampling_level": "token", **settings}
        trainer = SimpleNamespace(
            _get_per_token_logps_and_entropies=lambda *_, **__: (leaf, torch.zeros_like(leaf), None),
            aux_loss_enabled=False,
            top_entropy_quantile=1.0,
            off_policy_mask_threshold=None,
            epsilon_low=0.1,
            epsilon_high=given.pop("epsilon_high", 0.3),
            use_vllm=False,
            vllm_importance_sampling_correction=False,
            _entropy_bonus_enabled=False,
            model=SimpleNamespace(training=True),
            current_gradient_accumulation_steps=1,
            max_completion_length=17,
            accelerator=SimpleNamespace(num_processes=1, reduce=lambda x, reduction: x, gather=lambda x: x),
            _metrics={"train": defaultdict(list)},
            args=SimpleNamespace(
                sapo_temperature_pos=1.0, sapo_temperature_neg=1.05, **defaults | given.pop("args", {})
            ),
            **given,
        )
        empty = torch.zeros(ROWS, 0, dtype=torch.int64)
        inputs = {
            "prompt_ids": empty,
            "prompt_mask": empty,
            "completion_ids": torch.zeros(ROWS, WIDTH, dtype=torch.int64),
            "completion_mask": batch.mask.to(F64),
            "advantages": batch.advantages,
            "old_per_token_logps": batch.old,
            "ref_per_token_logps": batch.reference,
            "num_items_in_batch": batch.mask.sum(),
        }
        result: Tensor = GRPOTrainer._compute_loss(trainer, None, inputs)
        return result

    @pytest.mark.parametrize(
        ("kind", "mode"),
        [
            ("grpo", "seq-mean-token-mean"),
            ("bnpo", "token-mean"),
            ("dapo", "token-mean"),
            ("dr_grpo", "seq-mean-token-sum-norm"),
        ],
    )
    def test_the_loss_of_grpo(self, kind: str, mode: str) -> None:
        batch = Batch(11)
        leaf = batch.new.clone().requires_grad_()
        per_token, _ = losses.ppo(leaf, batch.old, batch.advantages, batch.mask, 0.1, 0.3)
        ours = aggregate(per_token, batch.mask, mode, max_length=17)
        same_gradient(ours, self.loss(batch, leaf, loss_type=kind), leaf)

    @pytest.mark.parametrize("corrected", [False, True])
    def test_the_divergence_in_the_loss(self, corrected: bool) -> None:
        batch = Batch(12)
        leaf = batch.new.clone().requires_grad_()
        # TRL has no bound: the furthest drift pulls hardest.
        batch.reference[0, 0] = batch.new[0, 0] + 4.0
        per_token, _ = losses.ppo(leaf, batch.old, batch.advantages, batch.mask, 0.1, 0.3)
        divergence = kl.kl_penalty(leaf, batch.reference, "low_var_kl")
        if corrected:
            divergence = divergence * kl.bias_correction(leaf, batch.old, batch.mask)
        ours = aggregate(per_token + 0.05 * divergence, batch.mask, "seq-mean-token-mean")
        theirs = self.loss(batch, leaf, beta=0.05, args={"use_bias_correction_kl": corrected})
        same_gradient(ours, theirs, leaf)

    def test_gspo_cispo_and_sapo(self) -> None:
        batch = Batch(13)
        leaf = batch.new.clone().requires_grad_()
        soft, _ = losses.sapo(leaf, batch.old, batch.advantages, batch.mask)
        theirs = self.loss(batch, leaf, loss_type="sapo")
        # TRL's temperatures are numbers of 32 bits.
        same_gradient(aggregate(soft, batch.mask, "seq-mean-token-mean"), theirs, leaf, rtol=1e-5)
        # TRL's upper bound is the ratio itself, and there is no lower one.
        cispo, _ = losses.cispo(leaf, batch.old, batch.advantages, batch.mask, 1.0, 0.3)
        theirs = self.loss(batch, leaf, loss_type="cispo", epsilon_high=1.3)
        same_gradient(aggregate(cispo, batch.mask, "token-mean"), theirs, leaf)
        per_row = batch.advantages[:, :1]
        batch.advantages = per_row.expand(ROWS, WIDTH)
        whole, _ = losses.gspo(leaf, batch.old, batch.advantages, batch.mask, 0.1, 0.3)
        theirs = self.loss(batch, leaf, importance_sampling_level="sequence")
        same_gradient(aggregate(whole, batch.mask, "seq-mean-token-mean"), theirs, leaf)


class TestTrinity:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
    def test_mix(self, seed: int, mode: str) -> None:
        from trinity.algorithm.policy_loss_fn.mix_policy_loss import MIXPolicyLossFn

        batch = Batch(20 + seed)
        experts = int(batch.expert.sum())
        peer = MIXPolicyLossFn(
            mu=0.3,
            clip_range=0.2,
            ppo_mini_batch_size=ROWS,
            ppo_micro_batch_size_per_gpu=ROWS,
            train_batch_size_usual=ROWS - experts,
            train_batch_size_expert=experts,
            loss_agg_mode=mode,
        )
        leaf = batch.new.clone().requires_grad_()
        mixture = losses.expert_mixture(batch.expert, batch.mask, mode)
        per_token, _ = losses.mix(
            leaf, batch.old, batch.advantages, batch.mask, batch.expert, mixture, 0.3, dual_clip=3.0
        )
        theirs, _ = peer(leaf, batch.old, batch.float_mask, batch.advantages, batch.expert)
        same_gradient(aggregate(per_token, batch.mask, mode), theirs, leaf)

    @pytest.mark.parametrize("phi", [True, False])
    @pytest.mark.parametrize("step", [2, 5, 9])
    def test_chord(self, step: int, phi: bool) -> None:
        from trinity.algorithm.policy_loss_fn.chord_policy_loss import MIXCHORDPolicyLossFn

        batch = Batch(40 + step)
        experts = int(batch.expert.sum())
        schedule = {"mu_warmup_steps": 3, "mu_decay_steps": 5, "mu_peak": 0.6, "mu_valley": 0.1}
        peer = MIXCHORDPolicyLossFn(
            **schedule,
            enable_phi_function=phi,
            clip_range=0.2,
            ppo_mini_batch_size=ROWS,
            ppo_micro_batch_size_per_gpu=ROWS,
            train_batch_size_usual=ROWS - experts,
            train_batch_size_expert=experts,
        )
        leaf, steps = batch.new.clone().requires_grad_(), torch.full((ROWS,), step)
        per_token, _ = losses.chord(
            *(leaf, batch.old, batch.advantages, batch.mask, batch.expert, steps),
            **schedule,
            enable_phi_function=phi,
            dual_clip=3.0,
        )
        theirs, _ = peer(leaf, batch.old, batch.float_mask, batch.advantages, batch.expert, steps)
        same_gradient(aggregate(per_token, batch.mask, "token-mean"), theirs, leaf)

    @pytest.mark.parametrize("clip", ["none", "one-side", "gspo-one-side", "two-side", "ring"])
    @pytest.mark.parametrize("weight", ["none", "importance_sampling", "gspo_importance_sampling", "advantage"])
    @pytest.mark.parametrize("regularizer", ["none", "k2", "forward-kl"])
    def test_rec(self, clip: str, weight: str, regularizer: str) -> None:
        from trinity.algorithm.policy_loss_fn.rec_policy_loss import RECPolicyLossFn

        if weight == "gspo_importance_sampling" and clip != "gspo-one-side":
            pytest.skip("theirs has this weight with this range only")
        batch = Batch(51)
        leaf = batch.new.clone().requires_grad_()
        bounds = {"epsilon_low": 0.2, "epsilon_high": 0.25, "epsilon_low_prime": 0.4, "epsilon_high_prime": 0.5}
        options = {
            "clip_mode": clip,
            "weight": weight,
            "regularizer": regularizer,
            "regularizer_coef": 0.2,
            "temp": 2.0,
        }
        per_token, _ = losses.rec(leaf, batch.old, batch.advantages, batch.mask, **options, **bounds)
        theirs, _ = RECPolicyLossFn(**options, **bounds)(leaf, batch.old, batch.float_mask, batch.advantages)
        mode = "seq-mean-token-mean" if clip == "gspo-one-side" else "token-mean"
        same_gradient(aggregate(per_token, batch.mask, mode), theirs, leaf)

    @pytest.mark.parametrize("drop", [None, "balance"])
    @pytest.mark.parametrize("divided", [False, True])
    def test_rec_advantages(self, drop: str | None, divided: bool) -> None:
        from trinity.algorithm.advantage_fn.rec_advantage import RECGroupedAdvantage

        # Which failures go is chance there: with scores of two values what is left is the same.
        scores = [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
        experiences = [SimpleNamespace(reward=score, action_mask=torch.ones(2)) for score in scores]
        theirs, _ = RECGroupedAdvantage(std_normalize=divided, drop=drop).calculate_group_advantage("g", experiences)
        ours = advantages.rec(
            torch.tensor(scores), ["g"] * 7, drop=drop or "none", scale="std" if divided else "none"
        ).tolist()
        found = sorted(float(experience.advantages[0]) for experience in theirs)
        assert sorted(ours) == pytest.approx(found, abs=1e-6)

    def test_sppo(self) -> None:
        from trinity.algorithm.policy_loss_fn.sppo_loss_fn import sPPOPolicyLossFn

        batch = Batch(50)
        leaf = batch.new.clone().requires_grad_()
        per_token, _ = losses.sppo(leaf, batch.old, batch.advantages, batch.mask, 0.25)
        theirs, _ = sPPOPolicyLossFn(epsilon=0.25)(leaf, batch.old, batch.float_mask, batch.advantages)
        same_gradient(aggregate(per_token, batch.mask, "token-mean"), theirs, leaf)

    def test_opmd(self) -> None:
        from trinity.algorithm.policy_loss_fn.opmd_policy_loss import OPMDPolicyLossFn

        batch = Batch(23)
        leaf = batch.new.clone().requires_grad_()
        per_token, _ = losses.opmd(leaf, batch.old, batch.advantages, batch.mask, tau=0.5)
        theirs, _ = OPMDPolicyLossFn(tau=0.5)(leaf, batch.float_mask, batch.advantages)
        same_gradient(aggregate(per_token, batch.mask, "token-mean"), theirs, leaf)

    def test_the_divergence_weighed_by_the_ratio(self) -> None:
        from trinity.algorithm.kl_fn.kl_fn import CorrectedK3Fn, K3Fn

        batch = Batch(24)
        # Trinity bounds the ratio at 2.
        leaf = torch.minimum(batch.new, batch.old + 0.6).requires_grad_()
        ours = kl.kl_penalty(leaf, batch.reference, "k3") * kl.bias_correction(leaf, batch.old, batch.mask)
        theirs = CorrectedK3Fn().calculate_kl(leaf, batch.reference, batch.old)
        same_gradient((ours * batch.mask).sum(), (theirs * batch.mask).sum(), leaf)
        plain = K3Fn().calculate_kl(leaf, batch.reference)
        same_gradient(kl.kl_penalty(leaf, batch.reference, "k3").sum(), plain.sum(), leaf)
