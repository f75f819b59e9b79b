from __future__ import annotations

import asyncio
import base64
import io
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from manager_fakes import STOP, Activity, CharacterRenderer, CountEnv, manager, play, says, script, spec, turn_of

from roll.env_managers import (
    CallThreads,
    EnvManagerLimits,
    GroupMismatchError,
    Templates,
    TokenInvariantError,
    check_group,
)
from roll.generation import GenerationRequest, SamplingParams
from roll.trajectories.model import Status, Trajectory
from roll.trajectories.samples import samples_from

TEMPLATES = Templates('{instruction} {"json": {max_response_length}}', "{turn_idx}/{actions_left}: {observation}")


@pytest.mark.parametrize("threaded", [False, True])
def test_an_episode_is_recorded_turn_by_turn(threaded: bool) -> None:
    env = CountEnv()
    generate, calls = script("up", "", "down")
    threads = CallThreads(2) if threaded else None
    trajectory = asyncio.run(manager(generate, templates=TEMPLATES, threads=threads).run(spec(), lambda: env))

    assert trajectory.status is Status.COMPLETED and trajectory.error is None and trajectory.success
    assert trajectory.messages == [
        {"role": "system", "content": 'Count with {braces}. {"json": 20}'},
        {"role": "user", "content": "1/5: seed 11: 0 {x}"},
    ]
    assert [turn.observation for turn in trajectory.turns] == ["seed 11: 0 {x}", "at 1", "at 2"]
    assert [turn.frame for turn in trajectory.turns] == ["frame 0", "frame 1", "frame 2"]
    assert (trajectory.final_observation, trajectory.final_frame) == ("at 3", "frame 3")
    assert [turn.response for turn in trajectory.turns] == ["up", "", "down"]
    assert [turn.action for turn in trajectory.turns] == ["UP", None, "DOWN"]
    assert [turn.reward for turn in trajectory.turns] == [-0.1, -0.1, 0.9]
    assert trajectory.turns[2].reward_parts == {"env": -0.1, "goal": 1.0}
    assert trajectory.score == pytest.approx(0.7)
    assert trajectory.metrics == {"success": 1.0, "count": 3.0, "mean_count": 2.0}
    assert {turn.policy_version for turn in trajectory.turns} == {(7, 8)}
    assert all(set(turn.seconds) >= {"generate", "env", "queue"} for turn in trajectory.turns)
    assert env.closed == 1
    assert all(name.startswith("roll-call") == threaded for name in env.threads)
    assert [call.request_id for call in calls] == ["g/0/0", "g/0/1", "g/0/2"]
    assert {(call.session, call.sampling) for call in calls} == {("g/0", SamplingParams(20, stop_token_ids=(STOP,)))}


def test_requests_have_the_sampling_of_the_phase_within_the_limits_of_the_tag() -> None:
    generate, calls = script("up")
    sampling = SamplingParams(max_new_tokens=20, temperature=0.5, top_k=4, stop_token_ids=(9, STOP))
    for most in (8, None):
        limits = EnvManagerLimits(max_steps=1, sequence_length=1000, max_new_tokens=50, max_tokens_per_step=most)
        asyncio.run(manager(generate, sampling=sampling, limits=limits).run(spec(), CountEnv))
    expected = replace(sampling, stop_token_ids=(STOP, 9))
    assert [call.sampling for call in calls] == [replace(expected, max_new_tokens=8), expected]


def test_each_prompt_is_the_previous_prompt_and_completion_and_the_new_message() -> None:
    generate, calls = script("up")
    trajectory = asyncio.run(manager(generate, templates=TEMPLATES).run(spec(), CountEnv))
    prompts = [call.prompt_ids for call in calls]
    for index, turn in enumerate(trajectory.turns[:-1]):
        known = prompts[index] + turn.completion_ids
        assert prompts[index + 1] == known + trajectory.turns[index + 1].prompt_ids
    assert trajectory.turns[0].prompt_ids == prompts[0]
    (sample,) = samples_from(trajectory)
    assert sample.token_ids == prompts[-1] + trajectory.turns[-1].completion_ids
    assert CharacterRenderer().decode(prompts[1]).endswith("u2/4: at 1\x01")


def test_a_turn_the_template_rewrites_starts_a_new_sample_with_the_whole_conversation() -> None:
    renderer = CharacterRenderer(forks=lambda reply: "think" in reply)
    generate, calls = script("think", "up", "up", "think", "up")
    trajectory = asyncio.run(
        manager(generate, renderer=renderer, templates=TEMPLATES).run(spec(), lambda: CountEnv(goal=9))
    )
    assert [turn.starts_sample for turn in trajectory.turns] == [False, True, False, False, True]
    samples = samples_from(trajectory)
    assert [(sample.first_turn, sample.last_turn) for sample in samples] == [(0, 0), (1, 3), (4, 4)]
    assert trajectory.turns[1].prompt_ids == calls[1].prompt_ids
    assert samples[1].token_ids == calls[3].prompt_ids + trajectory.turns[3].completion_ids
    replies = [{"role": "assistant", "content": turn.response} for turn in trajectory.turns[:1]]
    whole = [*trajectory.messages, *replies, {"role": "user", "content": "2/4: at 1"}]
    assert calls[1].prompt_ids == renderer.render_ids(whole)


def test_an_engine_that_changes_what_it_was_given_is_caught() -> None:
    async def generate(call: GenerationRequest) -> object:
        call.prompt_ids[0] = 99
        return says("up")

    with pytest.raises(TokenInvariantError, match=r"Count \(g/0, seed 11, turn 1\).*token 0"):
        asyncio.run(manager(generate).run(spec(), CountEnv))


def test_an_engine_without_one_log_probability_per_token_is_caught() -> None:
    async def generate(call: GenerationRequest) -> object:
        return replace(says("up"), logprobs=[-0.5])

    env, activity = CountEnv(), Activity()
    with pytest.raises(ValueError, match="3 tokens and 1 log-probabilities"):
        asyncio.run(manager(generate, activity=activity).run(spec(), lambda: env))
    assert env.closed == 1 and activity.outside == 0


def test_the_turn_limit_truncates() -> None:
    env = CountEnv(goal=99)
    trajectory = play(env)
    assert trajectory.status is Status.TRUNCATED_TURNS
    assert len(trajectory.turns) == 5 and env.closed == 1 and not trajectory.success


def test_the_environments_own_limit_truncates() -> None:
    class Short(CountEnv):
        def step(self, response: str) -> object:
            observation, reward, terminated, _, info = super().step(response)
            return observation, reward, terminated, self.count == 2, info

    trajectory = play(Short())
    assert trajectory.status is Status.TRUNCATED_TURNS and len(trajectory.turns) == 2


def test_a_turn_begins_only_if_its_prompt_and_a_longest_response_fit() -> None:
    generate, calls = script("up")
    turns: dict[int, int] = {}
    for length in range(40, 120):
        limits = EnvManagerLimits(max_steps=5, sequence_length=length, max_new_tokens=20, max_tokens_per_step=8)
        calls.clear()
        env = CountEnv(goal=99)
        trajectory = asyncio.run(manager(generate, limits=limits).run(spec(), lambda env=env: env))
        turns[length] = len(trajectory.turns)
        assert all(len(call.prompt_ids) + 8 <= length and call.sampling.max_new_tokens == 8 for call in calls)
        assert env.closed == 1
        if turns[length] == 2:
            assert trajectory.status is Status.TRUNCATED_LENGTH and trajectory.error is None
            assert trajectory.score == pytest.approx(-0.2) and trajectory.final_observation == "at 2"
    # As many turns as fit: each begins at the first length that holds its prompt and eight tokens more.
    starts = [len(call.prompt_ids) + 8 for call in calls]
    assert turns == {length: sum(start <= length for start in starts) for length in turns}
    assert set(turns.values()) == {0, 1, 2, 3, 4, 5}


def test_a_first_prompt_that_does_not_fit_says_so() -> None:
    limits = EnvManagerLimits(sequence_length=30, max_new_tokens=20)
    trajectory = play(CountEnv(), limits=limits)
    assert trajectory.status is Status.TRUNCATED_LENGTH and not trajectory.turns
    assert "sequence_length=30" in (trajectory.error or "")


def test_an_aborted_generation_ends_the_episode_and_keeps_complete_turns() -> None:
    async def generate(call: GenerationRequest) -> object:
        return says("up", "abort" if turn_of(call) == 1 else "stop")

    env = CountEnv()
    trajectory = asyncio.run(manager(generate).run(spec(), lambda: env))
    assert trajectory.status is Status.ABORTED and len(trajectory.turns) == 1
    assert trajectory.score is None and env.closed == 1


def test_image_frames_become_png_data_uris() -> None:
    class Picture(CountEnv):
        render_mode = "rgb_array"

        def render(self) -> object:
            return np.full((4, 6, 3), 10 * self.count, dtype=np.uint8)

    from PIL import Image

    trajectory = play(Picture())
    head, _, data = (trajectory.turns[2].frame or "").partition(",")
    assert head == "data:image/png;base64"
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    assert image.shape == (4, 6, 3) and (image == 20).all()


def test_an_environment_without_a_render_mode_is_not_asked_for_frames() -> None:
    class NoRender(CountEnv):
        render_mode = None

        def render(self) -> object:
            raise AssertionError("render was called")

    trajectory = play(NoRender())
    assert trajectory.status is Status.COMPLETED and trajectory.turns[0].frame is None


def test_the_sampling_key_depends_on_the_episode_and_never_on_order() -> None:
    generate, calls = script("up")

    async def both(order: list[int]) -> dict[str, int]:
        calls.clear()
        await asyncio.gather(*(manager(generate).run(spec(episode=i), CountEnv) for i in order))
        return {call.request_id: call.seed for call in calls}

    assert asyncio.run(both([0, 1])) == asyncio.run(both([1, 0]))


def test_activity_is_outside_the_engine_except_during_generation() -> None:
    activity = Activity()
    during: list[int] = []

    async def generate(call: GenerationRequest) -> object:
        during.append(activity.outside)
        return says("up")

    asyncio.run(manager(generate, activity=activity, threads=CallThreads(1)).run(spec(), CountEnv))
    assert during == [0, 0, 0]
    assert activity.log == [1, 0, 1, 0, 1, 0, 1, 0]


def test_groups_that_began_in_different_states_are_refused() -> None:
    same = [play(CountEnv()), play(CountEnv())]
    check_group(same)
    assert len(same[0].initial_hash) == 16
    check_group([*same, Trajectory("Count", "g", 2, 11)])

    class Ignorant(CountEnv):
        def reset(self, *, seed: int | None = None) -> object:
            return f"start {id(self)}", {}

    with pytest.raises(GroupMismatchError, match=r"Count: group 'g' began in 2 different states.*np_random"):
        check_group([*same, play(Ignorant())])


@pytest.mark.processes
def test_importing_env_managers_loads_neither_torch_nor_transformers_nor_numpy() -> None:
    code = "import sys, roll.env_managers; print({'torch', 'transformers', 'ray', 'numpy'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
