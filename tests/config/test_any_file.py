"""Whatever a file, a mapping or a command line holds: a checked configuration, or what is wrong with it; soon."""

from __future__ import annotations

import copy
import functools
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from roll.config import AgenticConfig, ConfigError, EvaluationConfig, RLConfig, RLVRConfig, launch, load
from roll.config.composing import compose

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "roll" / "presets" / "config"
FILES = {
    **{name: EXAMPLES / f"{name}.yaml" for name in ("sokoban", "frozen_lake", "mixed", "rlvr_math", "eval_math")},
    "custom_env": ROOT / "examples" / "config" / "custom_env.yaml",
}
SECONDS = 30

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, "", " ", [], {}, [[]], [None], {"a": {}}, {"": 1}, {1: 2}, -1, 0, 1, 2**31, 2**63, 10**30, -(10**30)),
    *(1e308, float("inf"), float("nan"), 1e-320, "null", "auto", "1e-5", "é\u2028", "\x00", "a" * 5000, "???"),
    *(
        "${",
        "${}",
        "${x}",
        "${.x}",
        "${..}",
        "${a.b}",
        "${oc.env:NOPE}",
        "${nope:1}",
        "${max_steps}",
        "$",
        "${oc.env:}",
    ),
    *(
        "${actor_train}",
        "${oc.select:}",
        "${oc.decode:'{'}",
        "{% for",
        "{{",
        "{observation",
        "../..",
        "~",
        "[1",
        "range(",
    ),
    *("list(range(0,8))", "range(10**9)", "__import__('os')", "<", b"bytes", "2026-01-01", [1, "a", None, {"b": []}]),
)

quick = settings(deadline=None, suppress_health_check=list(HealthCheck))


@contextmanager
def in_time() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"no answer within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def answer(read: Callable[[], Any]) -> None:
    """A configuration, or problems that can be shown: nothing else is an answer."""
    with in_time(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            assert isinstance(read(), RLConfig)
        except ConfigError as error:
            assert error.problems and all(problem.message and problem.fix for problem in error.problems)
            assert "problem" in str(error)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


@functools.cache
def trees() -> dict[str, dict[str, Any]]:
    composed = {name: OmegaConf.to_container(compose(file)[0], resolve=False) for name, file in FILES.items()}
    return {name: {k: v for k, v in tree.items() if k != "hydra"} for name, tree in composed.items()}  # type: ignore[misc,union-attr]


@pytest.mark.exhaustive
@pytest.mark.long
@settings(quick, max_examples=150)
@given(st.data())
def test_any_value_anywhere_in_a_mapping(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(FILES)))
    tree = copy.deepcopy(trees()[name])
    for _ in range(data.draw(st.integers(1, 3))):
        *above, last = data.draw(st.sampled_from(list(places(tree)) or [("max_steps",)]))
        inside: Any = tree
        for key in above:
            inside = inside[key]
        what = data.draw(st.sampled_from(["replace", "remove", "add"]))
        if what == "remove":
            inside.pop(last, None) if isinstance(inside, dict) else inside.clear()
        elif what == "add" and isinstance(inside, dict):
            odd = st.one_of(
                st.sampled_from(["", "x", "a.b", 1, None, True, "max_steps", "é", "${x}"]), st.text(max_size=5)
            )
            inside[data.draw(odd)] = copy.deepcopy(data.draw(st.sampled_from(ODD_VALUES)))
        else:
            inside[last] = copy.deepcopy(data.draw(st.sampled_from(ODD_VALUES)))
    kind = data.draw(st.sampled_from([None, AgenticConfig, RLVRConfig, EvaluationConfig]))
    answer(lambda: load(tree, kind=kind) if kind else load(tree))


BROKEN = (
    "{",
    "}",
    "[",
    "]",
    ": ",
    "- ",
    "&a ",
    "*a",
    "!!python/name:os",
    "? ",
    "|",
    ">",
    "#",
    '"',
    "'",
    "\t",
    "${",
    "%",
    "@",
)


@pytest.mark.long
@settings(quick, max_examples=40)
@given(st.data())
def test_any_damage_to_the_text_of_a_file(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = FILES[data.draw(st.sampled_from(sorted(FILES)))].read_bytes()
    lines = content.splitlines(keepends=True)
    for _ in range(data.draw(st.integers(1, 3))):
        at, to = (data.draw(st.integers(0, max(0, len(lines) - 1))) for _ in range(2))
        what = data.draw(st.sampled_from(["insert", "cut", "indent", "move", "repeat", "bytes"]))
        line = lines[at] if lines else b""
        column = data.draw(st.integers(0, len(line)))
        if what == "insert":
            line = line[:column] + data.draw(st.sampled_from(BROKEN)).encode() + line[column:]
        elif what == "cut":
            line = line[:column]
        elif what == "indent":
            line = b"  " + line
        elif what == "bytes":
            line = line[:column] + data.draw(st.binary(min_size=1, max_size=3)) + line[column:]
        elif what == "repeat":
            line = line + line
        if lines:
            lines[at] = line
            if what == "move":
                lines.insert(to, lines.pop(at))
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    path.write_bytes(b"".join(lines))
    answer(lambda: load(path))


def nested(first: str, again: str) -> str:
    """Twelve lists, each of which holds the one before it nine times."""
    lists = [f"  v0: {first}[x, x, x, x, x, x, x, x, x]".format(0)]
    lists += [f"  v{n}: {first.format(n)}[{', '.join([again.format(n - 1)] * 9)}]" for n in range(1, 12)]
    return "\n".join(["variables:", *lists, ""])


BOMB = nested("&v{} ", "*v{}")
CHAIN = nested("", "'${{variables.v{}}}'")


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"- a\n- b\n", "it holds a list"),
        (b"5\n", "it holds the single value"),
        (b"max_steps: {a\n", "test.yaml:2"),
        (b"max_steps: 1\nmax_steps: 2\n", "duplicate key"),
        (b"a: 1\n---\nb: 2\n", "another document"),
        (b"exp_name: \xff\xfe\n", "byte 0xff in line 1 is no UTF-8"),
        (b"defaults: [nope, _self_]\n", "Could not load 'nope'"),
        (b"defaults: [test, _self_]\n", "leads back to itself: test.yaml"),
        (b"defaults: 5\n", "`defaults` is no list"),
        (b"defaults: [{a: {b: c}}]\n", "names no file"),
        (b"variables: &a {b: *a}\n", "stand for more than"),
        (BOMB.encode(), "stand for more than 20,000 values"),
        (CHAIN.encode(), "its interpolations stand for more than 20,000 values"),
        (b"variables: " + b"[" * 3000 + b"]" * 3000, "nested too deeply"),
        (b"variables: {a: '${variables}'}\n", "leads back to itself"),
        (b"variables: {a: '${variables.b}', b: {c: '${variables.a}'}}\n", "leads back"),
        (b"exp_name: ${exp_name}\n", "it leads back to itself"),
        (
            b"exp_name: ${oc.env:NOPE_NOT_SET}\n",
            "set it, or give a value for where it is not: ${oc.env:NOPE_NOT_SET,value}",
        ),
        (b"exp_name: ${oc.emv:HOME}\n", "use oc.env"),
        (b"actor_train: {training_args: {learning_rate: .inf}}\n", "a finite number"),
        (b"train_env_manager: null\n", "must be a section"),
        (b"rollout_batch_size: 8000000000\n", "less than or equal to 1000000"),
        (b"seed: 99999999999999999999999999999\n", "must be less than"),
    ],
)
def test_files_that_are_none_are_answered_with_what_is_wrong(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "test.yaml"
    path.write_bytes(text)
    with in_time(), pytest.raises(ConfigError) as error:
        load(path)
    assert said in str(error.value)


OVERRIDES = st.builds(
    lambda prefix, key, equals, value: f"{prefix}{key}{equals}{value}",
    st.sampled_from(["", "+", "++", "~"]),
    st.sampled_from(
        ["", "max_steps", "actor_train", "actor_train.training_args", "a.b", "x/y", "x@y", ".", "exp_name", "hydra"]
    ),
    st.sampled_from(["=", "", "=="]),
    st.one_of(st.sampled_from([str(value) for value in ODD_VALUES]), st.text(max_size=6)),
)


@pytest.mark.exhaustive
@pytest.mark.long
@settings(quick, max_examples=25)
@given(st.lists(OVERRIDES, min_size=1, max_size=2))
@example(["=5"])
@example(["actor_train=null"])
@example(["actor_train={a:1"])
@example(["exp_name=${exp_name}"])
@example(["output_dir=${nope}", "--multirun", "seed=1,2"])
def test_any_command_line(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """The words of a person, behind a configuration that is good."""
    ran: list[RLConfig] = []
    before = dict(os.environ)
    with in_time():
        try:
            launch(ran.append, config_dir=EXAMPLES, argv=["--config-name", "sokoban", *words])
            assert ran
        except SystemExit as left:
            assert left.code == 2 and not ran
            shown = capsys.readouterr().err
            assert "problem" in shown and "Fix: " in shown and "Traceback" not in shown
    assert dict(os.environ) == before or ran


def test_a_file_of_another_encoding_beside_a_configuration_does_not_matter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"defaults: [_self_]\nexp_name: \xe9\n")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"defaults": ["sokoban", "_self_"], "exp_name": "mine"}))
    ran: list[RLConfig] = []
    launch(ran.append, config_dir=EXAMPLES, argv=["--config-dir", str(tmp_path), "--config-name", "mine"])
    assert [config.exp_name for config in ran] == ["mine"]
    with pytest.raises(SystemExit):
        launch(ran.append, config_dir=EXAMPLES, argv=["--config-dir", str(tmp_path), "--config-name", "latin"])
    assert "latin.yaml   [" in (shown := capsys.readouterr().err) and "byte 0xe9 in line 2 is no UTF-8" in shown
