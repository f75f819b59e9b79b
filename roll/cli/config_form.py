"""``roll config form``: a configuration of one's own, asked for key by key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roll.cli.completion import complete_configuration

if TYPE_CHECKING:
    from roll.config.form import Form, Question


def form(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The configuration to begin with; asked for where it is not given.",
            autocompletion=complete_configuration,
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The file to write; asked for where it is not given.")] = None,
    json_schema: Annotated[
        bool, typer.Option("--json-schema", help="Print, or write, a JSON Schema of all keys instead, for editors.")
    ] = False,
) -> None:
    """Fill in a configuration: what decides most of a run is asked, and every answer is checked at once.

    Enter keeps what is in brackets, ? says more. What comes of it is a YAML file with the keys that differ, for roll
    train and roll config check.
    \f

    Raises:
        BadParameter: The file is where there is something that must not be replaced.
    """
    from roll.cli.presets import configurations
    from roll.config.form import Form
    from roll.config.schema import json_schema as schema_of

    known = configurations()
    if name is None and json_schema:
        raise typer.BadParameter("name a configuration: each kind of run has keys of its own.", param_hint="NAME")
    if name is None:
        width = max(map(len, known))
        for each, line in known.items():
            typer.echo(f"  {each:<{width}}  {line}")
        name = str(typer.prompt("Begin with", default="sokoban"))
    filled = Form(name)
    if json_schema:
        schema = json.dumps(schema_of(filled.kind), indent=2)
        if output is None:
            typer.echo(schema)
        else:
            output.write_text(f"{schema}\n", encoding="utf-8")
        return
    typer.echo(f"{name}: {known.get(name, '')}\nEnter keeps what is in brackets, ? says more, Ctrl-C ends.\n")
    for question in filled.questions():
        _ask(filled, question)
    text = filled.text()
    typer.echo(f"\n{text}")
    path = output or Path(typer.prompt("Write to", default=f"{filled.value('exp_name')}.yaml"))
    _write(path, text, name)
    typer.echo(f"{path} can be used: roll train {path}")


def _ask(filled: Form, question: Question) -> None:
    """Ask until an answer can be used."""
    from roll.config.errors import ConfigError

    about = question.meaning
    typer.echo(re.sub(r"[:;(].{80,}$", "…", about.meaning))
    while True:
        answer = str(typer.prompt(f"  {question.key}", default=question.now)).strip()
        if answer == question.now:
            return
        if answer == "?":
            typer.echo(f"  {about.meaning}\n  It takes {about.type}; by default {about.default or 'nothing'}.")
            continue
        try:
            filled.answer(question.key, answer)
            return
        except ConfigError as error:
            for problem in error.problems:
                typer.echo(f"  {problem.path}: {problem.message} {problem.fix}")


def _write(path: Path, text: str, base: str) -> None:
    """Write the file, and see that it can be used where it is."""
    from roll.config import load, require_runnable

    if path.stem == base:
        raise typer.BadParameter(f"{path} would hide what it begins with: choose another name.", param_hint="--output")
    if path.exists() and not typer.confirm(f"{path} exists. Replace it?"):
        raise typer.Abort
    path.write_text(text, encoding="utf-8")
    require_runnable(load(str(path)))
