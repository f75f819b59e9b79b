"""What the pages say is there, is there: links, files, decorators, layers, names and counts."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_support import PAGES, ROOT

from roll.algorithms.registry import registry
from roll.config.strategies import STRATEGIES
from roll.rewards import VERIFIERS

PACKAGE = ROOT / "roll"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
EXTENDING = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")

DECORATORS = {
    "register_env": "roll.envs",
    "register_tag": "roll.envs",
    "register_verifier": "roll.rewards",
    "register_advantage": "roll.algorithms.registry",
    "register_loss": "roll.algorithms.registry",
    "register_tool": "roll.tools",
    "register_tracker": "roll.tracking",
    "register_strategy": "roll.strategies",
    "register_pipeline": "roll.config",
    "register_group_reward": "roll.rewards.groups",
    "register_priority": "roll.experience.priorities",
    "register_operator": "roll.operators",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor in _anchors(file), target


def _anchors(page: Path) -> set[str]:
    """Return the anchors that a renderer of Markdown gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _table(section: str) -> Iterator[tuple[str, str]]:
    """Return (first cell, whole row) of the table under a heading or behind a sentence of the architecture page."""
    begun = ARCHITECTURE[ARCHITECTURE.index(section) :]
    rows = re.findall(r"^\|.*\|$", begun[: begun.index("\n\n", begun.index("\n|"))], re.MULTILINE)
    for row in rows[2:]:
        yield row.split("|")[1].strip(), row


def test_decorators_of_the_extension_points_exist() -> None:
    names = set(re.findall(r"register_\w+", EXTENDING))
    assert names
    for name in names:
        assert name in DECORATORS, f"{name}: say in DECORATORS where it is imported from"
        assert hasattr(importlib.import_module(DECORATORS[name]), name)


def test_every_extension_point_of_the_library_is_on_the_page() -> None:
    defined = set()
    for path in PACKAGE.rglob("*.py"):
        defined |= set(re.findall(r"^def (register_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    # A tag is an environment's, and the page of environments has it; the others are not for users.
    own = {"register_tag", "register_tags_from_config", "register_builtin"}
    assert defined - own == set(re.findall(r"register_\w+", EXTENDING))


def test_files_that_the_architecture_names_exist() -> None:
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+/\w+\.py)`", ARCHITECTURE)
    assert paths
    for path in paths:
        places = (ROOT / path, PACKAGE / path, PACKAGE / "pipelines" / path)
        assert any(place.exists() for place in places), path


def test_files_of_the_pipelines_are_all_on_the_page_and_there() -> None:
    named = {name for cell, _ in _table("The rooms of `pipelines`:") for name in re.findall(r"`([\w/.]+)`", cell)}
    folder = PACKAGE / "pipelines"
    there = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    there |= {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    assert named == there


def test_layers_of_the_page_are_those_that_are_enforced() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = next(item for item in project["tool"]["importlinter"]["contracts"] if item["type"] == "layers")
    enforced = {name for layer in contract["layers"] for name in re.findall(r"\w+", layer)}
    shown = {name for cell, _ in _table("## Layers") for name in re.findall(r"`(\w+)`", cell)}
    assert shown == enforced
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= enforced


def test_every_available_strategy_verifier_and_algorithm_is_on_its_page() -> None:
    pages = README + ARCHITECTURE + (ROOT / "docs" / "train_strategies.md").read_text(encoding="utf-8")
    assert not [each.name for each in STRATEGIES.registrations() if each.is_built_in and f"`{each.name}`" not in pages]
    algorithms = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    names = [*registry("advantage").names(), *registry("loss").names()]
    assert not [name for name in names if f"`{name}`" not in algorithms]


def test_counts_of_the_readme_are_those_of_the_library() -> None:
    verifiers = re.search(r"\[(\d+) verifiers\]", README)
    algorithms = re.search(r"all (\d+) advantage estimators and (?:(\d+) of the|all) (\d+) policy losses", README)
    assert verifiers and int(verifiers[1]) == len(VERIFIERS)
    assert algorithms and int(algorithms[1]) == len(registry("advantage").names())
    assert int(algorithms[3]) == len(registry("loss").names())
