"""An estimator and a policy loss of your own; ``python examples/custom_algorithm.py`` trains Sokoban with them.

The configuration names this module in ``algorithm_modules``, so any other script can use it too. Any key can be changed
on the command line: ``python examples/custom_algorithm.py max_steps=20 advantage_options.spread=0.5``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from roll.algorithms.registry import register_advantage, register_loss
from roll.config import AgenticConfig, launch

if TYPE_CHECKING:  # a program should not import torch before its configuration is known to be good
    from torch import Tensor

    from roll.algorithms.advantages import AdvantageInputs


@register_advantage("rank", needs=("scores", "group_ids"))
def rank(inputs: AdvantageInputs, *, spread: float = 1.0) -> Tensor:
    """Compare a score with the others of its group by rank: the share of members it beats minus that which beat it.

    However large a lucky score is, it counts as one win more. Parameters after the first are options, set in
    ``advantage_options``.
    """
    from roll.algorithms.groups import encode

    assert inputs.scores is not None and inputs.group_ids is not None  # what `needs` names is always there
    groups = encode(inputs.group_ids, len(inputs.scores)).codes
    wins = (inputs.scores.unsqueeze(1) - inputs.scores.unsqueeze(0)).sign()
    same_group = groups.unsqueeze(1) == groups.unsqueeze(0)
    return spread * (wins * same_group).sum(1) / same_group.sum(1)  # one advantage per sample


@register_loss("leashed")
def leashed(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, *, strength: float = 0.5
) -> tuple[Tensor, dict[str, Tensor]]:
    """Follow the advantage by a ratio that is not clipped, and pay for the square of the distance gone.

    Returns one loss per token; the framework aggregates it by ``loss_agg_mode``. Metrics are means over the tokens.
    """
    difference = (log_probs - old_log_probs).masked_fill(~mask, 0.0).clamp(-20, 20)
    loss = -advantages * difference.exp() + strength * difference.square()
    distance = difference.detach().square().sum() / mask.sum().clamp(min=1)
    return loss.masked_fill(~mask, 0.0), {"distance": distance}


def run(config: AgenticConfig) -> object:
    """Train with them. The heavy imports happen only once the configuration is known to be good."""
    from roll.pipelines.agentic import run_agentic

    return run_agentic(config)


if __name__ == "__main__":
    launch(run, config_dir=Path(__file__).parent / "config", config_name="custom_algorithm")
