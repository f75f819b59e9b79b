from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from reward_support import asked

from roll.rewards import VERIFIERS, RewardRequest, Rubric, Verdict, make_verifier, register_verifier
from roll.rewards.formats import STRICT_THINK_ANSWER, THINK_ANSWER
from roll.rewards.functions import FunctionVerifier
from roll.rewards.instructions import CHECKS
from roll.rewards.llm_judge import DEFAULT_SCORE

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `?([\w ]+)`?\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("name", sorted(set(VERIFIERS.names()) - {"code"}))
def test_every_verifier_has_a_section_with_all_of_its_options(name: str) -> None:
    assert f"[`{name}`](#{name})" in PAGE
    missing = [option for option in VERIFIERS.get(name).options if f"`{option}`" not in SECTIONS[name]]
    assert not missing


def test_the_page_shows_the_expressions_in_use() -> None:
    assert f"```\n{THINK_ANSWER}\n```" in SECTIONS["format"]
    assert f"```\n{STRICT_THINK_ANSWER}\n```" in SECTIONS["strict_format"]
    assert f"`{DEFAULT_SCORE}`" in SECTIONS["llm_judge"]


def test_every_check_of_an_instruction_is_on_the_page() -> None:
    assert not [name for name in CHECKS if f"`{name}`" not in SECTIONS["ifeval"]]


@pytest.mark.processes
def test_the_functions_of_the_page_work() -> None:
    ours, verls = PROGRAMS[0].split("\n\n")
    for source, score in ((ours, 1.5), (verls, 1.0)):
        names: dict = {}
        exec(source, names)  # noqa: S102 - the documentation's own example
        options = {"bonus": 0.5} if "bonus" in source else {}
        verdict = asyncio.run(FunctionVerifier(names["compute_score"], options)(asked("it is 42", "42")))
        assert verdict.score == score


@pytest.mark.processes
def test_the_verifiers_of_the_page_work() -> None:
    names: dict = {"__name__": "page"}
    with VERIFIERS.restored():
        exec(PROGRAMS[1].replace("from roll.rewards import RewardRequest, Verdict, register_verifier\n", ""), {
            **names, "RewardRequest": RewardRequest, "Verdict": Verdict, "register_verifier": register_verifier
        })  # fmt: skip
        assert asyncio.run(make_verifier("short", {"limit": 3})(asked("x", response_tokens=4))).score == 0.0
        assert asyncio.run(make_verifier("unit")(asked("5 cm", row={"unit": "cm"}))).score == 1.0
        assert asyncio.run(make_verifier("unit")(asked("5 cm"))).score is None


def test_the_program_of_the_page_prints_what_it_says(capsys) -> None:
    exec(PROGRAMS[2], {"Rubric": Rubric})  # noqa: S102
    assert capsys.readouterr().out.startswith("Grade(score=1.1, parts={'math': 1.0, 'format': 0.1}")
