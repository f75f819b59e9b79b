"""``roll convert``: a configuration of another system as a native one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from roll.cli.arguments import AsJson
from roll.cli.examples import examples

app = typer.Typer()


@app.command(
    epilog=examples(
        "roll convert run_qwen3_grpo.sh --out mine.yaml",
        "roll convert examples/qwen2.5-0.5B-agentic agent_val_sokoban --from roll",
        "roll convert gsm8k.yaml --from trinity --json",
    )
)
def convert(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...",
            help="A YAML file, a file of overrides, a launch script (it is read, never run), or a folder of Hydra "
            "configurations and the name of one.",
        ),
    ],
    system: Annotated[
        str | None, typer.Option("--from", help="roll, verl, trinity, chatlearn or mindspeed; found if not said.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the configuration there, not to the terminal.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Turn a configuration of another system into a native one, and say what became of every key.

    The configuration goes to standard output, or to the file of --out; the report goes to standard error.

    Code 0: it can be used, once models, data and devices are there. Code 2: it cannot; the report says why.
    \f

    Raises:
        BadParameter: There is no such system.
        Exit: The result cannot be used.
    """
    from roll.convert import SYSTEMS, read, render_report, to_native_yaml
    from roll.convert import as_json as to_json
    from roll.convert import convert as convert_

    if system is not None and system not in SYSTEMS:
        raise typer.BadParameter(f"{system!r} is none of {', '.join(SYSTEMS)}.", param_hint="--from")
    conversion = convert_(read(inputs), system)
    text = to_native_yaml(conversion)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(to_json(conversion), indent=2, ensure_ascii=False, default=str))
    else:
        if out is None:
            typer.echo(text, nl=False)
        typer.echo(render_report(conversion), err=True)
    if not conversion.ok:
        raise typer.Exit(2)
