"""``roll eval``: how good a policy is, without training it; :func:`roll.evaluate` for the command line."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roll.cli.arguments import AsJson, Overrides
from roll.cli.completion import complete_configuration, complete_tag
from roll.cli.examples import examples

if TYPE_CHECKING:
    from roll.api.endpoint import Endpoint
    from roll.api.results import Evaluation
    from roll.config.origins import Origins

app = typer.Typer()

Policy = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME|POLICY]",
        help="A configuration; or a run, a checkpoint or a model.",
        autocompletion=complete_configuration,
        show_default=False,
    ),
]
Envs = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="TAG", help="Play this; may be repeated.", autocompletion=complete_tag),
]
Files = Annotated[
    list[Path] | None, typer.Option("--data", metavar="FILE", help="Answer these problems; may be repeated.")
]
Agent = Annotated[
    str | None,
    typer.Option(metavar="PROGRAM", help="This agent works instead: module:function, or a command in quotes."),
]
Tasks = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="With --agent: its tasks, as JSON lines; may be repeated.")
]
Calls = Annotated[int, typer.Option(min=1, help="With --agent: most calls of an episode.")]
EndpointUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="The policy is behind this OpenAI-compatible address, up to /v1.")
]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="Its name there.")]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(metavar="VARIABLE", help="Environment variable with the key. OPENAI_API_KEY, where it is set."),
]
Concurrency = Annotated[int, typer.Option(min=1, help="With --endpoint: requests at a time.")]
Timeout = Annotated[float, typer.Option(help="With --endpoint: seconds for one attempt at a response.")]
Episodes = Annotated[
    int | None, typer.Option(min=1, help="Levels (128 with --env) or problems (all).", show_default=False)
]
Attempts = Annotated[int | None, typer.Option(min=1, help="Attempts at each level or problem.", show_default=False)]
Greedy = Annotated[bool, typer.Option("--greedy", help="Also play everything greedily.")]


@app.command(
    "eval",
    epilog=examples(
        "roll eval eval_math                                     the toy policy on math problems",
        "roll eval sokoban                                       the levels of its validation",
        "roll eval output/sokoban --env SimpleSokoban --greedy   the newest checkpoint of a run",
        "roll eval output/rlvr_math/checkpoints/step=000060 --data roll_problems.jsonl",
        "roll eval toy --env FrozenLake --episodes 64 val_generating_args.temperature=0.5",
        "roll eval toy --agent my_agent:solve --tasks tasks.jsonl",
        "roll eval --endpoint http://localhost:8000/v1 --model my-model --env SimpleSokoban",
        "roll eval eval_math --endpoint http://localhost:8000/v1 --model my-model --json",
    ),
)
def evaluate(
    policy: Policy = None,
    overrides: Overrides = None,
    env: Envs = None,
    data: Files = None,
    agent: Agent = None,
    tasks: Tasks = None,
    calls: Calls = 50,
    endpoint: EndpointUrl = None,
    model: Model = None,
    api_key_env: ApiKeyEnv = None,
    concurrency: Concurrency = 16,
    timeout: Timeout = 120.0,
    episodes: Episodes = None,
    attempts: Attempts = None,
    greedy: Greedy = False,
    as_json: AsJson = False,
) -> None:
    """Measure a policy on an environment or on problems, and write figures, episodes and a review.

    Nothing is trained. A configuration, or a run, is evaluated on what it validates with. An endpoint gets messages and
    answers text; its key comes from the environment, never from the command line.

    \f

    Raises:
        BadParameter: Both an agent and something else to do are named.
    """
    words: list[str] = list(overrides or ())
    if policy is not None and "=" in policy and not Path(policy).exists():
        words.insert(0, policy)
        policy = None
    if agent is not None:
        if env or data:
            raise typer.BadParameter("an agent works (--agent), or something is played (--env) or answered (--data).")
        env = [_AGENT]
        words = [*_agent_words(agent, tasks or [], calls), *words]
    named, config = _who(policy, bool(env or data), endpoint, model)
    who: str | Endpoint | None = named
    if endpoint is not None and model is not None:
        from roll.api.endpoint import endpoint as behind

        who = behind(endpoint, model, api_key_env=api_key_env, timeout=timeout, concurrency=concurrency)
    options = {"env": env, "data": data, "endpoint": [endpoint], "model": [model], "episodes": [episodes]}
    found = _measured(
        who,
        _started(policy, options, words),
        env=env or None,
        data=data or None,
        config=config,
        episodes=episodes,
        attempts=attempts,
        greedy=greedy,
        output_dir=f"output/eval_{_task(policy, env, data)}",
        overrides=[f"progress={'none' if as_json else 'auto'}", *words],
    )
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))


def _started(policy: str | None, options: Mapping[str, Sequence[object] | None], words: Sequence[str]) -> Origins:
    """Return by which command an evaluation was started."""
    from roll.cli.own_words import own_words
    from roll.config.origins import Origins

    said = [word for name, values in options.items() for v in values or () if v for word in (f"--{name}", str(v))]
    program = [*own_words(), "eval", *([policy] if policy else []), *said]
    return Origins(command=[*program, *words], program=[*own_words(), "eval", ""])


def _measured(who: str | Endpoint | None, started: Origins, **options: Any) -> Evaluation:
    """Call :func:`roll.evaluate`, and say what it warns of."""
    from roll.config import ConfigWarning
    from roll.config.process import prepare_process

    prepare_process()  # before torch is imported
    from roll.api.evaluation import evaluate as measure

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = measure(who, started=started, **options)
    for item in caught:
        if issubclass(item.category, ConfigWarning):
            typer.echo(f"Warning: {item.message}", err=True)
    return found


def _who(policy: str | None, has_task: bool, endpoint: str | None, model: str | None) -> tuple[str | None, str | None]:
    """Return the policy and the configuration that a name means.

    Raises:
        BadParameter: No policy is named, or half of an endpoint.
    """
    if (endpoint is None) != (model is None):
        raise typer.BadParameter("an endpoint is named by both --endpoint URL and --model NAME.")
    if endpoint is not None:
        return None, policy
    if policy is None:
        raise typer.BadParameter("name a configuration or a policy, or an endpoint: --endpoint URL --model NAME.")
    return (policy, None) if has_task or Path(policy).is_dir() else (None, policy)


_AGENT = "Agent"
"""The tag of the agent that is named on the command line."""


def _agent_words(program: str, tasks: list[Path], calls: int) -> list[str]:
    """Return the keys of a tag whose episodes an agent works at."""
    from roll.config.composing import quoted

    def listed(words: Iterable[str]) -> str:
        return f"[{','.join(map(quoted, words))}]"

    tag = f"custom_envs.{_AGENT}"
    is_function = " " not in program and ":" in program
    named = f"program={quoted(program)}" if is_function else f"command={listed(shlex.split(program))}"
    said = [f"{tag}.env_type=agent", f"{tag}.max_steps={calls}", f"{tag}.env_config.{named}"]
    return [*said, f"{tag}.env_config.tasks={listed(map(str, tasks))}"] if tasks else said


def _task(policy: str | None, env: list[str] | None, data: list[Path] | None) -> str:
    """Return what the folder of the evaluation is called by."""
    names = env or [path.stem for path in data or ()] or [Path(policy or "endpoint").stem]
    return "_".join(names).removeprefix("eval_").replace("=", "_")
