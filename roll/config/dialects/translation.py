"""From any mapping with sections of other guides to one with native keys, and back for what is wrong with it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from roll.common.spelling import nearest
from roll.config.base import ConfigModel
from roll.config.dialects.beside import take
from roll.config.dialects.foreign_keys import ForeignKey, is_typing_mistake, keys_of
from roll.config.dialects.guides import BESIDE, GUIDES
from roll.config.dialects.paths import put, value_at
from roll.config.dialects.rows import Guide, Impossible, Look, Row, Sets, Unused, kl_kind
from roll.config.errors import UNSET, FixableError, Problem
from roll.config.presets import PRESETS, apply_preset
from roll.config.strategies import STRATEGIES
from roll.config.validation import model_at, valid_keys

_AGENTIC_TWINS: Final = {"num_return_sequences_in_group": "train_env_manager.group_size"}
"""Native keys of the RLVR pipeline, and those that mean the same in the agentic pipeline."""

_OF_ENVIRONMENTS: Final = {
    "rewards": "environments grade their own episodes",
    "custom_reward_function": "environments grade their own episodes",
    "validation": "evaluations play the tags of val_env_manager",
}
"""Native sections that only a pipeline of prompts has, and what stands in for them where environments are played."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a user wrote that set a native key.

    Attributes:
        path: The key as written.
        written: Its value.
        value: The value that the native key got.
    """

    path: str
    written: Any
    value: Any


@dataclass(slots=True)
class Translation:
    """A configuration in native keys.

    Attributes:
        data: The native keys, for validation.
        problems: What could not be translated.
        unused: What was accepted and has no effect: the keys as written, by reason.
        notes: What is not quite the same here: the key as written, and a sentence.
        origins: Where the native keys came from that the user wrote under another name.
        given: The keys, in any spelling, that were given as overrides: they win over what files say.
        keys: What became of every key of another system, in the order of the file.
        meant: Native keys that no key of the file says, and that its system means without saying so.
    """

    data: dict[str, Any]
    problems: list[Problem] = field(default_factory=list)
    unused: dict[str, list[str]] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    keys: list[ForeignKey] = field(default_factory=list)
    meant: dict[str, Any] = field(default_factory=dict)

    def is_given(self, path: str) -> bool:
        """Tell whether the key at ``path``, or a section that it is in, was given as an override."""
        return any(path == key or path.startswith(f"{key}.") for key in self.given)

    def caution(self, written: str, reason: str) -> None:
        """Note that the key ``written`` has no effect."""
        keys = self.unused.setdefault(reason, [])
        if written not in keys:
            keys.append(written)

    def cautions(self) -> list[tuple[str, str]]:
        """Return what the user has to know: each with a key as written and a sentence."""
        unused = [(keys[0], f"{', '.join(keys)}: no effect here: {reason}.") for reason, keys in self.unused.items()]
        return [*unused, *((written, f"{written}: {note}.") for written, note in self.notes)]

    def as_written(self, problem: Problem) -> Problem:
        """Return ``problem`` about a native key under the name that the user wrote."""
        keys = problem.path.split(".")
        heads = (".".join(keys[:depth]) for depth in range(len(keys), 0, -1))
        native = next((head for head in heads if head in self.origins), None)
        if native is None or self.origins[native].path == native:
            return problem
        origin = self.origins[native]
        value = problem.value if problem.value is UNSET else origin.written
        meaning = f"Here it means {native}: {_yaml(origin.value)}."
        return replace(problem, path=origin.path, message=f"{problem.message} {meaning}", value=value)

    def caution_as_written(self, caution: str) -> str:
        """Return a caution that begins with a native key under the name that the user wrote."""
        key, colon, text = caution.partition(":")
        origin = self.origins.get(key)
        return caution if origin is None else f"{origin.path}{colon} (here {key}){text}"


def translate(
    data: Mapping[str, Any], kind: type[ConfigModel], given: Iterable[str] = (), whose: Guide | None = None
) -> Translation:
    """Return ``data`` in native keys: sections of other guides translated, presets filled in.

    Args:
        data: Plain values, interpolations resolved.
        kind: The model that will validate them; the same key can stand for another one in another pipeline.
        given: The keys that were given as overrides. Where a native key and a foreign one say different things, the
            override wins; where neither or both are overrides, that is a problem.
        whose: The guide that all of it is written in. ``None``: each section's keys say whose it is.
    """
    found: dict[str, list[_Entry]] = {}
    for beside in BESIDE if whose is None else (whose,) * whose.beside:
        data, taken = take(beside, data, kind)
        if taken:
            found[beside.name] = [_Entry(one.key, one.key, one.row, one.value) for one in taken]
    translation = Translation(dict(data), given=frozenset(given))
    for head in data:
        if whose is None:
            guide = _guide_of(head, data, kind, translation)
        else:
            guide = whose if head in whose.heads and not whose.beside else None
        if guide is not None:
            rest = translation.data.pop(head)
            _collect(guide, head, rest, kind, translation, found)
    if found:
        translation.data = copy.deepcopy(translation.data)
    _apply(found, kind, translation)
    _fill_preset(kind, translation)
    _add_helper_models(translation)
    if whose is not None and whose.dtype is not None:
        _fill_format(whose.dtype, kind, translation)
    return translation


@dataclass(frozen=True, slots=True)
class _Entry:
    """One foreign key: as the guide spells it, as the user wrote it, its row and its value."""

    key: str
    written: str
    row: Row
    value: Any


def _guide_of(head: str, data: Mapping[str, Any], kind: type[ConfigModel], into: Translation) -> Guide | None:
    """Return the guide that the section ``head`` is written in, ``None`` for native keys and keys of nobody."""
    guides = [guide for guide in GUIDES if head in guide.heads]
    value = data[head]
    if not guides:
        return None
    if head in valid_keys(kind) and not (isinstance(value, Mapping) and _is_foreign(head, value, guides, kind)):
        return None
    if len(guides) == 1 or not isinstance(value, Mapping):
        return guides[0]
    return _choose(head, value, data, guides, into)


def _is_foreign(head: str, section: Mapping[str, Any], guides: Sequence[Guide], kind: type[ConfigModel]) -> bool:
    """Tell whether the native section ``head`` holds keys that only a guide knows, or stands for a row of its own."""
    model = model_at(kind, [head])
    native = set(valid_keys(model)) if model is not None else set()
    return any(
        guide.row(guide.heads[head]) is not None or set(guide.below(guide.heads[head])) & (section.keys() - native)
        for guide in guides
    )


def _choose(
    head: str, section: Mapping[str, Any], data: Mapping[str, Any], guides: Sequence[Guide], into: Translation
) -> Guide | None:
    """Return the guide that knows the keys of a section that several guides have, ``None`` where they are mixed."""
    known = {guide.name: [key for key in section if key in guide.below(guide.heads[head])] for guide in guides}
    most = max(len(keys) for keys in known.values())
    best = [guide for guide in guides if len(known[guide.name]) == most]
    others = {name: [key for key in keys if key not in known[best[0].name]] for name, keys in known.items()}
    mixed = {name: keys for name, keys in others.items() if keys}
    if mixed:
        own = [key for key in known[best[0].name] if not any(key in known[name] for name in mixed)]
        named = {best[0].name: own, **mixed}
        listed = "; ".join(f"{', '.join(keys)} ({name})" for name, keys in named.items())
        message = f"is a section of {' and of '.join(named)}, and this one mixes their keys: {listed}."
        fix = f"write it in the keys of one of them, or put native keys outside {head}:."
        into.problems.append(Problem(head, message, fix))
        return None

    def likelihood(guide: Guide) -> tuple[int, int]:
        # Where the keys do not tell, their mistyped forms may, or the other sections: a guide's sections come together.
        near = sum(nearest(str(key), guide.below(guide.heads[head])) is not None for key in section)
        return near, sum(other in guide.heads for other in data)

    return max(best, key=likelihood)


def _collect(
    guide: Guide,
    head: str,
    value: Any,
    kind: type[ConfigModel],
    into: Translation,
    found: dict[str, list[_Entry]],
    above: str = "",
) -> None:
    """Append the keys of one section to those ``found``; leave native keys in place, report keys of nobody.

    Args:
        guide: Whose section it is.
        head: Its first key.
        value: What it holds.
        kind: The model whose keys are native.
        into: What is reported.
        found: The keys so far, by guide.
        above: The path of the section of another guide that it stands in, with a dot.
    """
    model = model_at(kind, [head]) if not above else None
    native = set(valid_keys(model)) if model is not None else set()
    entries = found.setdefault(guide.name if not above else f"{above}{guide.name}", [])

    def walk(key: str, written: str, value: Any) -> None:
        row, other = guide.row(key), guide.inside.get(key)
        if row is not None:
            entries.append(_Entry(key, written, row, value))
        elif other is not None and isinstance(value, Mapping):
            for name, item in value.items():
                if name in other.heads:
                    _collect(other, name, item, kind, into, found, f"{written}.")
                else:
                    into.problems.append(_unknown(other, name, f"{written}.{name}", item, kind))
        elif other is not None:
            if value is not None:
                fix = f"write sections of {other.name} below it: {', '.join(list(other.heads)[:4])}, …"
                into.problems.append(Problem(written, f"{written} is a section.", fix, value))
        elif isinstance(value, Mapping) and guide.below(key):
            for name, item in value.items():
                stays = written == head and name in native and guide.row(f"{key}.{name}") is None
                if stays:
                    into.data.setdefault(head, {})[name] = item
                else:
                    walk(f"{key}.{name}", f"{written}.{name}", item)
        elif guide.below(key):
            if value is not None:
                fix = f"write {', '.join(guide.below(key)[:4])}, … below it."
                into.problems.append(Problem(written, f"{written} is a section of the {guide.name} guide.", fix, value))
        else:
            into.problems.append(_unknown(guide, key, written, value, kind))
            parent, _, name = key.rpartition(".")
            if not is_typing_mistake(name, guide.below(parent)):
                unknown = ForeignKey(written, "impossible", why=f"no key of {guide.name} that is known here")
                into.keys += [replace(unknown, key=key) for key in keys_of(written, value)]

    walk(guide.heads[head], f"{above}{head}", value)


def _unknown(guide: Guide, key: str, written: str, value: Any, kind: type[ConfigModel]) -> Problem:
    """Return the problem of a key inside a guide's section that the guide, or this project, does not have."""
    parent, _, name = key.rpartition(".")
    prefix = written.rpartition(".")[0]
    close = nearest(name, guide.below(parent))
    elsewhere = [row.key for row in guide.rows if row.key.endswith(f".{name}")]
    if name in valid_keys(kind):
        fix = f"{name} is a key of roll itself: write it outside this section, at the left margin."
    elif elsewhere:
        fix = f"the key belongs elsewhere: use {elsewhere[0]}."
    elif close is not None:
        fix = f"did you mean {prefix}.{close}?"
    else:
        fix = f"remove it; {prefix} has the keys {', '.join(guide.below(parent))}."
    return Problem(written, f"no key of the {guide.name} guide that has a meaning here.", fix, value)


def _apply(found: Mapping[str, list[_Entry]], kind: type[ConfigModel], into: Translation) -> None:
    """Convert the collected keys and write them, first what was said and then what follows from it."""
    said: list[tuple[str, Any, _Entry]] = []
    fills: list[tuple[str, Any, _Entry]] = []
    for entries in found.values():
        look = Look({entry.key: entry.value for entry in entries}, into.data, kind)
        for entry in entries:
            try:
                outcome = _outcome(entry, look)
            except FixableError as error:
                into.problems.append(Problem(entry.written, error.message, error.fix, entry.value))
                continue
            became = _became(entry, outcome, kind, into)
            into.keys += [replace(became, key=key) for key in keys_of(entry.written, entry.value)]
            if isinstance(outcome, Unused):
                if outcome.reason:
                    into.caution(entry.written, outcome.reason)
                continue
            if isinstance(outcome, Impossible):
                fix = f"{outcome.instead or 'remove it'}."
                into.problems.append(Problem(entry.written, f"not possible here: {outcome.reason}.", fix, entry.value))
                fills += [(path, value, entry) for path, value in outcome.stands_in.items()]
                continue
            if outcome.note:
                into.notes.append((entry.written, outcome.note))
            said += [(path, value, entry) for path, value in outcome.values.items()]
            fills += [(path, value, entry) for path, value in outcome.fills.items()]
    for path, value, entry in said:
        _say(_twin(path, kind), value, entry, kind, into)
    for path, value, entry in fills:
        if value_at(into.data, path) is None and _takes(path.split(".")[0], kind, into):
            put(into.data, path, value)
            into.origins[path] = Origin(entry.written, entry.value, value)


def _became(
    entry: _Entry, outcome: Sets | Unused | Impossible, kind: type[ConfigModel], into: Translation
) -> ForeignKey:
    """Return the record of a key whose conversion came to ``outcome``."""
    if isinstance(outcome, Impossible):
        instead = f"; nearest: {outcome.instead}" if outcome.instead else ""
        return ForeignKey(entry.written, "impossible", why=f"{outcome.reason}{instead}")
    if isinstance(outcome, Unused):
        # Nothing to tell: its native keys, or what they are without it, say the same already.
        agrees = () if outcome.reason else entry.row.twins
        why = outcome.reason or ("" if agrees else entry.row.note or "it says what is so without it")
        return ForeignKey(entry.written, "translated" if agrees else "no_effect", agrees, why)
    paths = [_twin(path, kind) for path in {**outcome.values, **outcome.fills}]
    taken = tuple(path for path in paths if _takes(path.split(".")[0], kind, into))
    if paths and not taken:
        head = paths[0].split(".")[0]
        return ForeignKey(entry.written, "no_effect", why=_OF_ENVIRONMENTS.get(head, f"this pipeline has no {head}"))
    return ForeignKey(entry.written, "translated", taken, outcome.note)


def _outcome(entry: _Entry, look: Look) -> Sets | Unused | Impossible:
    row, value = entry.row, entry.value
    if value is None:
        return Unused()
    if row.only is not None:
        if value in row.only:
            return Unused()
        accepted = " or ".join(_yaml(item) for item in row.only if item is not None)
        fix = f"{row.note}{' ' if row.note else ''}" + (f"Set it to {accepted}." if accepted else "Remove it.")
        raise FixableError("the value asks for something that is not here under this name.", fix)
    outcome = row.convert(value, look) if row.convert is not None else value
    if isinstance(outcome, Sets | Unused | Impossible):
        return outcome
    return Sets(dict.fromkeys(row.targets, outcome)) if row.targets else Unused(row.note)


def _twin(path: str, kind: type[ConfigModel]) -> str:
    return _AGENTIC_TWINS.get(path, path) if "train_env_manager" in kind.model_fields else path


def _takes(head: str, kind: type[ConfigModel], into: Translation) -> bool:
    """Whether the run has this native section; one of environments evaluates prompts if its steps have some."""
    only_plays = "prompts_per_step" in kind.model_fields and not into.data.get("prompts_per_step")
    return head in valid_keys(kind) and not (head == "validation" and only_plays)


def _say(path: str, value: Any, entry: _Entry, kind: type[ConfigModel], into: Translation) -> None:
    """Write one translated value, unless something else was said about the same native key."""
    head = path.split(".")[0]
    if not _takes(head, kind, into):
        if head in _OF_ENVIRONMENTS:
            into.caution(entry.written, _OF_ENVIRONMENTS[head])
        elif value is not False:
            message = f"it means {path} here, which is no key of this pipeline."
            into.problems.append(Problem(entry.written, message, "remove it, or use another pipeline.", entry.value))
        return
    present = value_at(into.data, path)
    if present is None:
        put(into.data, path, value)
        into.origins[path] = Origin(entry.written, entry.value, value)
    elif kl_kind(present) != kl_kind(value):
        origin = into.origins.get(path)
        other, its_value = (origin.path, origin.written) if origin is not None else (path, present)
        if into.is_given(entry.written) != into.is_given(other):
            if into.is_given(entry.written):
                put(into.data, path, value)
                into.origins[path] = Origin(entry.written, entry.value, value)
            return
        message = (
            f"{entry.written} = {entry.value!r} and {other} = {its_value!r} both say what {path} is, and differ "
            f"({_yaml(value)} and {_yaml(present)})."
        )
        into.problems.append(Problem(entry.written, message, f"remove {entry.written} or {other}.", entry.value))


def _fill_preset(kind: type[ConfigModel], into: Translation) -> None:
    """Fill in what ``algorithm_type`` stands for."""
    name = into.data.get("algorithm_type")
    if name is None or "algorithm_type" not in kind.model_fields:
        return
    source = into.origins.get("algorithm_type") or Origin("algorithm_type", name, name)
    try:
        filled = apply_preset(name, into.data)
    except FixableError as error:
        into.problems.append(Problem(source.path, error.message, error.fix, name))
        return
    for key in PRESETS[name]:
        if into.data.get(key) is None:
            into.origins[key] = Origin(source.path, name, filled[key])
    into.data = filled


def _fill_format(dtype: str, kind: type[ConfigModel], into: Translation) -> None:
    """Say the number format of a project's models where a file leaves it to the project."""
    engine = value_at(into.data, "actor_infer.strategy_args.strategy_name")
    roles = [role for role in ("reference", "critic") if isinstance(into.data.get(role), dict)]
    roles += ["teacher"] if value_at(into.data, "teacher.model_args.model_name_or_path") is not None else []
    roles += ["actor_train"] if "optimizer_from" in kind.model_fields or "adv_estimator" in kind.model_fields else []
    roles += ["actor_infer"] if engine in STRATEGIES and not STRATEGIES.get(engine).computes_as_trainer else []
    for role in roles:
        # A file may call the role by another of its names.
        named = next((name for name, key in kind.key_aliases.items() if key == role and name in into.data), role)
        path = f"{named}.model_args.dtype"
        # A null that is written is the model's own.
        said = value_at(into.data, f"{named}.model_args")
        if role in kind.model_fields and not (isinstance(said, Mapping) and "dtype" in said):
            put(into.data, path, dtype)
            into.meant[path] = dtype


def _add_helper_models(into: Translation) -> None:
    """Configure the critic and the reference that other guides and presets have without being asked."""
    needs = {
        "critic": [("adv_estimator", into.data.get("adv_estimator") == "gae")],
        "reference": [
            ("use_kl_loss", into.data.get("use_kl_loss") is True),
            ("init_kl_coef", into.data.get("init_kl_coef") not in (None, 0, False)),
        ],
    }
    if value_at(into.data, "actor_train.model_args.lora_rank") is not None and into.data.get("kl_penalty") != "full":
        del needs["reference"]  # it is the policy with its adapters switched off
    for role, reasons in needs.items():
        for key, needed in reasons:
            origin = into.origins.get(key)
            if needed and origin is not None and into.data.get(role) is None:
                into.data[role] = {}
                into.origins[role] = replace(origin, value={})


def _yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value}"
