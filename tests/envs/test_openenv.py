"""OpenEnv both ways: its servers as environments, and ours for its clients (whose package is installed apart).

The environments of OpenEnv's repository (its folder ``envs``) are in no package of the index: neither ``openenv-core``
nor ``openenv`` has them, wheel or source. What is played here is the one that ``openenv init`` makes of a template in
the package, on the server of the package.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from roll.env_managers import EnvManagerLimits, EpisodeSpec, Retries, Templates, TrajectoryEnvManager, play_again
from roll.envs import UnavailableError, make, register_tag, unregister
from roll.envs.adapters.openenv_servers import OpenEnvEnv
from roll.envs.errors import EnvConfigError
from roll.generation import Completion, GenerationRequest
from roll.trajectories.model import Status, Trajectory
from tests.ports import free_port
from tests.programs import WarmProgram
from tests.warm_others import environment_of, python_of, start_there

Server = subprocess.Popen[bytes] | WarmProgram

pytest.importorskip("websockets")
pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]
THEIRS = environment_of("openenv")
needs_theirs = pytest.mark.skipif(not THEIRS.exists(), reason="openenv-core is not installed: tests/envs/openenv.txt")


@contextmanager
def serving(process: Server, port: int) -> Iterator[tuple[str, Server]]:
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                httpx.get(f"{url}/health", timeout=2)
                break
            except httpx.TransportError:
                assert process.poll() is None, "the server ended"
                time.sleep(0.1)
        yield url, process
    finally:
        process.kill()
        process.wait()


@contextmanager
def ours(tag: str, port: int | None = None, *words: str) -> Iterator[tuple[str, Server]]:
    port = port or free_port()
    command = [sys.executable, "-m", "roll", "envs", "serve", tag, "--port", str(port), *words]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with serving(process, port) as found:
        yield found


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment that `openenv init` makes."""
    folder = tmp_path_factory.mktemp("openenv")
    done = subprocess.run(
        [str(python_of("openenv")), "-m", "openenv.cli", "init", "echo_env", "--output-dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "echo_env"


@contextmanager
def echoing(folder: Path) -> Iterator[tuple[str, Server]]:
    port = free_port()
    words = ["-m", "uvicorn", "server.app:app", "--port", str(port), "--log-level", "critical"]
    with open(os.devnull, "r+") as nothing:
        process = start_there("openenv", words, folder, os.environ, [nothing.fileno()] * 3)
    with serving(process, port) as found:
        yield found


def played(env: OpenEnvEnv, *responses: str, seed: int = 3) -> list[Any]:
    async def play() -> list[Any]:
        seen: list[Any] = [(await env.reset(seed=seed))[0]]
        seen += [(await env.step(response))[:4] for response in responses]
        await env.close()
        return seen

    return asyncio.run(play())


def random_episodes(env: OpenEnvEnv, responses: Sequence[str]) -> list[float]:
    """Play two hundred episodes with random responses; return what each one earned."""
    moves = np.random.default_rng(0)

    async def play() -> list[float]:
        earned = []
        for seed in range(200):
            await env.reset(seed=seed)
            rewards, over = [], False
            while not over:
                _, reward, terminated, truncated, info = await env.step(str(moves.choice(responses)))
                assert reward == pytest.approx(sum(info["reward_parts"].values())) and np.isfinite(reward)
                rewards.append(reward)
                over = terminated or truncated
                assert len(rewards) <= (env.max_steps or 0) and not (terminated and truncated)
            earned.append(sum(rewards))
        await env.close()
        return earned

    return asyncio.run(play())


@pytest.mark.exhaustive
def test_a_random_agent_plays_two_hundred_episodes_of_ours() -> None:
    with ours("FrozenLake") as (url, _):
        env = OpenEnvEnv(url, max_steps=8, action_pattern="")
        assert {0.0, 1.0} <= set(random_episodes(env, [f"<answer>{move}</answer>" for move in ("Right", "Down")]))


@pytest.mark.exhaustive
@needs_theirs
def test_an_environment_of_their_own_is_played(echo: Path) -> None:
    with echoing(echo) as (url, process):
        env = OpenEnvEnv(url, max_steps=2, format_penalty=-0.1)
        assert played(env, "<answer>hello</answer>", "no tags") == [
            "Echo Env environment ready!",
            ("hello", 0.5, False, False),
            ("hello", -0.1, False, True),
        ]
        assert "Echo" in env.instruction
        assert len(set(random_episodes(env, ["<answer>a</answer>", "<answer>abc</answer>"]))) == 3
        with pytest.raises(EnvConfigError, match="action_field='text': .* has message"):
            OpenEnvEnv(url, action_field="text")
        as_json = OpenEnvEnv(url, observation_field="echoed_message", action_pattern=None)
        assert played(as_json, "a")[1] == ("a", 0.1, False, False)

        async def interrupted() -> None:
            await env.reset(seed=1)
            process.kill()
            await env.step("<answer>hello</answer>")

        with pytest.raises(UnavailableError, match="gave no answer to step"):
            asyncio.run(interrupted())
        with pytest.raises(UnavailableError, match="no OpenEnv server at ws://"):
            asyncio.run(OpenEnvEnv(url, seconds=30.0, attempts=1).reset(seed=1))


@pytest.mark.exhaustive
@needs_theirs
def test_a_server_with_room_for_forty_is_fit_to_train_on(echo: Path, tmp_path: Path) -> None:
    app = echo / "server" / "app.py"
    alone = app.read_text(encoding="utf-8")
    assert "max_concurrent_envs=1," in alone
    app.write_text(alone.replace("max_concurrent_envs=1,", "max_concurrent_envs=40,"), encoding="utf-8")
    with echoing(echo) as (url, _):
        config = {"url": url, "action_field": "message"}
        module = f"import roll\n\nroll.envs.register_tag('Echo', env_type='openenv', max_steps=3, env_config={config})"
        (tmp_path / "echo_tags.py").write_text(module, encoding="utf-8")
        words = [sys.executable, "-m", "roll", "envs", "check", "Echo", "--module", "echo_tags"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    app.write_text(alone, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.exhaustive
@needs_theirs
def test_their_client_plays_ours_as_it_is_played_here() -> None:
    responses = ["nothing", "<answer>Up</answer>", "<answer>Right</answer>"]
    with ours("FrozenLake") as (url, _):
        words = [str(python_of("openenv")), str(Path(__file__).with_name("openenv_client.py")), url, "5", *responses]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        theirs = json.loads(done.stdout)
    env = make("FrozenLake")
    observation, _ = env.reset(seed=5)
    here = [[observation, 0.0, False]]
    for response in responses:
        observation, reward, terminated, truncated, _ = env.step(response)
        here.append([observation, reward, terminated or truncated])
    assert theirs["seen"] == here and theirs["instruction"] == env.instruction
    assert theirs["state"] == {"step_count": 3}


@pytest.mark.long
def test_our_client_plays_our_server_and_an_episode_survives_its_restart() -> None:
    """What the retried episode becomes is what it would have been without the restart."""
    port = free_port()

    async def generate(request: GenerationRequest) -> Completion:
        move = ("Up", "Left", "Up", "Left")[int(request.request_id.rpartition("/")[2]) % 4]
        ids = [*map(ord, f"<answer>{move}</answer>"), 3]
        await before_turn(request)
        return Completion(ids, [-0.5] * len(ids), "stop")

    with ours("FrozenLake", port) as (url, first):
        register_tag("remote", env_type="openenv", env_config={"url": url, "action_pattern": ""}, replace=True)
        restarted: list[Any] = []

        async def before_turn(request: GenerationRequest) -> None:
            if restarted or request.request_id != "g/0/1" or not breaks:
                return
            first.kill()
            first.wait()
            server = ours("FrozenLake", port)
            restarted.extend([server, await asyncio.to_thread(server.__enter__)])

        limits = EnvManagerLimits(max_steps=4, sequence_length=10**5, max_new_tokens=64)
        renderer: Any = Characters()
        manager = TrajectoryEnvManager(
            renderer=renderer, generate=generate, limits=limits, templates=Templates("", "{observation}")
        )

        async def play() -> Trajectory:
            attempt = lambda: manager.run(EpisodeSpec("remote", "g", 0, 9), lambda: make("remote"))  # noqa: E731
            return await play_again(await attempt(), attempt, Retries(2, wait=0.01))

        try:
            breaks = False
            whole = asyncio.run(play())
            breaks = True
            again = asyncio.run(play())
        finally:
            unregister("remote")
            if restarted:
                restarted[0].__exit__(None, None, None)
    assert whole.status in (Status.COMPLETED, Status.TRUNCATED_TURNS) and whole.retries == 0
    assert again.retries == 1 and again.status is whole.status and again.score == whole.score
    assert [turn.observation for turn in again.turns] == [turn.observation for turn in whole.turns]


@pytest.mark.exhaustive
def test_a_full_server_and_one_that_is_not_there_say_so() -> None:
    with ours("FrozenLake", None, "--sessions", "1") as (url, _):

        async def two() -> None:
            one, other = OpenEnvEnv(url), OpenEnvEnv(url)
            await one.reset(seed=1)
            try:
                await other.reset(seed=1)
            finally:
                await one.close()

        with pytest.raises(UnavailableError, match="all 1 sessions are taken"):
            asyncio.run(two())
    with pytest.raises(EnvConfigError, match="no OpenEnv server answers there"):
        OpenEnvEnv(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(EnvConfigError, match="write the address"):
        OpenEnvEnv("127.0.0.1:80")


class Characters:
    """One token per character."""

    stop_token_ids = (3,)
    text_only = False

    def render_ids(self, messages: Any) -> list[int]:
        return [1, *map(ord, "".join(message["content"] for message in messages))]

    def next_ids(self, completion_ids: Any, messages: Any, history: Any = None) -> list[int]:
        return self.render_ids(messages)

    def decode(self, ids: Any) -> str:
        return "".join(chr(token) for token in ids if token > 3)
