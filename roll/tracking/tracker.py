"""Where metrics go: the tracker protocol, the registry of trackers and the one a pipeline holds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from roll.config.trackers import TRACKERS


@runtime_checkable
class Tracker(Protocol):
    """Receives the metrics of a run.

    A tracker is made by ``factory(log_dir=…, resume_step=…, **kwargs)``: the directory it may write to (created), the
    step the run resumes from (``None`` for a fresh run; what was logged for later steps is then superseded), and
    whatever ``tracker_kwargs`` holds for it.
    """

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record ``metrics`` for training step ``step``; a step may be logged in several parts."""
        ...

    def close(self) -> None:
        """Write out everything; may be called twice."""
        ...


@runtime_checkable
class ConfigTracker(Protocol):
    """A tracker that also keeps what the run was configured with; others need no such method."""

    def log_config(self, config: Mapping[str, Any], text: str) -> None:
        """Record the configuration, once before the first metrics.

        Args:
            config: Every key in nested sections, as plain values.
            text: The same as YAML, with where each key came from, the command and the versions.
        """
        ...


@runtime_checkable
class NoteTracker(Protocol):
    """A tracker that also keeps words; others need no such method."""

    def log_note(self, text: str, step: int) -> None:
        """Record something a person should know of a training step."""
        ...


TrackerFactory = Callable[..., Tracker]
_Factory = TypeVar("_Factory", bound=TrackerFactory)


def register_tracker(name: str) -> Callable[[_Factory], _Factory]:
    """Make a tracker class (or factory function) available as ``track_with: <name>``.

    A configuration names its module in ``tracker_modules``.

    Raises:
        DuplicateNameError: The name is taken by another factory.

    Example:
        >>> @register_tracker("nothing")
        ... class NothingTracker:
        ...     def __init__(self, *, log_dir, resume_step): ...
        ...     def log(self, metrics, step): ...
        ...     def close(self): ...
    """
    return TRACKERS.register(name)


class CompositeTracker:
    """Sends everything to several trackers. The only tracker a pipeline holds; with none it is a no-op."""

    def __init__(self, trackers: Iterable[Tracker] = ()) -> None:
        self.trackers = list(trackers)

    def path(self, kind: type) -> Path | None:
        """Return where the tracker of this class writes, ``None`` where there is none."""
        return next((tracker.path for tracker in self.trackers if isinstance(tracker, kind)), None)  # type: ignore[attr-defined]

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log to every tracker, in the order of ``track_with``."""
        for tracker in self.trackers:
            tracker.log(metrics, step)

    def log_config(self, config: Mapping[str, Any], text: str) -> None:
        """Hand the configuration to every tracker that takes it; see :class:`ConfigTracker`."""
        for tracker in self.trackers:
            if isinstance(tracker, ConfigTracker):
                tracker.log_config(config, text)

    def log_note(self, text: str, step: int) -> None:
        """Hand words to every tracker that takes them; see :class:`NoteTracker`."""
        for tracker in self.trackers:
            if isinstance(tracker, NoteTracker):
                tracker.log_note(text, step)

    def close(self) -> None:
        """Close every tracker, also when one of them fails; the first failure is raised at the end."""
        failure: Exception | None = None
        for tracker in self.trackers:
            try:
                tracker.close()
            except Exception as error:  # every tracker gets its chance to write out before this one is reported
                failure = failure or error
        if failure is not None:
            raise failure

    def __enter__(self) -> CompositeTracker:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()


def make_trackers(
    track_with: str | Sequence[str] | None,
    *,
    log_dir: str | Path,
    resume_step: int | None = None,
    tracker_kwargs: Mapping[str, Any] | None = None,
) -> CompositeTracker:
    """Make the trackers of a run.

    Args:
        track_with: A name, several, or none (``None``, ``""``, ``[]``).
        log_dir: Directory the trackers write under; created.
        resume_step: Step the run resumes from, ``None`` for a fresh run.
        tracker_kwargs: Arguments for the trackers. A key that is the name of a tracker in ``track_with`` holds that
            tracker's own arguments (``{"wandb": {"project": "roll"}}``); those of one that is not in it wait until it
            is. Any other key goes to the trackers that name
            it as a parameter, else to those that take any argument.

    Returns:
        One tracker that logs to all of them.

    Raises:
        ValueError: A name is unknown or given twice, or an argument is taken by none of the trackers.
        ImportError: A tracker needs a package that is not installed; the message names it.
    """
    arguments = tracker_arguments(track_with, tracker_kwargs)
    names = list(arguments)
    directory = Path(log_dir)
    if names:
        directory.mkdir(parents=True, exist_ok=True)
    composite = CompositeTracker()
    try:
        for name in names:
            given = {"log_dir": directory, "resume_step": resume_step} | arguments[name]
            composite.trackers.append(TRACKERS.get(name)(**given))
    except BaseException:
        composite.close()
        raise
    return composite


def tracker_arguments(
    track_with: str | Sequence[str] | None, tracker_kwargs: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the arguments of each tracker, in the order of ``track_with``; see :func:`make_trackers`. Makes none.

    Raises:
        ValueError: A name is unknown or given twice, or an argument is taken by none of the trackers.
    """
    names = [track_with] if isinstance(track_with, str) else list(track_with or ())
    names = [name for name in names if name]
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"track_with: {TRACKERS.unknown(name)}")
    if len(set(names)) < len(names):
        raise ValueError(f"track_with names a tracker twice: {', '.join(names)}")
    return _share_arguments(names, tracker_kwargs or {})


def _share_arguments(names: Sequence[str], tracker_kwargs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the arguments of each tracker; see ``tracker_kwargs`` of :func:`make_trackers`."""
    arguments: dict[str, dict[str, Any]] = {name: {} for name in names}
    parameters = {name: inspect.signature(TRACKERS.get(name)).parameters for name in names}
    for key, value in tracker_kwargs.items():
        if key in names and isinstance(value, Mapping):
            arguments[key].update(value)
            continue
        if key in TRACKERS and isinstance(value, Mapping):
            # Of a tracker that is not asked for now.
            continue
        takers = [name for name in names if key in parameters[name]] or [
            name
            for name in names
            if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters[name].values())
        ]
        if not takers and names:
            raise ValueError(
                f"tracker_kwargs: none of {', '.join(names)} takes {key!r}; "
                "remove it, or nest it under the name of the tracker it is for"
            )
        for name in takers:
            arguments[name][key] = value
    return arguments
