import sys

import pytest

import roll.envs
from roll.envs.adapters.reasoning_gym import ReasoningGymEnv
from roll.envs.errors import EnvConfigError, MissingDependencyError

reasoning_gym = pytest.importorskip("reasoning_gym")


@pytest.mark.parametrize("dataset", ["chain_sum", "countdown", "mini_sudoku", "knights_knaves", "leg_counting"])
def test_questions_and_scores_are_the_librarys_own(dataset):
    env = ReasoningGymEnv(dataset, size=50, questions_seed=7, action_pattern="")
    library = reasoning_gym.create_dataset(dataset, size=50, seed=7)
    entries = {entry["question"]: entry for entry in library}
    for seed in range(5):
        entry = entries[env.reset(seed=seed)[0]]
        for answer in (str(entry["answer"]), "42"):
            env.reset(seed=seed)
            assert env.step(answer)[1] == library.score_answer(answer=answer, entry=entry)


def test_its_own_answer_solves_it():
    env = roll.envs.make("MiniSudoku")
    env.reset(seed=0)
    [answer] = env.solution()
    observation, reward, terminated, _, info = env.step(f"I see.\n<answer>{answer}</answer>")
    assert (observation, reward, terminated, info["metrics"]["success"]) == ("Right.", 1.0, True, 1.0)


def test_the_best_of_several_answers_counts_once():
    env = roll.envs.make("Countdown", action_pattern="")
    question = env.reset(seed=0)[0]
    observation, nearly, terminated, *_ = env.step("1 + 1")
    assert 0 < nearly < 0.1 and not terminated and observation.endswith(question)
    assert env.step("1 + 1")[1] == 0.0
    _, reward, terminated, truncated, _ = env.step(env.solution()[0])
    assert nearly + reward == pytest.approx(1.0)
    assert terminated and not truncated


def test_config_of_the_data_set_is_passed_on():
    env = ReasoningGymEnv("chain_sum", {"min_terms": 2, "max_terms": 2, "max_digits": 1, "min_digits": 1})
    assert len(env.reset(seed=0)[0].split("problem: ")[1]) <= len("9 + 9 = ")


def test_training_and_validation_may_have_different_questions():
    first, second = (ReasoningGymEnv("chain_sum", size=500, questions_seed=seed) for seed in (0, 1000))
    asked = [{each["question"] for each in env.data} for env in (first, second)]
    assert len(asked[0] & asked[1]) < 25


def test_an_answer_on_which_the_scorer_fails_scores_nothing_and_is_counted():
    env = ReasoningGymEnv("prime_factorization", action_pattern="")
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("rubbish")
    assert (reward, terminated, info["metrics"]["scorer_failed"]) == (0.0, True, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "chainsum"}, "'chainsum' is not in reasoning_gym. Did you mean 'chain_sum'"),
        ({"dataset": "chain_sum", "config": {"terms": 3}}, "unexpected keyword argument 'terms'"),
        ({"dataset": "chain_sum", "config": {"min_terms": 9, "max_terms": 3}}, "max_terms"),
        ({"dataset": "word_ladder"}, "Dataset size too large"),
    ],
)
def test_what_cannot_work_is_told(options, message):
    with pytest.raises(EnvConfigError, match=message):
        ReasoningGymEnv(**options)


def test_without_the_library_the_tag_is_listed_and_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    assert "ChainSum" in roll.envs.list_tags()
    with pytest.raises(MissingDependencyError, match=r"needs the package reasoning-gym.*pip install 'roll-rl\[envs\]'"):
        roll.envs.make("ChainSum", size=123)
