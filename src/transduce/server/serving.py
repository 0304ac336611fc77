"""An application on a socket, by uvicorn, until a signal ends it.

In: an ASGI application and a bound socket. Out: nothing; it returns when the requests that were under way
at SIGTERM or SIGINT have been answered, or their time is up.
"""

import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

__all__ = ["bind", "serve", "server_of"]

KEEP_ALIVE_SECONDS = 30

SWITCH_SECONDS = 0.0005
"""After which a thread that computes gives way to the event loop. An answer takes the interpreter's lock some
ten times, and each time may wait that long for every such thread; Python's 5 ms would add up."""


def bind(host: str, port: int) -> socket.socket:
    """A socket on an address, to be had before the model is loaded. Raises OSError if it is not free."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def server_of(app: ASGIApp, drain_seconds: float) -> uvicorn.Server:
    """The server of an application; `run(sockets=[...])` runs it."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,  # `gate` logs what was answered
        server_header=False,
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(drain_seconds)),
    )
    return uvicorn.Server(config)


def serve(app: ASGIApp, bound: socket.socket, drain_seconds: float) -> None:
    """Run until SIGTERM, which ends it without an error, or SIGINT, which ends in KeyboardInterrupt."""
    with _quiet_sigterm(), _quick_switches():
        server_of(app, drain_seconds).run(sockets=[bound])


@contextmanager
def _quiet_sigterm() -> Iterator[None]:
    """uvicorn raises the signal that ended it once more; the queue is drained then, so all is well."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
