"""``roll serve``: a policy behind an endpoint, for agents and for people."""

from __future__ import annotations

from typing import Annotated

import typer

from roll.cli.examples import examples

app = typer.Typer()


@app.command(
    epilog=examples(
        "roll serve toy",
        "roll serve output/sokoban --port 8000 --key my-key",
        "roll serve output/rlvr_math/checkpoints/step=000060 --name my-model",
        "roll serve toy --train",
        "roll serve toy --adapter poet=adapters/poet --adapter sums=adapters/sums",
    )
)
def serve(
    policy: Annotated[str, typer.Argument(help="A run, a checkpoint or a model.", metavar="POLICY")],
    port: Annotated[int, typer.Option(help="Where, on this machine; 0 for any that is free.")] = 0,
    key: Annotated[
        str | None, typer.Option(help="What clients show. By default one is made and printed.", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The name of the model. By default POLICY.", show_default=False)
    ] = None,
    host: Annotated[
        str, typer.Option(help="The interface. 0.0.0.0 lets other machines ask, who then need the key.")
    ] = "127.0.0.1",
    max_length: Annotated[
        int | None,
        typer.Option(min=16, help="Most tokens of a conversation and its answer. By default the model's, up to 4096."),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            help="LoRA adapters, and the name of the model that they make of POLICY; may be repeated.",
            metavar="NAME=FOLDER",
            show_default=False,
        ),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Let clients of Tinker's protocol train adapters of POLICY.")
    ] = False,
    weights: Annotated[
        str, typer.Option(help="With --train, where the weights that they save go.", metavar="FOLDER")
    ] = "output/service",
    dtype: Annotated[str, typer.Option(help="fp32, bf16 or fp16.")] = "fp32",
) -> None:
    """Answer for a policy as the servers of OpenAI and Anthropic do, so that any client or agent can use it.

    Nothing is trained and nothing is recorded, but with --train: then the public client tinker trains and samples here.
    Ctrl-C ends it.
    """
    from roll.config.process import prepare_process

    # Before torch is imported.
    prepare_process()
    from roll.api.serving import serve as answer

    answer(
        policy,
        say=typer.echo,
        host=host,
        port=port,
        key=key,
        name=name,
        max_length=max_length,
        dtype=dtype,
        adapters=_named(adapter or []),
        train=weights if train else None,
    )


def _named(adapters: list[str]) -> dict[str, str]:
    """Return folders by name.

    Raises:
        typer.BadParameter: One has no name, or two have the same.
    """
    found: dict[str, str] = {}
    for written in adapters:
        name, equals, folder = written.partition("=")
        if not (name and equals and folder) or name in found:
            raise typer.BadParameter(f"{written!r} is not NAME=FOLDER with a name of its own", param_hint="--adapter")
        found[name] = folder
    return found
