"""`transduce serve`: one model behind an OpenAI-compatible HTTP server, until it is told to stop.

In: arguments and TRANSDUCE_* variables. Out: a server on an address, its log on standard error, and an
exit code: 0 after SIGTERM and a drained queue, 2 usage, 3 the model, the extra `server`, the device or the
address is not usable, 130 interrupted. `register` adds the command to an application.
"""

import ipaddress
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from transduce import hub
from transduce.cli_options import (
    Backend,
    Decoder,
    Device,
    Head,
    MaxSegment,
    ModelName,
    Offline,
    Precision,
    Threads,
    VoiceActivity,
    choice_of,
)
from transduce.errors import DeviceError, TransduceError, import_extra
from transduce.hub import DEFAULT_MODEL
from transduce.hub.progress import silent
from transduce.pipeline import Limits
from transduce.server import logs, memory
from transduce.server.settings import Settings
from transduce.transcriber import Model, load_model

__all__ = ["register", "serve"]

UNUSABLE = 3
"""Exit code."""

LIBRARIES = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")

KEY_VARIABLES = ("TRANSDUCE_API_KEY", "TRANSDUCE_API_KEY_FILE")

DEFAULTS = Settings()

logger = logging.getLogger("transduce")


def serve(
    model: ModelName = DEFAULT_MODEL,
    host: Annotated[str, typer.Option(envvar="TRANSDUCE_HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="TRANSDUCE_PORT", min=0, max=65535, help="0: any free one.")
    ] = 8000,
    api_keys: Annotated[
        list[str] | None,
        typer.Option("--api-key", envvar=KEY_VARIABLES[0], help="A key that clients must send; repeat it."),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(envvar=KEY_VARIABLES[1], help="A file with a key a line; `ps` does not show it."),
    ] = None,
    aliases: Annotated[
        list[str] | None,
        typer.Option(
            "--alias", envvar="TRANSDUCE_ALIAS", help="Another name for the model.  [default: whisper-1]"
        ),
    ] = None,
    max_requests: Annotated[
        int,
        typer.Option(envvar="TRANSDUCE_MAX_REQUESTS", min=1, help="Requests under way; more get 503."),
    ] = DEFAULTS.max_requests,
    max_upload: Annotated[
        int, typer.Option(envvar="TRANSDUCE_MAX_UPLOAD", min=1, help="Largest upload, MiB; larger get 413.")
    ] = DEFAULTS.max_upload_bytes // 2**20,
    max_hours: Annotated[
        float, typer.Option(envvar="TRANSDUCE_MAX_HOURS", min=0.001, help="Longest recording, hours.")
    ] = DEFAULTS.max_audio_seconds / 3600,
    vad: VoiceActivity = "auto",
    max_segment: MaxSegment = None,
    batch_seconds: Annotated[
        float,
        typer.Option(
            envvar="TRANSDUCE_BATCH_SECONDS", min=1, help="Audio recognised at once, of all requests."
        ),
    ] = DEFAULTS.limits.batch_seconds,
    queue_seconds: Annotated[
        float,
        typer.Option(envvar="TRANSDUCE_QUEUE_SECONDS", min=1, help="Audio that may wait in memory, seconds."),
    ] = DEFAULTS.queue_seconds,
    drain_seconds: Annotated[
        float,
        typer.Option(envvar="TRANSDUCE_DRAIN_SECONDS", min=1, help="Time for open requests after SIGTERM."),
    ] = DEFAULTS.drain_seconds,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(envvar="TRANSDUCE_LOG_FORMAT", help="Of the log.")
    ] = "text",
    head: Head = "auto",
    backend: Backend = "auto",
    device: Device = "auto",
    precision: Precision = "fp32",
    decoder: Decoder = "auto",
    threads: Threads = None,
    offline: Offline = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", envvar="TRANSDUCE_VERBOSE", help="Log health checks too.")
    ] = False,
) -> None:
    """Serve a model over HTTP, as OpenAI's API does; the page at / is for people.

    \b
    transduce serve -m demo
    curl -F file=@examples/digits.wav -F model=demo http://127.0.0.1:8000/v1/audio/transcriptions
    """
    memory.prepare()
    logs.set_up(log_format, logging.DEBUG if verbose else logging.INFO)
    settings = Settings(
        aliases=tuple(aliases or DEFAULTS.aliases),
        api_keys=_keys(api_keys, api_key_file),
        max_requests=max_requests,
        max_upload_bytes=max_upload * 2**20,
        max_audio_seconds=max_hours * 3600,
        limits=Limits(vad, max_segment, batch_seconds),
        queue_seconds=queue_seconds,
        drain_seconds=drain_seconds,
    )
    choice = choice_of(backend, device, precision, head, decoder, threads)
    with _usable():
        for library in LIBRARIES:
            import_extra(library, "server")
        bound = _bind(host, port, is_open=not settings.api_keys)
        loaded = load_model(model, choice, offline=offline, settings=_download_settings())
        _check_limits(loaded, settings.limits)
    _serve(loaded, settings, bound)


def register(app: typer.Typer) -> None:
    """Add the command `serve` to an application."""
    app.command()(serve)


def _keys(given: list[str] | None, file: Path | None) -> tuple[str, ...]:
    """The keys of the options and of the file, without empty lines; whoever asks for keys must give one."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file else []
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--api-key-file {file} cannot be read: {error}") from error
    keys = tuple(key.strip() for key in (*(given or []), *lines) if key.strip())
    asked = [name for name, value in (("--api-key", given), (f"--api-key-file {file}", file)) if value]
    # An empty variable reaches no option, but says that somebody meant to set a key.
    asked += [name for name in KEY_VARIABLES if name in os.environ]
    if asked and not keys:
        raise typer.BadParameter(f"{asked[0]} holds no key, so the API would be open")
    if not all(key.isascii() and key.isprintable() for key in keys):
        raise typer.BadParameter("an API key has characters that do not pass in HTTP headers: use ASCII")
    return keys


@contextmanager
def _usable() -> Iterator[None]:
    """What is not usable here is one line that says why, and exit code 3."""
    try:
        yield
    except TransduceError as error:
        typer.echo(" ".join(f"error: {error} [{error.code}]".splitlines()), err=True)
        raise typer.Exit(UNUSABLE) from None


def _bind(host: str, port: int, *, is_open: bool) -> socket.socket:
    """Take the address before the model is loaded, which may take long."""
    from transduce.server import serving

    try:
        bound = serving.bind(host, port)
    except OSError as error:
        raise DeviceError(f"{host}:{port} cannot be listened on: {error.strerror or error}") from error
    address = bound.getsockname()[0]
    if is_open and not ipaddress.ip_address(address).is_loopback:
        logger.warning("whoever reaches %s can use this server: set --api-key-file", address)
    return bound


def _check_limits(model: Model, limits: Limits) -> None:
    """Refuse what would fail in every request."""
    try:
        model.check(limits)
    except TransduceError:
        raise
    except ValueError as error:
        raise typer.BadParameter(f"--max-segment: {error}") from error


def _download_settings() -> hub.Settings:
    """The log is for lines, so that there is no bar in it."""
    return replace(hub.Settings.from_environment(), announce=logger.info, progress=silent)


def _serve(model: Model, settings: Settings, bound: socket.socket) -> None:
    from transduce.server import serving
    from transduce.server.app import create_app

    with model:
        fields = {"model": model.spec.name, **model.backend.describe()}
        logger.info("model loaded", extra={"fields": fields})
        memory.settle()
        bound.listen()  # whoever reads the next line of the log may connect, before uvicorn has come up
        address, port = bound.getsockname()[:2]
        logger.info("listening on http://%s:%d", f"[{address}]" if ":" in address else address, port)
        serving.serve(create_app(model, settings), bound, settings.drain_seconds)
