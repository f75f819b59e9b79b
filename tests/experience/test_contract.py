"""What every experience store promises: in memory, in a folder, in SQLite, in PostgreSQL, in a Ray cluster."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from experience_support import KINDS, Model, Opened, make_group, opener
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from roll.common.registry import UnknownNameError
from roll.experience.base import ExperienceStore, Reader, StoreCounts
from roll.experience.choosing import choose
from roll.experience.errors import ReviewError
from roll.experience.priorities import Known, priority_of
from roll.experience.reviewing import Decision, Waiting
from roll.trajectories.model import Status, Trajectory, TrajectoryGroup, Turn


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    return opener(request.param, tmp_path, new_place(request.param, request))


def new_place(kind: str, request: pytest.FixtureRequest) -> Callable[[], str] | None:
    """Return what makes a database, or a name, for a kind of store that needs a server or a cluster."""
    if kind.startswith("ray"):
        return request.getfixturevalue("session").new_name
    return request.getfixturevalue("server").new_database if kind == "postgresql" else None


def test_a_group_comes_back_exactly_and_as_a_copy(opened: Opened) -> None:
    store = opened()
    groups = [make_group(number) for number in range(20)]
    assert store.append(groups, policy_version=3) == 20
    lease = store.lease(20, step=4)
    assert lease is not None and list(lease.groups) == groups == [make_group(number) for number in range(20)]
    assert lease.step == 4 and lease.policy_version == (3,) * 20 and list(lease.numbers) == sorted(set(lease.numbers))
    lease.groups[0].trajectories.clear()
    groups[1].trajectories.clear()
    again = opened().lease(20, step=4)
    assert again is not None and list(again.groups) == [make_group(number) for number in range(20)]


def test_a_baseline_is_exact(opened: Opened) -> None:
    store = opened()
    baselines = [None, 0.0, -0.0, 0.1, float("inf"), float("nan"), 5e-324]
    groups = [replace(make_group(number), baseline=baseline) for number, baseline in enumerate(baselines)]
    store.append(groups, 0)
    lease = store.lease(len(groups), 1)
    assert lease is not None and [repr(group.baseline) for group in lease.groups] == [repr(each) for each in baselines]


def test_the_first_group_of_an_id_stays(opened: Opened) -> None:
    store = opened()
    assert store.append([make_group(0), make_group(1), make_group(0, variant=1)], 1) == 2
    assert store.append([make_group(1, variant=1), make_group(2)], 2) == 1
    lease = store.lease(3, 1)
    assert lease is not None and list(lease.groups) == [make_group(0), make_group(1), make_group(2)]
    assert lease.policy_version == (1, 1, 2)


def test_fewer_than_asked_for_is_nothing_and_takes_nothing(opened: Opened) -> None:
    store = opened()
    assert store.lease(1, 1) is None
    store.append([make_group(0)], 0)
    assert store.lease(2, 1) is None and store.lease(2, 1) is None
    assert store.counts() == StoreCounts(groups=1, available=1, fresh=1, leased=0, trained=0, dropped=0)
    opened().append([make_group(1)], 0)
    lease = store.lease(2, 1)
    assert lease is not None and len(lease.groups) == 2


def test_a_group_comes_as_often_as_asked_for_and_the_least_used_first(opened: Opened) -> None:
    store = opened("train", uses=2)
    store.append([make_group(number) for number in range(3)], 0)
    numbers = [lease.numbers for step in (1, 2, 3) if (lease := store.lease(2, step))]
    first, second, third = sorted({number for pair in numbers for number in pair})
    assert numbers == [(first, second), (third, first), (second, third)]
    assert store.lease(1, 4) is None


def numbers_of(store: ExperienceStore, count: int, steps: Iterable[int]) -> list[list[int] | None]:
    """Return the numbers that steps are given, from 0."""
    leases = [store.lease(count, step) for step in steps]
    return [lease and [number - 1 for number in lease.numbers] for lease in leases]


def test_a_cooldown_lies_between_two_uses_and_what_cools_is_not_available(opened: Opened) -> None:
    store = opened(uses=3, cooldown=1)
    store.append([make_group(number) for number in range(2)], 0)
    assert numbers_of(store, 1, (1, 2)) == [[0], [1]]
    assert store.counts() == StoreCounts(groups=2, available=1, fresh=0, leased=2, trained=0, dropped=0)
    assert store.lease(2, 3) is None, "the second one cools"
    assert numbers_of(store, 2, (4,)) == [[0, 1]]


def test_the_rest_of_a_lease_is_replayed_and_too_few_fresh_ones_are_too_few(opened: Opened) -> None:
    store = opened(uses=9, fresh_share=0.5)
    store.append([make_group(number) for number in range(5)], 0)
    assert numbers_of(store, 4, (1,)) == [[0, 1, 2, 3]], "there is nothing to replay yet"
    assert store.lease(4, 2) is None, "only one is fresh"
    assert store.counts().available == 5 and store.counts().fresh == 1
    store.append([make_group(number) for number in range(5, 9)], 1)
    assert numbers_of(store, 4, (2, 3)) == [[4, 5, 0, 1], [6, 7, 2, 3]]


def test_a_priority_says_what_is_replayed_first(opened: Opened) -> None:
    def group(number: int, scores: list[float], successes: int) -> TrajectoryGroup:
        members = [
            Trajectory("a", str(number), episode, 0, status=Status.COMPLETED, score=score,
                       metrics={"success": float(episode < successes)})
            for episode, score in enumerate(scores)
        ]  # fmt: skip
        return TrajectoryGroup(str(number), "a", members)

    store = opened("who looks")
    for number, (scores, successes, version) in enumerate(
        [([1.0, 1.0], 2, 0), ([0.0, 1.0], 1, 2), ([0.0, 4.0], 0, 1), ([2.0, 2.0], 0, 3)]
    ):
        store.append([group(number, scores, successes)], version)
    orders = {
        name: numbers_of(opened(name, priority=priority_of(name, options)), 4, (5,))[0]
        for name, options in {
            "least_used": {}, "linear_decay": {"decay": 1.0}, "staleness": {}, "advantage": {},
            "success_balanced": {"target": 1.0},
        }.items()
    }  # fmt: skip
    assert orders == {
        "least_used": [0, 1, 2, 3],
        "linear_decay": [3, 1, 2, 0],
        "staleness": [3, 1, 2, 0],
        "advantage": [2, 1, 0, 3],
        "success_balanced": [0, 1, 2, 3],
    }
    decaying = opened("decaying", uses=9, priority=priority_of("linear_decay", {"decay": 1.0}))
    assert numbers_of(decaying, 1, range(1, 7)) == [[3], [1], [3], [2], [1], [3]]


def test_a_priority_that_is_no_number_or_has_no_such_option_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"'linear_decay' cannot be given \{'half': 1\}.*Its options: decay"):
        priority_of("linear_decay", {"half": 1})
    with pytest.raises(UnknownNameError, match=r"register_priority\('mine'\)"):
        priority_of("mine", {})
    known = [Known(1, 0, 1, 0, 0.0, 0.0, 0.0)]
    with pytest.raises(ValueError, match="must be a number"):
        choose(Reader(priority=lambda _: float("nan")), 1, known)


def test_what_is_too_old_is_never_given_out_and_counted(opened: Opened) -> None:
    store = opened("train", max_age=1)
    for version in range(4):
        store.append([make_group(version)], version)
    lease = store.lease(1, 3)
    assert lease is not None and lease.policy_version == (1,), "step 3 trains version 2, and 0 is 2 behind"
    assert store.counts() == StoreCounts(groups=4, available=2, fresh=2, leased=1, trained=0, dropped=1)
    assert store.lease(2, 5) is None


def test_a_commit_says_what_is_trained_and_readers_are_apart(opened: Opened) -> None:
    store, other = opened("one"), opened("other", uses=2)
    store.append([make_group(number) for number in range(5)], 0)
    for step in (1, 2):
        assert store.lease(2, step)
    store.commit(1)
    assert store.counts() == StoreCounts(groups=5, available=1, fresh=1, leased=2, trained=2, dropped=0)
    assert other.counts() == StoreCounts(groups=5, available=5, fresh=5, leased=0, trained=0, dropped=0)
    store.commit(0)
    assert store.counts().trained == 2, "an earlier checkpoint takes nothing back"


def test_after_a_rewind_another_batch_size_gets_the_same_groups(opened: Opened) -> None:
    store = opened()
    store.append([make_group(number) for number in range(9)], 0)
    leases = [lease for step in (1, 2, 3) if (lease := store.lease(2, step))]
    store.commit(3)
    store.rewind(1)
    assert store.counts() == StoreCounts(groups=9, available=7, fresh=7, leased=0, trained=2, dropped=0)
    lease = store.lease(4, 2)
    assert lease is not None and lease.numbers == leases[1].numbers + leases[2].numbers


def test_a_step_that_cannot_be_is_an_error_that_says_what_to_do(opened: Opened) -> None:
    store = opened()
    store.append([make_group(number) for number in range(9)], 0)
    with pytest.raises(ValueError, match="at least one group, got 0"):
        store.lease(0, 1)
    assert store.lease(2, 5)
    with pytest.raises(ValueError, match=r"'train' has 2 groups already and is asked for 3; rewind\(4\)"):
        store.lease(3, 5)
    with pytest.raises(ValueError, match=r"step 4 of reader 'train'.*step 5 after it.*rewind\(3\)"):
        store.lease(2, 4)
    store.commit(8)
    with pytest.raises(ValueError, match="step 8 after it"):
        store.lease(2, 7)
    with pytest.raises(ValueError, match="uses must be at least 1"):
        opened("train", uses=0)
    with pytest.raises(ValueError, match="max_age must be at least 0"):
        opened("train", max_age=-1)
    with pytest.raises(ValueError, match="cooldown must be at least 0"):
        opened("train", cooldown=-1)
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="fresh_share must be above 0"):
            opened("train", fresh_share=share)


def test_an_append_opens_what_was_finished(opened: Opened) -> None:
    store = opened()
    assert not store.finished
    store.append([make_group(0)], 0)
    store.finish()
    assert store.finished and opened("another").finished
    assert store.append([make_group(0)], 0) == 0
    assert not store.finished, "a killed explorer first plays some groups again"


def test_threads_share_a_store(opened: Opened) -> None:
    store = opened()
    failures: list[BaseException] = []

    def append(first: int) -> None:
        try:
            for number in range(first, 20, 2):
                store.append([make_group(number), make_group(number // 2)], 0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=append, args=[first]) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    lease = store.lease(20, 1)
    assert lease is not None
    assert sorted(lease.groups, key=lambda group: group.group_id) == [make_group(number) for number in range(20)]


def scored(group_id: str, *scores: float, waits: bool = False) -> TrajectoryGroup:
    """Return a group of members with these scores and a turn each."""
    turns = [Turn([1], [2], [-0.1], (0, 0), "seen", "said", "did", score, {"env": score}) for score in scores]
    members = [
        Trajectory("a", group_id, episode, 0, turns=[turn], status=Status.COMPLETED, score=turn.reward)
        for episode, turn in enumerate(turns)
    ]
    return TrajectoryGroup(group_id, "a", members, waits=waits)


def test_a_group_that_waits_is_passed_over_until_a_person_has_decided(opened: Opened) -> None:
    store, other = opened(), opened("other")
    groups = [scored("one", 0, 1, waits=True), scored("two", 2, 2), scored("three", 0, 4, waits=True)]
    groups.append(scored("four", 0, 0, waits=True))
    assert store.append(groups, 5) == 4
    assert store.waiting()[0] == Waiting("one", "a", 5, 2, 0.5, 0.5) and len(store.waiting()) == 3
    assert store.lease(2, 1) is None, "only one does not wait"
    assert store.counts() == StoreCounts(4, 1, 1, 0, 0, 0, waiting=3, rejected=0)
    assert [member.score for member in store.look("one").trajectories] == [0, 1]
    other.decide("one", Decision.read("approve"))
    store.decide("three", Decision.read("-, 3"))
    store.decide("four", Decision.read("reject"))
    assert store.counts() == StoreCounts(4, 3, 3, 0, 0, 0, waiting=0, rejected=1)
    lease = opened().lease(3, 1)
    assert lease is not None and [group.group_id for group in lease.groups] == ["one", "two", "three"]
    assert [member.score for member in lease.groups[2].trajectories] == [0, 3]
    turn = lease.groups[2].trajectories[1].turns[0]
    assert turn.reward == 3 and turn.reward_parts == {"env": 4, "human_review": -1}
    assert not any(group.waits for group in lease.groups) and opened().lease(3, 1) == lease


def test_a_decision_may_be_changed_until_the_group_is_given_out(opened: Opened) -> None:
    store = opened()
    store.append([scored("one", 0, 1, waits=True), scored("two", 0, 1)], 0)
    for words in ("reject", "7", "0.5", "reject", "2,-"):
        with pytest.raises(ValueError, match="scores: name one for each"):
            store.decide("one", Decision("approve", (1.0, 2.0, 3.0)))
        store.decide("one", Decision.read(words))
    store.append([scored("one", 9, 9, waits=True)], 1)
    assert store.waiting() == [], "it is there already, and decided"
    lease = store.lease(2, 1)
    assert lease is not None and [member.score for member in lease.groups[0].trajectories] == [2, 1]
    for name, why in (("one", "given out"), ("two", "no group 'two' waits"), ("none", "no group 'none' waits")):
        with pytest.raises(ReviewError, match=why):
            opened().decide(name, Decision("approve"))


@pytest.mark.parametrize("words", ["", "yes", "1,,2", "nan", "inf", "approve, 1"])
def test_what_is_no_decision_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match="is no decision|finite"):
        Decision.read(words)


READERS = {
    "a": Reader("a"),
    "b": Reader("b", uses=2, max_age=2, priority=priority_of("staleness", {})),
    "c": Reader("c", uses=3, cooldown=1, priority=priority_of("advantage", {})),
    "d": Reader("d", uses=4, fresh_share=0.4, priority=priority_of("linear_decay", {})),
    "e": Reader("e", uses=2, max_age=3, cooldown=2, fresh_share=0.5, priority=priority_of("success_balanced", {})),
}
_readers = st.sampled_from(sorted(READERS))


class Machine(RuleBasedStateMachine):
    """Any order of calls, kills among them, says the same as a model of plain lists."""

    kind: str
    new_place: Callable[[], str] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.open = opener(self.kind, Path(self.folder.name), type(self).new_place)
        self.stores = {name: self.open_for(reader) for name, reader in READERS.items()}
        self.killed: list[Any] = []
        self.model = Model()
        self.variant = 0

    def open_for(self, reader: Reader) -> ExperienceStore:
        return self.open(**{field.name: getattr(reader, field.name) for field in fields(reader)})

    @rule(
        reader=_readers,
        numbers=st.lists(st.integers(0, 30), max_size=5),
        version=st.integers(0, 6),
        waits=st.sampled_from([False, False, True]),
    )
    def append(self, reader: str, numbers: list[int], version: int, waits: bool) -> None:
        self.variant += 1
        groups = [replace(make_group(number, self.variant), waits=waits) for number in numbers]
        assert self.stores[reader].append(groups, version) == self.model.append(groups, version)

    @precondition(lambda self: self.model.reviews)
    @rule(reader=_readers, data=st.data(), approves=st.booleans())
    def decide(self, reader: str, data: st.DataObject, approves: bool) -> None:
        place = data.draw(st.sampled_from(sorted(self.model.reviews)))
        group = self.model.groups[place][0]
        first = self.model.reviews[place] == "waiting"  # a second decision is about the group as it was appended
        scored = approves and first and data.draw(st.booleans())
        scores = tuple(data.draw(st.sampled_from([None, 0.0, 1.5])) for _ in group.trajectories) if scored else ()
        if not first and approves and any("human_review" in turn.reward_parts for member in group.trajectories
                                          for turn in member.turns):  # fmt: skip
            return
        if self.model.decide(place, approves, scores):
            self.stores[reader].decide(group.group_id, Decision("approve" if approves else "reject", scores))
        else:
            with pytest.raises(ReviewError, match="given out"):
                self.stores[reader].decide(group.group_id, Decision("approve" if approves else "reject", scores))

    @rule(reader=_readers, count=st.integers(1, 4), skipped=st.sampled_from([0, 0, 0, 1]))
    def lease(self, reader: str, count: int, skipped: int) -> None:
        self.take(reader, count, self.model.next_step(reader) + skipped)

    @precondition(lambda self: any(self.model.leases.values()))
    @rule(data=st.data())
    def lease_again(self, data: st.DataObject) -> None:
        given = [(reader, step) for reader, steps in self.model.leases.items() for step in steps]
        reader, step = data.draw(st.sampled_from(given))
        self.take(reader, len(self.model.leases[reader][step]), step)

    def take(self, reader: str, count: int, step: int) -> None:
        before = self.model.used(reader)
        is_new = step not in self.model.leases.get(reader, {})
        expected = self.model.lease(READERS[reader], count, step)
        earlier = Counter(p for s, places in self.model.leases[reader].items() if s < step for p in places)
        lease = self.stores[reader].lease(count, step)
        if expected is None:
            assert lease is None
        else:
            assert lease is not None and len(set(lease.numbers)) == count
            assert list(zip(lease.groups, lease.policy_version, strict=True)) == [
                self.model.groups[place] for place in expected
            ]
            assert lease.uses == tuple(earlier[place] for place in expected)
            assert not is_new or sum(not before[place] for place in expected) >= READERS[reader].fresh_of(count)
        assert all(times <= READERS[reader].uses for times in self.model.used(reader).values())

    @rule(reader=_readers, back=st.integers(0, 3))
    def commit(self, reader: str, back: int) -> None:
        step = max(0, self.model.next_step(reader) - 1 - back)
        self.stores[reader].commit(step)
        self.model.commit(reader, step)

    @rule(reader=_readers, back=st.integers(0, 4))
    def rewind(self, reader: str, back: int) -> None:
        step = max(0, self.model.next_step(reader) - 1 - back)
        self.stores[reader].rewind(step)
        self.model.rewind(reader, step)

    @rule(reader=_readers, count=st.integers(0, 12))
    def keep_first(self, reader: str, count: int) -> None:
        self.stores[reader].keep_first(count)
        self.model.keep_first(count)

    @rule(reader=_readers, closes=st.booleans())
    def end_and_begin_again(self, reader: str, closes: bool) -> None:
        self.killed.append(self.stores[reader])
        if closes:
            self.killed.pop().close()
        self.stores[reader] = self.open_for(READERS[reader])

    @rule(reader=_readers)
    def finish(self, reader: str) -> None:
        self.stores[reader].finish()
        self.model.finished = True

    @rule(reader=_readers)
    def look(self, reader: str) -> None:
        assert self.stores[reader].counts() == self.model.counts(READERS[reader])
        assert self.stores[reader].finished == self.model.finished
        waiting = [place for place, state in sorted(self.model.reviews.items()) if state == "waiting"]
        ids = [self.model.groups[place][0].group_id for place in waiting]
        assert [each.group_id for each in self.stores[reader].waiting()] == ids

    def teardown(self) -> None:
        for reader in READERS:
            self.look(reader)
        for store in [*self.stores.values(), *self.killed]:
            store.close()
        self.folder.cleanup()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_any_order_of_calls_gives_what_the_model_gives(kind: str, request: pytest.FixtureRequest) -> None:
    machine = type("MachineOfKind", (Machine,), {"kind": kind, "new_place": new_place(kind, request)})
    # In Ray each example starts a process: fewer of them are longer.
    examples, steps = {"memory": (120, 30), "folder": (40, 30), "ray": (4, 45), "ray with a folder": (4, 45)}.get(
        kind, (12, 30)
    )
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )
