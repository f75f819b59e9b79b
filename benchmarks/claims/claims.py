"""The claims that can be tried."""

from __future__ import annotations

from claim import Claim, Measure

LEARNING_RATE = "actor_train.training_args.learning_rate"
SUCCESS = Measure("held-out success", "val/success", percent=True)
ENTROPY = Measure("entropy", "train/policy/entropy", last=5)
CLIPPED = Measure("clipped tokens", "train/policy/clip_fraction", last=20, percent=True)
GRADIENT = Measure("gradient norm", "train/grad_norm", last=20)
SMALL = {
    "max_steps": 20,
    "eval_steps": 20,
    "save_steps": 0,
    "rollout_batch_size": 32,
    "actor_train.data_args.file_name": "examples/data/arithmetic_train.jsonl",
    "actor_train.data_args.max_samples": 1024,
    LEARNING_RATE: 1e-4,
    "actor_train.training_args.lr_scheduler_type": "constant",
}

CLAIMS = {
    claim.name: claim
    for claim in (
        Claim(
            "length_bias",
            "rlvr_math",
            SMALL,
            {
                "GRPO": {"loss_agg_mode": "seq-mean-token-mean", "norm_adv_by_std_in_grpo": True},
                "Dr. GRPO": {"loss_agg_mode": "seq-mean-token-sum-norm", "norm_adv_by_std_in_grpo": False},
            },
            (Measure("tokens of a response", "rollout/response_tokens", last=5), SUCCESS),
        ),
        Claim(
            "sampler_correction",
            "rlvr_math",
            {**SMALL, "old_log_probs": "recompute", LEARNING_RATE: 2e-4},
            {
                "matched sampler": {"sampler_correction.mode": None},
                "old sampler": {"actor_infer.model_update_frequency": 6, "sampler_correction.mode": None},
                "old sampler, TIS": {"actor_infer.model_update_frequency": 6, "sampler_correction.mode": "tis"},
            },
            (SUCCESS, ENTROPY),
        ),
        Claim(
            "clip_higher",
            "rlvr_math",
            {**SMALL, "max_steps": 40, "eval_steps": 40, "mini_batches": 4, "ppo_epochs": 2, LEARNING_RATE: 1e-4},
            {
                "one range": {"pg_clip_low": 0.2, "pg_clip_high": 0.2},
                "clip-higher": {"pg_clip_low": 0.2, "pg_clip_high": 0.28},
                "clip-higher, far": {"pg_clip_low": 0.2, "pg_clip_high": 1.0},
            },
            (ENTROPY, SUCCESS, CLIPPED),
        ),
        Claim(
            "sequence_ratio",
            "rlvr_math",
            {**SMALL, "mini_batches": 8, "ppo_epochs": 2, LEARNING_RATE: 2e-4},
            {
                "token ratio": {"policy_loss": "ppo"},
                "sequence ratio (GSPO)": {"policy_loss": "gspo"},
            },
            (SUCCESS, ENTROPY, CLIPPED),
        ),
        Claim(
            "leave_one_out",
            "rlvr_math",
            {**SMALL, "rollout_batch_size": 128, "num_return_sequences_in_group": 2, LEARNING_RATE: 2e-4},
            {
                "no baseline": {"adv_estimator": "reinforce"},
                "GRPO": {"adv_estimator": "grpo"},
                "RLOO": {"adv_estimator": "rloo"},
            },
            (SUCCESS, GRADIENT, ENTROPY),
        ),
    )
}
