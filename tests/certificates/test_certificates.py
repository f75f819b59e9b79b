"""Certificates name what is wrong with broken environments, and nothing in sound ones, most of which others wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from broken_envs import BROKEN
from sound_envs import SOUND, missing

from roll.certificates import Certificate, Children, Effort, Status, Target, TargetError, certify
from roll.certificates.report import CERTIFICATE_HTML, CERTIFICATE_JSON, write

pytestmark = pytest.mark.processes

HERE = Path(__file__).parent

SMALL = Effort(
    seeds=5,  # of four, played forth and back, those that are the third of three are the same
    groups=8,  # of four, the cards of Blackjack win none
    members=4,
    longest=64,
    explored_steps=200,
    memory_episodes=4,
    call_seconds=120,
    probe_seconds=120,
)
"""Long enough for a loaded machine; only what hangs uses it up."""

IN_EVERY_RING = {
    "LeakySeed",
    "RacingThreads",
    "NanReward",
    "PaysForAnything",
    "SimpleSokoban",
    "Taxi",
}
"""The others are one more example of what these show."""


def ringed(name: str) -> object:
    return pytest.param(name, marks=[] if name in IN_EVERY_RING else [pytest.mark.exhaustive])


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    with Children([HERE, HERE.parents[1]]) as children:
        yield children


def certificate_of(name: str, children: Children, effort: Effort = SMALL) -> Certificate:
    return certify(Target(name), effort, children)[0]


@pytest.mark.parametrize("name", [ringed(name) for name in BROKEN])
def test_a_broken_environment_is_not_fit_and_the_check_that_names_it_fails(name: str, children: Children) -> None:
    hangs = name == "HangsOnSilence"
    certificate = certificate_of(f"broken_envs:{name}", children, replace(SMALL, call_seconds=3) if hangs else SMALL)
    assert BROKEN[name] in certificate.failed, certificate.failed
    assert not certificate.is_fit
    finding = next(each for each in certificate.findings if each.check == BROKEN[name])
    assert finding.seen and finding.fix


@pytest.mark.parametrize("name", [ringed(name) for name in SOUND])
def test_a_sound_environment_is_fit(name: str, children: Children) -> None:
    if lacking := missing(name):
        pytest.skip(lacking)
    certificate = certificate_of(name, children)
    assert [each for each in certificate.findings if each.status is Status.FAILED] == []


@pytest.mark.exhaustive
@pytest.mark.skipif(find_spec("tau2") is None, reason="tau2 is not installed: tests/envs/tau2.txt")
def test_an_airline_whose_tasks_want_nothing_done_pays_for_rubbish(children: Children) -> None:
    certificate = certificate_of("sound_envs:airline", children)
    assert certificate.failed == ["policies.rubbish"]


def test_an_environment_that_plays_by_itself_is_none_to_be_stepped(children: Children) -> None:
    told = "its episodes are played by a program, and nothing here can play them in its place"
    with pytest.raises(TargetError, match=told):
        certificate_of("broken_envs:PlaysByItself", children)


def test_there_are_enough_of_both() -> None:
    assert len(BROKEN) >= 20 and len(SOUND) >= 20
    assert set(BROKEN) | set(SOUND) >= IN_EVERY_RING


@pytest.mark.exhaustive
def test_a_certificate_is_the_same_bytes_again(children: Children, tmp_path: Path) -> None:
    for folder in ("once", "again"):
        write(tmp_path / folder, *certify(Target("FrozenLake"), SMALL, children))
    for name in (CERTIFICATE_JSON, CERTIFICATE_HTML):
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert (tmp_path / "once" / "measurements.json").exists()


def test_what_an_environment_says_is_only_text_in_the_report(children: Children, tmp_path: Path) -> None:
    certificate = replace(certificate_of("FrozenLake", children), environment="<script>alert(1)</script>")
    write(tmp_path, certificate, None)
    page = (tmp_path / CERTIFICATE_HTML).read_text(encoding="utf-8")
    assert "<script" not in page and "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SimpleSokobann", "SimpleSokoban"),
        ("no_such_module:Env", "cannot import no_such_module"),
        ("broken_envs:NoSuchClass", "has no 'NoSuchClass'"),
        ("broken_envs:ROOMS", "name a class or a function"),
        ("roll.envs:TextEnv", "must implement start"),
    ],
)
def test_what_is_no_environment_is_an_error_that_says_why(name: str, words: str, children: Children) -> None:
    with pytest.raises(TargetError, match=words):
        certificate_of(name, children)
