"""Domains by the source of a row, as systems have them whose rows say whence they are and which grade by that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

BY_SOURCE: Final[Mapping[str, Mapping[str, Any]]] = {
    "gsm8k": {
        "tag_included": ["openai/gsm8k"],
        "verifiers": {"math": {"options": {"answer_in": ["hash"]}}},
    },
    "math_boxed": {
        "tag_included": [
            "lighteval/MATH",
            "DigitalLearningGmbH/MATH-lighteval",
            "HuggingFaceH4/MATH-500",
            "hiyouga/geometry3k",
            "numina_aops_forum",
            "numina_synthetic_math",
            "numina_amc_aime",
            "numina_synthetic_amc",
            "numina_cn_k12",
            "numina_olympiads",
        ],
        "verifiers": {"math": {"options": {"answer_in": ["boxed"]}}},
    },
    "math_rule": {
        "tag_included": ["math_dapo", "math", "aime", "aime_2024", "aime_2025", "aime2024", "aime2025", "aime24"],
        "verifiers": {"math": {}},
    },
    "code_sandbox": {
        "tag_included": ["codecontests", "apps", "codeforces", "taco"],
        "verifiers": {"code": {}},
    },
}
"""verl's: sources, and the verifier of ours that grades as it does."""


def domains(sources: Mapping[str, Mapping[str, Any]] = BY_SOURCE) -> dict[str, Any]:
    """Return the native keys of ``sources``, by path."""
    return {f"rewards.{domain}": dict(keys) for domain, keys in sources.items()}
