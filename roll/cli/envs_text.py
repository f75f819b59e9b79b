"""What ``roll envs`` prints."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import roll.envs
from roll.certificates import Certificate, Measurements, Status, Target, TargetError
from roll.certificates.episodes import settled
from roll.certificates.report import grouped
from roll.certificates.target import Source, find
from roll.config.errors import ConfigError, Problem
from roll.env_managers import Templates
from roll.envs import TextEnv

_SIGNS = {Status.PASSED: "✓", Status.FAILED: "✗", Status.UNSURE: "?", Status.NOT_APPLICABLE: "–"}


def wrong_input(target: Target, error: TargetError) -> ConfigError:
    """Return the error of a command that was given an environment that is none."""
    fix = "`roll envs list` shows the tags; an environment of yours is my_module:MyEnv, or --module my_module TAG."
    return ConfigError([Problem("TAG", str(error), fix, target.name)])


def found(target: Target) -> Source:
    """Return an environment by name.

    Raises:
        ConfigError: If there is none.
    """
    try:
        return find(target)
    except TargetError as error:
        raise wrong_input(target, error) from error


def listed(modules: Sequence[str]) -> list[dict[str, Any]]:
    """Return every tag, with what it is; those of other packages are not imported.

    Raises:
        ConfigError: A module cannot be imported.
    """
    from roll.config.user_modules import import_problems

    problems = list(import_problems("--module", modules))
    if problems:
        raise ConfigError(problems)
    rows = []
    for name in roll.envs.list_tags():
        tag = roll.envs.get_tag(name)
        about, class_name = "of an installed package", ""
        if tag.env_type in roll.envs.ENV_TYPES:
            env_class = roll.envs.get_env_class(tag.env_type)
            class_name = f"{env_class.__module__}:{env_class.__qualname__}"
            about = (env_class.__doc__ or "").strip().partition("\n\n")[0].replace("\n", " ")
        options = dict(tag.env_config)
        rows.append(
            {
                "tag": name,
                "env_type": tag.env_type,
                "about": about,
                "max_steps": tag.max_steps,
                "options": {str(key): value for key, value in options.items()},
                "class": class_name,
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the tags as lines of text."""
    wide = max((len(row["tag"]) for row in rows), default=3)
    columns = shutil.get_terminal_size((100, 24)).columns
    lines = [f"{'TAG':<{wide}}  TURNS  WHAT IT IS"]
    for row in rows:
        plain = {key: value for key, value in row["options"].items() if not isinstance(value, dict)}
        options = ", ".join(f"{key}={value}" for key, value in plain.items())
        about = f"{row['about']}{f' ({options})' if options else ''}"
        first, *rest = textwrap.wrap(about, max(30, columns - wide - 9)) or [""]
        lines.append(f"{row['tag']:<{wide}}  {row['max_steps'] or '–':>5}  {first}")
        lines += [" " * (wide + 9) + line for line in rest]
    return "\n".join(lines) + "\n"


def shown(target: Target, seed: int) -> dict[str, Any]:
    """Return what ``roll envs show`` shows, as JSON."""
    source = found(target)
    env, tag = source.make(), source.tag
    observation, _ = settled(env.reset(seed=seed))
    limit = tag.max_steps if tag else getattr(env, "max_steps", None)
    instruction = str(getattr(env, "instruction", ""))
    templates = Templates(tag.agent_system_template, tag.agent_template) if tag else Templates()
    response_length = tag.max_tokens_per_step if tag else None
    values = {
        "turn_idx": 1,
        "observation": observation,
        "actions_left": limit or "no limit",
        "max_steps": limit or "no limit",
        "max_response_length": response_length or "max_new_tokens",
        "instruction": instruction,
    }
    actions = list(getattr(env, "actions", None) or ())
    toolbox = getattr(env, "toolbox", None)
    write = getattr(env, "response_with", None)
    return {
        "environment": target.name,
        "entry_point": source.factory,
        "class": f"{type(env).__module__}:{type(env).__qualname__}",
        "instruction": instruction,
        "system": templates.system(values),
        "user": templates.turn(values),
        "example_response": write(actions[0]) if write and actions else "",
        "actions": actions,
        "max_steps": limit,
        "max_tokens_per_step": response_length,
        "reward_without_action": sum(env.idle().values()) + env.format_penalty if isinstance(env, TextEnv) else None,
        "options": dict(tag.env_config) if tag else {},
        "tools": [schema["function"] for schema in toolbox.schemas] if toolbox is not None else [],
        "told_of_tools": toolbox.description() if toolbox is not None else "",
        "seed": seed,
    }


def shown_text(facts: Mapping[str, Any]) -> str:
    """Return what ``roll envs show`` shows."""
    limits = [
        f"{facts['max_steps'] or 'any number of'} turns",
        f"{facts['max_tokens_per_step']} tokens per response" if facts["max_tokens_per_step"] else "",
    ]
    idle = facts["reward_without_action"]
    rewards = "as it likes" if idle is None else f"a response without an action earns {idle:g}"
    lines = [
        facts["environment"],
        f"  class    {facts['class']}",
        f"  actions  {', '.join(facts['actions']) or 'free text'}",
        f"  limits   {', '.join(filter(None, limits))}",
        f"  rewards  {rewards}",
        "",
        "What the policy is told once (system):",
        textwrap.indent(facts["system"], "  "),
        "",
        f"… and in its first turn with seed {facts['seed']} (user):",
        textwrap.indent(facts["user"], "  "),
    ]
    if facts["tools"]:
        names = ", ".join(tool["name"] for tool in facts["tools"])
        lines.insert(3, f"  tools    {names}")
        told = "What it is told of tools where its chat template does not say it:"
        lines += ["", told, textwrap.indent(facts["told_of_tools"], "  ")]
    if facts["example_response"]:
        lines += ["", "A response with an action in it:", f"  {facts['example_response']}"]
    return "\n".join(lines) + "\n"


def verdict(certificate: Certificate, measurements: Measurements | None) -> str:
    """Return findings and verdict as text."""
    lines = []
    for title, findings in grouped(certificate.findings):
        lines.append(title)
        for finding in findings:
            lines.append(f"  {_SIGNS[finding.status]} {finding.question}  [{finding.check}]")
            if finding.status is not Status.PASSED:
                lines.append(textwrap.indent(textwrap.fill(finding.seen, 100), "      "))
                if finding.fix:
                    lines.append(textwrap.indent(textwrap.fill(f"→ {finding.fix}", 100), "      "))
    if certificate.policies:
        best = sorted(certificate.policies, key=lambda result: -result.mean_score)[:1]
        named = [result for result in certificate.policies if result.policy in ("random", "silent", "rubbish")]
        earned = ", ".join(f"{each.policy} {each.mean_score:.3g}" for each in [*named, *best])
        lines += ["", f"Earned per episode: {earned} (the best of {len(certificate.policies)} scripted policies)."]
    if measurements is not None:
        lines.append(
            f"Measured here, no part of the certificate: {measurements.steps_per_second:,.0f} steps/s in one thread, "
            f"{measurements.process_mib:.0f} MiB."
        )
    failed = certificate.failed
    lines += [
        "",
        f"{certificate.environment} is fit to train on."
        if certificate.is_fit
        else f"{certificate.environment} is NOT fit to train on: {', '.join(failed)}.",
    ]
    return "\n".join(lines) + "\n"
