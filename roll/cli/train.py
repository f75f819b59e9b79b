"""``roll train``: run a configuration with the pipeline that it is for."""

from __future__ import annotations

from typing import Annotated

import typer

from roll.cli.arguments import Configuration
from roll.cli.completion import complete_override
from roll.cli.examples import examples

app = typer.Typer()


@app.command(
    epilog=examples(
        "roll train sokoban                          a toy policy learns Sokoban, in minutes on two cores",
        "roll train rlvr_math max_steps=5 seed=7     any key of the configuration",
        "roll train my_configs/mine.yaml cluster=ray",
        "roll train sokoban --multirun seed=1,2,3    one run per value",
        "roll train sokoban resume_from_checkpoint=true",
    )
)
def train(
    configuration: Configuration,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Keys to set; dots go into sections.", autocompletion=complete_override
        ),
    ] = None,
    multirun: Annotated[bool, typer.Option("--multirun", "-m", help="A run for each combination of key=a,b.")] = False,
) -> None:
    """Train, or evaluate, as a configuration says.

    Its key `pipeline`, or the keys that it has, decide which pipeline runs. Everything is written to its output_dir,
    below this folder. Ctrl-C saves the last completed step and prints the command that continues from there.
    """
    from roll.cli.own_words import own_words
    from roll.config.launching import launch_named

    words = [*(["--multirun"] if multirun else []), *(overrides or ())]
    launch_named(configuration, words, program=[*own_words(), "train"])
