"""``roll rehearse``: a job of a cluster on this machine, before it costs anything."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from roll.cli.arguments import AnyConfiguration, AsJson, Overrides
from roll.cli.examples import examples

app = typer.Typer()


@app.command(
    epilog=examples(
        "roll rehearse my_job.yaml",
        "roll rehearse run_qwen3_grpo.sh --json",
        "roll rehearse my_job.yaml --one-process",
    )
)
def rehearse(
    name: AnyConfiguration,
    overrides: Overrides = None,
    one_process: Annotated[bool, typer.Option("--one-process", help="Start no processes of Ray.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rehearse a job on this machine: its roles, strategies, engines and code, with a small random model and two steps.

    Reports what breaks and where, keys that nothing reads, rows that will fail, prompts that are too long, and the time
    of each stage. What was folded is said.

    Code 0: nothing was found. Code 2: the configuration cannot be used. Code 3: something would stop the job, or lose
    rows.
    \f

    Raises:
        Exit: Something was found.
    """
    from roll.planning import read_configuration
    from roll.rehearsal import rehearse as rehearse_
    from roll.rehearsal import render_rehearsal

    config, cautions = read_configuration(name, overrides or ())
    found = rehearse_(config, processes=not one_process, say=lambda words: typer.echo(words, err=True))
    found.folded += cautions
    typer.echo(json.dumps(found.as_json(), indent=2, default=str) if as_json else render_rehearsal(found))
    if not found.is_sound:
        raise typer.Exit(3)
