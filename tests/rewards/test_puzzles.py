"""Puzzles of reasoning_gym in RLVR: their own scorers grade, and none runs what a policy wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reward_support import asked, verdict

from roll.data.puzzles import Puzzles
from roll.rewards.plain_expressions import is_plain
from roll.rewards.puzzles import EVALUATING, PAYS_FOR_RUBBISH, graded, puzzles, score_answer
from roll.rewards.registry import make_verifier
from tests.rings import exhaustive_but

pytest.importorskip("reasoning_gym")
from reasoning_gym.factory import DATASETS, create_dataset  # noqa: E402  (behind the line that skips these tests)

MADE_OF_OTHERS = {"composite"}
SLOW = {"acre"}

PLAIN = """
7; -3.5; (4 + 1)*7/2; x**2 + 3*x - 1; x**(1/2); 2*sin(3*x) + C; exp(x)/2; [[1, 0], [0, 1]]; ['a', 'B']; (1, 2)
x**(-2); log(x); sqrt(x + 1)
"""
OTHER = """
open('/etc/passwd'); ().__class__; x.y; a[0]; [x for x in 'ab']; lambda: 0; f'{x}'; sin; exit(); 9**9**9; 1 +
__import__; ((9**99)**99)**99; 10**1000; 'a'*10**9; [0]*10**9; (1,)*9; sin(*[1]); exp(x=1); a if b else c; x := 1; 1 < 2
not x; x and y; ~5; 1 << 99; exp(exp(exp(exp(9)))); 9**(9+x)**9
"""


def texts(listed: str) -> list[str]:
    return [each.strip() for line in listed.strip().splitlines() for each in line.split(";")]


def marks_of(path: Path) -> list[str]:
    touch = f"__import__('pathlib').Path({str(path)!r}).touch()"
    return [touch, f"[{touch}]", f"[['_', {touch}]]", f"x + {touch}", f"({touch}, 1)[1]", f"<answer>{touch}</answer>"]


@pytest.mark.parametrize(
    "dataset", exhaustive_but(sorted(DATASETS.keys() - MADE_OF_OTHERS - SLOW - PAYS_FOR_RUBBISH), *sorted(EVALUATING))
)
def test_no_answer_is_run_by_a_scorer(dataset: str, tmp_path: Path) -> None:
    data = create_dataset(dataset, size=1, seed=0)
    for answer in marks_of(tmp_path / "run"):
        score, _ = score_answer(dataset, data, answer, data[0])
        assert not (tmp_path / "run").exists(), answer
        assert dataset not in EVALUATING or score < 1.0


@pytest.mark.parametrize(
    "dataset",
    exhaustive_but(sorted(DATASETS.keys() - MADE_OF_OTHERS - SLOW), *sorted(PAYS_FOR_RUBBISH), "countdown"),
)
def test_rubbish_is_paid_by_those_alone_that_are_refused(dataset: str) -> None:
    data = create_dataset(dataset, size=3, seed=5)
    paid = [score_answer(dataset, data, said, data[row])[0] for row in range(3) for said in ("rubbish", "?", "")]
    assert (max(paid) >= 0.5) == (dataset in PAYS_FOR_RUBBISH)
    if dataset in PAYS_FOR_RUBBISH:
        with pytest.raises(ValueError, match="full marks to answers that are none"):
            puzzles(dataset, "{}")


@pytest.mark.parametrize("dataset", sorted(EVALUATING))
def test_these_scorers_would_have_run_it(dataset: str, tmp_path: Path) -> None:
    """Otherwise the guard in front of them could go."""
    data = create_dataset(dataset, size=1, seed=0)
    for answer in marks_of(tmp_path / "run"):
        try:
            data.score_answer(answer=answer, entry=data[0])
        except Exception:
            continue
    assert (tmp_path / "run").exists()


@pytest.mark.parametrize("dataset", exhaustive_but(sorted(EVALUATING), "countdown", "n_queens"))
def test_right_answers_still_are(dataset: str) -> None:
    data = create_dataset(dataset, size=20, seed=3)
    for entry in data:
        expected = float(data.score_answer(answer=str(entry["answer"]), entry=entry))
        assert score_answer(dataset, data, str(entry["answer"]), entry) == (expected, False)


@pytest.mark.parametrize("name", ["oracle_answer", "entry", "self", "answer"])
def test_a_variable_of_the_scorer_is_no_answer(name: str) -> None:
    for dataset in EVALUATING:
        data = create_dataset(dataset, size=1, seed=0)
        assert score_answer(dataset, data, name, data[0])[0] < 1.0


@pytest.mark.parametrize("text", texts(PLAIN))
def test_what_answers_look_like_is_plain(text: str) -> None:
    assert is_plain(text, letters=True)


@pytest.mark.parametrize("text", [*texts(OTHER), "", "9" * 40, "x" * 3000, "(" * 300 + ")" * 300])
def test_what_reaches_further_is_not(text: str) -> None:
    assert not is_plain(text, letters=True)


def test_without_letters_a_name_is_not_plain() -> None:
    assert is_plain("[1, 2]", letters=False) and not is_plain("x", letters=False) and not is_plain("pi", letters=False)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("<answer>{right}</answer>", 1.0),
        pytest.param(r"So \boxed{{{right}}}.", 1.0, marks=pytest.mark.exhaustive),
        pytest.param("{right}", 1.0, marks=pytest.mark.exhaustive),
        ("<answer>no</answer>", 0.0),
    ],
)
def test_the_verifier_gives_the_scorers_score(response: str, score: float) -> None:
    row = Puzzles("chain_sum", size=5, seed=1)[2]
    given = asked(response.format(right=row["ground_truth"]), row=row)
    assert verdict(make_verifier("reasoning_gym"), given).score == score


def test_rows_are_the_librarys_questions() -> None:
    rows, library = (
        Puzzles("knights_knaves", size=7, seed=5, config={"n_people": 3}),
        create_dataset("knights_knaves", size=7, seed=5, n_people=3),
    )
    assert len(rows) == 7 and [row["prompt"] for row in map(rows.__getitem__, range(7))] == [
        e["question"] for e in library
    ]


def test_a_question_of_another_version_is_told() -> None:
    row: dict[str, Any] = Puzzles("chain_sum", size=5, seed=1)[2]
    assert graded(row["puzzle"], row["question"], row["ground_truth"]) == (1.0, False)
    with pytest.raises(ValueError, match="question 3 of chain_sum is another one here"):
        graded(json.dumps(json.loads(row["puzzle"]) | {"index": 3}), row["question"], "1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dataset": "chainsum"}, "Did you mean 'chain_sum'"),
        ({"dataset": "chain_sum", "config": {"a": 1}}, "argument 'a'"),
    ],
)
def test_what_is_no_data_set_is_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Puzzles(**given)
