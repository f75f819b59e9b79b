"""Rejection sampling: what a run stored becomes demonstrations, exactly as it was sampled."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from roll.cli.app import main
from roll.config import load
from roll.data.errors import DataError
from roll.data.from_run import write_demonstrations
from roll.data.supervised import DemonstrationTable, load_demonstrations
from roll.gateway import ChatMessage, turns_of
from roll.models.loading import load_tokenizer
from roll.pipelines.sampling.demonstrations import encode
from roll.rendering import ChatRenderer
from roll.trajectories.model import Status, Trajectory, Turn
from roll.trajectories.samples import samples_from
from roll.trajectories.store import trajectory_path, write_trajectories
from roll.workers.loading import load_text
from tests.gateway.recorded_calls import BookEngine, recorder, say, user

TOKENIZER = load_tokenizer("toy")
ASKED = [{"role": "system", "content": "Solve it."}, {"role": "user", "content": "#PX#"}]


def turn(prompt: list[int], response: str, **more: object) -> Turn:
    ids = TOKENIZER(response)["input_ids"] + [TOKENIZER.eos_token_id]
    return Turn(prompt, ids, [-0.1] * len(ids), response=response, **more)  # type: ignore[arg-type]


def episode(group: int, number: int, score: float | None, **changes: object) -> Trajectory:
    """Return an episode of three turns; before the third the history was written anew."""
    turns = [
        turn([1, 2, 3], f"Up {number}", observation="#PX#"),
        turn([4], "Down", observation="#_P#"),
        turn([5, 6], "Left", observation="#__#", starts_sample=True),
    ]
    made = Trajectory("Sokoban", f"train-{group}", number, 7, turns=turns, status=Status.COMPLETED, score=score)
    made.messages = [dict(message) for message in ASKED]
    for name, value in changes.items():
        setattr(made, name, value)
    return made


EPISODES = [
    [episode(0, 0, 1.0), episode(0, 1, 0.0), episode(0, 2, 2.5), episode(0, 3, 1.5)],
    [episode(1, 0, 3.0, status=Status.ERROR_ENV), episode(1, 1, None, turns=[]), episode(1, 2, 1.0)],
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step, trajectories in enumerate(EPISODES, start=1):
        write_trajectories(
            trajectory_path(tmp_path / "run", step, "train"), trajectories, step=step, phase="train", run="r"
        )
    val = trajectory_path(tmp_path / "run", 2, "val")
    write_trajectories(val, [episode(9, 0, 9.0)], step=2, phase="val", run="r")
    return tmp_path / "run"


def learnt(path: Path, **keys: object) -> DemonstrationTable:
    """Return what a run of fine-tuning makes of a file."""
    data = {"actor_train": {"data_args": {"file_name": str(path)}}, "pretrain": "toy", "sequence_length": 64}
    config = load({"pipeline": "sft", **data, **keys})
    return load_demonstrations(
        config.actor_train.data_args, config, config.sequence_length, partial(encode, load_text(config))
    )


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_exactly_the_sampled_tokens_are_learnt(run: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"sft.{suffix}"
    kept = write_demonstrations(run, "score >= 1", path)

    table = learnt(path)
    sampled = [sample for each in (EPISODES[0][0], *EPISODES[0][2:], EPISODES[1][2]) for sample in samples_from(each)]
    found = [(list(ids), list(trained)) for row in range(len(table)) for ids, trained in table.sequences(row)]
    assert found == [(sample.token_ids, list(map(bool, sample.response_mask))) for sample in sampled]
    assert (kept.stored, kept.matched, kept.broken, kept.episodes, kept.rows) == (7, 5, 1, 4, 8)
    assert kept.trained_tokens == table.trained_tokens


def test_the_same_conversations_can_be_learnt_as_messages(run: Path, tmp_path: Path) -> None:
    write_demonstrations(run, "group_id = 'train-0' and score > 2", path := tmp_path / "sft.parquet")

    table = learnt(path, messages_key="messages")
    text = load_text(load({"pipeline": "agentic", "pretrain": "toy"}))
    said = [[text.tokenizer.decode(ids[trained]) for ids, trained in table.sequences(row)] for row in range(len(table))]
    assert [[one.replace("<|im_end|>", "") for one in row] for row in said] == [["Up 2Down"], ["Left"]]


def test_messages_of_an_agent_that_compacts_its_history_are_those_of_each_branch(tmp_path: Path) -> None:
    said = iter(["one", "two", "three", "four"])
    engine = BookEngine(lambda request: turn([], next(said)).completion_ids)
    agent = recorder(engine, ChatRenderer(TOKENIZER))
    first = [user("Plan it.")]
    anew = [
        ChatMessage("system", "Be short."),
        user("So far: a plan."),
        ChatMessage("assistant", "I see."),
        user("On."),
    ]
    later = [user("It works."), user("Is that all?")]

    async def work() -> None:
        await say(agent, first)
        await say(agent, [*first, ChatMessage("assistant", "one"), user("Go on.")])
        await say(agent, anew)
        await say(agent, [*anew, ChatMessage("assistant", "three"), *later])

    asyncio.run(work())
    made = Trajectory("Agent", "train-0", 0, 7, turns=turns_of(agent), status=Status.COMPLETED, score=1.0)
    made.messages = [{"role": message.role, "content": message.text} for message in first]
    stored = trajectory_path(tmp_path, 1, "train")
    write_trajectories(stored, [made], step=1, phase="train", run="r")

    write_demonstrations(stored, "true", path := tmp_path / "sft.jsonl")

    rows = [json.loads(line)["messages"] for line in path.open()]
    assert [[(each["content"], each.get("train")) for each in row] for row in rows] == [
        [("Plan it.", None), ("one", True), ("Go on.", None), ("two", True)],
        [
            *(("Be short.", None), ("So far: a plan.", None), ("I see.", False), ("On.", None), ("three", True)),
            *(("It works.", None), ("Is that all?", None), ("four", True)),
        ],
    ]
    assert len(learnt(path, sequence_length=512)) == 2  # else: its tokens say something else than its messages

    for one in made.turns:
        one.prompt_ids, one.completion_ids, one.logprobs = [], [], []
    write_trajectories(stored, [made], step=1, phase="train", run="r")
    write_demonstrations(stored, "true", path)
    assert [json.loads(line)["messages"] for line in path.open()] == rows


def test_tokens_of_another_model_are_refused(run: Path, tmp_path: Path) -> None:
    write_demonstrations(run, "score >= 1", path := tmp_path / "sft.jsonl")
    rows = [json.loads(line) for line in path.open()]
    path.write_text(
        "".join(json.dumps({**row, "input_ids": [token + 3 for token in row["input_ids"]]}) for row in rows[:1])
    )

    with pytest.raises(DataError, match="its tokens say .* and its messages 'Up 0'"):
        learnt(path)
    assert len(learnt(path, messages_key="messages")) == 1


def test_of_each_group_the_best_are_kept(run: Path, tmp_path: Path) -> None:
    kept = write_demonstrations(run, "true", tmp_path / "sft.jsonl", best=2)

    assert (kept.matched, kept.broken, kept.further, kept.episodes) == (7, 2, 2, 3)
    assert [line.split('"score": ')[1].rstrip("}\n") for line in (tmp_path / "sft.jsonl").open()][::2] == [
        "2.5",
        "1.5",
        "1.0",
    ]


def test_what_a_server_answered_has_no_tokens(tmp_path: Path) -> None:
    made = episode(0, 0, 1.0)
    for turn in made.turns:
        turn.prompt_ids, turn.completion_ids, turn.logprobs = [], [], []
    path = trajectory_path(tmp_path, 1, "train")
    write_trajectories(path, [made], step=1, phase="train", run="r")

    kept = write_demonstrations(path, "true", tmp_path / "sft.jsonl")

    assert kept.trained_tokens is None and "messages only" in list(kept.lines())[-1]
    assert len(learnt(tmp_path / "sft.jsonl")) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--where", "scor >= 1"], "did you mean 'score'?"),
        (["--where", "score >="], "syntax error"),
        (["--where", "true; drop table episodes"], "Fix: write one SQL condition"),
        (["--where", "exists (from read_csv('/etc/passwd'))"], "disabled"),
        (["--where", "score > 5"], "from 0.0 to 3.0"),
        (["--where", "tokens > 5", "--out", "a.csv"], ".parquet or .jsonl"),
        (["--where", "status = 'error_env'"], "broke"),
    ],
)
def test_what_cannot_be_is_said(run: Path, tmp_path, capsys, monkeypatch, words: list[str], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["data", "from-run", str(run), *(() if "--out" in words else ("--out", "sft.jsonl")), *words])

    assert left.value.code == 2 and said in capsys.readouterr().err
    assert not list(tmp_path.glob("*.jsonl"))


def test_the_command_counts_what_it_kept(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["data", "from-run", str(run), "--where", "score >= 1", "--out", str(tmp_path / "a.parquet")])

    assert left.value.code == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "5 of 7 episodes match.",
        "1 of them broke or sampled nothing, and are left out.",
    ]
