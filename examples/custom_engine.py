"""A generation engine of your own; ``python examples/custom_engine.py`` trains Sokoban with what it samples.

It reads the whole prompt again for every token, which is slow and simple. The configuration names this module in
``strategy_modules``, so any other script can use it too. Any key can be changed on the command line:
``python examples/custom_engine.py max_steps=20``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from roll.config import AgenticConfig, launch
from roll.generation import SamplingParams
from roll.strategies import EngineJob, StrategyDescription, register_strategy
from roll.strategies.generation.token_by_token import TokenByTokenEngine, only_temperature

if TYPE_CHECKING:  # a program should not import torch before its configuration is known to be good
    import torch


class PlainEngine(TokenByTokenEngine):
    """Samples with a model in this process. Any other class with the methods of ``GenerationStrategy`` will do, too."""

    def __init__(self, job: EngineJob) -> None:
        self.model = job.load().eval()
        super().__init__(job.max_length, self.model.get_input_embeddings().num_embeddings, job.decode)

    def next_token(self, tokens: list[int], sampling: SamplingParams, noise: torch.Generator) -> tuple[int, float]:
        """Draw a token; its log-prob is that of the distribution that it is drawn from."""
        import torch

        logits = self.model(torch.tensor([tokens], device=self.model.device)).logits[0, -1].float().cpu()
        log_probs = (logits / (sampling.temperature or 1)).log_softmax(-1)
        drawn = torch.multinomial(log_probs.exp(), 1, generator=noise) if sampling.temperature else log_probs.argmax()
        return int(drawn), float(log_probs[drawn])

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy new weights into the model."""
        own = dict(self.model.named_parameters())
        for name, tensor in tensors:
            own[name].copy_(tensor.detach())


# What the rest of the library must know of it; a configuration is checked against it before a model loads.
register_strategy(
    StrategyDescription(name="plain", engine=PlainEngine, refusals=only_temperature, computes_as_trainer=True)
)


def run(config: AgenticConfig) -> object:
    """Train with it. The heavy imports happen only once the configuration is known to be good."""
    from roll.pipelines.agentic import run_agentic

    return run_agentic(config)


if __name__ == "__main__":
    launch(run, config_dir=Path(__file__).parent / "config", config_name="custom_engine")
