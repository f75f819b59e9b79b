"""What a call of the gateway is refused with; each API writes it in its own form."""

from __future__ import annotations


class ApiError(Exception):
    """A call that is not answered.

    Attributes:
        status: HTTP status.
        message: What is wrong, and what to do.
        code: The word for it in OpenAI's API (``invalid_api_key``, ``context_length_exceeded``).
        param: The field of the request that is wrong, ``None`` where none is.
    """

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return what a request is refused with that is wrong in itself."""
    return ApiError(400, message, code=code, param=param)


def unsupported(param: str, reason: str = "this server cannot do it") -> ApiError:
    """Return what a request is refused with that asks for more than there is."""
    return invalid(f"'{param}' is not supported: {reason}. Leave it out.", param, "unsupported_parameter")
