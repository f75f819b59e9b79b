"""Prompts whose success changes come more often; shares stay exact, and a run that goes on has the same prompts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from data_support import load

from roll.data.dataset import PromptDataset
from roll.data.selecting import ProgressSelector


def prompts(folder: Path, count: int = 20) -> PromptDataset:
    """Two domains, the second a quarter of the prompts."""
    path = folder / "rows.jsonl"
    rows = [{"prompt": f"question {number}", "tag": "b" if number % 4 == 0 else "a"} for number in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load({"file_name": path, "prompt": "prompt"}, domains={"a": ["a"], "b": ["b"]})


def play(selector: ProgressSelector, first: int, last: int, rates: dict[str, float]) -> list[str]:
    """Play positions in steps of four, and learn from each as rates say."""
    keys = []
    for begin in range(first, last, 4):
        step = [selector.at(position) for position in range(begin, begin + 4)]
        keys += [prompt.key for prompt in step]
        selector.learned({prompt.key: rates[prompt.key] for prompt in step})
        for key in rates:
            rates[key] = min(1.0, rates[key] + 0.02) if key.endswith((":2", ":3")) else rates[key]
    return keys


def test_what_is_being_learned_comes_more_often_and_domains_keep_their_shares(tmp_path: Path) -> None:
    data = prompts(tmp_path)
    rates = {prompt.key: 0.0 for prompt in data.table}
    selector = ProgressSelector(data, seed=1)
    keys = play(selector, 0, 400, rates)
    plain = Counter(data.at(position).domain for position in range(400))
    assert Counter(selector.at(position).domain for position in range(400)) == plain
    often = Counter(keys[40:160])
    assert min(often["rows.jsonl:2"], often["rows.jsonl:3"]) > 3 * often["rows.jsonl:4"] > 0
    assert len(set(keys)) == len(data), "none is left out for good"


def test_a_selector_that_goes_on_has_the_same_prompts_also_those_that_were_begun(tmp_path: Path) -> None:
    data = prompts(tmp_path)
    whole, first = ProgressSelector(data, seed=1), ProgressSelector(data, seed=1)
    rates = {prompt.key: 0.0 for prompt in data.table}
    expected = play(whole, 0, 200, dict(rates))
    assert play(first, 0, 100, rates) == expected[:100]
    begun = [first.at(position).key for position in (100, 101)]
    state = json.loads(json.dumps(first.state_dict(100)))
    assert set(state["chosen"]) == {"100", "101"}
    second = ProgressSelector(data, seed=1)
    second.load_state_dict(state)
    assert [second.at(position).key for position in (100, 101)] == begun
    assert play(second, 100, 200, rates) == expected[100:]


def test_without_progress_it_is_the_plain_order(tmp_path: Path) -> None:
    data = prompts(tmp_path)
    selector = ProgressSelector(data, seed=1)
    rates = {prompt.key: 0.5 for prompt in data.table}
    for position in range(60):
        assert selector.at(position).key == data.at(position).key
        selector.learned(rates)
