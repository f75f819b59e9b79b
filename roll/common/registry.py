"""Names for things that others may add: environments, algorithms, verifiers, trackers, strategies, pipelines."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

from roll.common.spelling import closest, did_you_mean

Thing = TypeVar("Thing")
Defined = TypeVar("Defined")

_OURS = __name__.partition(".")[0]


class UnknownNameError(ValueError, LookupError):
    """Nothing is registered under a name; the message lists the known ones, the nearest first.

    Attributes:
        name: What was asked for.
        nearest: The known name that looks most like it, if any does.
    """

    name: str = ""
    nearest: str | None = None


class DuplicateNameError(ValueError):
    """A name is registered already for something else; the message names both places."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is defined.

    Attributes:
        module: The module's name.
        qualname: The name inside of the module; empty for a value, which has none.
        file: The source file, where there is one.
        line: The line of a value, or of a function; 0 where it is not known.
    """

    module: str
    qualname: str = ""
    file: str | None = None
    line: int = 0

    @classmethod
    def of(cls, definition: Any) -> Place:
        """Return where a class or a function is defined."""
        try:
            file = inspect.getsourcefile(definition)
        except (TypeError, OSError):
            file = None
        code = getattr(inspect.unwrap(definition), "__code__", None)
        line = 0 if code is None else code.co_firstlineno
        return cls(definition.__module__, definition.__qualname__, file and str(Path(file).resolve()), line)

    @classmethod
    def of_caller(cls) -> Place:
        """Return the running line that registers something: that of a module of ours, or of somebody else's code."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_name != "<module>" and _is_ours(_module_of(frame)):
            frame = frame.f_back
        file = frame.f_code.co_filename
        path = str(Path(file).resolve()) if Path(file).exists() else file
        return cls(_module_of(frame), "", path, frame.f_lineno)

    @property
    def is_built_in(self) -> bool:
        """Whether it is part of this package."""
        return _is_ours(self.module)

    def is_same(self, other: Place) -> bool:
        """Whether both are one definition, read more than once: a cell or a module run again, or a script imported."""
        if self.qualname != other.qualname or (not self.qualname and self.line != other.line):
            return False
        return self.module == other.module or (self.file is not None and self.file == other.file)

    def __str__(self) -> str:
        """Render for people: ``mine.Class (/home/me/mine.py, line 3)``."""
        name = f"{self.module}.{self.qualname}" if self.qualname else self.module
        where = ", ".join([*([self.file] if self.file else []), *([f"line {self.line}"] if self.line else [])])
        return f"{name} ({where})" if where else name


@dataclass(frozen=True, slots=True)
class Registration(Generic[Thing]):
    """One name.

    Attributes:
        name: The name.
        thing: What it stands for; ``None`` while it is not loaded.
        place: Where that is defined.
        is_built_in: Whether it comes with this package.
        path: What is to be imported first: ``module:attribute``, or a module that registers the name itself.
        of_configuration: Whether a configuration defines it, so that it is forgotten when its run has ended.
        hides: What had the name before, of such a one.
    """

    name: str
    thing: Thing | None
    place: Place
    is_built_in: bool
    path: str | None = None
    of_configuration: bool = False
    hides: Registration[Thing] | None = None


class Registry(Generic[Thing]):
    """Things of one kind by name. Readers never wait: writers take a lock and replace the whole mapping.

    A name stands for one thing. What is registered again from the same place (a notebook's cell that runs once more, a
    module that is reloaded, a script that its own helper imports), or is equal, takes the place of the old one.
    """

    def __init__(
        self,
        kind: str,
        *,
        built_in: Mapping[str, str] | None = None,
        modules: Sequence[str] = (),
        advice: str = "",
        unknown: type[UnknownNameError] = UnknownNameError,
        duplicate: type[DuplicateNameError] = DuplicateNameError,
        may_replace: bool = False,
    ) -> None:
        """Start with the built-in names; nothing is imported yet.

        Args:
            kind: What the things are, for messages (``loss``).
            built_in: What to import when a name is first used: ``module:attribute``, or a module that registers the
                name itself when it is imported.
            modules: Modules that register further built-in names; imported when names are first looked up or listed.
            advice: A sentence for whoever used an unknown name; ``{name}`` stands for it.
            unknown: Raised for an unknown name.
            duplicate: Raised where a name is taken.
            may_replace: Whether users can pass ``replace=True``, so that the message may say so.
        """
        self.kind = kind
        self._advice = advice
        self._unknown = unknown
        self._duplicate = duplicate
        self._way_out = ", or pass replace=True to redefine it" if may_replace else ""
        _registries.add(self)
        self._lock = threading.RLock()
        self._entries: dict[str, Registration[Thing]] = {}
        self._modules = tuple(modules)
        for name, path in (built_in or {}).items():
            self.add_path(name, path)

    def register(self, name: str) -> Callable[[Defined], Defined]:
        """Return a decorator that registers a class or a function under ``name``; see :meth:`add`."""

        def decorate(definition: Defined) -> Defined:
            self.add(name, definition)  # type: ignore[arg-type]  # the decorated thing is one of the registry's
            return definition

        return decorate

    def add(
        self,
        name: str,
        thing: Thing,
        *,
        definition: Any = None,
        place: Place | None = None,
        replace: bool = False,
        is_built_in: bool | None = None,
    ) -> None:
        """Register ``thing`` under ``name``.

        Args:
            name: The name.
            thing: What it stands for.
            definition: The class or function that ``thing`` describes, where it is a record of one: it says where the
                thing comes from. By default that is ``thing`` itself, or the calling line if it is a value.
            place: Where the thing comes from, instead.
            replace: Whether the name may stand for something else already.
            is_built_in: Whether the thing comes with this package; by default its place says so.

        Raises:
            DuplicateNameError: The name is taken.
        """
        if place is None:
            subject = thing if definition is None else definition
            place = Place.of(subject) if hasattr(subject, "__qualname__") else Place.of_caller()
        built_in = place.is_built_in if is_built_in is None else is_built_in
        self._put(Registration(name, thing, place, built_in), replace)

    def configure(self, name: str, thing: Thing, place: str) -> None:
        """Register what a configuration defines, whatever has the name; see :func:`names_of_configurations_end`.

        Args:
            name: The name.
            thing: What it stands for.
            place: The key that defines it.
        """
        with self._lock:
            hidden = self._known().get(name)
            self._put(Registration(name, thing, Place(place), False, None, True, hidden), replace=True)

    def forget_configured(self, before: Mapping[str, Registration[Thing]]) -> None:
        """Give names back that configurations took since ``before``; what modules registered meanwhile stays."""
        with self._lock:
            standing = {name: _not_configured(entry, before.get(name)) for name, entry in self._entries.items()}
            self._entries = {name: entry for name, entry in standing.items() if entry is not None}

    def entries(self) -> Mapping[str, Registration[Thing]]:
        """Return every registration by name, as it stands now; names of modules not yet asked for are left out."""
        return self._entries

    def add_path(self, name: str, path: str, *, replace: bool = False) -> None:
        """Register what is imported when ``name`` is first used; ``path`` is as in ``built_in`` of the constructor.

        Raises:
            DuplicateNameError: The name is taken.
        """
        module, _, attribute = path.partition(":")
        place = Place(module, attribute)
        self._put(Registration(name, None, place, place.is_built_in, path), replace)

    def _put(self, new: Registration[Thing], replace: bool) -> None:
        with self._lock:
            old = self._entries.get(new.name)
            if old is not None and not replace and not _may_replace(old, new):
                raise self._duplicate(
                    f"{self.kind} {new.name!r} is already registered by {old.place}: "
                    f"choose another name for {new.place}{self._way_out}."
                )
            self._entries = {**self._entries, new.name: new}

    def get(self, name: str) -> Thing:
        """Return what is registered under ``name``, importing it now if it was named only.

        Raises:
            UnknownNameError: Nothing is.
            ImportError: It cannot be imported.
        """
        entry = self._known().get(name)
        if entry is None:
            raise self.unknown(name)
        return self._load(entry) if entry.thing is None else entry.thing

    def _known(self) -> Mapping[str, Registration[Thing]]:
        """Return all entries, those of the package's modules included."""
        if self._modules:
            # One may look a name up while it is imported.
            modules, self._modules = self._modules, ()
            for module in modules:
                importlib.import_module(module)
        return self._entries

    def _load(self, entry: Registration[Thing]) -> Thing:
        assert entry.path is not None
        module, _, attribute = entry.path.partition(":")
        imported = importlib.import_module(module)
        if attribute:
            thing: Thing = getattr(imported, attribute)
            with self._lock:
                self._entries = {**self._entries, entry.name: dataclasses.replace(entry, thing=thing)}
            return thing
        found = self._entries[entry.name].thing
        if found is None:
            raise ImportError(f"{module} registers no {self.kind} {entry.name!r} when it is imported.")
        return found

    def unknown(self, name: object, more: Iterable[str] = ()) -> UnknownNameError:
        """Return the error for an unknown name.

        Args:
            name: What was asked for.
            more: Names that are known besides those that are registered.
        """
        known = {*self._known(), *more}
        advice = self._advice.format(name=name)
        error = self._unknown(f"unknown {self.kind} {name!r}. {did_you_mean(name, known)}{' ' * bool(advice)}{advice}")
        error.name, error.nearest = str(name), next(iter(closest(name, known)), None)
        return error

    def remove(self, name: str) -> None:
        """Forget ``name`` (for notebooks; tests use :meth:`restored`).

        Raises:
            UnknownNameError: It is not known.
        """
        with self._lock:
            if name not in self._known():
                raise self.unknown(name)
            self._entries = _without(self._entries, name)

    def names(self) -> list[str]:
        """Return the names, sorted."""
        return sorted(self._known())

    def registrations(self) -> list[Registration[Thing]]:
        """Return every registration, by name; what is named only is not imported."""
        known = self._known()
        return [known[name] for name in sorted(known)]

    def added(self) -> tuple[Registration[Thing], ...]:
        """Return what does not come with this package, to be carried to another process."""
        return tuple(dataclasses.replace(entry, hides=None) for entry in self.registrations() if not entry.is_built_in)

    def install(self, registrations: Iterable[Registration[Thing]]) -> None:
        """Register what :meth:`added` returned in another process, whatever had those names here."""
        for registration in registrations:
            self._put(registration, replace=True)

    @contextmanager
    def restored(self) -> Iterator[Registry[Thing]]:
        """Undo at the end whatever is registered and removed inside (for tests)."""
        before = self._known()
        try:
            yield self
        finally:
            with self._lock:
                # A module that registers its names does that once, so what was loaded inside stays loaded.
                self._entries = {
                    name: _loaded(entry, self._entries.get(name)) if entry.thing is None else entry
                    for name, entry in before.items()
                }

    def __contains__(self, name: object) -> bool:
        """Whether the name is known."""
        return name in self._known()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, sorted."""
        return iter(self.names())

    def __len__(self) -> int:
        """Count the names."""
        return len(self._known())


@contextmanager
def names_of_configurations_end() -> Iterator[None]:
    """Forget at the end the names that configurations define inside, in every registry.

    Names of modules and scripts stay, those that are imported inside too: a module registers its names once.
    """
    before = {registry: registry.entries() for registry in _registries}
    try:
        yield
    finally:
        for registry in list(_registries):
            registry.forget_configured(before.get(registry, {}))


_registries: weakref.WeakSet[Registry[Any]] = weakref.WeakSet()
"""Every registry that is in use."""


def _not_configured(entry: Registration[Thing], before: Registration[Thing] | None) -> Registration[Thing] | None:
    """Return what a name stands for without what configurations made of it since it stood for ``before``."""
    kept: Registration[Thing] | None = entry
    while kept is not None and kept.of_configuration and kept is not before:
        kept = kept.hides
    return kept


def _without(entries: Mapping[str, Registration[Thing]], name: str) -> dict[str, Registration[Thing]]:
    return {key: entry for key, entry in entries.items() if key != name}


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == _OURS


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "__main__"))


def _may_replace(old: Registration[Any], new: Registration[Any]) -> bool:
    """Whether both stand for the same."""
    if old.path is not None and ":" not in old.path:
        # The module registers the name itself.
        return old.place.module == new.place.module
    if old.place.is_same(new.place):
        return True
    return old.thing is not None and bool(old.thing == new.thing)


def _loaded(entry: Registration[Thing], now: Registration[Thing] | None) -> Registration[Thing]:
    return entry if now is None or now.thing is None or not _may_replace(entry, now) else now
