from __future__ import annotations

from pathlib import Path

import pytest
from reward_support import asked, grades

from roll.config.errors import ConfigError
from roll.config.rlvr import RLVRConfig
from roll.rewards.build import build_rubrics


def config(**changes) -> RLVRConfig:
    return RLVRConfig.model_construct(**{**RLVRConfig.model_construct().__dict__, **_parsed(changes)})


def _parsed(changes: dict) -> dict:
    """Validate each key alone: a whole run needs more than its rewards."""
    from pydantic import TypeAdapter

    fields = RLVRConfig.model_fields
    return {name: TypeAdapter(fields[name].annotation).validate_python(value) for name, value in changes.items()}


@pytest.fixture
def rewards_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_rewards.py"
    path.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):\n"
        "    return float(ground_truth in solution_str) + bonus\n"
        "class Grader:\n"
        "    def __init__(self, value): self.value = value\n"
        "    async def __call__(self, request): return self.value\n"
        "number = 3\n"
    )
    return path


def test_each_domain_gets_its_verifiers_weights_and_limits() -> None:
    rubrics = build_rubrics(
        config(
            rewards={
                "math_rule": {"verifier_timeout": 7, "success_threshold": 0.5},
                "own": {"verifiers": {"format": {"weight": 0.5, "options": {"pattern": "a+"}}, "overlong": 0}},
                "mind": {"verifier_function": ["acc", "step"], "verifier_weight": [1.0, 0.25]},
            }
        )
    )
    assert {domain: [(term.name, term.weight) for term in rubric.terms] for domain, rubric in rubrics.items()} == {
        "math_rule": [("math", 1.0)],
        "own": [("format", 0.5), ("overlong", 0.0)],
        "mind": [("acc", 1.0), ("step", 0.25)],
    }
    assert rubrics["math_rule"].timeout == 7 and rubrics["math_rule"].success_threshold == 0.5
    (grade,) = grades(rubrics["own"], asked("aaa", response_tokens=3, max_response_tokens=100))
    assert grade.score == 0.5


def test_every_mistake_is_listed_at_once_with_its_place() -> None:
    rewards = {
        "one": {"verifiers": {"mth": 1.0, "format": {"options": {"patern": "x"}}}},
        "two": {"verifiers": {"step": {"options": {"target": 0}}}},
        "nothing_known": {},
    }
    with pytest.raises(ConfigError) as caught:
        build_rubrics(config(rewards=rewards, reward_modules=["no_such_module_here"]))
    text = str(caught.value)
    assert [problem.path for problem in caught.value.problems] == [
        "reward_modules",
        "rewards.one.verifiers.mth",
        "rewards.one.verifiers.format",
        "rewards.two.verifiers.step",
        "rewards.nothing_known",
    ]
    assert "Did you mean 'math'" in text and "did you mean 'pattern'" in text and "target=0" in text


@pytest.mark.processes
def test_a_function_of_ones_own_grades_the_domains_that_name_no_verifier(rewards_file: Path) -> None:
    custom = {"path": str(rewards_file), "name": "compute_score", "kwargs": {"bonus": 0.25}}
    rubrics = build_rubrics(
        config(rewards={"math_rule": {}, "own": {"verifiers": {"format": 1.0}}}, custom_reward_function=custom)
    )
    assert [term.name for term in rubrics["math_rule"].terms] == ["compute_score"]
    assert [term.name for term in rubrics["own"].terms] == ["format"]
    right, wrong = grades(rubrics["math_rule"], asked("it is 42", "42"), asked("41", "42"))
    assert (right.score, wrong.score) == (1.25, 0.25)


@pytest.mark.processes
def test_a_function_of_ones_own_is_one_verifier_among_others_under_its_name(rewards_file: Path) -> None:
    custom = {"path": str(rewards_file), "name": "compute_score"}
    rewards = {"own": {"verifiers": {"compute_score": 0.5, "format": {"weight": 0.1, "options": {"pattern": ".*"}}}}}
    (grade,) = grades(build_rubrics(config(rewards=rewards, custom_reward_function=custom))["own"], asked("42", "42"))
    assert grade.parts == {"compute_score": 0.5, "format": 0.1}
    rewards = {"own": {"verifiers": {"compute_score": {"options": {"bonus": 1}}}}}
    with pytest.raises(ConfigError, match="custom_reward_function.kwargs"):
        build_rubrics(config(rewards=rewards, custom_reward_function=custom))


def test_a_function_of_ones_own_needs_no_domains(rewards_file: Path) -> None:
    rubrics = build_rubrics(config(custom_reward_function={"path": str(rewards_file), "name": "compute_score"}))
    assert list(rubrics) == [""]


def test_a_class_of_ones_own_is_made_with_its_arguments(rewards_file: Path) -> None:
    custom = {"path": str(rewards_file), "name": "Grader", "kwargs": {"value": 0.75}}
    (grade,) = grades(build_rubrics(config(custom_reward_function=custom))[""], asked(""))
    assert grade.score == 0.75


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "compute_scor"}, "compute_score"),
        ({"name": "number"}, "not a function"),
        ({"kwargs": {"bonuss": 1}}, "bonuss"),
        ({"path": "no_such_file.py"}, "no_such_file.py"),
        ({"name": "Grader"}, "value"),
    ],
)
def test_a_wrong_function_of_ones_own_is_a_readable_error(rewards_file: Path, changes, message: str) -> None:
    custom = {"path": str(rewards_file), "name": "compute_score"} | changes
    with pytest.raises(ConfigError, match="custom_reward_function") as caught:
        build_rubrics(config(custom_reward_function=custom))
    assert message in str(caught.value)


def test_no_rewards_at_all_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no domain"):
        build_rubrics(config())


def test_objects_reach_the_verifiers_that_use_them() -> None:
    async def judge(prompt: str) -> str:
        return "Score: 5"

    rewards = {name: {"verifiers": {"llm_judge": {"options": {"engine": "policy"}}, "step": 0}} for name in "ab"}
    rubrics = build_rubrics(config(rewards=rewards), {"judge": judge})
    assert [grades(rubrics[name], asked("x"))[0].score for name in "ab"] == [0.5, 0.5]
