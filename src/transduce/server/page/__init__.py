"""The page at `/`: three static files that ship with the package.

In: nothing. Out: routes. The page is a client of the API like any other; it is not part of the OpenAPI
document.
"""

import hashlib
from importlib.resources import files

from fastapi import FastAPI, Request, Response

__all__ = ["PATHS", "add_routes"]

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}
"""Path -> file in this folder and its type."""

PATHS = tuple(FILES)

HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; media-src 'self' blob:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Permissions-Policy": "microphone=(self)",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def add_routes(app: FastAPI) -> None:
    """Serve the files, read once; a browser that has them already is told so."""
    for path, (name, media_type) in FILES.items():
        content = (files("transduce.server.page") / name).read_bytes()
        app.get(path, include_in_schema=False)(_File(content, media_type).get)


class _File:
    """One static file in memory."""

    def __init__(self, content: bytes, media_type: str) -> None:
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        self._content = content
        self._headers = HEADERS | {"ETag": tag, "Content-Type": media_type}

    async def get(self, request: Request) -> Response:
        if self._headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers)
