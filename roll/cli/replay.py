"""``roll replay``: play stored episodes again, and say where they differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from roll.cli.examples import examples
from roll.cli.exits import ExitCode

app = typer.Typer()


@app.command(
    epilog=examples(
        "roll replay output/sokoban train-0000012/3              one episode",
        "roll replay output/sokoban val-0000003 --step 8         a group of the evaluation after step 8",
        "roll replay output/sokoban --step 8                     all of a step: log-probs bit for bit",
        "roll replay output/sokoban train-0000012/3 --no-policy  environment and rendering only",
        "roll replay output/sokoban train-0000012/3 --policy output/sokoban/checkpoints/step=000008",
    )
)
def replay(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    trajectory: Annotated[
        str | None, typer.Argument(help="An episode, GROUP/NUMBER as roll view shows it, or a group; none: all.")
    ] = None,
    step: Annotated[int | None, typer.Option(help="Of this step or evaluation; by default the newest.")] = None,
    phase: Annotated[Literal["train", "val"] | None, typer.Option(help="Of training or of an evaluation.")] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Compare with these weights; by default the checkpoint of those that sampled it."),
    ] = None,
    with_policy: Annotated[bool, typer.Option("--with-policy/--no-policy", help="Ask a policy at all.")] = True,
    tolerance: Annotated[float, typer.Option(help="By how much a log-prob may differ.", min=0.0)] = 1e-3,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Play stored episodes again, token by token, and say where they differ.

    The environment is set up from the run's own configuration and seed and gets the stored responses: observations,
    rewards and ends must be the same. The conversation is rendered again: the prompts must have the same tokens. The
    policy that sampled the episode is asked again, with the same request seeds: it must draw the same tokens. Answers
    to prompts are graded again.

    Exit code 0: everything is the same. 3: something differs.
    \f

    Raises:
        Exit: With code 3, something differs.
    """
    from roll.config.process import prepare_process

    prepare_process()  # before torch is imported
    from roll.replay.replay_text import as_record, as_text
    from roll.replay.replaying import replay as play
    from roll.runs.stored import StoredRun

    found = play(
        StoredRun.open(run),
        trajectory,
        step=step,
        phase=phase,
        policy=policy,
        with_policy=with_policy,
        tolerance=tolerance,
    )
    if as_json:
        typer.echo(json.dumps(as_record(found), indent=2))
    else:
        for line in as_text(found):
            typer.echo(line)
    if not found.same:
        raise typer.Exit(ExitCode.UNABLE)
