"""The program: the table of its commands, each imported when it is called or asked for help.

A command is a file of its own with a function of its name, or with ``app``, a :class:`typer.Typer`. What is heavy
(torch, ray, transformers, pyarrow, the configuration) is imported inside its functions, so that help and completion
answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from roll import __version__
from roll.cli.examples import examples
from roll.cli.exits import exit_code
from roll.common.ending import end_quickly
from roll.common.standard_streams import show_what_can_be_shown

if TYPE_CHECKING:
    from typer._click.core import Command, Context

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "train": ("roll.cli.train:app", "Train with a preset or a configuration of your own."),
    "eval": ("roll.cli.eval:app", "Measure a policy on an environment or on problems."),
    "serve": ("roll.cli.serve:app", "Answer for a policy as the servers of OpenAI and Anthropic do."),
    "view": ("roll.cli.view:app", "Review the episodes of a run in a browser."),
    "decide": ("roll.cli.decide:app", "List groups that wait for review, and decide about them."),
    "replay": ("roll.cli.replay:app", "Play stored episodes again, and say where they differ."),
    "branch": ("roll.cli.branch:app", "Go on from a turn of a stored episode, many times."),
    "config": ("roll.cli.config:app", "Show, check, explain, compare and fill in configurations."),
    "convert": ("roll.cli.convert:app", "Turn a configuration of another system into a native one."),
    "envs": ("roll.cli.envs:app", "List, show, play and certify environments."),
    "plan": ("roll.cli.plan:app", "Reckon whether a job fits on its devices, and what it costs."),
    "diff-run": ("roll.cli.diff_run:app", "Name the keys that make two runs differ, and where they part."),
    "rehearse": ("roll.cli.rehearse:app", "Rehearse a job of a cluster here, with a small model."),
    "tune": ("roll.cli.tune:app", "Search for good values of keys by successive halving."),
    "doctor": ("roll.cli.doctor:app", "Say what this machine has, and what is missing for what."),
    "export": ("roll.cli.export:app", "Write a checkpoint as a Hugging Face folder, or GGUF."),
    "data": ("roll.cli.data:app", "Make training data of finished runs."),
    "runs": ("roll.cli.runs:app", "List the runs below a folder, or compare two."),
}
"""What there is: name → (``module:attribute``, its line in ``roll --help``), in the order of that."""


class _Commands(TyperGroup):
    """Shows commands by their lines in the table, and imports one only when it is resolved."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (_, line) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=line, rich_markup_mode=None))

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """Return the command itself in place of its line."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None else load_command(str(name)), rest

    def invoke(self, ctx: Context) -> Any:
        """Hand on what Ctrl-C stopped with its words, which typer would turn into a mere exit code."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise typer.Abort(str(interrupt)) from interrupt


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("roll train sokoban", "roll train --help"),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"roll {__version__}")
        raise typer.Exit()


@app.callback()
def _roll(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Reinforcement learning for language-model agents: text environments, multi-turn episodes, verifiable rewards."""


def load_command(name: str) -> Command:
    """Import a command of the table.

    Args:
        name: Its name there.

    Returns:
        The command, with help as plain text: brackets stay what they are, and examples keep their lines.
    """
    found = resolve_name(COMMANDS[name][0])
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer()
        found.command(name)(function)
    found.rich_markup_mode = None
    found._add_completion = False
    command = get_command(found)
    command.name = name
    return command


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``roll``.

    Args:
        argv: The words behind ``roll``; those of the process if ``None``.

    Raises:
        SystemExit: Always, with one of :class:`roll.cli.exits.ExitCode`.
    """
    if argv is None:
        end_quickly()
        show_what_can_be_shown()
    words = list(sys.argv[1:] if argv is None else argv)
    program = get_command(app)
    sys.exit(exit_code(lambda: program.main(args=words, prog_name="roll", standalone_mode=False)))
