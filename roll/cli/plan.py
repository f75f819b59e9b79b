"""``roll plan``: will a job fit, and what will it cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from roll.cli.arguments import AnyConfiguration, AsJson, Overrides
from roll.cli.examples import examples

app = typer.Typer()


@app.command(
    epilog=examples(
        "roll plan my_job.yaml --gpu h100",
        "roll plan run_qwen3_grpo.sh --gpu a100 --json",
        "roll plan my_job.yaml --gpu h200 --response-tokens 2000 actor_train.model_args.dtype=bf16",
    )
)
def plan(
    name: AnyConfiguration,
    overrides: Overrides = None,
    gpu: Annotated[str, typer.Option("--gpu", help="a100, h100, h200, h800, h20, b200, mi300x, l40s, …")] = "h100",
    response_tokens: Annotated[
        int | None, typer.Option("--response-tokens", min=1, help="Tokens of a response on average.")
    ] = None,
    model_config: Annotated[
        Path | None,
        typer.Option("--model-config", help="config.json of the policy, where its sizes are not known by name."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Reckon what every role of a job needs on its devices, how long a step takes, and what the run costs.

    Pure arithmetic: it loads no model and downloads nothing.

    Code 0: it fits. Code 2: the configuration cannot be used. Code 3: it does not fit; the report says what to change.
    \f

    Raises:
        BadParameter: There is no such accelerator.
        Exit: It does not fit.
    """
    from roll.planning import GPUS, plan_job, read_configuration, render_plan, shape_of

    if gpu not in GPUS:
        raise typer.BadParameter(f"{gpu!r} is none of {', '.join(GPUS)}.", param_hint="--gpu")
    config, cautions = read_configuration(name, overrides or ())
    shapes = None
    if model_config is not None:
        shapes = {str(getattr(config, "pretrain", "")): shape_of(str(model_config))}
    found = plan_job(config, GPUS.get(gpu), shapes=shapes, response_tokens=response_tokens)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2, ensure_ascii=False, default=str))
    else:
        for caution in cautions:
            typer.echo(f"Warning: {caution}", err=True)
        typer.echo(render_plan(found))
    if not found.fits:
        raise typer.Exit(3)
