from __future__ import annotations

import json
import math
import random
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from data_support import load, problems, write_jsonl
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.data import DataError, PromptDataset
from roll.data.order import exact_shares
from roll.data.shares import Shares

DOMAINS = {"math": ["math"], "code": ["code"], "logic": ["logic"]}
PROBABILITIES = {"math": 0.5, "code": 0.3, "logic": 0.2}


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    rows = [*problems(7), *problems(5, "code"), *problems(4, "logic")]
    random.Random(0).shuffle(rows)
    return write_jsonl(tmp_path / "mixed.jsonl", rows)


def keys(data: PromptDataset, count: int, start: int = 0) -> list[str]:
    return [data.at(position).key for position in range(start, start + count)]


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=7).filter(any))
def test_after_any_number_of_positions_each_domain_has_its_share_within_one(weights: list[int]) -> None:
    shares = [Fraction(weight, sum(weights)) for weight in weights]
    sequence = Shares(shares)
    counts = [0] * len(shares)
    for position in range(3 * sum(weights) + 5):
        domain, turn = sequence.at(position)
        assert turn == counts[domain]
        counts[domain] += 1
        for share, count in zip(shares, counts, strict=True):
            assert math.floor((position + 1) * share) <= count <= math.ceil((position + 1) * share)


def test_shares_are_exact_for_decimals_that_binary_numbers_cannot_hold() -> None:
    shares = exact_shares({"a": 1, "b": 1, "c": 1}, {"a": 0.1, "b": 0.2, "c": 0.7})
    assert shares == {"a": Fraction(1, 10), "b": Fraction(1, 5), "c": Fraction(7, 10)}
    thirds = exact_shares({"a": 1, "b": 1, "c": 1}, {"a": 0.3333333, "b": 0.3333333, "c": 0.3333333})
    assert set(thirds.values()) == {Fraction(1, 3)}


def test_drawn_prompts_have_the_configured_shares(mixed: Path) -> None:
    data = load({"file_name": mixed, "domain_interleave_probs": PROBABILITIES}, DOMAINS)
    drawn = [data.at(position).domain for position in range(1000)]
    for count in range(1, 1001):
        seen = Counter(drawn[:count])
        assert all(abs(seen[name] - count * share) < 1 for name, share in PROBABILITIES.items())
    assert Counter(drawn) == {"math": 500, "code": 300, "logic": 200}


def test_without_shares_an_epoch_of_the_whole_data_holds_every_row_once(mixed: Path) -> None:
    data = load({"file_name": mixed}, DOMAINS)
    for epoch in range(3):
        assert sorted(keys(data, 16, 16 * epoch)) == sorted(prompt.key for prompt in data.table)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**40), st.integers(1, 40))
def test_each_epoch_of_a_domain_holds_every_row_once_in_an_order_of_its_own(seed: int, rows: int) -> None:
    data = PromptDataset(_Rows(rows), seed=seed)  # type: ignore[arg-type]
    epochs = [[data.order.at(epoch * rows + offset) for offset in range(rows)] for epoch in range(4)]
    assert all(sorted(epoch) == list(range(rows)) for epoch in epochs)
    if rows > 15:
        assert len({tuple(epoch) for epoch in epochs}) == 4


class _Rows:
    """As much of a table as the order needs."""

    def __init__(self, rows: int) -> None:
        self.domains = {"math": list(range(rows))}
        self.digests = {"math": ""}


def test_at_depends_on_seed_and_position_alone(mixed: Path) -> None:
    args = {"file_name": mixed, "domain_interleave_probs": PROBABILITIES}
    forward = keys(load(args, DOMAINS, seed=3), 60)
    positions = list(range(60)) * 2
    random.Random(1).shuffle(positions)
    other = load(args, DOMAINS, seed=3)
    assert all(other.at(position).key == forward[position] for position in positions)
    assert keys(load(args, DOMAINS, seed=4), 60) != forward
    with pytest.raises(IndexError):
        other.at(-1)


def test_the_order_of_a_seed_is_fixed_for_good(mixed: Path) -> None:
    data = load({"file_name": mixed, "domain_interleave_probs": PROBABILITIES}, DOMAINS, seed=42)
    assert [int(data.at(position).ground_truth or -1) for position in range(20)] == FIRST_TWENTY


FIRST_TWENTY = [4, 2, 1, 2, 6, 3, 2, 1, 1, 0, 5, 0, 3, 0, 3, 4, 5, 0, 3, 2]


def test_the_order_of_prompts_does_not_depend_on_the_order_of_keys(mixed: Path) -> None:
    args = {"file_name": mixed, "domain_interleave_probs": PROBABILITIES}
    turned = {**args, "domain_interleave_probs": dict(reversed(PROBABILITIES.items()))}
    assert keys(load(args, DOMAINS), 40) == keys(load(turned, dict(reversed(DOMAINS.items()))), 40)


def test_without_shuffling_rows_come_in_the_order_of_the_file_in_every_epoch(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", problems(3))
    data = load({"file_name": path, "shuffle": False})
    assert [data.at(position).ground_truth for position in range(7)] == ["0", "1", "2", "0", "1", "2", "0"]


def test_a_share_of_zero_leaves_a_domain_out(mixed: Path) -> None:
    shares = {"math": 1.0, "code": 0.0, "logic": 0.0}
    data = load({"file_name": mixed, "domain_interleave_probs": shares}, DOMAINS)
    assert {data.at(position).domain for position in range(50)} == {"math"}


BAD_SHARES: dict[str, tuple[dict[str, float], str]] = {
    "sum": ({"math": 0.5, "code": 0.3, "logic": 0.1}, r"sum to 0\.9, not to 1"),
    "unknown": ({"math": 0.5, "code": 0.3, "logik": 0.2}, "names 'logik'(.|\n)*did you mean 'logic'"),
    "missing": ({"math": 0.5, "code": 0.5}, "says nothing of 'logic'"),
    "no rows": ({"math": 0.5, "code": 0.2, "logic": 0.2, "chess": 0.1}, "draws 0.1 from 'chess', which has no rows"),
}


@pytest.mark.parametrize("name", BAD_SHARES)
def test_shares_that_do_not_fit_the_data_are_errors(mixed: Path, name: str) -> None:
    shares, message = BAD_SHARES[name]
    with pytest.raises(DataError, match=message):
        load({"file_name": mixed, "domain_interleave_probs": shares}, {**DOMAINS, "chess": ["chess"]})


def test_domains_without_rows_need_no_share(mixed: Path) -> None:
    domains = {**DOMAINS, "chess": ["chess"]}
    assert "chess" not in load({"file_name": mixed}, domains).order.shares
    assert "chess" not in load({"file_name": mixed, "domain_interleave_probs": PROBABILITIES}, domains).order.shares


def saved(data: PromptDataset, position: int) -> dict[str, Any]:
    """A state after its way through a checkpoint file."""
    state: dict[str, Any] = json.loads(json.dumps(data.state_dict(position)))
    return state


@pytest.mark.parametrize("position", [0, 5, 15, 16, 17, 32])
def test_a_resumed_run_continues_exactly_also_at_the_end_of_an_epoch(mixed: Path, position: int) -> None:
    first = load({"file_name": mixed}, DOMAINS)
    whole = keys(first, 50)
    state = saved(first, position)
    resumed = load({"file_name": mixed}, DOMAINS)
    start = resumed.check_state(state)
    assert whole[:position] + keys(resumed, 50 - position, start) == whole


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 2}, "seed: 1 then, 2 now"),
    "shuffle": ({"shuffle": False}, "shuffle: True then, False now"),
    "shares": (
        {"domain_interleave_probs": {"math": 0.5, "code": 0.25, "logic": 0.25}},
        "domain code: share 3/10 then, 1/4 now",
    ),
    "a domain": (
        {"domain_interleave_probs": {"math": 0.7, "code": 0.3, "logic": 0}},
        "domain logic: missing in this run",
    ),
    "more rows": ({"rows": [*problems(8), *problems(5, "code"), *problems(4, "logic")]}, "math: 7 rows then, 8 now"),
    "other rows": (
        {"rows": [*problems(7), *problems(5, "code")[::-1], *problems(4, "logic")]},
        "domain code: as many rows, with other contents or in another order",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_resuming_with_other_data_is_an_error_that_says_what_differs(tmp_path: Path, name: str) -> None:
    change, message = CHANGES[name]
    rows = [*problems(7), *problems(5, "code"), *problems(4, "logic")]
    path = write_jsonl(tmp_path / "data.jsonl", rows)
    args = {"file_name": path, "domain_interleave_probs": PROBABILITIES}
    state = saved(load(args, DOMAINS), 10)
    write_jsonl(path, change.get("rows", rows))
    options = {key: value for key, value in change.items() if key not in ("rows", "seed")}
    other = load({**args, **options}, DOMAINS, seed=change.get("seed", 1))
    with pytest.raises(DataError, match=message):
        other.check_state(state)


def test_data_that_only_moved_or_changed_its_format_can_be_resumed(tmp_path: Path) -> None:
    state = saved(load({"file_name": write_jsonl(tmp_path / "a.jsonl", problems(3))}), 2)
    moved = tmp_path / "b.json"
    moved.write_text(json.dumps([dict(reversed(row.items())) for row in problems(3)]))
    assert load({"file_name": moved}).check_state(state) == 2
