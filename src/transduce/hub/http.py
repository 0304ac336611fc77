"""HTTP as downloads need it: proxies, redirects, tokens, time limits, and failures sorted by what helps.

In: a URL and headers. Out: a Response to read from, or a JSON value. A failure is a TransientError, worth
another try after a pause that Patience makes, or a DownloadError, final, in one clear line. It knows
no files. urllib does the work: it honours http_proxy, https_proxy, no_proxy and SSL_CERT_FILE.
"""

import http.client
import json
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from types import TracebackType
from typing import IO, Any
from urllib.parse import urlsplit

from transduce.errors import DownloadError

__all__ = ["Client", "Patience", "Policy", "RangeRefusedError", "Response", "TransientError", "display"]

MAX_JSON_BYTES = 32 << 20
SCHEMES = ("http", "https")
RETRIED = (408, 425, 429, 500, 502, 503, 504)
ADVICE = "; check the connection and try again"


@dataclass(frozen=True, slots=True)
class Policy:
    """How long to wait for servers, and how often to ask again."""

    timeout_seconds: float = 15.0
    """For connecting, for the answer to begin, and between two pieces of it."""
    waits_seconds: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    """Pauses after failures in a row; one more failure ends the download."""
    num_waits_unreachable: int = 3
    """As many of them where no connection came about: without a network that ends within 5 s."""
    longest_wait_seconds: float = 120.0
    """Most that a server's Retry-After is obeyed."""
    sleep: Callable[[float], None] = time.sleep


class TransientError(Exception):
    """A failure that another try may mend."""

    def __init__(
        self, message: str, *, wait_seconds: float | None = None, most_waits: int | None = None
    ) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds
        """What the server asked for."""
        self.most_waits = most_waits


class RangeRefusedError(TransientError):
    """The server does not have the range that was asked for (416)."""


class Patience:
    """The pauses between tries; a success that brought something on starts them anew."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._num_failures = 0

    def reset(self) -> None:
        """Forget the failures so far."""
        self._num_failures = 0

    def wait(self, error: TransientError) -> None:
        """Pause before the next try; DownloadError where there should not be one."""
        waits = self._policy.waits_seconds[: error.most_waits]
        self._num_failures += 1
        if self._num_failures > len(waits):
            tries = "once" if self._num_failures == 1 else f"{self._num_failures} times"
            raise DownloadError(f"{error} (tried {tries}){ADVICE}") from error
        asked = error.wait_seconds
        if asked is not None and asked > self._policy.longest_wait_seconds:
            raise DownloadError(f"{error}; the server asks to come back in {asked:.0f} s") from error
        self._policy.sleep(waits[self._num_failures - 1] if asked is None else asked)


@dataclass(frozen=True, slots=True)
class Response:
    """An answer whose body is read piece by piece."""

    url: str
    """What was asked for, before any redirect."""
    status: int
    headers: Message
    body: IO[bytes]

    def __enter__(self) -> "Response":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.body.close()

    def read(self, num_bytes: int) -> bytes:
        """The next bytes, none at the end; TransientError where the connection breaks."""
        try:
            return self.body.read(num_bytes)
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise TransientError(f"{display(self.url)}: the connection broke ({_reason(error)})") from error


class Client:
    """Opens URLs, with a token for one server only."""

    def __init__(self, policy: Policy, *, endpoint: str = "", token: str | None = None) -> None:
        """The token goes to `endpoint`'s origin and to no other. DownloadError where it can be none."""
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise DownloadError(
                "HF_TOKEN holds characters that no token has, such as spaces, line ends or letters with "
                "accents; set it to the token as the hub shows it"
            )
        self.policy = policy
        self._origin = _origin(endpoint)
        self._token = token
        self._opener = urllib.request.build_opener(_Redirects)

    def open(self, url: str, headers: Mapping[str, str] | None = None) -> Response:
        """The answer to a GET, redirects followed; TransientError or DownloadError."""
        try:
            if urlsplit(url).scheme not in SCHEMES or urlsplit(url).username is not None:
                raise DownloadError(f"{display(url)}: not an http or https address without user and password")
            raw = self._opener.open(self._request(url, headers or {}), timeout=self.policy.timeout_seconds)
        except DownloadError:
            raise
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(url, error) from error
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise self._failure(url, error) from error
        return Response(url, raw.status, raw.headers, raw)

    def json(self, url: str) -> Any:
        """The JSON at a URL, with tries and pauses; DownloadError."""
        patience = Patience(self.policy)
        while True:
            try:
                return self._json(url)
            except TransientError as error:
                patience.wait(error)

    def _json(self, url: str) -> Any:
        with self.open(url) as response:
            pieces, num_bytes = [], 0
            while piece := response.read(1 << 16):
                pieces.append(piece)
                num_bytes += len(piece)
                if num_bytes > MAX_JSON_BYTES:
                    raise DownloadError(f"{display(url)}: the answer is absurdly long; nothing was kept")
        try:
            return json.loads(b"".join(pieces))
        except (ValueError, RecursionError) as error:
            raise DownloadError(
                f"{display(url)}: the answer is not JSON; a login page or a proxy may be in the way"
            ) from error

    def _request(self, url: str, headers: Mapping[str, str]) -> urllib.request.Request:
        agent = f"transduce/{version('transduce')}"
        request = urllib.request.Request(url, headers={"User-Agent": agent, **headers})
        if self._token and _origin(url) == self._origin:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        return request

    def _refusal(self, url: str, error: urllib.error.HTTPError) -> Exception:
        """The error for a status that is not a success."""
        what = f"{display(url)}: {error.code} {http.client.responses.get(error.code, '')}".rstrip()
        if error.code < 400:
            return DownloadError(f"{what}; the server redirects in a circle or to nowhere")
        if error.code == 416:
            return RangeRefusedError(what)
        if error.code in RETRIED:
            return TransientError(what, wait_seconds=_retry_after(error.headers))
        if error.code in (401, 403, 404) and _origin(url) == self._origin:
            return DownloadError(f"{what}; {self._hub_advice(error)}")
        if error.code in (401, 403):
            return DownloadError(f"{what}; the server does not let this machine have the file")
        if error.code in (404, 410):
            return DownloadError(f"{what}; the file is not there (any more): check the name")
        return DownloadError(f"{what}; the server does not give the file")

    def _hub_advice(self, error: urllib.error.HTTPError) -> str:
        """What to do about a refusal of Hugging Face, which hides what one may not see."""
        code = error.headers.get("X-Error-Code", "")
        if code in ("RevisionNotFound", "EntryNotFound"):
            return "the repository has no such revision or file: check the name"
        if code == "GatedRepo" or error.code == 403:
            return (
                "the repository is gated: accept its conditions on its web page, then set HF_TOKEN to a "
                "token of that account"
            )
        token = "and that HF_TOKEN may read it" if self._token else "or set HF_TOKEN if it is private"
        return f"there is no such repository for you: check the name {token}"

    def _failure(self, url: str, error: Exception) -> Exception:
        """The error where no answer came at all."""
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, ssl.SSLCertVerificationError):
            return DownloadError(
                f"{display(url)}: the server's certificate is not trusted ({cause.verify_message}); behind "
                "an inspecting proxy set SSL_CERT_FILE to your organisation's certificates"
            )
        if isinstance(cause, http.client.InvalidURL | ValueError):
            return DownloadError(f"{display(url)}: not a usable address ({cause})")
        message = f"{display(url)}: no answer ({_reason(cause)})"
        if isinstance(error, urllib.error.URLError):
            is_slow = isinstance(cause, TimeoutError)
            return TransientError(message, most_waits=0 if is_slow else self.policy.num_waits_unreachable)
        return TransientError(message)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects of a GET: tokens stay with their origin, and https is not left for http."""

    def redirect_request(  # urllib says what it is called with
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,  # noqa: ARG002
        msg: str,  # noqa: ARG002
        headers: Message,  # noqa: ARG002
        newurl: str,
    ) -> urllib.request.Request:
        scheme, next_scheme = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if next_scheme not in SCHEMES or (scheme, next_scheme) == ("https", "http"):
            fp.close()
            raise DownloadError(f"{display(req.full_url)}: redirects to an unsafe address; not followed")
        following = urllib.request.Request(
            newurl.replace(" ", "%20"),
            headers=dict(req.headers),
            origin_req_host=req.origin_req_host,
            unverifiable=True,
        )
        authorization = req.unredirected_hdrs.get("Authorization")
        if authorization and _origin(newurl) == _origin(req.full_url):
            following.add_unredirected_header("Authorization", authorization)
        return following

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302  # Python 3.10 does not know 308


def display(url: str) -> str:
    """A URL for messages: without user, password, query and fragment, which may hold secrets."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return url.partition("?")[0]
    return f"{parts.hostname or ''}{port}{parts.path}" or url


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return "time ran out"
    if isinstance(error, socket.gaierror):
        return f"the name is not known: {error.strerror}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _retry_after(headers: Message) -> float | None:
    """Seconds that the server asks to wait, from a number or a date."""
    text = str(headers.get("Retry-After", "")).strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None
