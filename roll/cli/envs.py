"""``roll envs``: the environments there are, one to look at and to play, and whether it is fit to train on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roll.cli.arguments import AsJson
from roll.cli.completion import complete_tag
from roll.cli.examples import examples
from roll.cli.exits import ExitCode

if TYPE_CHECKING:
    from roll.certificates import Certificate, Effort, Measurements, Target

app = typer.Typer(
    no_args_is_help=True,
    help="Environments: list them, look at one, play it, and see whether it is fit to train on.",
    epilog=examples("roll envs list", "roll envs play SimpleSokoban", "roll envs certify my_module:MyEnv"),
)

Modules = Annotated[
    list[str] | None,
    typer.Option("--module", "-m", help="Import this module first, from this folder too: it registers tags."),
]
Name = Annotated[
    str,
    typer.Argument(metavar="TAG", help="A tag, or module:factory (a class or function).", autocompletion=complete_tag),
]


@app.command("list", epilog=examples("roll envs list", "roll envs list --module my_envs --json"))
def list_command(module: Modules = None, as_json: AsJson = False) -> None:
    """List the tags that a run can name."""
    from roll.cli.envs_text import listed, table

    rows = listed(tuple(module or ()))
    sys.stdout.write(json.dumps(rows, indent=2, ensure_ascii=False) + "\n" if as_json else table(rows))


@app.command(
    short_help="Show what a policy is told, and an example of a turn.",
    epilog=examples("roll envs show SimpleSokoban", "roll envs show my_module:MyEnv --seed 7 --json"),
)
def show(
    name: Name,
    module: Modules = None,
    seed: Annotated[int, typer.Option(help="Seed of the example.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show what a policy is told, an example of a turn, the actions and the limits."""
    from roll.cli.envs_text import shown, shown_text

    facts = shown(_target(name, module), seed)
    sys.stdout.write(json.dumps(facts, indent=2, ensure_ascii=False) + "\n" if as_json else shown_text(facts))


@app.command(epilog=examples("roll envs play SimpleSokoban", "printf 'Up\\nLeft\\n' | roll envs play FrozenLake"))
def play(
    name: Name, module: Modules = None, seed: Annotated[int, typer.Option(help="Seed of the first episode.")] = 0
) -> None:
    """Play it yourself: type an action, or a whole response. Also with the actions in a file or a pipe."""
    from roll.cli.envs_play import play as play_env

    play_env(_target(name, module), seed, sys.stdin, sys.stdout)


@app.command(
    short_help="Serve it to the clients of OpenEnv.",
    epilog=examples("roll envs serve SimpleSokoban", "roll envs serve my_module:MyEnv --port 9000"),
)
def serve(
    name: Name,
    module: Modules = None,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for other machines too.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.")] = 8000,
    sessions: Annotated[int, typer.Option(min=1, help="Most clients at a time; each has an environment.")] = 256,
) -> None:
    """Serve it to the clients of OpenEnv, until Ctrl-C: GenericEnvClient(base_url="http://127.0.0.1:8000")."""
    from roll.cli.envs_serve import serve as serve_env

    serve_env(_target(name, module), host, port, sessions)


@app.command(epilog=examples("roll envs check SimpleSokoban", "roll envs check my_module:MyEnv --json"))
def check(name: Name, module: Modules = None, as_json: AsJson = False) -> None:
    """Check in some seconds that it keeps the rules. Exit code 0: it does, 3: it does not, 2: there is none."""
    from roll.certificates import QUICK

    certificate, _ = _certified(_target(name, module), QUICK)
    _say(certificate, None, as_json)


@app.command(
    epilog=examples(
        "roll envs certify SimpleSokoban", "roll envs certify my_module:MyEnv --out certificates/my_env --no-learning"
    )
)
def certify(
    name: Name,
    module: Modules = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of certificate.html and .json.", show_default="output/certificates/TAG")
    ] = None,
    learning: Annotated[
        bool, typer.Option(help="Also train the toy policy on it for 20 steps, up to two and a half minutes.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Say whether it is fit to train on, with a report. Exit code 0: fit, 3: not fit, 2: there is none."""
    from roll.certificates import Effort
    from roll.certificates.report import write

    certificate, measurements = _certified(_target(name, module), Effort(learning_steps=20 if learning else 0))
    folder = out or Path("output") / "certificates" / name.replace(":", ".")
    write(folder, certificate, measurements)
    sys.stderr.write(f"Report: {folder / 'certificate.html'}\n")
    _say(certificate, measurements, as_json)


def _target(name: str, modules: list[str] | None) -> Target:
    from roll.certificates import Target

    return Target(name, tuple(modules or ()))


def _certified(target: Target, effort: Effort) -> tuple[Certificate, Measurements | None]:
    from roll.certificates import Children, TargetError, certify
    from roll.cli.envs_text import wrong_input

    def progress(said: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{said} …")
            sys.stderr.flush()

    with Children() as children:
        try:
            return certify(target, effort, children, progress)
        except TargetError as error:
            raise wrong_input(target, error) from error
        finally:
            if sys.stderr.isatty():
                sys.stderr.write("\r\x1b[K")


def _say(certificate: Certificate, measurements: Measurements | None, as_json: bool) -> None:
    from roll.certificates.report import as_json as jsonable
    from roll.cli.envs_text import verdict

    if as_json:
        record: dict[str, Any] = jsonable(certificate)
        sys.stdout.write(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(verdict(certificate, measurements))
    if not certificate.is_fit:
        raise typer.Exit(ExitCode.UNABLE)
