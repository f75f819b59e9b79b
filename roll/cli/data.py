"""``roll data``: training data out of what runs have stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from roll.cli.examples import examples

app = typer.Typer(
    no_args_is_help=True,
    help="Make training data of finished runs.",
    epilog=examples("""roll data from-run output/sokoban --where "score >= 1" --out sft.parquet"""),
)


@app.callback()
def _data() -> None:
    """Make training data of finished runs."""


@app.command(
    "from-run",
    short_help="Write episodes of a run as demonstrations.",
    epilog=examples(
        """roll data from-run output/sokoban --where "score >= 1" --out sft.parquet""",
        """roll data from-run output/sokoban --where "success and step > 16" --best 1 --out sft.jsonl""",
    ),
)
def from_run(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a file of its trajectories.", metavar="RUN")],
    out: Annotated[Path, typer.Option("--out", help="The file to write: .parquet or .jsonl.")],
    where: Annotated[
        str,
        typer.Option(
            help="Which episodes: an SQL condition on phase, step, tag, group_id, episode, seed, status, score, "
            "success, error, tokens, turns, oldest, newest (policy versions) and group_spread (of scores)."
        ),
    ] = "true",
    phase: Annotated[
        Literal["train", "val"], typer.Option(help="Episodes of training; or of evaluations, which then measure less.")
    ] = "train",
    best: Annotated[int | None, typer.Option(help="Of each group at most so many, the best ones.", min=1)] = None,
) -> None:
    """Write episodes of a run as demonstrations for supervised fine-tuning (rejection sampling).

    A row has the tokens as they were sampled, and the same as messages.
    """
    from roll.data.from_run import write_demonstrations

    for line in write_demonstrations(run, where, out, phase=phase, best=best).lines():
        typer.echo(line)
