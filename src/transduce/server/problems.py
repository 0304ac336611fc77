"""What is said to a client whose request fails: a status and OpenAI's error object.

In: an `ApiError`, or an error of the package. Out: a response. The message says what to do; `code` is
stable (that of `transduce.errors` where the audio is at fault).
"""

import errno
from collections.abc import Mapping

from starlette.responses import JSONResponse

from transduce.errors import AudioError, ResourceError, TransduceError
from transduce.server.batcher import CancelledJobError, ClosedError

__all__ = ["ApiError", "answer", "of_error"]

CLOSING = "this server is shutting down: send the request again, to another one or later"
SHORTAGE = "the server ran out of memory or disk space: send the request again later, or a shorter file"
MOST_CHARACTERS = 1000


class ApiError(Exception):
    """A request that fails for a reason which its sender may know."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = headers or {}

    def to_dict(self) -> dict[str, dict[str, str | None]]:
        """The body: {"error": {"message", "type", "param", "code"}}."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        message = self.message[:MOST_CHARACTERS]
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}


def answer(error: ApiError) -> JSONResponse:
    """The response that tells an error."""
    return JSONResponse(error.to_dict(), error.status, headers=error.headers)


def of_error(error: Exception) -> ApiError:
    """What a client is told of an error that came up in its request; the unexpected keeps its details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, AudioError):
        return ApiError(400, str(error), error.code, param="file")
    if isinstance(error, (ClosedError, CancelledJobError)):
        return ApiError(503, CLOSING, "shutting_down", headers={"Retry-After": "5"})
    if isinstance(error, ResourceError) or _is_shortage(error):
        message = str(error) if isinstance(error, ResourceError) else SHORTAGE
        return ApiError(503, message, ResourceError.code, headers={"Retry-After": "30"})
    if isinstance(error, TransduceError):
        return ApiError(500, str(error), error.code)
    return ApiError(500, "the server failed; its log says more under this X-Request-Id", "internal")


def _is_shortage(error: Exception) -> bool:
    is_full_disk = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return is_full_disk or isinstance(error, MemoryError)
