"""``roll decide``: groups that wait for a person, from a terminal or a script."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from roll.cli.examples import examples

app = typer.Typer()


@app.command(
    epilog=examples(
        "roll decide output/experience",
        "roll decide output/experience train-0000017 approve",
        "roll decide output/experience train-0000017 reject",
        "roll decide output/experience train-0000017 1,-,0.5",
        "roll decide postgresql://roll@host/experience --json",
        "RAY_ADDRESS=127.0.0.1:6379 roll decide ray:my_store",
    )
)
def decide(
    store: Annotated[
        str,
        typer.Argument(
            help="Folder of an experience store, or its address (in a Ray cluster, ray:NAME).",
            metavar="STORE",
        ),
    ],
    group: Annotated[
        str, typer.Argument(help="A group that waits; without it, they are listed.", metavar="GROUP")
    ] = "",
    decision: Annotated[
        str,
        typer.Argument(
            help="approve, reject, or scores with commas between: one for all members, or one for each (- leaves one).",
            metavar="DECISION",
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="List one JSON object in a line for each group.")] = False,
) -> None:
    """List the groups of a store that wait for review (operator human_review), or decide about one.

    What is approved is learned from, with scores of yours where you give some; what is rejected never is. A decision
    may be changed until a run has been given the group. `roll view STORE` shows what the members did.

    \f

    Raises:
        ConfigError: There is no such store or group, or it cannot be decided so.
    """
    from roll.config import ConfigError, Problem
    from roll.experience.errors import StoreError
    from roll.experience.opened import open_place
    from roll.experience.reviewing import Decision

    if bool(group) != bool(decision):
        message = f"nothing is said about {group}." if group else "no group is named."
        fix = f"roll decide {store} {group or 'GROUP'} approve, reject, or scores such as 1,0,0.5"
        raise ConfigError([Problem("DECISION", message, fix)])
    try:
        opened = open_place(store, patience=10.0)
        try:
            if group:
                opened.decide(group, Decision.read(decision))
                typer.echo(f"{group}: {decision}; {len(opened.waiting())} more wait")
                return
            waiting = opened.waiting()
            for each in waiting:
                line = (
                    f"{each.group_id}  {each.tag}  {each.members} members  mean score {each.mean_score:.3f}, "
                    f"spread {each.score_spread:.3f}  weights {each.policy_version}"
                )
                typer.echo(json.dumps(asdict(each)) if as_json else line)
            if not waiting and not as_json:
                typer.echo("no group waits")
        finally:
            opened.close()
    except (StoreError, ValueError) as error:
        fix = f"roll decide {store} lists what waits."
        raise ConfigError([Problem("DECISION" if group else "STORE", f"{error}.", fix)]) from error
