"""The environment interface: Gymnasium's own, with text in and text out."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np

from roll.envs.errors import EnvConfigError, EpisodeNotRunningError
from roll.envs.spaces import any_text

DEFAULT_ACTION_PATTERN = r"<answer>(.*?)</answer>"
THINK_ACTION_PATTERN = r"<think>(.*?)</think>\s*<answer>(.*?)</answer>"

RenderFrame = str | np.ndarray
"""Board text (``ansi``), or an image ``uint8 [height, width, 3]`` (``rgb_array``)."""


class Outcome(NamedTuple):
    """What an action did; returned by :meth:`TextEnv.act`.

    Attributes:
        observation: The text the policy sees next.
        reward_parts: Reward by name; their sum is the reward.
        terminated: Whether the episode is over.
        success: Whether the task is solved.
        effective: Whether the action changed anything.
        metrics: Further numbers for ``info["metrics"]``.
    """

    observation: str
    reward_parts: dict[str, float]
    terminated: bool = False
    success: bool = False
    effective: bool = True
    metrics: Mapping[str, float] | None = None


class TextEnv(gymnasium.Env[str, str]):
    """A Gymnasium environment whose observations and actions are text.

    A subclass implements two methods: :meth:`start` (a new episode, its first observation) and :meth:`act` (one valid
    action). This class does the rest: seeds, parsing, format penalty, step limit, metrics. A subclass may instead
    override ``reset`` and ``step`` as in any Gymnasium environment, if it fills ``info`` as described in :meth:`step`.

    Randomness comes from ``self.np_random`` only, so that a seed fixes the episode.

    Args:
        actions: Names of the valid actions, matched case-insensitively; ``None`` when an action is free text.
        action_pattern: Regular expression that finds the action in a response: the last group of the last match. Empty
            or ``None``: the whole response is the action.
        format_penalty: Added to the reward of a response without a valid action; at most 0.
        worst_reward: The least that a valid action may earn; at most 0. A response without a valid action earns it too,
            format penalty apart, so that an episode that never answers earns no more than any that plays. An action
            that earns less is an error.
        max_steps: The episode is truncated after so many steps; ``None`` for no limit.
        env_instruction: Replaces the generated :attr:`instruction`.
        render_mode: ``"ansi"`` (board text), ``"rgb_array"`` (an image) or ``None``.
        observation_space: Space of the observations; by default any text.
        metrics_agg: How each further metric is aggregated over the episode: ``last`` (the default), ``mean``,
            ``sum`` or ``max``.

    Raises:
        EnvConfigError: If an option cannot work.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}

    STANDARD_METRICS: ClassVar[dict[str, str]] = {
        "success": "last",
        "action_is_valid": "mean",
        "action_is_effective": "mean",
        "format_penalty": "sum",
    }

    is_quick: ClassVar[bool] = False
    """Whether ``reset`` and ``step`` compute for a millisecond at most and never wait.

    They are then called in the event loop: in a thread they would cost more, and wait for the same interpreter lock. No
    time-out can end such a call. A subclass that waits must take it back.
    """

    has_own_luck: bool = False
    """Whether the members of a group, who start alike, have luck of their own from then on.

    ``reset`` then takes the option ``member``, the number of an episode in its group.
    """

    initial_seed: int | None = None
    """Used once, by the first ``reset`` that gets no seed (set by ``roll.envs.make(tag, seed=...)``)."""

    def __init__(
        self,
        *,
        actions: Sequence[str] | None = None,
        action_pattern: str | None = DEFAULT_ACTION_PATTERN,
        format_penalty: float = 0.0,
        worst_reward: float = -1.0,
        max_steps: int | None = None,
        env_instruction: str | None = None,
        render_mode: str | None = "ansi",
        observation_space: gymnasium.spaces.Text | None = None,
        metrics_agg: Mapping[str, str] | None = None,
    ) -> None:
        self.render_mode = self._checked_render_mode(render_mode)
        self.max_steps = _positive_or_none("max_steps", max_steps)
        self.format_penalty = _not_positive("format_penalty", format_penalty)
        self.worst_reward = _not_positive("worst_reward", worst_reward)
        self.action_pattern = action_pattern or ""
        self.actions = None if actions is None else tuple(actions)
        self.action_space = any_text()
        self.observation_space = observation_space or any_text()
        self._instruction = env_instruction
        self._pattern = _compiled(self.action_pattern)
        self._names = _lowercase_names(self.actions)
        self._metrics_agg = _checked_aggregation({**self.STANDARD_METRICS, **(metrics_agg or {})})
        self._observation = ""
        self._steps = 0
        self._running = False

    # What a subclass writes -------------------------------------------------------------------------------------

    def start(self) -> str:
        """Begin an episode with randomness from ``self.np_random``; return the first observation."""
        raise NotImplementedError(f"{type(self).__name__} must implement start() -> str, or override reset()")

    def act(self, action: str) -> Outcome:
        """Apply one valid action (a name of ``actions``, or free text) and say what it did."""
        raise NotImplementedError(f"{type(self).__name__} must implement act(action) -> Outcome, or override step()")

    def idle(self) -> dict[str, float]:
        """Return the reward parts of a step whose response had no valid action, format penalty apart.

        By default what the worst valid action would earn. Where this is overridden, an episode of such steps must earn
        no more than any other, or the policy learns to be silent.
        """
        return {"idle": self.worst_reward} if self.worst_reward else {}

    def state_metrics(self) -> dict[str, float]:
        """Return further metrics that depend on the state alone; reported after every step, valid or not."""
        return {}

    def solution(self) -> Sequence[str] | None:
        """Return actions that solve the running episode from where it stands; ``None`` where that is not known.

        Training never asks. A certificate does, to tell a hard environment from one that nobody can solve, and
        ``roll envs play`` shows it as a hint.
        """
        return None

    def difficulty(self, seed: int) -> float:
        """Return how difficult the level of a seed is, always the same; larger is harder. Begins an episode of it.

        A curriculum orders the levels of a tag by it (``train_env_manager.curriculum.difficulty``).

        Raises:
            NotImplementedError: The environment does not tell.
        """
        raise NotImplementedError(f"{type(self).__name__} does not tell the difficulty of its levels")

    def describe(self) -> str:
        """Return the rules and the legend; :attr:`instruction` adds the actions and the answer format."""
        return (type(self).__doc__ or "").strip().split("\n\n")[0]

    def image(self) -> np.ndarray:
        """Return a picture of the state, ``uint8 [height, width, 3]``; by default the observation as typed text."""
        from roll.envs.tiles import text_image

        return text_image(self._observation)

    # Gymnasium -----------------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin a new episode.

        Args:
            seed: Fixes the episode; ``None`` continues the generator of the last reset (or, in the first reset, uses
                :attr:`initial_seed`).
            options: ``member`` where :attr:`has_own_luck`; any other key is an error.

        Returns:
            The first observation, and ``info`` with the same keys as in :meth:`step` (no action yet).
        """
        self._seeded(seed)
        return self._begun(self._start(options))

    def _seeded(self, seed: int | None) -> None:
        """Prepare a new episode."""
        if seed is None and self.initial_seed is not None:
            seed = self.initial_seed
        self.initial_seed = None
        super().reset(seed=seed)
        self._steps = 0

    def _begun(self, observation: str) -> tuple[str, dict[str, Any]]:
        """Return what :meth:`reset` does once the first observation is there."""
        self._observation = observation
        self._running = True
        metrics = {"success": 0.0, "action_is_valid": 0.0, "action_is_effective": 0.0, "format_penalty": 0.0}
        metrics.update(self.state_metrics())
        info = {"action": None, "reward_parts": {}, "metrics": metrics, "metrics_agg": self._metrics_agg.copy()}
        return self._observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the whole response of the policy.

        A response without a valid action changes nothing, earns :meth:`idle` and :attr:`format_penalty`, and still
        counts as a step.

        Args:
            action: The response; :meth:`parse_action` finds the action in it.

        Returns:
            Observation, reward, ``terminated``, ``truncated`` (the step limit) and ``info``:

            * ``action``: the name of the action that was understood, or ``None``;
            * ``reward_parts``: the reward by name, summing to the reward;
            * ``metrics``: numbers of this step, always with ``success``, ``action_is_valid``,
              ``action_is_effective`` and ``format_penalty``;
            * ``metrics_agg``: how each is aggregated over an episode: ``last``, ``mean``, ``sum`` or ``max``.

        Raises:
            EpisodeNotRunningError: If there is no running episode.
            TypeError: If the response is not a string.
            EnvConfigError: If a valid action earns less than :attr:`worst_reward`.
        """
        name = self._understood(action)
        return self._taken(name, None if name is None else self.act(name))

    def _understood(self, response: str) -> str | None:
        """Return the action of a response to a running episode."""
        if not self._running:
            raise EpisodeNotRunningError(f"{type(self).__name__}.step: no running episode; call reset() first")
        if not isinstance(response, str):
            raise TypeError(
                f"{type(self).__name__}.step takes the response as text, got {type(response).__name__}: {response!r}"
            )
        return self.parse_action(response)

    def _taken(self, name: str | None, outcome: Outcome | None) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return what :meth:`step` does after an action, or after a response without one."""
        penalty = 0.0
        if name is None or outcome is None:
            parts = self.idle()
            if self.format_penalty:
                parts["format"] = penalty = self.format_penalty
            terminated = success = effective = False
            extra = None
        else:
            self._observation, parts, terminated, success, effective, extra = outcome
            self._check_worst(name, sum(parts.values()))
        self._steps += 1
        truncated = not terminated and self.max_steps is not None and self._steps >= self.max_steps
        self._running = not (terminated or truncated)
        metrics = {
            "success": 1.0 if success else 0.0,
            "action_is_valid": 0.0 if name is None else 1.0,
            "action_is_effective": 1.0 if effective else 0.0,
            "format_penalty": penalty,
        }
        metrics.update(self.state_metrics())
        if extra:
            metrics.update(extra)
            for key in extra:
                self._metrics_agg.setdefault(key, "last")
        info = {"action": name, "reward_parts": parts, "metrics": metrics, "metrics_agg": self._metrics_agg.copy()}
        return self._observation, float(sum(parts.values())), terminated, truncated, info

    def render(self) -> RenderFrame | None:
        """Return the state as :attr:`render_mode` says: text, image, or ``None`` without a mode."""
        if self.render_mode == "ansi":
            return self._observation
        if self.render_mode == "rgb_array":
            return self.image()
        return None

    # Text ----------------------------------------------------------------------------------------------------------

    def parse_action(self, response: str) -> str | None:
        """Return the action in a response, spelled as in ``actions``; ``None`` when there is no valid one.

        The last match of :attr:`action_pattern` counts, and in it the last group (so that a pattern may capture the
        thoughts first). The text is stripped, and compared without regard to case.
        """
        if self._pattern is None:
            text = response
        else:
            matches = self._pattern.findall(response)
            if not matches:
                return None
            last = matches[-1]
            text = last if isinstance(last, str) else last[-1]
        text = text.strip()
        if self._names is None:
            return text or None
        return self._names.get(text.lower())

    def response_with(self, action: str) -> str | None:
        """Return a response in which :meth:`parse_action` finds ``action``, or ``None`` if none could be made up."""
        if not self._pattern:
            return action
        for response in (_example_of(self.action_pattern, action), f"<answer>{action}</answer>", action):
            if response is not None and self.parse_action(response) == action:
                return response
        return None

    @property
    def instruction(self) -> str:
        """What the policy is told once: rules, legend, actions and how to answer."""
        if self._instruction is None:
            lines = [self.describe()]
            if self.actions is not None:
                lines.append(f"Actions: {', '.join(self.actions)}.")
            lines.append(self._answer_format())
            self._instruction = "\n".join(line for line in lines if line)
        return self._instruction

    def _answer_format(self) -> str:
        sample = self.actions[0] if self.actions else "your answer"
        if not self._pattern:
            return f"Answer with the action alone, for example: {sample}" if self.actions else ""
        example = _example_of(self.action_pattern, sample)
        if example is None:
            return f"Your answer must match the regular expression {self.action_pattern}"
        return f"Answer in this format: {example}"

    def _check_worst(self, action: str, reward: float) -> None:
        """Refuse a reward below the charge of silence, unless the environment sets that charge itself."""
        tolerance = 1e-9 * max(1.0, abs(reward))  # -0.1 - 0.2 is a little less than -0.3
        if reward < self.worst_reward - tolerance and type(self).idle is TextEnv.idle:
            least = f"super().__init__(worst_reward={reward:g}, …)"
            if "worst" in inspect.signature(type(self).__init__).parameters:  # adapters let the user say it
                least = f"worst: {reward / getattr(self, 'reward_scale', 1.0):g} in env_config"
            raise EnvConfigError(
                f"{type(self).__name__}: action {action!r} earned {reward:g}, less than a response without a valid "
                f"action ({self.worst_reward:g}), so that the policy would learn to be silent. Give the least that a "
                f"valid action may earn: {least}."
            )

    def _start(self, options: dict[str, Any] | None) -> str:
        member = self._member(options)
        observation = self.start()
        self._draw_luck(member)
        return observation

    def _member(self, options: dict[str, Any] | None) -> int | None:
        """Return the number of the episode in its group, if that is told and of interest."""
        given = dict(options or {})
        member = given.pop("member", None) if self.has_own_luck else None
        if given:
            known = "member alone" if self.has_own_luck else "none"
            raise EnvConfigError(f"{type(self).__name__}.reset: unknown options {sorted(given)}; it takes {known}")
        return member

    def _draw_luck(self, member: int | None) -> None:
        """Give a member randomness of its own for all that follows the first observation."""
        if member is not None:
            self.np_random = np.random.default_rng([int(self.np_random.integers(2**63)), member])

    def _checked_render_mode(self, mode: str | None) -> str | None:
        if mode is not None and mode not in self.metadata["render_modes"]:
            raise EnvConfigError(
                f"render_mode={mode!r}: use one of {', '.join(self.metadata['render_modes'])}, or None"
            )
        return mode


def _checked_aggregation(aggregation: dict[str, str]) -> dict[str, str]:
    for metric, how in aggregation.items():
        if how not in ("last", "mean", "sum", "max"):
            raise EnvConfigError(f"metrics_agg: {metric!r} is aggregated by {how!r}; use last, mean, sum or max")
    return aggregation


def _compiled(pattern: str) -> re.Pattern[str] | None:
    if not pattern:
        return None
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise EnvConfigError(f"action_pattern={pattern!r} is not a regular expression: {error}") from error


def _example_of(pattern: str, action: str) -> str | None:
    """Return a response that ``pattern`` accepts with ``action``, or ``None`` when it is too clever to guess."""
    pieces = re.split(r"\(?\.[*+]\??\)?", pattern.removeprefix("^").removesuffix("$"))
    if len(pieces) < 2:
        return None
    example = ("your thoughts".join(pieces[:-1]) + action + pieces[-1]).replace(r"\s*", "")
    matches = re.findall(pattern, example, re.DOTALL)
    # What is left of the regular expression must be literal text, and must lead back to the action.
    if re.search(r"[\\\[\](){}*+?|^$]", example) or not matches:
        return None
    return example if action in (matches[-1], matches[-1][-1]) else None


def _lowercase_names(actions: tuple[str, ...] | None) -> dict[str, str] | None:
    if actions is None:
        return None
    names = {str(name).strip().lower(): str(name) for name in actions}
    if len(names) != len(actions) or "" in names:
        raise EnvConfigError(
            f"action names {list(actions)} must be non-empty and differ by more than upper and lower case"
        )
    return names


def _positive_or_none(option: str, value: int | None) -> int | None:
    if value is not None and int(value) < 1:
        raise EnvConfigError(f"{option}={value}: must be at least 1, or None for no limit")
    return None if value is None else int(value)


def _not_positive(option: str, value: float) -> float:
    if not math.isfinite(value) or value > 0:
        raise EnvConfigError(
            f"{option}={value}: it is added to the reward, so use 0 or a negative number such as -0.15"
        )
    return float(value)
