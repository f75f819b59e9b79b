"""``roll view``: look at the episodes of a run in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roll.cli.examples import examples

app = typer.Typer()


@app.command(
    epilog=examples(
        "roll view output/sokoban",
        "roll view output/sokoban --port 8765 --no-browser",
        "roll view output/sokoban --text --where 'outcome=broken&step=8..'",
        "roll view output/sokoban --export broken.html --where outcome=broken",
        "roll view output/sokoban --export-preferences pairs.jsonl",
    )
)
def view(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a file of its trajectories.", metavar="RUN")],
    port: Annotated[int, typer.Option(help="Where the review is served on this machine; 0 for any that is free.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open it in a browser.")] = True,
    text: Annotated[bool, typer.Option("--text", help="Write a summary to the terminal instead.")] = False,
    export: Annotated[
        Path | None, typer.Option(help="Write one HTML file instead, which needs no server and no network.")
    ] = None,
    export_notes: Annotated[
        Path | None, typer.Option(help="Write the notes that were made in the review as JSON instead.")
    ] = None,
    export_preferences: Annotated[
        Path | None,
        typer.Option(help="Write pairs of episodes that were labelled `chosen` and `rejected` as JSON lines instead."),
    ] = None,
    where: Annotated[
        str, typer.Option(help="Of --text, --export: which episodes, as the table's address says it.")
    ] = "",
    most: Annotated[int, typer.Option(help="Of --export: episodes in the file at most.", min=1)] = 100,
) -> None:
    """Review the episodes of a run: how it goes, a table to filter, every episode turn by turn and token by token.

    The review is served on this machine only, to the browser that opens the address shown, and follows a run that is
    training. Ctrl-C ends it.
    """
    from roll.viewer.episodes import Episodes
    from roll.viewer.export import export as write_file
    from roll.viewer.filters import Filter
    from roll.viewer.notes import Notes, apply
    from roll.viewer.preferences import write_notes
    from roll.viewer.run_folder import RunFolder
    from roll.viewer.serving import serve
    from roll.viewer.text import as_text

    chosen = Filter.parse(where)
    episodes = Episodes(RunFolder.find(run))
    if not text and not (export or export_notes or export_preferences):
        serve(episodes, port, typer.echo, open_browser=browser)
        return
    episodes.refresh()
    apply(Notes(episodes.run.notes_file), episodes)
    if text:
        for line in as_text(episodes, chosen):
            typer.echo(line)
    if export is not None:
        written = write_file(episodes, export, chosen, most=most)
        if written.left_out:
            typer.echo(f"{written.left_out:,} episodes that were chosen are not in the file.", err=True)
        typer.echo(str(written.path))
    for path in (export_notes, export_preferences):
        if path is not None:
            number = write_notes(episodes, path, pairs=path is export_preferences)
            typer.echo(f"{number} {'pairs' if path is export_preferences else 'notes'} in {path}")
    episodes.close()
