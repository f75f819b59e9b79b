"""Files of ROLL and Trinity-RFT that learn from data and teachers, where they are at hand: each runs on a random model.

They are converted as a whole; only the files of rows that they name are others, with the columns that they ask for.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from roll.config import load
from roll.config.errors import ConfigWarning
from roll.convert import convert, read
from roll.rehearsal import rehearse

UPSTREAM = Path(__file__).resolve().parents[3] / "shared" / "upstream"
PATTERNS = {
    "roll_*": ["*dpo*/*.yaml", "*-sft_*/*.yaml", "*distill*/*.yaml"],
    "trinity*": ["sft_*.yaml", "dpo_*.yaml", "mix_*.yaml", "opd_*.yaml"],
}
PICTURES = ("-vl-", "mix_vlm")
"""What is in the names of files whose models see pictures: out of scope, and refused."""

pytestmark = [
    pytest.mark.skipif(not UPSTREAM.is_dir(), reason="the files of other systems are not here"),
    pytest.mark.exhaustive,
    pytest.mark.long,
]

FILES = sorted(
    path
    for folders, patterns in PATTERNS.items()
    for folder in UPSTREAM.glob(folders)
    for pattern in patterns
    for path in folder.glob(pattern)
    if not any(word in str(path) for word in PICTURES)
)
SUMS = [(a, b) for a in range(1, 9) for b in range(1, 9)]
CALLS = '[{"name": "add", "arguments": {"a": 1, "b": 2}}]'
"""The right answer where verifiers compare calls of tools."""
KINDS = {"sft": "said", "distill_rows": "said", "dpo": "compared"}
"""What the rows of a pipeline are; those of the others are asked."""


def written(folder: Path, kind: str, keys: Mapping[str, Any], tags: list[str], right: str | None = None) -> str:
    """Write a file of sums with the columns that ``keys`` name, and return its path.

    Args:
        folder: Where.
        kind: ``said``: with answers; ``compared``: with two each; ``asked``: with right answers and tags.
        keys: Those that name columns.
        tags: Of the rows, in turn.
        right: The right answer to all of them; ``None``: the sum.
    """
    data: list[dict[str, Any]] = []
    for number, (a, b) in enumerate(SUMS):
        asked, answer = f"{a} + {b} = ?", right or str(a + b)
        if kind == "asked":
            column = keys.get("messages") or keys.get("prompt") or "prompt"
            chat = [{"role": "user", "content": asked}] if keys.get("messages") else asked
            row = {column: chat, keys.get("ground_truth") or "ground_truth": answer}
            row[keys.get("tag") or "tag"] = tags[number % len(tags)]
        elif kind == "compared":
            row = {keys.get("prompt_key") or "prompt": asked}
            row |= {keys.get("chosen_key") or "chosen": answer, keys.get("rejected_key") or "rejected": "0"}
        elif keys.get("messages_key"):
            chat = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
            row = {str(keys["messages_key"]): chat}
        else:
            row = {keys.get("prompt_key") or "prompt": asked, keys.get("response_key") or "response": answer}
            row |= {str(keys[key]): "" for key in ("query_key", "system_key") if keys.get(key)}
        data.append(row)
    path = folder / f"{kind}_{len(list(folder.iterdir()))}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in data))
    return str(path)


def with_rows(native: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return native keys whose files are here, without an evaluation, and with an engine that starts at once."""
    keys: dict[str, Any] = deepcopy(dict(native))
    kind = KINDS.get(keys["pipeline"], "asked")
    roles = {**keys.get("rewards", {}), **keys.get("teachers", {})}
    tags = [tag for name, role in roles.items() for tag in (role.get("tag_included") or [name])] or ["sums"]
    keys.pop("validation", None)
    data = keys.setdefault("sft_train" if "sft_train" in keys else "actor_train", {}).setdefault("data_args", {})
    data.pop("domain_interleave_probs", None)
    right = CALLS if "tool" in json.dumps(keys.get("rewards", {})) else None
    data["file_name"] = [written(folder, kind, data if kind == "asked" else keys, tags, right)]
    if keys.get("expert"):
        keys["expert"].setdefault("data_args", {})["file_name"] = [written(folder, "said", keys["expert"], tags)]
    for tag in keys.get("custom_envs", {}).values():
        tag["env_config"]["file_name"] = written(folder, "asked", tag["env_config"], tags)
    if keys.get("actor_infer"):
        keys["actor_infer"]["strategy_args"] = {"strategy_name": "hf_infer"}
    return keys


def test_there_is_a_file_of_every_family() -> None:
    names = " ".join(str(path.relative_to(UPSTREAM)) for path in FILES)
    assert all(word in names for word in ("dpo", "-sft_", "distill", "sft_mot", "mix_math", "mix_chord", "opd_"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.with_suffix("").parts[-3:]))
def test_a_file_of_theirs_runs_to_its_last_step(path: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        conversion = convert(read([path]), "roll" if "/roll_" in str(path) else "trinity")
        config = load(with_rows(conversion.native, tmp_path))
        found = rehearse(config, processes=False)

    assert not found.breaks, found.breaks
    assert not [row for row in found.rows if row.bad], found.rows
    assert any(stage.endswith("update") for stage in found.seconds), found.seconds
