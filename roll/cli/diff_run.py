"""``roll diff-run``: which key made the difference between two runs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from roll.cli.arguments import AsJson
from roll.cli.completion import complete_configuration
from roll.cli.examples import examples

app = typer.Typer()


@app.command(
    epilog=examples(
        "roll diff-run mine.yaml theirs.yaml",
        "roll diff-run run_grpo.sh mine.yaml --json",
        "roll diff-run rlvr_math mine.yaml --first",
    )
)
def diff_run(
    first: Annotated[
        str,
        typer.Argument(
            metavar="A", help="A configuration in any dialect or of any system.", autocompletion=complete_configuration
        ),
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.", autocompletion=complete_configuration)],
    only_first: Annotated[bool, typer.Option("--first", help="Stop behind the first difference.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run two algorithms on the same toy, data and seed, and name the keys that make a difference.

    Two steps of each run in this process, with what passes through the learner written down: samples, rewards,
    log-probs, advantages, loss, gradient, weights. The first tensor that differs is traced to its keys by halving what
    differs between the configurations; then the next one.

    Code 0: the runs are equal. Code 2: a configuration cannot be used. Code 3: they differ; the report says why.
    \f

    Raises:
        ConfigError: One of them does not learn from scores.
        Exit: They differ.
    """
    from roll.config import ConfigError, Problem, RLConfig
    from roll.differences import compare_runs, render_comparison
    from roll.planning import read_configuration

    configurations = []
    for name in (first, second):
        config, _ = read_configuration(name)
        if not isinstance(config, RLConfig):
            fix = "compare runs of pipeline agentic or rlvr."
            raise ConfigError(
                [Problem("pipeline", "it does not learn from scores.", fix, config.pipeline)], source=name
            )
        configurations.append(config)
    found = compare_runs(*configurations, every=not only_first, say=lambda words: typer.echo(words, err=True))
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2, ensure_ascii=False, default=str))
    else:
        typer.echo(render_comparison(found))
    if found.causes:
        raise typer.Exit(3)
