"""One run samples into a store, another one learns from it."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roll.config import ConfigError, RunError
from roll.experience.base import StoreCounts
from roll.experience.errors import ReviewError
from roll.experience.folder import FolderStore
from roll.experience.opened import open_place
from roll.experience.reviewing import Decision
from roll.pipelines.agentic import run_agentic
from roll.pipelines.rlvr import run_rlvr
from roll.runs.layout import CHECKPOINTS, folder_of
from tests.e2e import rlvr_support, support
from tests.e2e.ray_support import trained_on
from tests.e2e.support import beside, command, rows, same, start, train_state
from tests.rings import exhaustive_but

STEPS = {"max_steps": 2, "save_steps": 1, "eval_steps": 0, "checkpoint_config__keep": 9}


def run(kind: str, folder: Path, **changes: Any) -> None:
    """Run one of the pipelines in this process."""
    if kind == "agentic":
        run_agentic(support.small_config(folder, **{**STEPS, **changes}))
    else:
        run_rlvr(rlvr_support.small_config(folder, **{**STEPS, "dynamic_sampling__enable": False, **changes}))


def tokens(folder: Path, step: int) -> list[Any]:
    """Tokens and log-probs of what a step trained on."""
    return [
        [(turn.prompt_ids, turn.completion_ids, turn.logprobs, turn.reward) for turn in member.turns]
        for member in trained_on(folder, step)
    ]


@pytest.mark.parametrize("kind", exhaustive_but(["agentic", "rlvr"], "agentic"))
def test_what_is_explored_teaches_what_it_would_have_taught_in_one_run(kind: str, tmp_path: Path) -> None:
    """Exploring without new weights samples the first step of any run, and learning from that is its first update."""
    store = tmp_path / "store"
    run(kind, tmp_path / "explore", mode="explore", experience__path=store, experience__ahead=99)
    run(kind, tmp_path / "train", mode="train", experience__path=store)
    run(kind, tmp_path / "both")
    for step in (1, 2):
        assert trained_on(tmp_path / "train", step) == trained_on(tmp_path / "explore", step)
    assert tokens(tmp_path / "both", 1) == tokens(tmp_path / "train", 1)
    learned, both = train_state(tmp_path / "train", 1), train_state(tmp_path / "both", 1)
    assert same(learned["model"], both["model"])
    assert not same(train_state(tmp_path / "train", 2)["model"], learned["model"])
    assert [row["rollout/staleness/max"] for row in rows(tmp_path / "train")] == [0, 1]
    assert not list((tmp_path / "explore").glob("checkpoints/*/hf"))
    files = [store / "segments", tmp_path / "explore" / "trajectories", tmp_path / "train" / "trajectories"]
    written = [{path.stat().st_ino for path in folder.glob("*.parquet")} for folder in files]
    assert written[0] == written[1] == written[2] and len(written[0]) == 2, "what is sampled is on the disk once"


REVIEWED = {"operators__experience": "[{name: human_review, args: {share: 0.5}}]", "experience__ahead": 99}


def test_a_trainer_learns_from_what_waits_only_as_people_decide(tmp_path: Path) -> None:
    """A trainer that is stopped while groups wait goes on when they are decided, and learns what people said."""
    place = tmp_path / "store"
    run("agentic", tmp_path / "explore", mode="explore", experience__path=place, **REVIEWED)
    store = FolderStore(place)
    waiting = [each.group_id for each in store.waiting()]
    sampled = [member for step in (1, 2) for member in trained_on(tmp_path / "explore", step)]
    ids = list(dict.fromkeys(member.group_id for member in sampled))
    assert 2 <= len(waiting) < len(ids) and rows(tmp_path / "explore")[-1]["experience/waiting"] == len(waiting)
    size = (len(ids) - 1) * (len(sampled) // len(ids))
    train = {"mode": "train", "experience__path": place, "max_steps": 1, "experience__train_batch_size": size}
    with pytest.raises(RunError, match=rf"{len(waiting)} wait for review, .* for 0\.5 seconds.*roll view {place}"):
        run("agentic", tmp_path / "train", **train, experience__review_timeout=0.5)
    store.decide(waiting[0], Decision.read("reject"))
    for name in waiting[1:-1]:
        store.decide(name, Decision.read("approve"))
    members = [member for member in sampled if member.group_id == waiting[-1]]
    store.decide(waiting[-1], Decision("approve", tuple(7.0 + n for n in range(len(members)))))
    run("agentic", tmp_path / "train", **train)
    learned = trained_on(tmp_path / "train", 1)
    assert list(dict.fromkeys(member.group_id for member in learned)) == [each for each in ids if each != waiting[0]]
    scores = [member.score for member in learned if member.group_id == waiting[-1]]
    assert scores == [7.0 + n for n in range(len(members))]
    others = [member for member in sampled if member.group_id not in (waiting[0], waiting[-1])]
    assert [member for member in learned if member.group_id != waiting[-1]] == others
    assert rows(tmp_path / "train")[-1]["experience/rejected"] == 1
    assert store.counts() == StoreCounts(len(ids), 0, 0, 0, len(ids) - 1, 0, waiting=0, rejected=1)
    store.close()


def test_a_run_without_a_store_cannot_let_groups_wait(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)operators\.experience\.0\.name.*groups wait for people in a store"):
        run("agentic", tmp_path, operators__experience="[human_review]")


@pytest.mark.parametrize("kind", exhaustive_but(["agentic", "rlvr"], "rlvr"))
def test_a_finished_run_can_be_learned_from_again(kind: str, tmp_path: Path) -> None:
    run(kind, tmp_path / "first")
    run(kind, tmp_path / "again", mode="train", experience__path=tmp_path / "first")
    for step in (1, 2):
        assert tokens(tmp_path / "again", step) == tokens(tmp_path / "first", step)
    assert same(train_state(tmp_path / "again", 2)["model"], train_state(tmp_path / "first", 2)["model"])


@pytest.mark.exhaustive
def test_several_explorers_fill_one_store_under_names_of_their_own(tmp_path: Path) -> None:
    store = {"mode": "explore", "experience__path": tmp_path / "store", "experience__ahead": 99, "max_steps": 1}
    run("agentic", tmp_path / "one", **store, seed=1, experience__writer="one")
    run("agentic", tmp_path / "two", **store, seed=2, experience__writer="two")
    run("agentic", tmp_path / "train", mode="train", experience__path=tmp_path / "store")
    for step, name in ((1, "one"), (2, "two")):
        assert tokens(tmp_path / "train", step) == tokens(tmp_path / name, 1)
        ids = {member.group_id for member in trained_on(tmp_path / "train", step)}
        assert ids == {f"{name}/{member.group_id}" for member in trained_on(tmp_path / name, 1)}


@pytest.mark.exhaustive
def test_a_step_learns_from_as_many_groups_as_are_asked_for_whatever_a_step_samples(tmp_path: Path) -> None:
    """The store is a database here, so that a run has learned from one."""
    store = f"'sqlite:///{tmp_path / 'store.sqlite'}'"
    run("agentic", tmp_path / "explore", mode="explore", experience__path=store, experience__type="sql",
        experience__ahead=99)  # fmt: skip
    run("agentic", tmp_path / "train", mode="train", experience__path=store, experience__type="sql",
        experience__train_batch_size=8, max_steps=4)  # fmt: skip
    sampled = [member.group_id for step in (1, 2) for member in trained_on(tmp_path / "explore", step)]
    learned = [[member.group_id for member in trained_on(tmp_path / "train", step)] for step in range(1, 5)]
    assert [len(step) for step in learned] == [8] * 4 and sum(learned, []) == sampled
    run("agentic", tmp_path / "both", experience__uses=3, experience__train_batch_size=32)
    assert [row["rollout/groups_replayed"] for row in rows(tmp_path / "both")] == [0, 4]
    assert len(trained_on(tmp_path / "both", 1)) == 32 and len(trained_on(tmp_path / "both", 2)) == 16


@pytest.mark.exhaustive
def test_a_store_that_is_used_up_says_what_to_do(tmp_path: Path) -> None:
    run("agentic", tmp_path / "first", max_steps=1)
    with pytest.raises(RunError, match=r"0 of 4 groups left .0 fresh.*max_steps.*experience\.uses"):
        run("agentic", tmp_path / "again", mode="train", experience__path=tmp_path / "first")
    run("agentic", tmp_path / "twice", mode="train", experience__path=tmp_path / "first", experience__uses=2)
    assert trained_on(tmp_path / "twice", 1) == trained_on(tmp_path / "twice", 2)


@pytest.mark.exhaustive
def test_a_bench_measures_each_checkpoint_as_the_run_itself_would_have(tmp_path: Path) -> None:
    bench = {"mode": "bench", "experience__follow": tmp_path / "both", "eval_steps": 1}
    run("agentic", tmp_path / "both", max_steps=3, save_steps=2, eval_steps=1)
    shutil.rmtree(tmp_path / "both" / "trajectories")
    run("agentic", tmp_path / "bench", **bench, max_steps=2)
    run("agentic", tmp_path / "bench", **bench, max_steps=9, resume_from_checkpoint="true")
    measured = {row["step"]: row for row in rows(tmp_path / "bench")}
    own = {row["step"]: row for row in rows(tmp_path / "both") if "val/success" in row}
    assert list(measured) == [0, 2, 3], "each checkpoint once, and the policy that the run began with"
    for step, row in measured.items():
        assert {key: row[key] for key in row if key.startswith("val/")} == {
            key: own[step][key] for key in row if key.startswith("val/")
        }
    assert len(list((tmp_path / "bench" / "trajectories").glob("val_step=*.parquet"))) == 3
    assert not list((tmp_path / "bench").glob("checkpoints/*/hf"))


@pytest.mark.exhaustive
def test_a_bench_measures_a_list_of_checkpoints_in_its_order(tmp_path: Path) -> None:
    run("agentic", tmp_path / "both", eval_steps=1)
    own = {row["step"]: row["val/success"] for row in rows(tmp_path / "both") if "val/success" in row}
    listed = [str(folder_of(tmp_path / "both" / CHECKPOINTS, step)) for step in (2, 1)]
    bench = {"mode": "bench", "experience__checkpoints": str(listed), "eval_steps": 1}
    run("agentic", tmp_path / "bench", **bench, max_steps=2)
    measured = {row["step"]: row["val/success"] for row in rows(tmp_path / "bench")}
    assert measured == {0: own[0], 1: own[2], 2: own[1]}


REPLAY = {"experience__fresh_share": 0.5, "experience__uses": 2, "experience__priority": "staleness"}


@pytest.mark.exhaustive
def test_half_of_a_step_is_replayed_and_a_run_that_goes_on_ends_the_same(tmp_path: Path) -> None:
    run("rlvr", tmp_path / "whole", **REPLAY, max_steps=3)
    metrics = rows(tmp_path / "whole")
    assert [row["rollout/groups_replayed"] for row in metrics] == [0, 2, 2]
    assert [row["rollout/staleness/max"] for row in metrics] == [0, 1, 1], "the newest is replayed"
    ids = [[member.group_id for member in trained_on(tmp_path / "whole", step)] for step in (1, 2, 3)]
    assert len(ids[0]) == 2 * len(ids[1]) == 2 * len(ids[2]), "half as much is sampled, and stored where it was"
    assert len(set(ids[0] + ids[1] + ids[2])) == 8
    run("rlvr", tmp_path / "both", max_steps=1)
    first, both = (
        [[turn.completion_ids for turn in member.turns] for member in trained_on(tmp_path / name, 1)]
        for name in ("whole", "both")
    )
    assert first == both, "nothing is there to be replayed in the first step"
    run("rlvr", tmp_path / "halves", **REPLAY, max_steps=2)
    first_checkpoint = folder_of(tmp_path / "halves" / CHECKPOINTS, 1)
    run("rlvr", tmp_path / "halves", **REPLAY, max_steps=3, resume_from_checkpoint=first_checkpoint)
    assert same(train_state(tmp_path / "halves", 3), train_state(tmp_path / "whole", 3))
    shutil.rmtree(tmp_path / "halves" / "replay")
    with pytest.raises(RunError, match="has 0 of the .* groups that it had at the checkpoint.*folder replay"):
        run("rlvr", tmp_path / "halves", **REPLAY, max_steps=4, resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experience__uses": 2}, "which share of a step"),
        ({"experience__fresh_share": 0.5}, "nothing can be replayed"),
        ({**REPLAY, "async_generation_ratio": 1.0}, "samples in step with training"),
        ({"mode": "bench", "eval_steps": 1}, "evaluates the checkpoints of another run, and none"),
        ({"mode": "explore", "experience__uses": 2}, "mode: explore needs a store"),
        ({"mode": "train"}, "mode: train needs a store"),
        ({"experience__path": "x"}, "keeps its groups to itself"),
        (
            {"mode": "train", "experience__path": "x", "experience__train_batch_size": 10},
            "groups have 4 members, and are whole",
        ),
        (
            {"experience__uses": 2, "experience__train_batch_size": 16},
            "a step samples 16 trajectories, so nothing is replayed",
        ),
        ({"experience__train_batch_size": 10}, "use 8 or 12"),
        ({"experience__train_batch_size": 32}, "nothing can be replayed"),
        ({"mode": "explore", "experience__type": "memory"}, "mode: explore shares its store with another one"),
        ({"experience__type": "memory", "experience__path": "x"}, "a store in memory is in no place"),
        ({"experience__type": "memory", "experience__uses": 2}, "learns once from all that was sampled for it"),
        ({"mode": "train", "experience__path": "x", "experience__type": "sql"}, "a store of type sql has an address"),
        (
            {"mode": "train", "experience__path": "x", "experience__sync": "{offset: 3}", "checkpoint_config__keep": 2},
            "needs one of the newest 5 checkpoints",
        ),
        (
            {"mode": "explore", "experience__path": "x", "experience__sync": "{style: dynamic_by_trainer, offset: 1}"},
            "only style: fixed has one",
        ),
        ({"mode": "bench", "experience__checkpoints": "[a, b, c]", "eval_steps": 1, "max_steps": 2}, "3 checkpoints"),
        ({"mode": "train", "experience__path": "x", "async_generation_ratio": 1.0}, "nothing can be sampled ahead"),
    ],
)
def test_a_mode_that_contradicts_itself_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        support.small_config(tmp_path, **changes)
    assert message in str(refused.value)


@pytest.mark.exhaustive
def test_a_store_in_memory_is_what_there_is_without_one(tmp_path: Path) -> None:
    run("agentic", tmp_path / "without")
    run("agentic", tmp_path / "memory", experience__type="memory")
    assert same(train_state(tmp_path / "memory", 2), train_state(tmp_path / "without", 2))
    assert not (tmp_path / "memory" / "replay").exists()


def learned_groups(folder: Path, steps: int) -> list[list[str]]:
    """Return the groups of which each step kept trajectories."""
    return [list(dict.fromkeys(member.group_id for member in trained_on(folder, step + 1))) for step in range(steps)]


@pytest.mark.exhaustive
def test_what_a_lease_leaves_is_learned_from_in_the_next_steps_and_a_run_that_goes_on_ends_the_same(
    tmp_path: Path,
) -> None:
    """Four groups are sampled at once and three are learned from in a step: every group once, across checkpoints."""
    lease = {"experience__train_batch_size": 12}
    run("agentic", tmp_path / "whole", **lease, max_steps=4)
    metrics = rows(tmp_path / "whole")
    assert [row["rollout/groups_left"] for row in metrics] == [1, 2, 3, 0]
    assert [row["rollout/staleness/max"] for row in metrics] == [0, 1, 1, 1]
    assert not any(row["rollout/groups_replayed"] or row["rollout/groups_stale"] for row in metrics)
    given = learned_groups(tmp_path / "whole", 4)
    assert [len(step) for step in given] == [3] * 4 and len(set(sum(given, []))) == 12
    run("agentic", tmp_path / "halves", **lease, max_steps=3)
    second = folder_of(tmp_path / "halves" / CHECKPOINTS, 2)
    run("agentic", tmp_path / "halves", **lease, max_steps=4, resume_from_checkpoint=second)
    assert same(train_state(tmp_path / "halves", 4), train_state(tmp_path / "whole", 4))
    assert learned_groups(tmp_path / "halves", 4) == given


@pytest.mark.exhaustive
def test_steps_sample_nothing_while_enough_is_left(tmp_path: Path) -> None:
    run("rlvr", tmp_path, experience__train_batch_size=4, max_steps=5)
    metrics = rows(tmp_path)
    assert [row["rollout/groups_left"] for row in metrics] == [3, 2, 1, 0, 3]
    assert [row["rollout/staleness/max"] for row in metrics] == [0, 1, 2, 3, 0]


@pytest.mark.exhaustive
def test_what_a_lease_leaves_is_dropped_and_counted_when_it_is_too_old(tmp_path: Path) -> None:
    run("agentic", tmp_path, experience__train_batch_size=12, experience__max_age=0, max_steps=3)
    metrics = rows(tmp_path)
    assert [row["rollout/staleness/max"] for row in metrics] == [0, 0, 0]
    assert [row["rollout/groups_stale"] for row in metrics] == [1, 1, 1], "the fourth of each four"


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["train", "both"])
def test_a_learner_that_is_killed_goes_on_with_the_same_groups(mode: str, tmp_path: Path) -> None:
    if mode == "train":
        run("agentic", tmp_path / "explore", mode="explore", experience__path=tmp_path / "store", experience__ahead=99)
        store = {"experience.path": tmp_path / "store"}
    else:
        store = {key.replace("__", "."): value for key, value in REPLAY.items()}
    keys = {**STEPS, "mode": mode, **store, "env_modules": "[sabotage]"}
    words: Callable[[str], list[str]] = lambda out: command(output_dir=out, resume_from_checkpoint="true", **keys)  # noqa: E731
    assert start(words("whole"), tmp_path).returncode == 0
    done = start(words("killed"), tmp_path, ROLL_TEST_KILL="update:2")
    assert done.returncode == -signal.SIGKILL, done.stderr
    done = start(words("killed"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert same(train_state(tmp_path / "killed", 2), train_state(tmp_path / "whole", 2))


@pytest.mark.exhaustive
def test_what_people_decided_is_learned_once_by_a_trainer_that_is_killed_before_its_checkpoint(tmp_path: Path) -> None:
    """A trainer that is killed with decided groups in its hands ends as one that was not, and asks nobody again."""
    place = f"sqlite:///{tmp_path / 'store.sqlite'}"
    run("agentic", tmp_path / "explore", mode="explore", experience__path=place, **REVIEWED)
    store = open_place(place, patience=10)
    waiting = [each.group_id for each in store.waiting()]
    for number, name in enumerate(waiting):
        store.decide(name, Decision.read("approve" if number % 2 else "5.25"))
    keys = {**STEPS, "mode": "train", "experience.path": place, "save_steps": 2}
    keys |= {"env_modules": "[sabotage]", "resume_from_checkpoint": "true"}
    killed = start(command(output_dir="killed", **keys), tmp_path, ROLL_TEST_KILL="update:2")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with pytest.raises(ReviewError, match="given out"):
        store.decide(waiting[0], Decision.read("reject"))
    for name, reader in (("killed", "train"), ("whole", "another")):
        done = start(command(output_dir=name, **keys, **{"experience.reader": reader}), tmp_path)
        assert done.returncode == 0, done.stderr
    assert same(train_state(tmp_path / "killed", 2), train_state(tmp_path / "whole", 2))
    learned = [member for step in (1, 2) for member in trained_on(tmp_path / "killed", step)]
    assert len({(member.group_id, member.episode) for member in learned}) == len(learned)
    scored = {name for number, name in enumerate(waiting) if number % 2 == 0}
    assert {member.group_id for member in learned if member.score == 5.25} == scored
    store.close()


@pytest.mark.exhaustive
@pytest.mark.long
def test_two_programs_work_at_the_same_time_and_weights_are_followed(tmp_path: Path) -> None:
    keys = {"max_steps": 4, "save_steps": 1, "eval_steps": 0, "checkpoint_config.keep": 9}
    explore = command(
        output_dir="explore", mode="explore", **keys,
        **{"experience.path": "store", "experience.follow": "train", "experience.ahead": 1},
    )  # fmt: skip
    train = command(output_dir="train", mode="train", **keys, **{"experience.path": "store"})
    with beside(explore, tmp_path, tmp_path / "explore.log") as explorer:
        done = start(train, tmp_path)
        assert explorer.wait(60) == 0, (tmp_path / "explore.log").read_text()
    assert done.returncode == 0, done.stderr
    groups = [{t.group_id for t in trained_on(tmp_path / "train", step)} for step in range(1, 5)]
    assert [len(step) for step in groups] == [4] * 4 and len(set().union(*groups)) == 16
    for step in range(1, 5):
        versions = {turn.policy_version[0] for t in trained_on(tmp_path / "train", step) for turn in t.turns}
        # One step lies in the store, one is being played.
        assert max(step - 3, 0) <= min(versions) and max(versions) <= step - 1
    assert max(versions) >= 1, "the last step was sampled with weights that were learned meanwhile"


SYNCS = {
    "fixed": "{style: fixed, interval: 2, offset: 1}",
    "dynamic_by_trainer": "{style: dynamic_by_trainer, interval: 2}",
    "dynamic_by_explorer": "{style: dynamic_by_explorer, interval: 2}",
}


@pytest.mark.exhaustive
@pytest.mark.long
@pytest.mark.parametrize("style", SYNCS)
def test_each_style_of_synchronisation_keeps_the_staleness_that_it_promises(style: str, tmp_path: Path) -> None:
    keys = {"max_steps": 6, "save_steps": 0, "eval_steps": 0, "checkpoint_config.keep": 9}
    keys |= {"experience.path": "store", "experience.sync": SYNCS[style]}
    explore = command(output_dir="explore", mode="explore", **keys, **{"experience.follow": "train"})
    with beside(explore, tmp_path, tmp_path / "explore.log") as explorer:
        done = start(command(output_dir="train", mode="train", **keys), tmp_path)
        assert explorer.wait(60) == 0, (tmp_path / "explore.log").read_text()
    assert done.returncode == 0, done.stderr
    versions = [
        {turn.policy_version[0] for member in trained_on(tmp_path / "train", step) for turn in member.turns}
        for step in range(1, 7)
    ]
    assert all(len(each) == 1 for each in versions), "the weights of a step are those of its beginning"
    sampled_with = [version for each in versions for version in each]
    assert sampled_with == sorted(sampled_with)
    if style == "fixed":
        assert sampled_with == [0, 0, 0, 2, 2, 4], "nothing of it depends on who is faster"
    elif style == "dynamic_by_trainer":
        assert all(version % 2 == 0 for version in sampled_with) and max(sampled_with) >= 2
    else:
        # It asks before its steps 3 and 5, and gets the weights of then: at most two steps were not learned from.
        assert sampled_with[0] == sampled_with[1] == 0 and sampled_with[2] == sampled_with[3]
        assert sampled_with[4] == sampled_with[5] > sampled_with[2]
    assert all(step - 1 - version <= 4 for step, version in enumerate(sampled_with, start=1))
