"""Who may look: nobody but the person at the terminal that started the review.

The server listens on the loopback interface, which every user and every web page of the machine can reach. So it is
opened by a key that the terminal shows and that works once; a cookie keeps it open for that browser. Requests that name
another host (DNS rebinding) and changes that another page asks for are refused.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""What a page may load and do: nothing from anywhere else, and no script or style that is written inside of it."""

_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Gate:
    """Lets requests of one browser through.

    Args:
        app: What it guards.
        port: Where the server listens.
        announce: Is given the address that opens the review, once for every key; :meth:`new_key` makes the first.
    """

    def __init__(self, app: ASGIApp, port: int, announce: Callable[[str], None]) -> None:
        self._app = app
        self._announce = announce
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._origin = f"http://127.0.0.1:{port}"
        self._cookie = f"roll-review-{port}"  # browsers share cookies among the ports of a host
        self._secret = secrets.token_urlsafe(32)
        self._key = ""

    def new_key(self) -> None:
        """Make a key that opens the review once, and announce its address."""
        self._key = secrets.token_urlsafe(32)
        self._announce(f"{self._origin}/open?key={self._key}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the request through; every answer says what its page may do."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._answer(scope)
        await (self._app if answer is None else answer)(scope, receive, guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """Return what a request is answered that goes no further."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host not in self._hosts:
            return PlainTextResponse("The review answers on 127.0.0.1 only.\n", 421)
        if scope["path"] == "/open":
            return self._open(scope)
        given = cookie_parser(headers.get("cookie", "")).get(self._cookie, "")
        if not _same(given, self._secret):
            text = "This review is opened by the address that `roll view` shows in its terminal; each works once.\n"
            return PlainTextResponse(text, 403)
        if scope["method"] not in ("GET", "HEAD") and headers.get("origin") != f"http://{host}":
            return PlainTextResponse("Changes are taken from pages of this review only.\n", 403)
        return None

    def _open(self, scope: Scope) -> Response:
        key = parse_qs(scope["query_string"].decode("latin-1")).get("key", [""])[0]
        if scope["method"] != "GET" or not self._key or not _same(key, self._key):
            text = "This address has been used. The terminal of `roll view` shows the one that works now.\n"
            return PlainTextResponse(text, 403)
        self.new_key()
        response = RedirectResponse("/", 303)
        response.set_cookie(self._cookie, self._secret, httponly=True, samesite="strict", path="/")
        return response


def _same(given: str, wanted: str) -> bool:
    """Whether both are the same, in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())
