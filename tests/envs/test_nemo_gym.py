"""Resource servers of NeMo Gym, unchanged, as environments (the package is installed apart)."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from roll.env_managers import EnvManagerLimits, EpisodeSpec, Retries, Templates, TrajectoryEnvManager, play_again
from roll.envs import Tag, UnavailableError, make
from roll.envs.adapters.nemo_gym_servers import NemoGymEnv
from roll.envs.errors import EnvConfigError
from roll.generation import Completion, GenerationRequest
from roll.models.loading import load_tokenizer
from roll.rendering import ChatRenderer, with_template
from roll.trajectories.model import Status, Trajectory
from tests.ports import free_port, free_ports
from tests.programs import WarmProgram
from tests.warm_others import environment_of, start_there

pytestmark = pytest.mark.processes
HERE = Path(__file__).resolve()
THEIRS = environment_of("nemo_gym")
needs_theirs = pytest.mark.skipif(not THEIRS.exists(), reason="nemo-gym is not installed: tests/envs/nemo_gym.txt")
WEATHER, COUNTER, SYNONYMS = "example_single_tool_call", "example_session_state_mgmt", "example_multi_step"
BLACKJACK, FOLLOW_UPS = "blackjack", "example_multi_turn_gymnasium"


@contextmanager
def serving(ports: Mapping[str, int], folder: Path) -> Iterator[WarmProgram]:
    words = [str(HERE.with_name("nemo_gym_server.py")), *(f"{name}={ports[name]}" for name in ports)]
    with (folder / "server.log").open("ab") as log, open(os.devnull) as nothing:
        process = start_there("nemo_gym", words, folder, os.environ, [nothing.fileno(), log.fileno(), log.fileno()])
    try:
        for port in ports.values():
            for _ in range(1200):
                try:
                    httpx.get(f"http://127.0.0.1:{port}/", timeout=2)
                    break
                except httpx.TransportError:
                    assert process.poll() is None, (folder / "server.log").read_text()
                    time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    names = (WEATHER, COUNTER, SYNONYMS, BLACKJACK, FOLLOW_UPS)
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    with serving(ports, tmp_path_factory.mktemp("nemo_gym")):
        yield {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}


def examples(name: str) -> str:
    """Their own tasks."""
    return str(next(THEIRS.parents[1].glob(f"lib/python3*/site-packages/resources_servers/{name}/data/example.jsonl")))


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def played(env: NemoGymEnv, *responses: str, seed: int = 3) -> list[Any]:
    async def play() -> list[Any]:
        seen: list[Any] = [(await env.reset(seed=seed))[0]]
        seen += [await env.step(response) for response in responses]
        await env.close()
        return seen

    return asyncio.run(play())


def task_of(env: NemoGymEnv, seed: int) -> Any:
    played(env, seed=seed)
    return env.task.row


@pytest.mark.exhaustive
@needs_theirs
def test_a_random_agent_plays_two_hundred_episodes(urls: Mapping[str, str]) -> None:
    env = NemoGymEnv(urls[COUNTER], examples(COUNTER), max_steps=3)
    said = (call("increment_counter", count=1), call("get_counter_value"), call("nothing"), "The count is 5.")
    moves = np.random.default_rng(0)

    async def play() -> None:
        for seed in range(200):
            await env.reset(seed=seed)
            over = False
            while not over:
                _, reward, terminated, truncated, info = await env.step(said[moves.integers(len(said))])
                assert np.isfinite(reward) and reward == pytest.approx(sum(info["reward_parts"].values()))
                over = terminated or truncated
            assert terminated != truncated
        await env.close()

    asyncio.run(play())


@needs_theirs
def test_tools_are_the_servers_endpoints(urls: Mapping[str, str]) -> None:
    env = NemoGymEnv(urls[WEATHER], examples(WEATHER))
    seen = played(env, call("get_weather", city="Rome"), call("get_weather", town="Rome"), call("walk"), "Cold.")
    asked = env.task.row["responses_create_params"]["input"]
    assert seen[0] == "\n\n".join(message["content"] for message in asked)
    assert seen[1][:4] == ('{"city":"Rome","weather_description":"The weather in Rome is cold."}', 0.0, False, False)
    assert seen[1][4]["messages"] == [{"role": "tool", "content": seen[1][0]}]
    assert seen[2][0] == "error: city: Field required" and seen[2][4]["metrics"]["tool_calls_wrong"] == 1.0
    assert "there is no tool 'walk'" in seen[3][0] and not seen[3][2]
    assert seen[4][1:4] == (1.0, True, False) and seen[4][4]["metrics"]["success"] == 1.0
    assert env.toolbox is not None and [each["function"]["name"] for each in env.toolbox.schemas] == ["get_weather"]
    xml = "<tool_call>\n<function=get_weather>\n<parameter=city>\n7\n</parameter>\n</function>\n</tool_call>"
    assert '"city":"7"' in played(env, xml)[1][0]


@needs_theirs
@pytest.mark.parametrize("seed", range(3))
def test_the_reward_is_what_the_server_says(urls: Mapping[str, str], seed: int) -> None:
    env = NemoGymEnv(urls[COUNTER], examples(COUNTER))
    row = task_of(env, seed)
    missing = row["expected_count"] - row["initial_count"]
    right = played(env, call("increment_counter", count=missing), call("get_counter_value"), "Done.", seed=seed)
    assert right[2][0] == json.dumps({"count": row["expected_count"]}, separators=(",", ":"))
    assert right[3][1:4] == (1.0, True, False)
    both = call("increment_counter", count=1) + call("increment_counter", count=missing - 1)
    assert played(env, both, "Done.", seed=seed)[2][1] == 1.0
    wrong = played(env, call("increment_counter", count=missing + 1), "Done.", seed=seed)
    assert wrong[2][1:4] == (0.0, True, False) and wrong[2][4]["metrics"]["success"] == 0.0
    assert played(env, "Done.", seed=seed)[1][1] == 0.0


@needs_theirs
def test_episodes_that_are_played_together_are_apart(urls: Mapping[str, str]) -> None:
    async def count(number: int) -> list[str]:
        env = NemoGymEnv(urls[COUNTER], examples(COUNTER))
        await env.reset(seed=1)
        for _ in range(3):
            await env.step(call("increment_counter", count=number))
            await asyncio.sleep(0)
        told = (await env.step(call("get_counter_value")))[0]
        await env.close()
        return [told, json.dumps({"count": env.task.row["initial_count"] + 3 * number}, separators=(",", ":"))]

    async def together() -> list[list[str]]:
        return await asyncio.gather(*(count(number) for number in range(8)))

    for told, expected in asyncio.run(together()):
        assert told == expected


@needs_theirs
def test_the_server_sees_every_call_and_tells_numbers(urls: Mapping[str, str]) -> None:
    env = NemoGymEnv(urls[SYNONYMS], examples(SYNONYMS), max_steps=2)
    expected = task_of(env, 3)["expected_synonym_values"]
    got = played(env, call("get_synonym_value", synonym="Blazing"), call("extract_synonym_values", synonym_values=[1]))
    assert got[1][0] == f'{{"synonym_value":{sum(map(ord, "Blazing"))}}}'
    assert got[2][1:4] == (0.0, False, True) and got[2][4]["metrics"]["accuracy"] == 0.0  # verified as it is
    metrics = played(env, call("extract_synonym_values", synonym_values=expected[::-1]), "Done.")[2][4]["metrics"]
    assert metrics["set_overlap"] == 1.0 and metrics["order_instruction_following_failure"] == 1.0
    right = played(env, call("extract_synonym_values", synonym_values=expected), "Done.")[2]
    assert right[1:4] == (1.0, True, False) and right[4]["metrics"]["accuracy"] == 1.0


@needs_theirs
def test_an_episode_that_the_server_cannot_judge(urls: Mapping[str, str]) -> None:
    """Its example fails over a call without the argument that it looks for."""
    broken = call("extract_synonym_values", values=[1])
    with pytest.raises(UnavailableError, match="failed at verify: .*KeyError"):
        played(NemoGymEnv(urls[SYNONYMS], examples(SYNONYMS)), broken, "Done.")
    env = NemoGymEnv(urls[SYNONYMS], examples(SYNONYMS), verify_error_reward=-1.0)
    assert played(env, broken, "Done.")[2][1] == -1.0


@needs_theirs
def test_servers_with_steps_are_told_every_response(urls: Mapping[str, str]) -> None:
    env = NemoGymEnv(urls[FOLLOW_UPS], examples(FOLLOW_UPS))
    row = task_of(env, 3)
    answers = ["Well."] * len(row["follow_ups"])
    seen = played(env, *answers, f"I say {row['expected_answer']}.")
    assert [each[0] for each in seen[1:-1]] == row["follow_ups"]
    assert [each[4]["messages"] for each in seen[1:-1]] == [
        [{"role": "user", "content": said}] for said in row["follow_ups"]
    ]
    assert seen[-1][1:4] == (1.0, True, False)
    assert played(env, *answers, "I do not know.")[-1][1:4] == (0.0, True, False)


@needs_theirs
def test_what_a_server_shows_at_reset_follows_the_task(urls: Mapping[str, str]) -> None:
    env = NemoGymEnv(urls[BLACKJACK], examples(BLACKJACK), worst=-1.0, max_steps=30)

    async def hit_until_the_end() -> tuple[str, list[tuple[str, float, bool]]]:
        observation, _ = await env.reset(seed=3)
        seen: list[tuple[str, float, bool]] = []
        while not (seen and seen[-1][2]):
            seen.append((await env.step("<action>hit</action>"))[:3])
        await env.close()
        return observation, seen

    observation, seen = asyncio.run(hit_until_the_end())
    assert "Deal me in.\n\nYour hand: [" in observation
    hands = [each.count(",", 0, each.index("]")) for each, _, _ in seen[:-1]]
    assert hands == list(range(2, 2 + len(hands)))  # a card more each time
    assert [reward for _, reward, _ in seen] == [0.0] * len(hands) + [-1.0]


@needs_theirs
def test_tasks_of_another_server_are_told(urls: Mapping[str, str]) -> None:
    with pytest.raises(EnvConfigError, match="the tasks do not fit .* seed_session: initial_count: Field required"):
        played(NemoGymEnv(urls[COUNTER], examples(WEATHER)))


@pytest.mark.exhaustive
@needs_theirs
@pytest.mark.long
def test_an_episode_survives_a_server_that_dies(tmp_path: Path) -> None:
    """With a real chat template: tools are in the prompt, and what is played again is what it would have been."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    tag = Tag("Counter", "nemo_gym", {"url": url, "tasks": examples(COUNTER)}, max_steps=4)
    tokenizer = with_template(load_tokenizer("toy"), "qwen3")
    replies = [call("increment_counter", count=3), call("get_counter_value"), "Done."]
    dies = False
    again: list[Any] = []

    async def generate(request: GenerationRequest) -> Completion:
        turn = int(request.request_id.rpartition("/")[2])
        if dies and turn == 1 and not again:
            first.kill()
            first.wait()
            again.append(None)
        ids = [*tokenizer.encode(replies[turn], add_special_tokens=False), renderer.stop_token_ids[0]]
        return Completion(ids, [-0.5] * len(ids), "stop")

    renderer = ChatRenderer(tokenizer)
    limits = EnvManagerLimits(max_steps=4, sequence_length=10**5, max_new_tokens=200)
    manager = TrajectoryEnvManager(
        renderer=renderer, generate=generate, limits=limits, templates=Templates("", "{observation}")
    )

    def attempt() -> Any:
        return manager.run(EpisodeSpec("Counter", "g", 0, 3), lambda: make(tag))

    async def restarted() -> Trajectory:
        assert again == [None]
        again.append(serving({COUNTER: port}, tmp_path))
        await asyncio.to_thread(again[1].__enter__)
        return await attempt()

    async def play() -> tuple[Trajectory, Trajectory]:
        broken = await attempt()
        return broken, await play_again(broken, restarted if dies else attempt, Retries(1, wait=0.01))

    with serving({COUNTER: port}, tmp_path) as first:
        _, whole = asyncio.run(play())
        dies = True
        try:
            broken, retried = asyncio.run(play())
        finally:
            if len(again) > 1:
                again[1].__exit__(None, None, None)
    assert whole.status is Status.COMPLETED and whole.retries == 0, whole.error
    assert broken.status is not Status.COMPLETED and "gave no answer to get_counter_value" in str(broken.error)
    assert retried.status is Status.COMPLETED and retried.retries == 1 and retried.score == whole.score
    assert [turn.messages for turn in retried.turns] == [turn.messages for turn in whole.turns]
    assert whole.messages == [{"role": "user", "content": whole.turns[0].observation}]
    prompt = tokenizer.decode(whole.turns[0].prompt_ids)
    assert '"name": "increment_counter"' in prompt and "<tools>" in prompt


class Scripted(BaseHTTPRequestHandler):
    """A server that answers what a test says: status and body by path, the last answer for good."""

    paths: dict[str, Any]
    answers: dict[str, list[tuple[int, Any]]]
    asked: list[tuple[str, Any]]

    def do_GET(self) -> None:
        self._answer(200, {"paths": self.paths})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append((self.path, body))
        answers = self.answers[self.path]
        self._answer(*(answers.pop(0) if len(answers) > 1 else answers[0]))

    def _answer(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *words: Any) -> None:
        pass


@contextmanager
def scripted(paths: list[str], **answers: list[tuple[int, Any]]) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    said = {f"/{name}": each for name, each in answers.items()}
    fields = {"paths": {f"/{path}": {"post": {}} for path in paths}, "answers": said, "asked": []}
    handler = type("Handler", (Scripted,), fields)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler.asked  # type: ignore[attr-defined]
        server.shutdown()


@pytest.fixture
def one_task(tmp_path: Path) -> str:
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]
    params = {"input": [{"role": "system", "content": "Old."}, {"role": "user", "content": "Hi."}], "tools": tools}
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"responses_create_params": params}))
    return str(path)


def test_a_busy_server_is_asked_again(one_task: str) -> None:
    busy, fine = (503, {"detail": "full"}), (200, {})
    with scripted(["seed_session", "verify", "{path}"], seed_session=[busy, fine], look=[busy]) as (url, asked):
        env = NemoGymEnv(url, one_task, attempts=2, env_instruction="New.")
        with pytest.raises(UnavailableError, match="answers to look: full"):
            played(env, call("look"))
        assert [path for path, _ in asked] == ["/seed_session", "/seed_session", "/look"]
        assert env._told[0] == {"role": "system", "content": "New."}
    with scripted(["seed_session", "verify"], seed_session=[busy]) as (url, asked):
        with pytest.raises(UnavailableError, match="answers to seed_session: full"):
            played(NemoGymEnv(url, one_task, attempts=2))
        assert len(asked) == 2


def test_a_call_that_has_no_endpoint_is_the_answer_that_is_judged(one_task: str) -> None:
    verdict = (200, {"reward": 0.5, "depth": 2, "note": "x", "exact": True})
    with scripted(["seed_session", "verify"], seed_session=[(200, {})], verify=[verdict]) as (url, asked):
        step = played(NemoGymEnv(url, one_task), call("look"))[1]
    assert step[1:4] == (0.5, True, False) and step[4]["metrics"]["depth"] == 2.0
    assert step[4]["metrics"]["exact"] == 1.0 and "note" not in step[4]["metrics"]
    (item,) = asked[-1][1]["response"]["output"]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "look", "{}")


def test_a_step_that_is_refused_earns_the_worst(one_task: str) -> None:
    outputs = {"tool_outputs": [{"call_id": "call_0", "output": "a door"}]}
    took = (200, {"observation": None, "reward": -0.5, "info": outputs})
    answers = [took, (400, {"detail": "no move"}), (200, {"reward": 1, "truncated": True})]
    with scripted(["reset", "step"], reset=[(200, {"observation": "A room."})], step=answers) as (url, asked):
        seen = played(NemoGymEnv(url, one_task, worst=-2.0), call("look"), "Hm.", "Go.")
    assert seen[0].endswith("Hi.\n\nA room.")
    assert seen[1][:4] == ("a door", -0.5, False, False)
    assert seen[1][4]["messages"] == [{"role": "tool", "content": "a door"}]
    assert seen[2][:4] == ("The response was refused: no move", -2.0, False, False)
    assert seen[2][4]["metrics"]["action_is_valid"] == 0.0
    assert seen[3][1:4] == (1.0, False, True)
    assert [each["type"] for each in asked[2][1]["response"]["output"]] == ["message"]
    with scripted(["reset", "step"], reset=[(200, {})], step=[took]) as (url, _):
        with pytest.raises(EnvConfigError, match=r"earned -0\.5"):
            played(NemoGymEnv(url, one_task), call("look"))


def test_what_is_no_such_server_is_told(one_task: str) -> None:
    with pytest.raises(EnvConfigError, match="no NeMo Gym server answers there"):
        NemoGymEnv(f"http://127.0.0.1:{free_port()}", one_task)
    with pytest.raises(EnvConfigError, match="write the address"):
        NemoGymEnv("127.0.0.1:80", one_task)
    with (
        scripted(["schema"]) as (url, _),
        pytest.raises(EnvConfigError, match="no resource server of NeMo Gym: it has schema"),
    ):
        NemoGymEnv(url, one_task)
    with scripted(["seed_session", "verify"], seed_session=[(200, {})], verify=[(200, {"reward": None})]) as (url, _):
        with pytest.raises(EnvConfigError, match="gives no reward"):
            played(NemoGymEnv(url, one_task), "Hello.")
