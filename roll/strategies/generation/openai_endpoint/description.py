"""What the rest of the library knows of `openai_endpoint`."""

from typing import Final

from roll.config.strategies import StrategyDescription

OPENAI_ENDPOINT: Final = StrategyDescription(
    name="openai_endpoint",
    engine="roll.strategies.generation.openai_endpoint.strategy:EndpointStrategy.for_job",
    check_options="roll.strategies.generation.openai_endpoint.options:check_options",
    refusals="roll.strategies.generation.openai_endpoint.options:refusals",
    answers_text=True,
)
