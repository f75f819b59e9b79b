"""``roll branch``: go on from a turn of a stored episode, many times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from roll.cli.examples import examples

app = typer.Typer()


@app.command(
    epilog=examples(
        "roll branch output/sokoban train-0000012/3 --turn 3 --n 64",
        "roll branch output/sokoban train-0000012/3 --every-turn            where was the game lost?",
        "roll branch output/sokoban val-0000003/0 --step 8 --turn 2 --temperature 0.5",
        "roll branch output/sokoban train-0000012/3 --turn 3 --policy output/sokoban/checkpoints/step=000024",
    )
)
def branch(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    trajectory: Annotated[str, typer.Argument(help="An episode, GROUP/NUMBER as roll view shows it.")],
    turn: Annotated[int | None, typer.Option(help="Sample from this turn on; the first is 1.", min=1)] = None,
    every_turn: Annotated[bool, typer.Option("--every-turn", help="From each turn: the value of each.")] = False,
    n: Annotated[int, typer.Option("--n", help="Continuations from each turn.", min=1)] = 64,
    step: Annotated[int | None, typer.Option(help="Of this step or evaluation; by default the newest.")] = None,
    phase: Annotated[Literal["train", "val"] | None, typer.Option(help="Of training or of an evaluation.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="Who goes on; by default the checkpoint of the weights that sampled it.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Of sampling; by default that of the run.", min=0.0)] = None,
    seed: Annotated[int, typer.Option(help="Another seed gives other continuations.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Go on from a turn of a stored episode with responses sampled anew, and show what they score.

    The state of the turn is reached by playing the stored responses again; where that does not give what is stored,
    nothing is sampled and the first difference is named. Continuations are stored below the run, in its folder
    branches, for roll view.
    \f

    Raises:
        BadParameter: Neither a turn nor every turn is asked for, or both.
    """
    if (turn is None) == (not every_turn):
        raise typer.BadParameter("give --turn NUMBER or --every-turn, one of both.")
    from roll.config.process import prepare_process

    prepare_process()  # before torch is imported
    from roll.replay.branching import branch as go_on
    from roll.replay.branching import folder_of
    from roll.replay.fans import as_text
    from roll.runs.stored import StoredRun

    found = go_on(
        StoredRun.open(run),
        trajectory,
        None if turn is None else [turn - 1],
        n=n,
        step=step,
        phase=phase,
        policy=policy,
        temperature=temperature,
        seed=seed,
    )
    if as_json:
        typer.echo(json.dumps(found.record(), indent=2))
        return
    for line in as_text(found):
        typer.echo(line)
    typer.echo(f"\nroll view {folder_of(found)}")
