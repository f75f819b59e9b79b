import pytest
from builtin_tags import PLAIN_TAGS

import roll.envs
from roll.envs.base import THINK_ACTION_PATTERN, Outcome, TextEnv
from roll.envs.errors import EnvConfigError
from roll.envs.sokoban import SokobanEnv


class Echo(TextEnv):
    """Repeat the answer."""

    def start(self):
        return "say something"

    def act(self, action):
        return Outcome(action, {"length": float(len(action))}, metrics={"length": float(len(action))})


@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("<answer>Up</answer>", "Up"),
        ("<answer>\n up \t</answer>", "Up"),
        ("I go <answer>Left</answer>, no: <answer>DOWN</answer>", "Down"),
        ("<answer>Up</answer><answer>sideways</answer>", None),
        ("<answer>Up", None),
        ("Up", None),
        ("", None),
        ("<answer>Up.</answer>", None),
        ("<answer></answer>", None),
    ],
)
def test_last_answer_counts_whatever_its_case(response, action):
    assert SokobanEnv().parse_action(response) == action


@pytest.mark.parametrize("pattern", ["", None])
def test_bare_action_name_is_accepted_without_a_pattern(pattern):
    env = SokobanEnv(action_pattern=pattern)
    assert env.parse_action(" right\n") == "Right"
    assert env.parse_action("<answer>Right</answer>") is None


def test_think_pattern_demands_thoughts_and_takes_the_last_group():
    env = SokobanEnv(action_pattern=THINK_ACTION_PATTERN)
    assert env.parse_action("<think>left is\nwall</think>\n<answer>Up</answer>") == "Up"
    assert env.parse_action("<answer>Up</answer>") is None
    assert "<think>your thoughts</think><answer>Up</answer>" in env.instruction


def test_renamed_actions_are_the_only_ones_understood():
    env = SokobanEnv(action_lookup={"1": "North"}, action_pattern="")
    assert env.actions == ("North", "Down", "Left", "Right")
    assert env.parse_action("north") == "North"
    assert env.parse_action("up") is None
    assert "North, Down, Left, Right" in env.instruction


def test_instruction_is_generated_from_the_lookups_and_can_be_replaced():
    env = roll.envs.make("SokobanDifferentGridVocab")
    assert "B box" in env.instruction
    assert "√" not in env.instruction
    assert SokobanEnv(env_instruction="Push!").instruction == "Push!"


def test_instruction_shows_a_response_that_parses():
    for tag in PLAIN_TAGS:
        env = roll.envs.make(tag)
        action = env.parse_action(env.instruction.splitlines()[-1])
        assert action == env.actions[0] if env.actions else "your" in action


@pytest.mark.parametrize(
    ("pattern", "example"),
    [
        (r"<think>.*?</think>\s*<answer>(.*?)</answer>", "<think>your thoughts</think><answer>Up</answer>"),
        (r"^<answer>(.*?)</answer>$", "<answer>Up</answer>"),
        (r"Action: (.+)", "Action: Up"),
    ],
)
def test_instruction_gives_an_example_for_usual_patterns(pattern, example):
    env = SokobanEnv(action_pattern=pattern)
    assert env.instruction.splitlines()[-1] == f"Answer in this format: {example}"
    assert env.parse_action(example) == "Up"


def test_pattern_that_cannot_be_exemplified_is_quoted():
    pattern = r"^ACTION=([a-z]+)(?:;|$)"
    assert pattern in SokobanEnv(action_pattern=pattern).instruction


def test_invalid_pattern_and_penalty_are_refused_with_advice():
    with pytest.raises(EnvConfigError, match="not a regular expression"):
        SokobanEnv(action_pattern="(")
    with pytest.raises(EnvConfigError, match="negative number"):
        SokobanEnv(format_penalty=0.5)


def test_free_text_actions_pass_through_stripped():
    env = Echo(action_pattern="")
    env.reset(seed=0)
    observation, reward, _, _, info = env.step("  hello ")
    assert (observation, reward, info["action"]) == ("hello", 5.0, "hello")
    assert info["metrics"]["length"] == 5.0
    assert info["metrics_agg"]["length"] == "last"
    assert env.step("   ")[4]["action"] is None


def test_unknown_reset_option_is_an_error():
    with pytest.raises(EnvConfigError, match="unknown options"):
        Echo().reset(options={"levle": 1})
