"""``roll runs``: the runs below a folder, and two of them side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from roll.cli.examples import examples

if TYPE_CHECKING:
    from rich.table import Table
    from typer._click.core import Context

    from roll.runs.stored import StoredRun

_SETTINGS = 4
_COLOURS = {"running": "cyan", "finished": "green", "interrupted": "yellow", "failed": "red"}

_HELP = ("-h", "--help")


class _Runs(TyperGroup):
    """Takes a folder where other groups take a command only: ``roll runs output`` is ``roll runs list output``."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Say ``list`` where no command is named."""
        return super().parse_args(ctx, args if args[:1] and args[0] in (*_HELP, *self.commands) else ["list", *args])


app = typer.Typer(
    cls=_Runs,
    help="List the runs below a folder: roll runs [FOLDER] [--json]. Or compare two.",
    epilog=examples("roll runs", "roll runs output --json", "roll runs diff output/sokoban output/sokoban.1"),
)


@app.command(
    "list", short_help="List the runs below a folder.", epilog=examples("roll runs", "roll runs output --json")
)
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Where to look, subfolders too.")] = Path("output"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """List the runs below a folder: how they stand, what they reached, and in which keys they differ.

    \f

    Raises:
        ConfigError: There is no such folder.
    """
    from rich.console import Console

    from roll.config import ConfigError, Problem
    from roll.runs.comparing import what_differs
    from roll.runs.stored import find_runs

    if not folder.is_dir():
        fix = "name the folder in which runs were told to write: roll runs FOLDER."
        raise ConfigError([Problem("folder", f"there is no folder {folder}.", fix)])
    found = find_runs(folder)
    differing = what_differs(found)
    if as_json:
        typer.echo(json.dumps([_record(run, keys) for run, keys in zip(found, differing, strict=True)], indent=2))
    elif not found:
        typer.echo(f"No runs in {folder}. roll train sokoban makes one.")
    else:
        Console(markup=False).print(_table(folder, found, differing))


@app.command(
    short_help="Show two runs side by side.",
    epilog=examples(
        "roll runs diff output/sokoban output/sokoban.1",
        "roll runs diff output/sokoban output/sokoban.1 --all       every metric",
    ),
)
def diff(
    left: Annotated[Path, typer.Argument(help="Folder of a run.")],
    right: Annotated[Path, typer.Argument(help="Folder of another.")],
    every: Annotated[bool, typer.Option("--all", help="Every metric, not the main ones only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document, with every metric.")] = False,
) -> None:
    """Show two runs side by side: keys that differ, and the newest metrics."""
    from dataclasses import asdict

    from rich.console import Console

    from roll.runs.comparing import MAIN_METRICS, differences, final_metrics
    from roll.runs.stored import StoredRun

    one, other = StoredRun.open(left), StoredRun.open(right)
    keys = differences(one.config, other.config)
    metrics = final_metrics(one, other, ("",) if every or as_json else MAIN_METRICS)
    if as_json:
        typer.echo(
            json.dumps({"keys": [asdict(key) for key in keys], "metrics": [asdict(m) for m in metrics]}, indent=2)
        )
        return
    console = Console(markup=False)
    if keys:
        console.print(_beside(left, right, [(key.name, _plain(key.left), _plain(key.right)) for key in keys]))
    else:
        console.print("The configurations are equal.")
    console.print(_beside(left, right, [(m.name, _number(m.left), _number(m.right)) for m in metrics]))


def _record(run: StoredRun, differing: dict[str, Any]) -> dict[str, Any]:
    curve, outcome = run.main_curve, run.outcome
    return {
        "folder": str(run.folder),
        "name": run.name,
        "state": run.state,
        "begun": run.record.get("begun"),
        "ended": None if outcome is None else outcome.ended,
        "message": None if outcome is None else outcome.message or None,
        "steps": run.steps,
        "max_steps": run.max_steps,
        "metric": None if curve is None else curve.name,
        "best": None if curve is None or curve.best is None else {"step": curve.best[0], "value": curve.best[1]},
        "curve": None if curve is None else list(curve),
        "differs": differing,
    }


def _table(folder: Path, found: list[StoredRun], differing: list[dict[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from roll.config.plain_text import plain_text
    from roll.runs.comparing import short_names
    from roll.tracking.sparkline import sparkline

    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False)
    for name in ("run", "state", "steps", "best", "curve", "differs in"):
        table.add_column(name, justify="right" if name in ("steps", "best") else "left", overflow="fold")
    for run, keys in zip(found, differing, strict=True):
        curve, state = run.main_curve, str(run.state)
        short = short_names(list(keys))
        listed = [f"{short[key]}={_plain(value)}" for key, value in keys.items()]
        more = f" and {len(listed) - _SETTINGS} more" if len(listed) > _SETTINGS else ""
        table.add_row(
            plain_text(str(run.folder.relative_to(folder)) if run.folder != folder else str(folder)),
            Text(state, style=_COLOURS[state]),
            f"{run.steps}/{run.max_steps}" if run.max_steps else "–",
            "–" if curve is None or curve.best is None else f"{curve.name} {curve.best[1]:.3f}",
            "" if curve is None else sparkline(curve.values),
            plain_text(", ".join(listed[:_SETTINGS]) + more),
        )
    return table


def _beside(left: Path, right: Path, rows: list[tuple[str, str, str]]) -> Table:
    from rich import box
    from rich.table import Table

    from roll.config.plain_text import plain_text

    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False)
    for name in ("", str(left), str(right)):
        table.add_column(name, overflow="fold", justify="right" if name else "left")
    for row in rows:
        table.add_row(*map(plain_text, row))
    return table


def _plain(value: Any) -> str:
    """Return a value in one line; of a section, how much is in it."""
    if isinstance(value, dict) and value:
        return f"{{{len(value)} key{'' if len(value) == 1 else 's'}}}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
