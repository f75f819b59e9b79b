"""The review of a run as a web application: routes, each of which asks the table and renders a template."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from roll.config import ConfigError
from roll.experience.errors import StoreError
from roll.experience.reviewing import Decision
from roll.viewer.access import Gate
from roll.viewer.desk import Desk
from roll.viewer.episodes import Episodes, Row
from roll.viewer.filters import Filter
from roll.viewer.notes import Notes
from roll.viewer.pages import WAITING, Pages
from roll.viewer.parts import EpisodeView
from roll.viewer.rendering import Addresses, static_text

_STATIC: Final = {"review.css": "text/css", "review.js": "text/javascript"}
_LONGEST: Final = 200_000
"""Bytes that a note may have as a form sends it."""
_FIRST: Final = 0.3
"""Seconds that reading files may take before the first page is shown."""
_BETWEEN_PAGES: Final = 0.1
"""Seconds that reading more of them may take before a page that somebody asks for comes first."""
_EVERY: Final = 2.0
"""Seconds between looks at what a run has written."""


class Review:
    """Pages of one run.

    Args:
        episodes: Its table.
    """

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes
        self._token = secrets.token_urlsafe(32)
        self.desk = Desk.of(episodes.run)
        views = () if self.desk is None else ((WAITING, "/waiting"),)
        notes = Notes(episodes.run.notes_file)
        self.pages = Pages(episodes, Addresses(), notes, more_views=views, token=self._token)

    def routes(self) -> list[Route]:
        """Return what is answered, and by what."""
        of_episodes: dict[str, Callable[[Request], Response]] = {
            "/": self.overview,
            "/episodes": self.table,
            "/episode/{phase}/{step:int}/{episode:int}/{group:path}": self.episode,
            "/tokens/{phase}/{step:int}/{episode:int}/{group:path}": self.tokens,
            "/group/{phase}/{step:int}/{group:path}": self.group,
        }
        pages = {path: partial(self._steadily, answer) for path, answer in of_episodes.items()} | {
            "/waiting": self.waiting,
            "/waiting/{group:path}": self.waiting_group,
            "/state": self.state,
            "/static/{name}": self.static,
        }
        note = Route("/note/{phase}/{step:int}/{episode:int}/{group:path}", self.note, methods=["POST"])
        decide = Route("/decide/{group:path}", self.decide, methods=["POST"])
        return [*(Route(path, answer, methods=["GET"]) for path, answer in pages.items()), note, decide]

    @asynccontextmanager
    async def life(self, app: Starlette) -> AsyncIterator[None]:
        """Read what is there, then what a run writes meanwhile."""
        await run_in_threadpool(self.episodes.refresh, _FIRST)
        following = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            if self.desk is not None:
                self.desk.close()

    async def _follow(self) -> None:
        while True:
            await run_in_threadpool(self.episodes.refresh, _BETWEEN_PAGES)
            await asyncio.sleep(0.01 if self.episodes.pending else _EVERY)

    def _steadily(self, answer: Callable[[Request], Response], request: Request) -> Response:
        with self.episodes.steady(Filter.read(request.query_params)):
            return answer(request)

    def state(self, request: Request) -> Response:
        """Answer whether there is anything new."""
        return JSONResponse({"version": self.episodes.version, "pending": self.episodes.pending})

    def static(self, request: Request) -> Response:
        """Answer with the style sheet or the script.

        Raises:
            HTTPException: There is no such file.
        """
        name = request.path_params["name"]
        if name not in _STATIC:
            raise HTTPException(404)
        return Response(static_text(name), media_type=_STATIC[name])

    def overview(self, request: Request) -> Response:
        """Show how the run goes."""
        return _html(self.pages.overview(request.query_params.get("against", "")))

    def table(self, request: Request) -> Response:
        """Show the episodes that are chosen."""
        return _html(self.pages.table(Filter.read(request.query_params)))

    def episode(self, request: Request) -> Response:
        """Show an episode turn by turn."""
        return _html(self.pages.episode(*self._episode(request)))

    def tokens(self, request: Request) -> Response:
        """Show an episode token by token."""
        return _html(self.pages.tokens(*self._episode(request)))

    def group(self, request: Request) -> Response:
        """Show the members of a group side by side.

        Raises:
            HTTPException: There is no such group.
        """
        place = request.path_params
        rows = self.episodes.members(place["phase"], place["step"], place["group"])
        if not rows:
            raise HTTPException(404, "There is no such group.")
        return _html(self.pages.group(rows))

    async def note(self, request: Request) -> Response:
        """Keep what a person says of an episode, and show it again.

        Raises:
            HTTPException: It does not come from a page of this review, is too long, is about nothing or cannot be kept.
        """
        form = await self._own_form(request)
        row = self._row(request)
        labels = form.get("labels", "").split(",")
        try:
            await run_in_threadpool(self.pages.notes.save, row, labels, form.get("comment", ""))
        except (ConfigError, OSError) as error:
            raise HTTPException(409, f"The note was not kept: {error}") from None
        query = Filter.read(request.query_params).without_page().query()
        return RedirectResponse(f"{self.pages.urls.episode(row, query)}#note", 303)

    def waiting(self, request: Request) -> Response:
        """Show the groups that wait for a decision."""
        return _html(self.pages.waiting(self._desk()))

    def waiting_group(self, request: Request) -> Response:
        """Show one of them.

        Raises:
            HTTPException: There is none of this name.
        """
        try:
            return _html(self.pages.waiting_group(self._desk(), request.path_params["group"]))
        except StoreError as error:
            raise HTTPException(404, str(error)) from None

    async def decide(self, request: Request) -> Response:
        """Take note of what a person decided about a group, and show the others that wait.

        Raises:
            HTTPException: It does not come from a page of this review, says nothing, or cannot be kept.
        """
        form = await self._own_form(request)
        try:
            decision = Decision.read(form.get("decision", ""))
            await run_in_threadpool(self._desk().decide, request.path_params["group"], decision)
        except (StoreError, ValueError) as error:
            raise HTTPException(409, f"The decision was not kept: {error}") from None
        return RedirectResponse("/waiting", 303)

    def _desk(self) -> Desk:
        if self.desk is None:
            raise HTTPException(404, "No groups of this run wait in a store.")
        return self.desk

    async def _own_form(self, request: Request) -> dict[str, str]:
        """Return what a form of this review says.

        Raises:
            HTTPException: It comes from elsewhere.
        """
        form = await _form(request)
        if not hmac.compare_digest(form.get("token", "").encode(), self._token.encode()):
            raise HTTPException(403, "This page is of a review that has been closed: open it again, and say it again.")
        return form

    def _episode(self, request: Request) -> tuple[Row, EpisodeView, dict[str, Any]]:
        row = self._row(request)
        try:
            view = self.pages.view(row)
        except (FileNotFoundError, IndexError):  # the run has just replaced its files
            raise HTTPException(404, "This episode is no longer stored.") from None
        where = self.pages.place(row, Filter.read(request.query_params))
        return row, view, where | {"whole": "all" in request.query_params}

    def _row(self, request: Request) -> Row:
        place = request.path_params
        row = self.episodes.find(place["phase"], place["step"], place["group"], place["episode"])
        if row is None:
            raise HTTPException(404, "There is no such episode. It may not be stored yet.")
        return row


async def _form(request: Request) -> dict[str, str]:
    """Return what a form says."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST:
            raise HTTPException(413, "A note has at most ten thousand characters.")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def _html(page: str) -> Response:
    # What a model wrote may hold halves of characters, which no encoding takes.
    return HTMLResponse(page.encode("utf-8", "replace"))


def make_app(review: Review, port: int, announce: Callable[[str], None]) -> tuple[Starlette, Gate]:
    """Return the application without its gate, and the gate in front of it, which is what a server serves."""
    app = Starlette(routes=review.routes(), lifespan=review.life)
    return app, Gate(app, port, announce)
