"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from roll.cli.completion import complete_configuration, complete_override

Configuration = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE",
        help="A preset, a name in this folder or its folder config, or a YAML file.",
        autocompletion=complete_configuration,
    ),
]
"""A configuration that a run is started from."""

AnyConfiguration = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE",
        help="A preset, or a configuration in any dialect or of any system.",
        autocompletion=complete_configuration,
    ),
]
"""A configuration that :func:`roll.planning.read_configuration` reads."""

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Keys to set.", autocompletion=complete_override),
]
"""Keys to set in it."""

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
"""Whether a program reads the answer."""
