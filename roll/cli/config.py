"""``roll config``: read, check, explain, compare and fill in configurations. Starts nothing and loads no model."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roll.cli.arguments import AsJson, Overrides
from roll.cli.completion import complete_configuration, complete_key
from roll.cli.config_form import form
from roll.cli.examples import examples

if TYPE_CHECKING:
    from roll.config import RunConfig

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE|RUN",
        help="A preset, a YAML file, or the folder of a run.",
        autocompletion=complete_configuration,
    ),
]

app = typer.Typer(
    no_args_is_help=True,
    help="Show, check, explain, compare and fill in configurations.",
    epilog=examples(
        "roll config show sokoban max_steps=5",
        "roll config check my_configs/verl_job.yaml",
        "roll config explain group_size",
        "roll config diff sokoban output/sokoban",
        "roll config form sokoban",
    ),
)
app.command(
    "form",
    short_help="Fill in a configuration, asked key by key.",
    epilog=examples(
        "roll config form",
        "roll config form rlvr_math --output mine.yaml",
        "roll config form sokoban --json-schema --output roll.schema.json",
    ),
)(form)


@app.command(
    short_help="Show every key, and where its value came from.",
    epilog=examples("roll config show sokoban", "roll config show rlvr_math seed=7 --json"),
)
def show(name: Name, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Show every key as it is after all files and overrides, and where it came from.

    Keys that nothing sets are comments with their defaults. The text is a configuration itself; secrets are hidden.
    """
    from roll.config.written import to_mapping, to_yaml

    config, cautions = _load(name, overrides)
    for caution in cautions:
        typer.echo(f"Warning: {caution}", err=True)
    typer.echo(_json(to_mapping(config)) if as_json else to_yaml(config).rstrip("\n"))


@app.command("check", epilog=examples("roll config check mine.yaml", "roll config check verl_job.yaml --json"))
def check_(name: Name, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check a configuration, and show what keys of other guides became.

    Checks all that a run checks before it loads a model: keys, tags, modules, verifiers, templates, files.

    Code 0: it can be used. Code 2: it cannot; every problem is listed with its place and the fix.
    \f

    Raises:
        Exit: It cannot be used.
    """
    from roll.config import ConfigError
    from roll.config.kinds import kind_for
    from roll.config.written import flat, to_mapping

    try:
        config, cautions = _load(name, overrides)
        cautions += _check_before(config)
    except ConfigError as error:
        if not as_json:
            raise
        problems = [{**asdict(problem), "value": repr(problem.value)} for problem in error.problems]
        typer.echo(_json({"usable": False, "problems": problems}))
        raise typer.Exit(2) from error
    values = to_mapping(config)
    flattened = {**values, **flat(values)}
    became = {written: (native, flattened.get(native)) for native, written in config.origins.written.items()}
    pipeline = kind_for(config).name
    if as_json:
        translated = {written: {"key": key, "value": value} for written, (key, value) in became.items()}
        found = {"usable": True, "pipeline": pipeline, "warnings": cautions, "translated": translated}
        typer.echo(_json(found))
        return
    for caution in cautions:
        typer.echo(f"Warning: {caution}")
    width = max(map(len, became), default=0)
    for written, (key, value) in became.items():
        typer.echo(f"{written:<{width}} → {key}: {json.dumps(value, default=str, ensure_ascii=False)}")
    typer.echo(f"{name} can be used: pipeline {pipeline}, {config.exp_name}.")
    typer.echo("\n".join(f"  {line}" for line in config.plan().describe().splitlines()))


def _check_before(config: RunConfig) -> list[str]:
    """Check what the run would before it loads a model, and that its files are there; return what has no effect."""
    from roll.config import ConfigError, require_runnable
    from roll.config.kinds import check_before

    if find_spec("torch") is None:
        require_runnable(config)
        return ["torch is not installed: tags, modules, verifiers and files were not looked at."]
    from roll.pipelines.checks.data_files import missing_files

    problems, notes = list(missing_files(config)), []
    try:
        notes = check_before(config)
    except ConfigError as error:
        problems = [*error.problems, *problems]
    if problems:
        raise ConfigError(problems)
    return notes


@app.command(
    "explain",
    short_help="Say what a key means and takes.",
    epilog=examples("roll config explain max_steps", "roll config explain actor_train.training_args"),
)
def explain_(
    key: Annotated[
        str,
        typer.Argument(metavar="KEY", help="A path with dots, or the last part of one.", autocompletion=complete_key),
    ],
    as_json: AsJson = False,
) -> None:
    """Say what a key means, what it takes, and its default; also of a key of another guide.

    \f

    Raises:
        BadParameter: No configuration has the key.
    """
    from roll.config.explaining import KeyMeaning, explain, near

    found = explain(key)
    if not found:
        close = near(key)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise typer.BadParameter(f"no configuration has the key {key!r}.{hint}", param_hint="KEY")
    if as_json:
        typer.echo(_json([asdict(each) for each in found]))
        return
    for each in found:
        if isinstance(each, KeyMeaning):
            default = f", by default {each.default}" if each.default else ""
            typer.echo(f"{each.path}  ({each.type}{default}; {', '.join(each.pipelines)})")
            typer.echo(f"  {each.meaning}" if each.meaning else "  A section.")
            if each.keys:
                typer.echo(f"  Its keys: {', '.join(each.keys)}")
        else:
            target = f"sets {', '.join(each.targets)}" if each.targets else "has no effect here"
            typer.echo(f"{each.path}  (of {each.guide})\n  {target}{f': {each.note}' if each.note else ''}")


@app.command(
    short_help="Show the keys in which two differ.",
    epilog=examples("roll config diff sokoban frozen_lake", "roll config diff output/a output/b --json"),
)
def diff(first: Name, second: Name, as_json: AsJson = False) -> None:
    """Show the keys in which two configurations differ, whatever files they were written in.

    Where a run is and how it continues (output_dir, resume_from_checkpoint, progress) is no difference.
    """
    from roll.config.written import differences, to_mapping

    before, after = (to_mapping(_load(name, None)[0]) for name in (first, second))
    lines = differences(before, after)
    if as_json:
        parts = (line.partition(": ") for line in lines)
        pairs = ((key, values.partition(" → ")) for key, _, values in parts)
        typer.echo(_json([{"key": key, "first": old, "second": new} for key, (old, _, new) in pairs]))
        return
    for line in lines:
        typer.echo(line)
    if not lines:
        typer.echo(f"{first} and {second} say the same.")


def _load(name: str, overrides: list[str] | None) -> tuple[RunConfig, list[str]]:
    """Return a checked configuration, and what a user should know about it."""
    from roll.config import ConfigWarning
    from roll.config.composing import compose
    from roll.config.loading import check, kind_of

    words = list(overrides or ())
    record = Path(name) / "config.yaml"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        composed, path = compose(record if record.is_file() else name, words)
        kind = kind_of(composed)
        config: RunConfig = check(composed, kind=kind, source=str(path), overrides=words, command=words)
    return config, [str(item.message) for item in caught if issubclass(item.category, ConfigWarning)]


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)
