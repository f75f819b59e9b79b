"""``roll tune``: good values for keys, found by runs that are stopped early where others do better."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roll.cli.arguments import AsJson, Configuration
from roll.cli.completion import complete_override
from roll.cli.examples import examples
from roll.cli.exits import ExitCode

if TYPE_CHECKING:
    from rich.table import Table

    from roll.tuning.plan import Plan
    from roll.tuning.study import Results

app = typer.Typer()

_DEFAULT_BUDGET = "30m"

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=RANGE|KEY=VALUE]...",
        help="Ranges: loguniform(a,b), uniform(a,b), a,b,c, range(a,b), choice(a,b) and others of Hydra. "
        "Other keys are set in every trial.",
        autocompletion=complete_override,
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(help=f"Time for all trials: 90s, 30m, 2h.  [default: {_DEFAULT_BUDGET}, without --trials]"),
]
Trials = Annotated[int | None, typer.Option(min=1, help="How many trials to make.")]
Metric = Annotated[
    str | None, typer.Option(help="What decides.  [default: val/success, else val/reward]", show_default=False)
]
Minimize = Annotated[
    bool | None,
    typer.Option("--minimize/--maximize", help="Which is better.  [default: less of a loss, else more]"),
]
Seed = Annotated[int, typer.Option(min=0, help="Decides which values are tried.")]
MinResource = Annotated[
    int | None, typer.Option(min=1, help="Steps before a trial can be stopped.  [default: a ninth of max_steps]")
]
ReductionFactor = Annotated[int, typer.Option(min=2, help="Of so many trials one goes on, to so many times the steps.")]
Hyperband = Annotated[bool, typer.Option("--hyperband", help="Give some trials more steps at first.")]

_COLOURS = {"finished": "green", "stopped": "dim", "open": "yellow", "failed": "red"}


@app.command(
    epilog=examples(
        'roll tune sokoban "actor_train.training_args.learning_rate=loguniform(1e-4,1e-2)" --budget 30m',
        "roll tune sokoban mini_batches=1,2,4 pg_clip=0.1,0.2 eval_steps=4 --trials 6",
        "roll tune my_configs/mine.yaml --metric val/reward   what its section tune declares",
        "roll runs output/sokoban/tune                        each trial is a run",
        "roll train output/sokoban/tune/best.yaml             train with what was found",
    )
)
def tune(
    configuration: Configuration,
    words: Words = None,
    budget: Budget = None,
    trials: Trials = None,
    metric: Metric = None,
    minimize: Minimize = None,
    seed: Seed = 0,
    min_resource: MinResource = None,
    reduction_factor: ReductionFactor = 3,
    hyperband: Hyperband = False,
    as_json: AsJson = False,
) -> None:
    """Search for good values of keys by successive halving, with Optuna.

    A trial is a run in OUTPUT_DIR/tune. After a ninth and a third of its steps it goes on if it is among the best third
    of those that got there, else it is stopped. The first trial is the configuration as it is. Keys and ranges are
    checked before anything runs. The same command goes on with a study that was interrupted or killed, and with a
    larger budget also with one that ended.
    \f

    Raises:
        ConfigError: The configuration, a key, a range or the budget cannot be used.
        Exit: After Ctrl-C, with the command that goes on.
    """
    from roll.tuning.plan import make_plan

    seconds = _seconds(budget, trials)
    plan = make_plan(
        configuration,
        words or (),
        metric=metric,
        minimize=minimize,
        seed=seed,
        min_resource=min_resource,
        reduction_factor=reduction_factor,
        hyperband=hyperband,
    )
    results, best, curves = _searched(plan, seconds, trials, to_errors=as_json)
    if as_json:
        typer.echo(json.dumps(_document(results, best), indent=2))
    else:
        _show(plan, results, best, curves)


def _seconds(budget: str | None, trials: int | None) -> float | None:
    """Return the time for all trials; ``None`` for any, where only their number is said.

    Raises:
        ConfigError: It is no time.
    """
    from roll.config.errors import ConfigError, FixableError, Problem
    from roll.tuning.plan import seconds_in

    text = budget or (None if trials is not None else _DEFAULT_BUDGET)
    try:
        return None if text is None else seconds_in(text)
    except FixableError as error:
        raise ConfigError([Problem("--budget", error.message, error.fix)]) from error


def _searched(
    plan: Plan, seconds: float | None, trials: int | None, *, to_errors: bool
) -> tuple[Results, Path | None, Path | None]:
    """Run the trials; return what they found, the configuration of the best one, and a picture of their curves.

    Raises:
        Exit: After Ctrl-C, with the command that goes on.
    """
    from roll.cli.own_words import own_words
    from roll.tuning.report import draw_curves, write_best
    from roll.tuning.study import open_study

    def say(line: str) -> None:
        typer.echo(line, err=to_errors)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with open_study(plan, say) as study:
        steps = " → ".join(map(str, plan.rungs))
        say(f"{'Going on with' if study.goes_on else 'Study in'} {plan.folder}; decisions after {steps} steps.")
        try:
            results = study.run(budget=seconds, trials=trials)
        except KeyboardInterrupt:
            write_best(plan, study.results())
            typer.echo(f"Stopped. Go on with: {shlex.join([*own_words(), *sys.argv[1:]])}", err=True)
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        return results, write_best(plan, results), draw_curves(plan, results)


def _document(results: Results, best: Path | None) -> dict[str, Any]:
    return {
        "metric": results.metric,
        "minimize": results.minimize,
        "seconds": round(results.seconds, 1),
        "ended": results.ended,
        "best": None if results.best is None else results.best.number,
        "configuration": None if best is None else str(best),
        "trials": [
            {
                "number": one.number,
                "state": one.state,
                "values": dict(one.values),
                "steps": one.steps,
                "value": one.value,
                "curve": {str(step): value for step, value in one.curve.items()},
                "folder": str(one.folder),
                "why": one.why or None,
            }
            for one in results.trials
        ],
    }


def _show(plan: Plan, results: Results, best: Path | None, curves: Path | None) -> None:
    """Show the trials, why some failed, and what to do with the best one."""
    from rich.console import Console

    from roll.tuning.report import CURVES, best_words

    Console(markup=False).print(_table(results))
    for one in results.trials:
        if one.why:
            typer.echo(f"Trial {one.number} failed: {one.why}")
    typer.echo(f"Ended: {results.ended}. The same command with a larger --budget or --trials goes on.")
    if results.best is not None:
        typer.echo(f"Best: trial {results.best.number}, {' '.join(best_words(plan, results.best))}")
        typer.echo(f"Train with it: roll train {shlex.quote(str(best))}")
        typer.echo(f"Look at it:    roll view {shlex.quote(str(results.best.folder))}")
    if curves is not None:
        typer.echo(f"Curves:        {curves}")
    elif results.best is not None:
        typer.echo(f"matplotlib would draw {CURVES}: pip install 'roll-rl[tune]'.")


def _table(results: Results) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from roll.config.plain_text import plain_text
    from roll.config.ranges import format_value
    from roll.runs.comparing import short_names
    from roll.tracking.sparkline import sparkline

    keys = list(results.trials[0].values) if results.trials else []
    short = short_names(keys)
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False)
    for name in ("trial", "state", "steps", results.metric or "value"):
        table.add_column(name, justify="left" if name == "state" else "right", overflow="fold")
    for name in ("curve", *(short[key] for key in keys)):
        table.add_column(name, overflow="fold")
    sign = -1.0 if results.minimize else 1.0
    order = sorted(results.trials, key=lambda one: (-one.steps, -sign * (one.value or 0.0)))
    for one in order:
        is_best = results.best is not None and one.number == results.best.number
        table.add_row(
            f"{one.number}{' *' if is_best else ''}",
            Text(one.state, style=_COLOURS[one.state]),
            str(one.steps),
            "–" if one.value is None else f"{one.value:.4g}",
            sparkline(tuple(one.curve.values())),
            *(plain_text(_shown(one.values.get(key), format_value)) for key in keys),
            style="bold" if is_best else None,
        )
    return table


def _shown(value: Any, format_value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else format_value(value)
