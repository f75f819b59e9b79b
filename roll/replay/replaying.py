"""Plays stored episodes of a run again, and says where they differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from roll.generation import Completion, GenerationRequest
from roll.models.loading import load_tokenizer
from roll.pipelines.run.interrupts import runner
from roll.pipelines.run.terminal import quiet_transformers
from roll.replay.choosing import Chosen, choose, name_of
from roll.replay.differences import Difference, Part, differences, tokens
from roll.replay.engine import Script, request_id, stored_answers
from roll.replay.scoring import score
from roll.replay.stage import (
    Replayable,
    expected_seed,
    is_answer,
    is_one_request,
    load_run,
    play_again,
    samples_alike,
    where_it_ran,
)
from roll.replay.weights import Weights, absolute, find_weights, require_tokens, version_of
from roll.runs.stored import StoredRun
from roll.trajectories.model import Trajectory
from roll.trajectories.store import Phase
from roll.workers.loading import load_role_model

TOLERANCE = 1e-3
"""By how much a log-prob may differ: batches of other sizes add in another order."""


@dataclass(frozen=True, slots=True)
class LogProbs:
    """How log-probs of stored tokens compare.

    Attributes:
        compared: Tokens.
        equal: Of these, how many have the very same number.
        largest: The largest difference, now minus then; 0 if nothing was compared.
        turn: Where that is, counted from 0.
        token: Which token of the turn, counted from 0.
    """

    compared: int = 0
    equal: int = 0
    largest: float = 0.0
    turn: int = 0
    token: int = 0


@dataclass(frozen=True, slots=True)
class EpisodeReplay:
    """One episode, played again.

    Attributes:
        stored: As it was.
        again: As it is now.
        differences: All of them that count, the first first.
        drawn: Sampled tokens that were drawn again from the same weights, prompt and request seed.
        skipped: Turns that other weights sampled than those compared with.
        log_probs: Of the stored tokens.
    """

    stored: Trajectory
    again: Trajectory
    differences: Sequence[Difference]
    drawn: int = 0
    skipped: int = 0
    log_probs: LogProbs = LogProbs()

    @property
    def first(self) -> Difference | None:
        """The difference that the others may follow from."""
        return self.differences[0] if self.differences else None


@dataclass(frozen=True, slots=True)
class Replay:
    """What :func:`replay` found.

    Attributes:
        chosen: The episodes as they are stored.
        weights: Those that were compared with; ``None`` where none were asked for.
        draws: Whether tokens were drawn again and count: same weights, and an engine whose draws repeat.
        episodes: Each episode.
    """

    chosen: Chosen
    weights: Weights | None
    draws: bool
    episodes: Sequence[EpisodeReplay]

    @property
    def same(self) -> bool:
        """Whether everything came out as it was."""
        return not any(each.differences for each in self.episodes)

    def of(self, part: Part) -> list[tuple[EpisodeReplay, Difference]]:
        """Return for each episode that differs in a part its first difference there."""
        found = [(each, [one for one in each.differences if one.part is part]) for each in self.episodes]
        return [(each, ones[0]) for each, ones in found if ones]


def replay(
    run: StoredRun,
    name: str | None = None,
    *,
    step: int | None = None,
    phase: Phase | None = None,
    policy: str | None = None,
    with_policy: bool = True,
    tolerance: float = TOLERANCE,
) -> Replay:
    """Play stored episodes again: environment, rendering, and with the policy also what it sampled.

    Args:
        run: The run.
        name: An episode or a group, see :func:`roll.replay.choosing.choose`; ``None`` for all of a step, which gives
            the engine the batches it had, so that log-probs are equal bit for bit.
        step: Of this step or evaluation; ``None`` for the newest.
        phase: ``train`` or ``val``.
        policy: Compare with these weights; ``None`` for those that sampled the episodes.
        with_policy: Whether to ask a policy at all.
        tolerance: By how much a log-prob may differ.

    Raises:
        ConfigError: There is no such episode, or the configuration of the run cannot be used here.
    """
    run = StoredRun(run.folder.absolute())
    policy = absolute(policy)
    chosen = choose(run, name, step, phase)
    require_tokens(chosen.episodes)
    weights = find_weights(run, version_of(chosen.episodes), policy) if with_policy else None
    with where_it_ran(run), quiet_transformers():
        config = load_run(run, weights)
        answers: dict[str, Completion] = {}
        for each in chosen.everything:
            answers |= stored_answers([each], is_one_request(config, each))
        script = Script(answers, draws_again=weights is not None)
        played = runner()(play_again(config, chosen, script))
        found = [_compared(config, chosen, *pair) for pair in zip(chosen.episodes, played, strict=True)]
        draws = weights is not None and weights.exact and samples_alike(run)
        if weights is not None:
            counts = weights.exact or weights.asked
            found = list(_with_policy(config, found, script, weights, draws, math.inf if not counts else tolerance))
    return Replay(chosen, weights, draws, found)


def _compared(config: Replayable, chosen: Chosen, stored: Trajectory, again: Trajectory) -> EpisodeReplay:
    seed = None if is_answer(config, stored) else expected_seed(config, stored, chosen.origin.phase)
    return EpisodeReplay(stored, again, differences(stored, again, seed))


def _with_policy(
    config: Replayable,
    found: Sequence[EpisodeReplay],
    script: Script,
    weights: Weights,
    draws: bool,
    tolerance: float,
) -> Iterator[EpisodeReplay]:
    """Yield the episodes with what the policy said of them."""
    scorer = _Scorer(config)
    for each in found:
        stored, own = each.stored, list(each.differences)
        prompts = [one.turn for one in own if one.what == "prompt"]
        comparable = stored.turns[: min(prompts, default=len(stored.turns))]
        drawn, skipped, log_probs = 0, 0, LogProbs()
        unlike: Difference | None = None
        for index, turn in enumerate(comparable):
            name = request_id(name_of(stored), index, is_one_request(config, stored))
            request, said = script.asked.get(name), script.drawn.get(name)
            if request is None or said is None:
                break
            if set(turn.policy_version) != {weights.wanted}:
                skipped += 1
                continue
            other = next(tokens(Part.TOKENS, index, "sampled token", turn.completion_ids, said.token_ids), None)
            drawn += len(turn.completion_ids)
            if other is not None and draws:
                own.append(other)
            values = said.logprobs if other is None else scorer(request, turn.completion_ids)
            log_probs = _larger(log_probs, index, turn.logprobs, values)
            unlike = unlike or _beyond(index, turn.logprobs, values, tolerance)
        own += [] if unlike is None else [unlike]
        own.sort(key=_when)
        yield EpisodeReplay(stored, each.again, own, drawn if draws else 0, skipped, log_probs)


def _when(difference: Difference) -> tuple[int, int]:
    """Return by which differences are put in the order in which things happened."""
    within = 0 if _is_at_prompt(difference) else 1 if difference.part in _SAMPLED else 2
    return difference.turn, within


def _is_at_prompt(difference: Difference) -> bool:
    """Whether it was there before the policy was asked."""
    return difference.what in ("observation", "frame", "prompt", "fork", "seed", "prompt key")


_SAMPLED = (Part.TOKENS, Part.LOG_PROBS)


class _Scorer:
    """Scores tokens that the engine did not draw again; loads the policy when it is first needed."""

    def __init__(self, config: Replayable) -> None:
        self._config = config
        self._model: PreTrainedModel | None = None

    def __call__(self, request: GenerationRequest, completion: Sequence[int]) -> list[float]:
        if self._model is None:
            self._model = load_role_model(self._config, "actor_train").eval()
        return score(self._model, request, completion, lambda: load_tokenizer(self._config.model_path("actor_train")))


def _larger(known: LogProbs, turn: int, stored: Sequence[float], again: Sequence[float]) -> LogProbs:
    """Return what is known of log-probs with those of one more turn."""
    gaps = [new - old for old, new in zip(stored, again, strict=True)]
    token = max(range(len(gaps)), key=lambda place: abs(gaps[place]))
    larger = abs(gaps[token]) > abs(known.largest)
    return LogProbs(
        known.compared + len(gaps),
        known.equal + gaps.count(0.0),
        gaps[token] if larger else known.largest,
        turn if larger else known.turn,
        token if larger else known.token,
    )


def _beyond(turn: int, stored: Sequence[float], again: Sequence[float], tolerance: float) -> Difference | None:
    for place, (old, new) in enumerate(zip(stored, again, strict=True)):
        if abs(new - old) > tolerance:
            return Difference(Part.LOG_PROBS, turn, "log-prob", f"{old:.6f}", f"{new:.6f}", place)
    return None
