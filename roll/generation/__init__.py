"""What passes between those who want completions and the engines that sample them; needs neither torch nor Ray."""

from roll.generation.activity import Activity, NoActivity
from roll.generation.pictures import Picture
from roll.generation.records import (
    Completion,
    Generate,
    GenerationRequest,
    SamplingError,
    SamplingParams,
    ScoringRequest,
    TokenScores,
)
from roll.generation.seeds import fold_seed, generation_seed

__all__ = [
    "Activity",
    "Completion",
    "Generate",
    "GenerationRequest",
    "NoActivity",
    "Picture",
    "SamplingParams",
    "SamplingError",
    "ScoringRequest",
    "TokenScores",
    "fold_seed",
    "generation_seed",
]
