"""Two programs on one Ray cluster: one samples into a store there, another one learns from it."""

from __future__ import annotations

import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from roll.config import ConfigError
from tests import programs
from tests.e2e import support
from tests.e2e.ray_support import trained_on
from tests.e2e.support import beside, command, environment, same, train_state

pytest.importorskip("ray")


@pytest.mark.exhaustive
@pytest.mark.long
def test_a_trainer_that_is_killed_and_an_explorer_find_one_store_by_its_name(
    ray_machine: dict[str, str], tmp_path: Path
) -> None:
    """The trainer comes first and is killed; what it learns in the end is what it learns from a store in a folder."""
    keys = {"max_steps": 2, "save_steps": 1, "eval_steps": 0, "checkpoint_config.keep": 9, "experience.ahead": 9}
    in_ray = {**keys, "experience.type": "ray", "experience.name": "shared"}
    in_folder = {**keys, "experience.path": "store"}
    joined = environment(**ray_machine)
    sabotage = {"env_modules": "[sabotage]"}
    train = command(output_dir="train", mode="train", resume_from_checkpoint="true", **in_ray, **sabotage)
    explore = command(output_dir="explore", mode="explore", **in_ray)
    with beside(train, tmp_path, tmp_path / "train.log", **ray_machine, ROLL_TEST_KILL="update:2") as trainer:
        done = programs.run(explore, tmp_path, joined, 240)
        assert done.returncode == 0, done.stderr
        assert trainer.wait(120) == -signal.SIGKILL, (tmp_path / "train.log").read_text()
    done = programs.run(train, tmp_path, joined, 240)
    assert done.returncode == 0, done.stderr
    for mode in ("explore", "train"):
        words = command(output_dir=f"{mode}_folder", mode=mode, **in_folder)
        done = programs.run(words, tmp_path, environment(), 240)
        assert done.returncode == 0, done.stderr
    assert same(train_state(tmp_path / "train", 2), train_state(tmp_path / "train_folder", 2))
    groups = [{each.group_id for each in trained_on(tmp_path / "train", step)} for step in (1, 2)]
    assert [len(step) for step in groups] == [4] * 2 and len(set().union(*groups)) == 8


REJECT = """
from pathlib import Path
from roll.experience.reviewing import Decision
from roll.viewer.desk import Desk
from roll.viewer.run_folder import RunFolder

desk = Desk.of(RunFolder(Path("explore")))
listed = desk.listed()
print(listed.problem, *(each.group_id for each in listed.groups))
for each in listed.groups:
    assert desk.look(each.group_id)["group"] == each.group_id
    desk.decide(each.group_id, Decision.read("reject"))
desk.close()
"""
"""What the page of waiting groups of `roll view explore` does, in a program as that is: Ray reads its token once."""


@pytest.mark.exhaustive
def test_people_decide_about_groups_that_lie_in_a_cluster(ray_machine: dict[str, str], tmp_path: Path) -> None:
    """With the program, and in the review of the run that explored; a trainer learns from what they left."""
    keys = {"max_steps": 2, "save_steps": 2, "eval_steps": 0, "experience.type": "ray", "experience.name": "looked_at"}
    reviewed = {"operators.experience": "[{name: human_review, args: {share: 0.5}}]", "experience.ahead": 99}
    joined = environment(**ray_machine)
    explored = programs.run(command(output_dir="explore", mode="explore", **keys, **reviewed), tmp_path, joined, 240)
    assert explored.returncode == 0, explored.stderr

    def decide(*words: str) -> str:
        done = programs.run([sys.executable, "-m", "roll", "decide", *words], tmp_path, joined, 120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    waiting = [json.loads(line)["group_id"] for line in decide("ray:looked_at", "--json").splitlines()]
    assert len(waiting) >= 2
    assert f"{len(waiting) - 1} more wait" in decide("ray:roll/looked_at", waiting[0], "5.25")
    (tmp_path / "reject.py").write_text(REJECT)
    done = programs.run([sys.executable, "reject.py"], tmp_path, joined, 120)
    assert done.returncode == 0 and done.stdout.split() == waiting[1:], done.stdout + done.stderr
    done = programs.run(command(output_dir="train", mode="train", **{**keys, "max_steps": 1}), tmp_path, joined, 240)
    assert done.returncode == 0, done.stderr
    learned = trained_on(tmp_path / "train", 1)
    assert not {each.group_id for each in learned} & set(waiting[1:])
    assert {each.group_id for each in learned if each.score == 5.25} == {waiting[0]}


SYNCED = {"max_steps": 6, "save_steps": 3, "eval_steps": 0, "checkpoint_config.keep": 9, "env_modules": "[sabotage]"}


def sampled_with(folder: Path) -> list[int]:
    """The version of the weights that each step of a trainer was sampled with; there is one for each."""
    found = [
        {version for member in trained_on(folder, step) for turn in member.turns for version in turn.policy_version}
        for step in range(1, 7)
    ]
    assert all(len(versions) == 1 for versions in found), "the weights of a step are those of its beginning"
    return [version for versions in found for version in versions]


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["memory", "gloo"])
def test_weights_reach_an_explorer_without_a_disk_also_where_both_are_killed_and_continued(
    method: str, ray_machine: dict[str, str], tmp_path: Path
) -> None:
    """Both begin at once; each step is sampled with the version that checkpoints would have given it."""
    sync = "style: fixed, interval: 2, offset: 1, timeout: 300"
    shared = {**SYNCED, "experience.type": "ray", "experience.name": f"by_{method}"}
    shared |= {"experience.sync": f"{{method: {method}, {sync}}}"}

    def killed_and_continued(mode: str, moment: str) -> None:
        words = command(output_dir=mode, mode=mode, resume_from_checkpoint="true", **shared)
        first = programs.run(words, tmp_path, environment(**ray_machine, ROLL_TEST_KILL=moment), 240)
        assert first.returncode == -signal.SIGKILL, first.stderr
        then = programs.run(words, tmp_path, environment(**ray_machine), 240)
        assert then.returncode == 0, then.stderr

    with ThreadPoolExecutor(2) as pool:
        # In its fourth step, whose weights are not those of the checkpoint; the trainer, in its fourth.
        both = (
            pool.submit(killed_and_continued, "explore", "rollout:4"),
            pool.submit(killed_and_continued, "train", "update:8"),
        )
        if failed := [error for each in both if (error := each.exception()) is not None]:
            # Who waits for the other in vain says nothing of why that ended.
            raise BaseExceptionGroup("of the explorer and of the trainer", failed)
    assert sampled_with(tmp_path / "train") == [0, 0, 0, 2, 2, 4], "nothing of it depends on who is faster"
    assert [path.name for path in sorted((tmp_path / "train" / "checkpoints").iterdir())] == [
        "step=000003",
        "step=000006",
    ], "none is written for explorers"


EXPLORE = {"mode": "explore", "experience__path": "x"}
IN_RAY = {"mode": "train", "experience__type": "ray"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (IN_RAY, "programs find a store in a Ray cluster by its name"),
        ({**IN_RAY, "experience__name": "x", "mode": "both"}, "keeps its groups to itself"),
        ({**EXPLORE, "experience__name": "x"}, "only a store of type ray has one"),
        ({**EXPLORE, "experience__namespace": "x"}, "only a store of type ray has one"),
        ({**IN_RAY, "experience__name": "x", "experience__path": "'sqlite:///x'"}, "this is the address of a database"),
        ({**EXPLORE, "experience__sync": "{method: memory}"}, "such weights travel inside a Ray cluster"),
    ],
)
def test_a_store_in_ray_that_contradicts_itself_is_refused(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        support.small_config(tmp_path, **changes)
    assert message in str(refused.value)
