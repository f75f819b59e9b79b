"""Stored episodes played again: all come out the same, and whatever was changed is found where it was changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from roll.cli.app import main
from roll.config import ConfigError, load
from roll.config.sample import SampleConfig
from roll.pipelines.distill import DistillPipeline, PromptDistillPipeline
from roll.pipelines.sample import SamplePipeline
from roll.replay.branching import branch
from roll.replay.differences import Part
from roll.replay.replaying import EpisodeReplay, Replay, replay
from roll.runs.stored import StoredRun
from roll.trajectories.model import Trajectory
from roll.trajectories.store import Phase, write_trajectories
from tests.pipelines import test_distill, test_distill_prompts
from tests.replay.conftest import TAGS

pytestmark = pytest.mark.long  # whole runs


def changed(run: StoredRun, folder: Path, step: int, change: Callable[[list[Trajectory]], None]) -> StoredRun:
    """A copy of a run with one file of episodes changed."""
    shutil.copytree(run.folder, folder)
    copy = StoredRun.open(folder)
    [file] = copy.trajectory_files(step, "train")
    trajectories = copy.episodes(step, "train")
    change(trajectories)
    write_trajectories(file, trajectories, step=step, phase="train", run="changed")
    return copy


def of(found: Replay, name: str) -> EpisodeReplay:
    return next(each for each in found.episodes if f"{each.stored.group_id}/{each.stored.episode}" == name)


@pytest.mark.parametrize(
    ("step", "phase"),
    [
        pytest.param(1, "train", marks=pytest.mark.exhaustive),
        (2, "train"),
        pytest.param(2, "val", marks=pytest.mark.exhaustive),
    ],
)
def test_every_episode_of_a_run_comes_out_the_same_bit_for_bit(games: StoredRun, step: int, phase: Phase) -> None:
    found = replay(games, step=step, phase=phase)
    assert found.same and found.draws and {each.stored.tag for each in found.episodes} == set(TAGS)
    assert sum(each.drawn for each in found.episodes) == sum(each.stored.completion_tokens for each in found.episodes)
    assert all(each.log_probs.equal == each.log_probs.compared > 0 for each in found.episodes)


def taught_games(folder: Path) -> None:
    DistillPipeline.start(test_distill.config(folder, max_steps=1, eval_steps=0, save_steps=0, trajectory_dump_steps=1))


def taught_answers(folder: Path) -> None:
    once = {"max_steps": 1, "save_steps": 0, "trajectory_dump_steps": 1}
    PromptDistillPipeline.start(test_distill_prompts.config(folder, **once))


def sampled_games(folder: Path) -> None:
    keys = {
        **{"pretrain": "toy_sokoban", "sequence_length": 512, "max_steps": 1, "eval_steps": 0, "progress": "none"},
        **{"rollout_batch_size": 8, "trajectory_dump_steps": 1, "output_dir": str(folder)},
        "train_env_manager": {"env_groups": 2, "group_size": 4, "tags": ["SimpleSokoban"]},
        "actor_infer": {"generating_args": {"max_new_tokens": 8}, "strategy_args": {"strategy_name": "hf_infer"}},
    }
    SamplePipeline.start(load(keys, kind=SampleConfig))


@pytest.mark.parametrize(
    "run",
    [
        taught_games,
        pytest.param(taught_answers, marks=pytest.mark.exhaustive),
        pytest.param(sampled_games, marks=pytest.mark.exhaustive),
    ],
)
def test_a_run_that_learns_from_other_than_scores_is_played_again(run: Callable[[Path], None], tmp_path: Path) -> None:
    run(tmp_path)
    stored = StoredRun.open(tmp_path)
    found = replay(stored, step=1, with_policy=False)
    assert found.same and len(found.episodes) >= 8
    if found.episodes[0].stored.tag == "SimpleSokoban":
        first = found.episodes[0].stored
        fans = branch(stored, f"{first.group_id}/{first.episode}", [0], n=2, step=1).fans
        assert [len(fan.scores) for fan in fans] == [2]


@pytest.mark.parametrize(("step", "phase"), [(2, "train"), pytest.param(2, "val", marks=pytest.mark.exhaustive)])
def test_every_answer_of_a_run_comes_out_the_same_and_is_graded_the_same(
    answers: StoredRun, step: int, phase: Phase
) -> None:
    found = replay(answers, step=step, phase=phase)
    assert found.same and found.draws and all(each.again.score == each.stored.score for each in found.episodes)
    assert all(each.log_probs.equal == each.log_probs.compared > 0 for each in found.episodes)


def test_an_episode_alone_draws_the_same_tokens_too(games: StoredRun) -> None:
    longest = max(games.episodes(2, "train"), key=lambda each: len(each.turns))
    found = replay(games, f"{longest.group_id}/{longest.episode}", step=2)
    assert found.same and len(found.episodes) == 1 and found.episodes[0].drawn == longest.completion_tokens
    assert abs(found.episodes[0].log_probs.largest) < 1e-4


def test_what_was_changed_in_the_environment_or_the_text_is_found_where_it_was_changed(
    games: StoredRun, tmp_path: Path
) -> None:
    expected = {}

    def change(stored: list[Trajectory]) -> None:
        long = iter(each for each in stored if len(each.turns) >= 3)

        def plant(part: Part, turn: int, what: str, place: int | None = None) -> Trajectory:
            each = next(long)
            expected[f"{each.group_id}/{each.episode}"] = (part, turn, what, place)
            return each

        seed = plant(Part.ENVIRONMENT, 0, "seed")
        seed.seed += 1
        shown = plant(Part.ENVIRONMENT, 1, "observation", 3).turns[1]
        shown.observation = f"{shown.observation[:3]}!{shown.observation[4:]}"
        plant(Part.RENDERING, 2, "prompt", 1).turns[2].prompt_ids[1] += 1
        plant(Part.ENVIRONMENT, 1, "reward").turns[1].reward += 0.5
        plant(Part.ENVIRONMENT, 0, "metric action_is_valid").turns[0].metrics["action_is_valid"] = 7.0
        ended = plant(Part.ENVIRONMENT, 1, "end")
        del ended.turns[2:]

    copy = changed(games, tmp_path / "copy", 2, change)
    found = replay(copy, step=2, phase="train", with_policy=False)
    assert len(expected) == 6 and not found.same
    for each in found.episodes:
        name = f"{each.stored.group_id}/{each.stored.episode}"
        first = None if each.first is None else (each.first.part, each.first.turn, each.first.what, each.first.place)
        if expected.get(name, (None,) * 4)[2] == "end":  # what the last turn led to is another, too
            assert ("end", 1) in {(one.what, one.turn) for one in each.differences}
            continue
        assert first == expected.get(name), name


def test_another_sampled_token_and_another_log_prob_are_found_where_they_are(games: StoredRun, tmp_path: Path) -> None:
    planted = []

    def change(stored: list[Trajectory]) -> None:
        one, other = [each for each in stored if len(each.turns) >= 3][:2]
        planted.extend([f"{one.group_id}/{one.episode}", f"{other.group_id}/{other.episode}"])
        one.turns[1].completion_ids[1] += 1
        other.turns[2].logprobs[0] -= 0.25

    found = replay(changed(games, tmp_path / "copy", 2, change), step=2, phase="train")
    token, number = (of(found, name).first for name in planted)
    assert token is not None and (token.part, token.turn, token.place) == (Part.TOKENS, 1, 1)
    assert number is not None and (number.part, number.turn, number.place) == (Part.LOG_PROBS, 2, 0)
    assert of(found, planted[1]).log_probs.largest == pytest.approx(0.25, abs=1e-6)
    assert sum(bool(each.differences) for each in found.episodes) == 2


def test_other_weights_are_found_by_log_probs_and_named(games: StoredRun) -> None:
    other = games.folder / "checkpoints" / "step=000002"
    found = replay(games, step=2, phase="train", policy=str(other))
    assert not found.same and not found.draws and {part for part in Part if found.of(part)} == {Part.LOG_PROBS}
    assert found.weights is not None and (found.weights.version, found.weights.wanted) == (2, 1)


def test_weights_that_are_not_stored_are_no_difference_but_said(
    games: StoredRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = changed(games, tmp_path / "copy", 2, lambda stored: None)
    shutil.rmtree(copy.folder / "checkpoints" / "step=000001")
    name = "train-0000006/0"
    with pytest.raises(SystemExit) as left:
        main(["replay", str(copy.folder), name, "--step", "2", "--phase", "train"])
    out = capsys.readouterr().out
    assert left.value.code in (0, None) and "not drawn again: other weights" in out
    assert "sampled with the weights of step 1, which are not stored" in out


def test_another_answer_and_another_grade_are_found(answers: StoredRun, tmp_path: Path) -> None:
    def change(stored: list[Trajectory]) -> None:
        stored[0].turns[0].reward_parts["math"] = 5.0
        stored[1].initial_hash = "another prompt"

    found = replay(changed(answers, tmp_path / "copy", 2, change), step=2, phase="train", with_policy=False)
    first, second = found.episodes[0].first, found.episodes[1].first
    assert first is not None and (first.turn, first.what) == (0, "reward math")
    assert second is not None and second.what == "prompt key" and not any(e.differences for e in found.episodes[2:])


def test_the_command_explains_the_first_difference_and_exits_with_3(
    games: StoredRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(stored: list[Trajectory]) -> None:
        stored[0].turns[0].reward += 1.0

    copy = changed(games, tmp_path / "copy", 2, change)
    name = "train-0000006/0"
    words = ["replay", str(copy.folder), name, "--step", "2", "--phase", "train", "--no-policy"]
    with pytest.raises(SystemExit) as left:
        main(words)
    out = capsys.readouterr().out
    assert left.value.code == 3 and "first difference: environment, turn 1, reward" in out and "have changed" in out
    with pytest.raises(SystemExit) as left:
        main([*words, "--json"])
    record = json.loads(capsys.readouterr().out)
    assert left.value.code == 3 and record["same"] is False and record["weights"] is None
    assert record["episodes"][0]["differences"][0] | {"stored": "", "again": ""} == {
        "part": "environment",
        "turn": 0,
        "what": "reward",
        "stored": "",
        "again": "",
        "place": None,
    }


def test_an_episode_that_is_not_stored_is_said_with_those_that_are(games: StoredRun) -> None:
    with pytest.raises(ConfigError, match="names look like train-0000000/0"):
        replay(games, "train-9999999/0")
