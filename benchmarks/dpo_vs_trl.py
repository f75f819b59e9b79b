"""Tokens per second of learning from preferences against TRL's ``DPOTrainer``: same model, pairs and updates.

    OMP_NUM_THREADS=1 python benchmarks/dpo_vs_trl.py [uniform] [mixed] [--steps 6] [--rounds 5]

Needs ``trl>=1.16,<2``. The model of ``sft_vs_trl.py``; pairs of random tokens behind a prompt of a quarter of
the length. ``uniform``: every sequence has 128 tokens. ``mixed``: 8 to 512 tokens, log-normal, chosen and rejected
answers each for itself. A step is 32 pairs, 64 sequences, and one optimiser step of AdamW on the sigmoid loss; the
reference is a copy of the model and scores every step anew, on both sides. All see the same pairs in the same order.

Ours puts both answers of pairs end to end, at most ``--tokens`` tokens in a micro-batch. TRL pads the sequences of
``--peer-rows`` pairs to the longest; of both the best sizes count. Its ``padding_free`` does not work with preferences
in this version. Contestants are processes that take rounds in turn, as there.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from contest import (
    ROWS,
    Round,
    Side,
    compete,
    lengths_of,
    model,
    noise,
    of_step,
    our_options,
    our_round,
    tokens,
    trl_arguments,
    trl_round,
)

BETA = 0.1


def pairs_of(case: str, steps: int) -> list[dict[str, list[int]]]:
    """Return the pairs of all steps of a round, the same for every contestant."""
    source = noise()
    one, other = (lengths_of(case, ROWS * steps, source) for _ in range(2))
    drawn = partial(tokens, source)
    asked = np.minimum(one, other) // 4
    return [
        {"prompt_ids": drawn(prompt), "chosen_ids": drawn(a - prompt), "rejected_ids": drawn(b - prompt)}
        for prompt, a, b in zip(asked.tolist(), one.tolist(), other.tolist(), strict=True)
    ]


def ours(side: Side, case: str, steps: int) -> Round:
    """Take the steps with ``fsdp_train``."""
    import torch

    from roll.pipelines.sampling.demonstrations import to_batch
    from roll.strategies.training.micro_batches import PAIR
    from roll.strategies.training.preference import CHOSEN, REF_SUMS, PreferenceLoss, answer_sums
    from roll.strategies.training.pytorch.scoring import Scorer
    from roll.strategies.training.pytorch.train import FsdpTrainStrategy

    options = our_options(side.tokens, steps)
    trainer = FsdpTrainStrategy(model(), options)
    reference = Scorer(model().requires_grad_(False), **options.for_scoring())
    loss, pairs = PreferenceLoss(kind="sigmoid", beta=BETA), pairs_of(case, steps)

    def step(number: int) -> float:
        rows = []
        for pair in of_step(pairs, number):
            for answer in (pair["chosen_ids"], pair["rejected_ids"]):
                ids = np.array(pair["prompt_ids"] + answer, np.int32)
                rows.append((ids, np.arange(len(ids)) >= len(pair["prompt_ids"])))
        batch = to_batch(rows, 0)
        batch[CHOSEN], batch[PAIR] = torch.tensor([True, False] * ROWS), torch.arange(ROWS).repeat_interleave(2)
        batch[REF_SUMS] = answer_sums(reference.compute_log_probs(batch), batch)
        return trainer.train_step(batch, loss)["loss"]

    return our_round(steps, step)


def theirs(side: Side, case: str, steps: int) -> Round:
    """Take the steps with TRL."""
    from trl import DPOConfig, DPOTrainer

    class OfTokens(DPOTrainer):
        """Takes rows that are tokens already."""

        def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
            return dataset

    arguments = trl_arguments(DPOConfig, side.rows, steps, beta=BETA)
    return trl_round(OfTokens, pairs_of(case, steps), ref_model=model(), args=arguments)


def lengths(case: str, steps: int) -> list[int]:
    """Return the lengths of the sequences of all pairs but those of the first step."""
    return [
        len(pair["prompt_ids"]) + len(pair[answer])
        for pair in pairs_of(case, steps)[ROWS:]
        for answer in ("chosen_ids", "rejected_ids")
    ]


if __name__ == "__main__":
    compete(__doc__, ours, theirs, lengths, padding_free=False)
