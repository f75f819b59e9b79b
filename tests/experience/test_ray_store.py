"""A store in a Ray cluster: how it is found, what its process holds, and what is lost with that."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from experience_support import make_group
from ray_session import Session

from roll.config.experience import ExperienceConfig
from roll.experience.base import Reader
from roll.experience.errors import SegmentError, StoreError
from roll.experience.folder import FolderStore
from roll.experience.opened import open_place
from roll.experience.reviewing import Decision
from roll.pipelines.experience.opening import cluster_problems

ray = pytest.importorskip("ray")

from roll.distributed.ray_store import RayStore  # noqa: E402
from roll.distributed.transport import pack  # noqa: E402

pytestmark = pytest.mark.processes


def test_without_a_cluster_it_is_said_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("a cluster of its own has nobody else in it"))
    with pytest.raises(StoreError, match=r"'mine' is in a Ray cluster .*ray start --head .*RAY_ADDRESS=127\.0\.0\.1"):
        RayStore("mine")
    (problem,) = cluster_problems(ExperienceConfig(type="ray", name="mine"))
    assert problem.path == "experience.type" and "ray start --head" in problem.fix
    assert not list(cluster_problems(ExperienceConfig(path=Path("store"))))


@pytest.mark.exhaustive
def test_a_group_is_put_into_the_object_store_once_and_read_there(session: Session) -> None:
    name = session.new_name()
    store = RayStore(name)
    store.append([make_group(number) for number in range(4)], 0)
    store.append([make_group(number) for number in range(4)], 1)
    host = ray.get_actor(name, namespace="roll")
    places = []
    for reader in (Reader("one"), Reader("two")):
        found = RayStore(name, reader).index.lease(reader, 4, 1)
        places.append(ray.get(host.references.remote(pack((found,)))))
    assert places[0] == places[1] and len(set(places[0])) == 4
    store.keep_first(1)
    lease = RayStore(name, Reader("three")).lease(1, 1)
    assert lease is not None and list(lease.groups) == [make_group(0)]


@pytest.mark.exhaustive
def test_whoever_decides_opens_a_store_that_is_there_and_makes_none(session: Session) -> None:
    name = session.new_name()
    with pytest.raises(StoreError, match=rf"has no experience store '{name}' in the namespace 'roll' \(yet\)"):
        open_place(f"ray:{name}", patience=10)
    with pytest.raises(ValueError, match=name):
        ray.get_actor(name, namespace="roll")
    RayStore(name).append([replace(make_group(0), waits=True), make_group(1)], 0)
    for address in (f"ray:{name}", f"ray:roll/{name}"):
        opened = open_place(address, patience=10)
        assert [each.group_id for each in opened.waiting()] == [make_group(0).group_id]
    opened.decide(make_group(0).group_id, Decision.read("reject"))
    lease = RayStore(name).lease(1, 1)
    assert lease is not None and list(lease.groups) == [make_group(1)]
    session.kill(name)
    with pytest.raises(StoreError, match="has ended"):
        opened.waiting()


def test_whose_cluster_does_not_answer_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(StoreError, match=r"No Ray cluster answers at RAY_ADDRESS=127\.0\.0\.1:9"):
        open_place("ray:mine", patience=1)


@pytest.mark.exhaustive
def test_a_process_that_is_killed_loses_what_lies_in_the_object_store_and_says_so(session: Session) -> None:
    name = session.new_name()
    store, other = RayStore(name), RayStore(name)
    store.append([make_group(0)], 0)
    session.kill(name)
    for _ in range(2):
        for each in (store, other):
            with pytest.raises(StoreError, match=rf"'{name}' has ended.*With experience.path"):
                each.lease(1, 1)
    assert RayStore(name).counts().groups == 0, "who begins again finds an empty one"


@pytest.mark.exhaustive
def test_a_keeper_that_is_killed_loses_what_it_kept_and_goes_on(session: Session) -> None:
    name = session.new_name()
    store = RayStore(name)
    store.append([make_group(number) for number in range(3)], 0)
    host = ray.get_actor(name, namespace="roll")
    ray.kill(ray.get(host.keeper.remote(ray.get_runtime_context().get_node_id())), no_restart=False)
    until = time.monotonic() + 60
    while store.lease(3, 1):  # Ray takes a moment to kill it, and to let go of what was its own
        assert time.monotonic() < until
        store.rewind(0)
    assert store.counts().lost == 3 and not store.counts().groups
    assert store.append([make_group(number) for number in range(2)], 1) == 2, "by the same program"
    lease = RayStore(name).lease(2, 1)
    assert lease is not None and list(lease.groups) == [make_group(0), make_group(1)]
    assert lease.policy_version == (1, 1)


@pytest.mark.exhaustive
def test_a_process_that_is_killed_loses_nothing_of_a_folder(session: Session, tmp_path: Path) -> None:
    name, folder = session.new_name(), tmp_path / "store"
    store = RayStore(name, folder=folder)
    store.append([make_group(number) for number in range(3)], 0)
    lease = store.lease(2, 1)
    for ends in (lambda: session.kill(name, folder), session.end):
        ends()
        assert store.lease(2, 1) == lease
        assert RayStore(name, folder=folder).counts().leased == 2
    beside = FolderStore(folder)
    assert beside.lease(2, 1) == lease, "it is a store in a folder like any other"
    next((folder / "segments").glob("*.parquet")).write_bytes(b"")
    session.kill(name, folder)  # which knew the file
    with pytest.raises(SegmentError, match="is damaged or was replaced"):
        store.lease(2, 1)


@pytest.mark.exhaustive
def test_programs_that_name_other_folders_are_told(session: Session, tmp_path: Path) -> None:
    name = session.new_name()
    RayStore(name)
    with pytest.raises(StoreError, match=rf"'{name}' .* in the object store, and this run names {tmp_path / 'store'}"):
        RayStore(name, folder=tmp_path / "store")
    (tmp_path / "file").write_text("")
    with pytest.raises((StoreError, OSError)):
        RayStore(session.new_name(), folder=tmp_path / "file")
