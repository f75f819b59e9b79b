"""``roll export``: a checkpoint as a folder that other programs load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from roll.cli.examples import examples
from roll.cli.exits import ExitCode

app = typer.Typer()


@app.command(
    epilog=examples(
        "roll export output/sokoban --to my_model",
        "roll export output/sokoban/checkpoints/step=000024 --to my_model --dtype bf16",
        "roll export output/sokoban --to my_model --gguf my_model.gguf",
    )
)
def export(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, a run (its newest one) or a Hugging Face folder.")],
    to: Annotated[Path, typer.Option("--to", help="The folder to make.")],
    dtype: Annotated[Literal["fp32", "bf16", "fp16"] | None, typer.Option(help="Default: as it is.")] = None,
    gguf: Annotated[Path | None, typer.Option(help="Write a GGUF file too, with llama.cpp's converter.")] = None,
    config: Annotated[Path | None, typer.Option(help="Folder with config.json, where the checkpoint has none.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder of another tokenizer.")] = None,
) -> None:
    """Write a checkpoint in Hugging Face format, LoRA adapters merged, shards joined, with its tokenizer.

    \f

    Raises:
        ConfigError: There is no such checkpoint, or it cannot be converted.
        Exit: The converter to GGUF is not here.
    """
    from roll.runs.stored import checkpoint_in

    checkpoint = checkpoint_in(checkpoint, "checkpoint")
    # Imported once it is known that there is something to do: transformers takes seconds.
    from roll.models.quiet import quiet_libraries

    quiet_libraries()
    from roll.models.convert import ConversionError
    from roll.models.export import ConverterMissingError, export_checkpoint, find_converter, write_gguf

    try:
        converter = None if gguf is None else find_converter()
        export_checkpoint(checkpoint, to, config=config, tokenizer=tokenizer, dtype=dtype)
        typer.echo(f"Written: {to} (from {checkpoint})")
        if converter is not None and gguf is not None:
            write_gguf(to, gguf, converter)
            typer.echo(f"Written: {gguf}")
    except ConversionError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.INPUT) from error
    except ConverterMissingError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.UNABLE) from error
