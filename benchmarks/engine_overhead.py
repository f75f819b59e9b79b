"""What env managers and scheduler cost: agentic Sokoban on the real vLLM engine, beside the engine alone.

    OMP_NUM_THREADS=1 GOMP_SPINCOUNT=1000 python benchmarks/engine_overhead.py [--groups 64] [--rounds 12]

"through": groups of 8 episodes of SimpleSokoban, played by `GroupPlayer`, `TrajectoryEnvManager` and
`GenerationScheduler` on `VllmStrategy`: environments, templates, tokens, all but training.

"bare": the very same requests (prompts, seeds, limits), recorded in the rounds of "through", given to vLLM's `AsyncLLM`
with nothing of roll between: one coroutine per episode asks for one turn after the other, as the episodes did. Its
sampling parameters are made beforehand. It samples the same tokens.

In both, `--episodes` episodes are under way at a time, and the next one begins when one is over, as with asynchronous
rollouts. With as many as there are (8 times `--groups`), all begin at once, as in a synchronous step; the engine then
has little to do while the first levels are made.

The policy is the toy, whose half a million parameters cost an engine next to nothing, so that whatever is not the
engine counts most; those that people train are a hundred times larger.

Both alternate in one process on one engine, whose prefix cache is dropped before every round; a first round only warms
up. What counts is the median of the rounds' ratios of sampled tokens per second. Needs vLLM (`make vllm`). Exits with
1 below 0.95.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field

import psutil

from roll.config.process import prepare_process, settle_collector

prepare_process()

from roll.env_managers.records import EnvManagerLimits, EpisodeSpec  # noqa: E402
from roll.env_managers.templates import Templates  # noqa: E402
from roll.env_managers.trajectory import TrajectoryEnvManager  # noqa: E402
from roll.envs import get_tag, make  # noqa: E402
from roll.generation import Completion, GenerationRequest  # noqa: E402
from roll.models.loading import load_tokenizer  # noqa: E402
from roll.models.toy import WEIGHTS_DIRECTORY  # noqa: E402
from roll.rendering.chat import ChatRenderer  # noqa: E402
from roll.schedulers.generation import GenerationScheduler  # noqa: E402
from roll.schedulers.group_stream import play_all  # noqa: E402
from roll.schedulers.groups import GroupPlayer  # noqa: E402
from roll.schedulers.levels import LevelPlay, level_tasks  # noqa: E402
from roll.strategies.generation.vllm.strategy import VllmStrategy  # noqa: E402
from roll.trajectories.model import Trajectory  # noqa: E402

TARGET = 0.95
TAG = "SimpleSokoban"
GROUP_SIZE = 8
SEQUENCE_LENGTH = 640
NEW_TOKENS = 8


@dataclass
class Recorder:
    """Stands before the engine and remembers what it was asked for."""

    engine: VllmStrategy
    requests: dict[str, list[GenerationRequest]] = field(default_factory=lambda: defaultdict(list))
    tokens: int = 0

    async def generate(self, request: GenerationRequest) -> Completion:
        """Ask the engine."""
        completion = await self.engine.generate(request)
        self.requests[request.session or ""].append(request)
        self.tokens += len(completion.token_ids)
        return completion

    async def abort(self, request_id: str) -> None:
        """End a request."""
        await self.engine.abort(request_id)

    async def release(self, session: str) -> None:
        """Forget a session."""
        await self.engine.release(session)


@dataclass(frozen=True)
class Round:
    """What a round took.

    Attributes:
        tokens: Sampled.
        seconds: From start to end.
        main: CPU seconds of this process.
        engine: CPU seconds of the engine's processes.
    """

    tokens: int
    seconds: float
    main: float
    engine: float

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


class Clock:
    """Measures a round."""

    def __init__(self) -> None:
        self._engine = self._engine_seconds()
        self._main = time.process_time()
        self._started = time.perf_counter()

    def stop(self, tokens: int) -> Round:
        """Return what went by."""
        seconds, main = time.perf_counter() - self._started, time.process_time() - self._main
        return Round(tokens, seconds, main, self._engine_seconds() - self._engine)

    def _engine_seconds(self) -> float:
        times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
        return sum(one.user + one.system for one in times)


async def through(
    engine: VllmStrategy, renderer: ChatRenderer, groups: int, at_a_time: int, number: int
) -> tuple[Round, Recorder]:
    """Play one round; returns what it took and what the engine was asked for."""
    recorder = Recorder(engine)
    generation = GenerationScheduler(recorder)
    manager = TrajectoryEnvManager(
        renderer=renderer,
        generate=generation.generate,
        limits=EnvManagerLimits(10, SEQUENCE_LENGTH, NEW_TOKENS),
        templates=Templates("Solve the Sokoban puzzle.", "{observation}"),
        threads=None,  # as the env worker has it for quick environments
    )

    gate = asyncio.Semaphore(at_a_time)

    async def play(spec: EpisodeSpec, greedy: bool) -> Trajectory:
        async with gate:
            try:
                return await manager.run(spec, lambda: make(get_tag(TAG)))
            finally:
                await generation.release(spec.trajectory_id)

    player = GroupPlayer(LevelPlay(play, number))
    specs = level_tasks([(TAG, groups)], GROUP_SIZE, number, f"{number}-")
    await engine._engine.reset_prefix_cache()
    clock = Clock()
    await play_all(specs, player.play_group)
    took = clock.stop(recorder.tokens)
    return took, recorder


async def bare(engine: VllmStrategy, recorder: Recorder, at_a_time: int) -> Round:
    """Ask vLLM itself for the same."""
    adapter, llm = engine._adapter, engine._engine
    sessions = [
        [
            (adapter.engine_prompt(one.prompt_ids), adapter.engine_sampling(one), one.request_id, one.priority)
            for one in turns
        ]
        for turns in recorder.requests.values()
    ]
    tokens = 0

    gate = asyncio.Semaphore(at_a_time)

    async def episode(turns: list) -> None:
        nonlocal tokens
        async with gate:
            for prompt, sampling, request_id, priority in turns:
                async for output in llm.generate(prompt, sampling, request_id, priority=priority):
                    tokens += len(output.outputs[0].token_ids)

    await llm.reset_prefix_cache()
    clock = Clock()
    await asyncio.gather(*(episode(turns) for turns in sessions))
    took = clock.stop(tokens)
    if tokens != recorder.tokens:
        raise RuntimeError(f"the engine alone sampled {tokens} tokens where the episodes had {recorder.tokens}")
    return took


async def measure(groups: int, at_a_time: int, rounds: int, slots: int) -> float:
    engine = VllmStrategy(WEIGHTS_DIRECTORY, max_slots=slots, max_length=SEQUENCE_LENGTH)
    renderer = ChatRenderer(load_tokenizer("toy"))
    rows: list[tuple[float, float]] = []
    settle_collector()  # as a run does
    try:
        for number in range(rounds + 1):
            ours, recorder = await through(engine, renderer, groups, at_a_time, number)
            alone = await bare(engine, recorder, at_a_time)
            print(describe(number, recorder, ours, alone), flush=True)
            if number:
                rows.append((ours.speed, alone.speed))
    finally:
        await engine.close()
    through_median, bare_median = (statistics.median(column) for column in zip(*rows, strict=True))
    ratio = statistics.median(ours / alone for ours, alone in rows)
    verdict = "PASS" if ratio >= TARGET else "FAIL"
    print(
        f"medians: through {through_median:.0f} tokens/s, bare {bare_median:.0f}, ratio {ratio:.3f} (wanted {TARGET}) "
        f"{verdict}"
    )
    return ratio


def describe(number: int, recorder: Recorder, ours: Round, alone: Round) -> str:
    """Return the line of a round."""
    turns = sum(map(len, recorder.requests.values()))
    parts = [
        f"{name} {took.speed:6.0f} tokens/s (CPU a turn: here {took.main / turns * 1e6:4.0f} us, engine "
        f"{took.engine / turns * 1e6:4.0f} us)"
        for name, took in (("through", ours), ("bare", alone))
    ]
    note = " (warm-up)" if number == 0 else ""
    return f"round {number}: {turns} turns: {', '.join(parts)}, ratio {ours.speed / alone.speed:.3f}{note}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=64, help="groups of 8 episodes in a round")
    parser.add_argument("--episodes", type=int, default=256, help="episodes under way at a time")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--slots", type=int, default=256, help="most sequences that the engine runs at once")
    arguments = parser.parse_args()
    ratio = asyncio.run(measure(arguments.groups, arguments.episodes, arguments.rounds, arguments.slots))
    raise SystemExit(0 if ratio >= TARGET else 1)


if __name__ == "__main__":
    main()
