from __future__ import annotations

import asyncio
import functools
import random
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_calls import BookEngine, recorder, say, trained, trajectory_of, user

from roll.gateway import ApiError, ChatMessage, Name, Recorder, ServedPolicy, recorded_metrics
from roll.generation import GenerationRequest
from roll.models.loading import load_tokenizer
from roll.rendering import ChatRenderer, with_template

HEADERS = r"<\|im_start\|>\w+\n|<\|im_end\|>|You may call these tools:.*?</tool_call>(?=<)"
TOOLS = [{"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}]


@functools.cache
def renderer(template: str | None = None) -> ChatRenderer:
    return ChatRenderer(with_template(load_tokenizer("toy"), template))


def words(text: str, stop: bool = True) -> list[int]:
    return [*renderer().encoder.encode(text), *(renderer().stop_token_ids[:1] if stop else ())]


def bare(text: str) -> str:
    """What is said, less what nobody can tell: white space that agents trim, and pieces of characters."""
    return "".join(text.replace("\ufffd", "").split())


class RandomTokens:
    """Samples any tokens of the vocabulary: pieces of characters, markup, texts that have other tokens too."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stops = renderer().stop_token_ids
        self.size = 512

    def __call__(self, request: GenerationRequest) -> list[int]:
        # Few words, so that answers are equal now and then.
        tokens = range(3, self.size) if self.random.random() < 0.7 else range(40, 42)
        ids = self.random.choices(tokens, k=self.random.randint(1, 6))
        if self.random.random() < 0.2:
            ids += words(self.random.choice(["<think>so</think>yes", " spaced out \n", "é\u00a0x"]), stop=False)
        return [*ids, self.stops[0]] if self.random.random() < 0.8 else ids


class Agent:
    """Goes on from what it has, or changes it: whatever agents do with their history."""

    def __init__(self, recorder: Recorder, seed: int) -> None:
        self.recorder = recorder
        self.random = random.Random(seed)
        self.histories: list[list[ChatMessage]] = [[ChatMessage("system", "Be brief."), user("Begin.")]]
        self.heard: list[tuple[str, Sequence[int]]] = []

    async def act(self, move: str) -> None:
        history = list(self.random.choice(self.histories))
        await getattr(self, f"_{move}")(history)

    async def _call(self, messages: list[ChatMessage], **asked: object) -> None:
        answers = await say(self.recorder, messages, **asked)
        self.heard.append(("".join(message.text for message in messages), answers.prompt_ids))
        for answer in answers.answers:
            said = answer.message
            if self.random.random() < 0.2:
                said = replace(said, text=said.text.strip())  # as many agents do
            self.histories.append([*messages, said, user(f"Go on {self.random.randint(0, 2)}.")])

    async def _call_once(self, history: list[ChatMessage]) -> None:
        await self._call(history)

    async def _retry(self, history: list[ChatMessage]) -> None:
        await self._call(history)
        await self._call(history)

    async def _several(self, history: list[ChatMessage]) -> None:
        await self._call(history, count=3)

    async def _beside(self, history: list[ChatMessage]) -> None:
        await asyncio.gather(*(self._call([*history, user(f"Part {part}.")]) for part in range(3)))

    async def _edit(self, history: list[ChatMessage]) -> None:
        place = self.random.randrange(len(history))
        history[place] = replace(history[place], text=history[place].text + " (edited)")
        await self._call(history)

    async def _drop(self, history: list[ChatMessage]) -> None:
        del history[self.random.randrange(len(history)) : len(history) - 1]
        await self._call(history or [user("Anew.")])

    async def _compact(self, history: list[ChatMessage]) -> None:
        await self._call([user("In short: " + " ".join(message.text for message in history)[:60])])

    async def _invent(self, history: list[ChatMessage]) -> None:
        await self._call([*history, ChatMessage("assistant", "I never said this."), user("Did you?")])

    async def _with_tools(self, history: list[ChatMessage]) -> None:
        await self._call(history, tools=TOOLS)


MOVES = ["call_once", "retry", "several", "beside", "edit", "drop", "compact", "invent", "with_tools"]


@pytest.mark.parametrize("template", [None, "qwen3"])
@settings(max_examples=40)
@given(moves=st.lists(st.sampled_from(MOVES), min_size=1, max_size=8), seed=st.integers(0, 2**32))
def test_every_sampled_token_is_trained_once_behind_the_tokens_it_was_sampled_behind(
    template: str | None, moves: list[str], seed: int
) -> None:
    engine = BookEngine(RandomTokens(seed))
    episode = recorder(engine, renderer(template))
    agent = Agent(episode, seed)

    async def work() -> None:
        for move in moves:
            await agent.act(move)

    asyncio.run(work())
    trajectory = trajectory_of(episode)
    assert trained(trajectory) == engine.book
    if template is None:
        for said, prompt in agent.heard:
            assert bare(said) == bare(re.sub(HEADERS, "", renderer().encoder.decode(prompt), flags=re.DOTALL))
    assert len(trajectory.turns) == engine.book.total() == recorded_metrics(episode)["calls"]


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), turns=st.integers(1, 6))
def test_an_agent_that_only_goes_on_is_one_sample_of_which_every_token_was_kept(seed: int, turns: int) -> None:
    engine = BookEngine(RandomTokens(seed))
    episode = recorder(engine, renderer())
    agent = Agent(episode, seed)

    async def work() -> None:
        for _ in range(turns):
            agent.histories = agent.histories[-1:]
            await agent.act("call_once")

    asyncio.run(work())
    assert recorded_metrics(episode) == {"calls": turns, "branches": 1, "calls_refused": 0, "tokens_kept": 1}
    assert sum(turn.starts_sample for turn in trajectory_of(episode).turns) == 0


def test_tokens_stay_as_sampled_where_the_text_has_other_tokens() -> None:
    spelled = [token for letter in "<answer>Up</answer>" for token in words(letter, stop=False)]
    assert spelled != words("<answer>Up</answer>", stop=False)
    engine = BookEngine(lambda request: [*spelled, renderer().stop_token_ids[0]])
    episode = recorder(engine, renderer())

    async def work() -> None:
        first = await say(episode, [user("Hello")])
        await say(episode, [user("Hello"), first.answers[0].message, user("And now?")])

    asyncio.run(work())
    second = engine.requests[1].prompt_ids
    assert second[: len(engine.requests[0].prompt_ids) + len(spelled)] == engine.requests[0].prompt_ids + spelled


def test_branches_that_run_beside_each_other_sample_the_same_whoever_comes_first() -> None:
    async def seeds(order: list[int]) -> dict[tuple[int, ...], int]:
        engine = BookEngine(lambda request: words("ok"))
        episode = recorder(engine, renderer())
        await asyncio.gather(*(say(episode, [user(f"Part {part}.")]) for part in order))
        return {tuple(request.prompt_ids): request.seed for request in engine.requests}

    assert asyncio.run(seeds([0, 1, 2])) == asyncio.run(seeds([2, 0, 1]))


def test_the_same_call_once_more_has_noise_of_its_own_and_a_seed_repeats_it() -> None:
    engine = BookEngine(lambda request: words("ok"))
    episode = recorder(engine, renderer())

    async def work() -> None:
        for seed in (None, None, 5, 5, 6):
            await say(episode, [user("Hello")], seed=seed)

    asyncio.run(work())
    seeds = [request.seed for request in engine.requests]
    assert len(set(seeds)) == 4 and seeds[2] == seeds[3]


def test_a_call_that_does_not_fit_is_refused_and_one_that_fits_is_cut() -> None:
    engine = BookEngine(lambda request: words("ok"))
    prompt = len(renderer().render_ids([{"role": "user", "content": "Hello"}]))
    episode = recorder(engine, renderer(), sequence_length=prompt + 3)

    async def work() -> None:
        await say(episode, [user("Hello")])
        await say(episode, [user("Hello, I have something much longer to say to you.")])

    with pytest.raises(ApiError) as refused:
        asyncio.run(work())
    assert refused.value.code == "context_length_exceeded" and refused.value.status == 400
    assert [request.sampling.max_new_tokens for request in engine.requests] == [3]
    assert episode.refused == {"context_length_exceeded": 1}


def test_a_call_says_how_it_is_drawn_where_nothing_is_learned_from_it() -> None:
    engine = BookEngine(lambda request: words("ok"))
    in_use = Recorder(ServedPolicy.in_use(renderer(), engine.generate, 200), Name(7, "group"))

    async def work() -> None:
        await say(in_use, [user("Hello")], temperature=0.25)
        await say(recorder(engine, renderer()), [user("Hello")], temperature=0.25)

    asyncio.run(work())
    prompt = len(renderer().render_ids([{"role": "user", "content": "Hello"}]))
    assert [request.sampling.temperature for request in engine.requests] == [0.25, 1.0]
    assert engine.requests[0].sampling.max_new_tokens == 200 - prompt


def test_an_episode_makes_as_many_calls_as_it_may() -> None:
    episode = recorder(BookEngine(lambda request: words("ok")), renderer(), most_calls=3)

    async def work() -> None:
        await say(episode, [user("Hello")], count=2)
        await say(episode, [user("Hello")], count=2)

    with pytest.raises(ApiError, match="may make 3 calls, and has made 2"):
        asyncio.run(work())
    assert recorded_metrics(episode)["calls"] == 2


def test_what_an_engine_raises_is_kept_for_whoever_plays_the_episode() -> None:
    def broken(request: GenerationRequest) -> list[int]:
        raise RuntimeError("out of memory")

    episode = recorder(BookEngine(broken), renderer())
    with pytest.raises(RuntimeError, match="out of memory"):
        asyncio.run(say(episode, [user("Hello")]))
    assert str(episode.error) == "out of memory"


def test_a_call_that_is_given_up_leaves_nothing_behind() -> None:
    engine = BookEngine(lambda request: words("ok"))
    episode = recorder(engine, renderer())

    async def work() -> None:
        call = asyncio.ensure_future(say(episode, [user("Hello")], seed=3))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await episode.close()
        with pytest.raises(ApiError, match="over"):
            await say(episode, [user("Hello")])

    asyncio.run(work())
    assert not trajectory_of(episode).turns and not engine.book


def test_a_changed_history_begins_a_branch_with_its_whole_conversation() -> None:
    engine = BookEngine(lambda request: words("Paris"))
    episode = recorder(engine, renderer())

    async def work() -> None:
        first = [user("The capital of France?")]
        said = (await say(episode, first)).answers[0].message
        await say(episode, [*first, replace(said, text="Lyon"), user("Really?")])

    asyncio.run(work())
    trajectory = trajectory_of(episode)
    assert [turn.begins_anew for turn in trajectory.turns] == [False, True]
    assert [message["content"] for message in trajectory.conversation] == [
        "The capital of France?",
        "Lyon",
        "Really?",
        "Paris",
    ]
    assert recorded_metrics(episode)["tokens_kept"] == 0.0
