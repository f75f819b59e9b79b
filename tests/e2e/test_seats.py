"""Runs whose games have several seats: against itself, a frozen start, a league; repeated, resumed, ahead."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from roll.api.policy import load_policy
from roll.config import ConfigError, RunError
from roll.pipelines.agentic import run_agentic
from roll.pipelines.checks.agentic import check_agentic
from roll.replay.choosing import choose
from roll.rewards.answers import after_thinking
from roll.runs.stored import StoredRun
from roll.trajectories.model import Status, Trajectory
from roll.trajectories.store import read_trajectories, trajectory_path
from tests.e2e.support import ROOT, rows, same, small_config, train_state

DUEL: dict[str, Any] = {"preset": "textarena_duel", "pretrain": "toy_duel", "eval_steps": 0, "save_steps": 1}
AGAINST_ITSELF = {"custom_envs.Duel.env_config.seats": "[policy, policy]"}
LEAGUE = {
    "custom_envs.Duel.env_config.seats": "[policy, past]",
    "opponents.past": "{league: {every: 1, keep: 2}}",
}


def played(output_dir: Path, steps: int, **changes: Any) -> list[dict[str, Any]]:
    run_agentic(small_config(output_dir, **{**DUEL, "max_steps": steps, **changes}))
    return rows(output_dir)


def trajectories(output_dir: Path, step: int) -> list[Trajectory]:
    return read_trajectories(trajectory_path(output_dir, step, "train"))


@pytest.mark.exhaustive
def test_a_duel_against_the_frozen_start_repeats_bit_for_bit_and_reports_each_seat(tmp_path: Path) -> None:
    first = played(tmp_path / "first", 2, eval_steps=2)
    assert first == played(tmp_path / "again", 2, eval_steps=2)
    assert same(train_state(tmp_path / "first", 2), train_state(tmp_path / "again", 2))
    assert {"val/seat/0/success", "val/seat/1/reward"} <= first[0].keys()
    seats = {trajectory.seat for step in (1, 2) for trajectory in trajectories(tmp_path / "first", step)}
    assert seats == {"0", "1"}


def test_against_itself_each_seat_of_a_game_is_trained(tmp_path: Path) -> None:
    (row,) = played(tmp_path, 1, **AGAINST_ITSELF)
    with pytest.raises(ConfigError, match="seat 0 of a game with several"):
        choose(StoredRun.open(tmp_path))
    sampled = trajectories(tmp_path, 1)
    assert len(sampled) == row["batch/samples"] == 32  # 16 games
    games: dict[tuple[str, int], list[Trajectory]] = {}
    for each in sampled:
        games.setdefault((each.group_id.partition("-")[2], each.episode), []).append(each)
    assert len(games) == 16
    for pair in games.values():
        assert {each.seat for each in pair} == {"0", "1"} and sum(each.score or 0.0 for each in pair) == 0.0
    assert Counter(each.group_id for each in sampled).most_common(1)[0][1] == 4  # compared within a seat
    assert row["batch/response_tokens"] == sum(each.completion_tokens for each in sampled)


@pytest.mark.exhaustive
def test_seats_are_compared_within_a_game_if_one_likes(tmp_path: Path) -> None:
    per_seat = played(tmp_path / "seat", 1, **AGAINST_ITSELF)
    per_game = played(tmp_path / "game", 1, **AGAINST_ITSELF, **{"train_env_manager.compare_seats": "game"})
    assert per_seat[0]["reward/mean"] == per_game[0]["reward/mean"]
    assert not same(train_state(tmp_path / "seat", 1)["model"], train_state(tmp_path / "game", 1)["model"])


@pytest.mark.exhaustive
def test_a_run_against_a_league_goes_on_from_a_checkpoint_with_the_same_opponents(tmp_path: Path) -> None:
    whole = played(tmp_path / "whole", 3, **LEAGUE)
    played(tmp_path / "broken", 2, **LEAGUE)
    assert sorted(path.name for path in (tmp_path / "broken" / "league" / "past").iterdir()) == [
        "step=000001",
        "step=000002",
    ]
    resumed = played(tmp_path / "broken", 3, **LEAGUE, resume_from_checkpoint=True)
    assert resumed == whole
    assert same(train_state(tmp_path / "broken", 3), train_state(tmp_path / "whole", 3))
    frozen = played(tmp_path / "frozen", 3)
    assert frozen[0] == whole[0] and frozen[2] != whole[2], "its opponents were others than the start"


@pytest.mark.exhaustive
def test_games_of_several_seats_are_sampled_ahead_of_training(tmp_path: Path) -> None:
    recorded = played(tmp_path, 3, **AGAINST_ITSELF, async_generation_ratio=1, old_log_probs="recompute")
    assert [row["step"] for row in recorded] == [1, 2, 3]
    for step in (1, 2, 3):
        assert len(trajectories(tmp_path, step)) == 32


@pytest.mark.exhaustive
def test_games_of_several_seats_are_stored_and_learned_from_again(tmp_path: Path) -> None:
    both = {**AGAINST_ITSELF, "experience": "{fresh_share: 0.5, uses: 2}"}
    recorded = played(tmp_path, 2, **both)
    assert recorded[1]["batch/samples"] == 32


DEBATE = {
    "pretrain": "toy_math",
    "custom_envs.Debate.env_type": "debate",
    "custom_envs.Debate.env_config.file_name": ROOT / "roll/presets/data/arithmetic_train.jsonl",
    "custom_envs.Debate.env_config.rounds": 1,
    "custom_envs.Debate.env_config.judge": "rewards",
    "custom_envs.Debate.max_steps": 1,
    "custom_envs.Debate.agent_system_template": "''",
    "custom_envs.Debate.agent_template": "'{observation}'",
    "train_env_manager.tags": "[Debate]",
    "val_env_manager.tags": "[Debate]",
}
JUDGE = "rewards.debates.verifiers.llm_judge.options"
REFEREE = {
    "judges.referee.model_args.model_name_or_path": "toy_math",
    "judges.referee.generating_args": "{max_new_tokens: 40, temperature: 0.0}",
    "rewards.debates.tag_included": "[Debate]",
    f"{JUDGE}.engine": "referee",
    f"{JUDGE}.prompt": "'{response}{final_observation}'",
    f"{JUDGE}.score_pattern": "'([0-9])'",
}


def test_a_judge_of_the_run_grades_each_seat_of_a_debate(tmp_path: Path) -> None:
    played(tmp_path, 1, **{**DEBATE, **REFEREE})
    sampled = trajectories(tmp_path, 1)
    assert len(sampled) == 32 and {each.seat for each in sampled} == {"first", "second"}
    asked = [each.turns[-1].response + str(each.final_observation) for each in sampled]
    conversations = [[{"role": "user", "content": each}] for each in asked]
    said = load_policy("toy_math").chat(conversations, temperature=0.0, max_new_tokens=40)
    scores = set()
    for each, question, answer in zip(sampled, asked, said, strict=True):
        # Who spoke first has not heard the other within its conversation: the judge reads it nevertheless.
        assert ("The other speaker: " in question) == (each.seat == "first")
        found = re.findall(r"\d", after_thinking(answer))
        if found:
            assert each.score == each.turns[-1].reward_parts["llm_judge"] == int(found[-1]) / 10
            scores.add(each.score)
        else:
            assert each.status is Status.ERROR_REWARD and each.score is None
    assert len(scores) > 1


def test_a_debate_that_nobody_grades_is_found_before_a_model_loads(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Debate\.env_config\.judge\s+no domain of rewards grades Debate"):
        check_agentic(small_config(tmp_path, **{**DUEL, **DEBATE}))


class Endpoint(ThreadingHTTPServer):
    """A server that takes the first pile's first counter; of a few requests it says that it has no answer now.

    Attributes:
        asked: Requests so far.
        last: The request after which it is gone.
    """

    def __init__(self, last: float) -> None:
        super().__init__(("127.0.0.1", 0), Moves)
        self.asked, self.last = 0, last


class Moves(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
        self.server.asked += 1
        if self.server.asked > self.server.last:
            # As a process that is killed: nobody listens any more, and what was asked is not answered.
            self.server.socket.close()
            self.connection.close()
            return
        self.send_response(503 if self.server.asked % 25 == 0 else 200)
        self.end_headers()
        move = next(f"[{pile} 1]" for pile in range(3) if f"pile {pile}: 0" not in told)
        self.wfile.write(json.dumps({"choices": [{"message": {"content": move}}]}).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.exhaustive
def test_an_endpoint_is_asked_again_and_one_that_dies_costs_its_games_and_then_ends_the_run(tmp_path: Path) -> None:
    with Endpoint(last=120) as server:  # a step asks some 80 times
        threading.Thread(target=server.serve_forever, daemon=True).start()
        seat = f"{{url: 'http://127.0.0.1:{server.server_port}/v1', model: frozen, seconds: 5}}"
        again = {"train_env_manager.max_retries": 3, "train_env_manager.retry_wait": 0.05}
        with pytest.raises(RunError, match=f"Every one of the 16 episodes failed.*127.0.0.1:{server.server_port}"):
            played(tmp_path, 3, **{"custom_envs.Duel.env_config.seats": f"[policy, {seat}]", **again})
        server.shutdown()
    first, second = rows(tmp_path)
    assert first["rollout/retries"] > 0 and first["rollout/errors"] == 0 and first["batch/samples"] == 16
    broken = [each for each in trajectories(tmp_path, 2) if each.status.is_error]
    assert broken and {each.status for each in broken} == {Status.ERROR_UNAVAILABLE}
    assert all(each.score is None and "the program of seat" in str(each.error) for each in broken)
    assert second["batch/samples"] == 16 - len(broken) > 0, "the step trained on the games that were played"
