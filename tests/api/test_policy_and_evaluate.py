"""``roll.load_policy`` and ``roll.evaluate``: held against Hugging Face's own generation, and on a user's own data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import roll
from roll.config import RunError
from roll.models.toy import TOYS

pytestmark = pytest.mark.long

QUESTIONS = ["What is 12 + 7?", "What is 3 + 4?"]


@pytest.fixture(scope="module")
def math() -> roll.Policy:
    return roll.load_policy("toy_math")


def own_answer(folder: Path, question: str, longest: int) -> str:
    """What Hugging Face answers greedily, by its own chat template and its own ``generate``."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    asked = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    done = model.generate(**prompt, max_new_tokens=longest, do_sample=False)
    return str(tokenizer.decode(done[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


def test_a_policy_answers_greedily_what_hugging_face_answers(math: roll.Policy) -> None:
    said = math.chat([[{"role": "user", "content": question}] for question in QUESTIONS], temperature=0)
    assert said == [own_answer(TOYS["toy_math"], question, 256) for question in QUESTIONS]
    assert math.chat(QUESTIONS[0], temperature=0, max_new_tokens=3) == own_answer(TOYS["toy_math"], QUESTIONS[0], 3)


def test_a_folder_is_the_same_policy_as_its_name(math: roll.Policy) -> None:
    same = roll.load_policy(TOYS["toy_math"])
    assert same.chat(QUESTIONS[0], seed=3) == math.chat(QUESTIONS[0], seed=3)
    assert same.generate("1 + 1 =", temperature=0) == math.generate("1 + 1 =", temperature=0)


def test_the_same_seed_gives_the_same_answers_and_another_one_others(math: roll.Policy) -> None:
    conversations = [[{"role": "user", "content": QUESTIONS[0]}]] * 8
    first, again, other = (math.chat(conversations, temperature=2.0, seed=seed) for seed in (1, 1, 2))
    assert first == again != other and len(set(first)) > 1


def test_a_policy_that_is_not_there_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(roll.ConfigError, match=r"policy(.|\n)*no such folder"):
        roll.load_policy(str(tmp_path / "nothing"))
    with pytest.raises(roll.ConfigError, match=r"did you mean|toy_math"):
        roll.load_policy("./toy_mth")


def written(folder: Path, *rows: dict[str, str]) -> Path:
    path = folder / "mine.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_users_own_problems_are_answered_and_graded(math: roll.Policy, tmp_path: Path) -> None:
    said = math.chat(QUESTIONS[0], temperature=0)
    right = said.rpartition("<answer>")[2].partition("</answer>")[0]
    rows = [
        {"prompt": QUESTIONS[0], "ground_truth": right, "tag": "arithmetic"},
        {"prompt": QUESTIONS[0], "ground_truth": "-5", "tag": "word_problems"},
    ]
    found = roll.evaluate(math, data=written(tmp_path, *rows), attempts=2)
    assert found.greedy is not None and found.greedy.by_tag["arithmetic"].mean == 1.0
    assert found.greedy.by_tag["word_problems"].mean == 0.0
    assert found.sampled.success.episodes == 4 and found.folder is None and not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "1 + 1?", "tag": "arithmetic"}, "needs the column 'ground_truth'"),
        ({"ground_truth": "2", "tag": "arithmetic"}, "prompt"),
        ({"prompt": "1 + 1?", "ground_truth": "2", "tag": "sums"}, "tag_included"),
    ],
    ids=["no answer", "no prompt", "unknown tag"],
)
def test_columns_that_are_missing_are_named_with_the_file_and_the_line(
    row: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises((roll.ConfigError, RunError)) as caught:
        roll.evaluate("toy_math", data=written(tmp_path, row), greedy=False)
    assert "mine.jsonl" in str(caught.value) and said in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(roll.ConfigError, match=r"file_name(.|\n)*nothing\.jsonl"):
        roll.evaluate("toy_math", data=tmp_path / "nothing.jsonl")


def test_what_is_to_be_done_is_said_once() -> None:
    with pytest.raises(roll.ConfigError, match="not both"):
        roll.evaluate("toy", env="FrozenLake", data="x.jsonl")
    with pytest.raises(roll.ConfigError, match="what the policy is to do"):
        roll.evaluate("toy")


def test_levels_are_the_same_in_every_evaluation_and_the_error_is_that_of_the_levels() -> None:
    first, again = (roll.evaluate("toy", env="FrozenLake", episodes=16, attempts=2, greedy=False) for _ in range(2))
    assert str(first) == str(again)
    seeds = [[each.seed for each in group.trajectories] for group in first.sampled.groups]
    assert len(seeds) == 16 and all(len(set(group)) == 1 for group in seeds)


def test_what_is_written_is_a_run_that_can_be_opened(tmp_path: Path) -> None:
    found = roll.evaluate("toy", env="FrozenLake", episodes=8, output_dir=tmp_path / "kept")
    assert found.folder == tmp_path / "kept" and found.greedy is not None
    run = roll.open_run(tmp_path / "kept")
    assert len(run.episodes(phase="val")) == 8
    assert run.curve("success").last == pytest.approx(found.sampled.success.mean)
    assert run.curve("greedy/success").last == pytest.approx(found.greedy.success.mean)


@pytest.mark.exhaustive
def test_the_opponent_of_a_game_stays_the_policy_that_the_configuration_starts_from(tmp_path: Path) -> None:
    policy = tmp_path / "trained"
    shutil.copytree(TOYS["toy_duel"], policy)
    roll.evaluate(policy, config="textarena_duel", episodes=2, greedy=False, output_dir=tmp_path / "measured")
    played = roll.open_run(tmp_path / "measured").config
    assert played["pretrain"] == str(policy)
    assert played["opponents"]["start"]["model_args"]["model_name_or_path"] == "toy_duel"
