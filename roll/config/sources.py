"""Where a key was written: the YAML file and line, or the command line.

Hydra and OmegaConf forget the origin of a value once files are merged, so the files are read once more, only to find
out where a faulty key stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import yaml

from roll.config.shipped import shipped_configs

Lines = dict[tuple[str, ...], int]


class Sources:
    """The YAML files and command-line overrides that made a configuration."""

    def __init__(
        self,
        files: Sequence[tuple[str, Lines]] = (),
        overrides: Sequence[str] = (),
        label: str = "",
        by: str = "command line",
    ) -> None:
        self._by = by
        self._files = list(files)
        self._overrides = list(overrides)
        self._label = label

    @classmethod
    def of(cls, source: str | None, overrides: Sequence[str] = (), by: str = "command line") -> Sources:
        """Read the primary file ``source`` and the files that its defaults list names, as far as they can be read.

        Args:
            source: Path of the primary YAML file; any other text is used as it is, as a name for the whole.
            overrides: Overrides as written on the command line.
            by: Where the overrides were given.
        """
        if source is None or not Path(source).is_file():
            return cls((), overrides, source or "", by)
        primary, *others = composed_files(Path(source))
        files = [(shown_path(path), _lines(path)) for path in (primary, *_chosen(primary, overrides), *others)]
        return cls(files, overrides, shown_path(Path(source)), by)

    def origin(self, path: Sequence[str]) -> str | None:
        """Return what :meth:`locate` does without the value, which may be long, or a secret."""
        place = self.locate(path)
        if place is None or not place.startswith(f"{self._by}: "):
            return place
        key = place.removeprefix(f"{self._by}: ").lstrip("+~").partition("=")[0]
        return self._by if key == ".".join(path) else f"{self._by}: {key}"

    def locate(self, path: Sequence[str]) -> str | None:
        """Return where the key at ``path`` was written, or where the closest part above it was."""
        for depth in range(len(path), 0, -1):
            place = self._at(tuple(path[:depth]))
            if place is not None:
                return place
        return self._label or None

    def within(self, sections: Iterable[tuple[str, ...]]) -> Sources:
        """Return the same for what is a configuration by itself: a section laid over what is beside it.

        Args:
            sections: The paths by which the section may be named.
        """
        return _Within(self, tuple(sections))

    def _at(self, key: tuple[str, ...]) -> str | None:
        """Return where this very key was written."""
        for override in reversed(self._overrides):
            if tuple(override.lstrip("+~").partition("=")[0].split(".")) == key:
                return f"{self._by}: {override.removeprefix('++')}"
        for name, lines in self._files:
            if key in lines:
                return f"{name}:{lines[key]}"
        return None


class _Within(Sources):
    """The origins of a section that is laid over its surroundings."""

    def __init__(self, whole: Sources, sections: tuple[tuple[str, ...], ...]) -> None:
        super().__init__(whole._files, whole._overrides, whole._label, whole._by)
        self._sections = sections

    def _at(self, key: tuple[str, ...]) -> str | None:
        places = (super(_Within, self)._at((*section, *key)) for section in self._sections)
        return next((place for place in places if place is not None), None) or super()._at(key)


def shown_path(path: Path) -> str:
    """Return the path from the working directory where it lies below that."""
    resolved = path.resolve()
    here = Path.cwd()
    return str(resolved.relative_to(here)) if resolved.is_relative_to(here) else str(resolved)


def composed_files(primary: Path, seen: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield ``primary``, then what it builds on; files that only Hydra's search path would find are left out."""
    yield primary
    for entry in reversed(_defaults(primary)):
        name = entry.removeprefix("/")
        file = f"{name.removesuffix('.yaml')}.yaml"
        path = next((path for folder in _folders(primary) if (path := folder / file).is_file()), None)
        if path is not None and path.resolve() not in seen:
            yield from composed_files(path, seen | {path.resolve()})


def listed_stages(primary: Path) -> list[str]:
    """Return the names of the stages of a configuration that lists them; none where they are a mapping."""
    for path in composed_files(primary):
        content = _load(path)
        for key, value in [] if content is None else content.value:
            if key.value == "stages":
                sections = value.value if isinstance(value, yaml.SequenceNode) else []
                pairs = [section.value if isinstance(section, yaml.MappingNode) else [] for section in sections]
                return [next((str(its.value) for name, its in each if name.value == "name"), "") for each in pairs]
    return []


def _defaults(path: Path) -> list[str]:
    content = _load(path)
    return [] if content is None else entries_of(content)


def entries_of(content: yaml.MappingNode) -> list[str]:
    """Return the names in the defaults list of a file."""
    for key, value in content.value:
        if key.value == "defaults" and isinstance(value, yaml.SequenceNode):
            return [name for item in value.value for name in _names(item) if name != "_self_"]
    return []


def _names(item: yaml.Node) -> Iterator[str]:
    """Yield the files that an entry of a defaults list names: ``file``, or ``group: file``."""
    if isinstance(item, yaml.ScalarNode):
        yield _without_package(item.value)
    elif isinstance(item, yaml.MappingNode):
        for group, option in item.value:
            if isinstance(group, yaml.ScalarNode) and isinstance(option, yaml.ScalarNode):
                yield f"{_without_package(group.value)}/{option.value}"


def _without_package(entry: str) -> str:
    """Return the name in an entry, without ``optional``, ``override`` and what follows ``@``."""
    return (entry.partition("@")[0].split() or [""])[-1]


def _folders(primary: Path) -> tuple[Path, Path]:
    return primary.parent, shipped_configs()


def _chosen(primary: Path, overrides: Sequence[str]) -> Iterator[Path]:
    """Yield the files that overrides choose: ``actor_train/strategy=deepspeed_zero2``."""
    for override in overrides:
        group, equals, option = override.lstrip("+").partition("=")
        for folder in _folders(primary) if equals and "/" in group else ():
            if (folder / group / f"{option}.yaml").is_file():
                yield folder / group / f"{option}.yaml"
                break


def _lines(path: Path) -> Lines:
    found: Lines = {}
    content = _load(path)
    if content is not None:
        _collect(content, (), found)
    return found


@lru_cache(maxsize=128)
def nodes(text: str) -> yaml.Node | None:
    """Return what YAML holds, with line numbers, ``None`` for nothing; nobody may change it.

    A file is asked for many times while a configuration is loaded, and the shipped ones by all that are.

    Raises:
        yaml.YAMLError: It is none.
    """
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    return node


def _load(path: Path) -> yaml.MappingNode | None:
    try:
        node = nodes(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError):
        # The origin of a key is a courtesy: Hydra, which read the same file, reports one that cannot be read.
        return None
    return node if isinstance(node, yaml.MappingNode) else None


def _collect(node: yaml.Node, path: tuple[str, ...], found: Lines) -> None:
    if isinstance(node, yaml.MappingNode):
        items = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        items = [(str(index), value, value) for index, value in enumerate(node.value)]
    else:
        return
    for name, marked, value in items:
        found[(*path, name)] = marked.start_mark.line + 1
        _collect(value, (*path, name), found)
