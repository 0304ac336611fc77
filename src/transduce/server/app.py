"""The HTTP routes of `transduce serve`.

In: a loaded model and settings. Out: an ASGI application. Routes only: what they answer with is made in
`transcription`, `service` and `metrics`; what holds for every request is in `gate`.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from transduce.server import page, problems
from transduce.server.gate import Gate
from transduce.server.metrics import CONTENT_TYPE, Metrics
from transduce.server.problems import ApiError
from transduce.server.schemas import TRANSCRIPTION, UNAVAILABLE, ModelCard, ModelList, Status, errors
from transduce.server.service import Service
from transduce.server.settings import Settings
from transduce.server.transcription import transcribe
from transduce.transcriber import Model

__all__ = ["create_app"]

OPEN_PATHS = ("/health", "/ready", "/docs", "/openapi.json", *page.PATHS)
"""Paths that need no key: they tell nothing of users and cost nothing."""

DESCRIPTION = """Speech to text behind OpenAI's interface: point an OpenAI client's `base_url` at `/v1`."""


def create_app(model: Model, settings: Settings) -> FastAPI:
    """The application of one model, which it uses from its start to its shutdown and does not close."""
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = service = Service(model, settings, metrics)
        service.start()
        try:
            yield
        except asyncio.CancelledError:
            return  # a second Ctrl-C: nobody waits any longer, and that is no error for the log
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="transduce",
        version=version("transduce"),
        description=DESCRIPTION,
        lifespan=lifespan,
        redoc_url=None,
    )
    app.state.loaded_at = int(time.time())
    app.state.metrics = metrics
    app.add_middleware(Gate, settings=settings, metrics=metrics, open_paths=OPEN_PATHS)
    app.add_exception_handler(HTTPException, _http_error)
    _add_api(app)
    _add_operations(app)
    page.add_routes(app)
    return app


def _add_api(app: FastAPI) -> None:
    app.post("/v1/audio/transcriptions", name="transcribe", **TRANSCRIPTION)(_transcribe)
    app.get("/v1/models", name="list_models", responses=errors(401))(_models)
    app.get("/v1/models/{model}", name="retrieve_model", responses=errors(401, 404))(_model)


def _add_operations(app: FastAPI) -> None:
    app.get("/health", name="health", response_model=Status, responses=UNAVAILABLE)(_health)
    app.get("/ready", name="ready", response_model=Status, responses=UNAVAILABLE)(_ready)
    for path, answer in (("/health", _health), ("/ready", _ready)):
        app.head(path, include_in_schema=False)(answer)  # as monitors ask
    app.get("/metrics", name="metrics", response_class=PlainTextResponse, responses=errors(401))(_metrics)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _transcribe(request: Request) -> Response:
    """Transcribe a recording."""
    return await transcribe(request, _service(request))


async def _models(request: Request) -> ModelList:
    """The model that this server has."""
    return ModelList(data=[_card(request)])


async def _model(request: Request, model: str) -> ModelCard:
    """The model under one of its names."""
    _service(request).served.check(model)
    return _card(request)


def _card(request: Request) -> ModelCard:
    return ModelCard(id=_service(request).served.name, created=request.app.state.loaded_at)


async def _health(request: Request) -> JSONResponse:
    """Whether the process can go on; if not, restart it."""
    is_healthy = _service(request).is_healthy
    return JSONResponse({"status": "ok" if is_healthy else "broken"}, 200 if is_healthy else 503)


async def _ready(request: Request) -> JSONResponse:
    """Whether requests should be sent here: after the warm-up, until the shutdown."""
    obstacle = _service(request).obstacle
    return JSONResponse({"status": obstacle or "ready"}, 503 if obstacle else 200)


async def _metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    metrics: Metrics = request.app.state.metrics
    return Response(metrics.render(), media_type=CONTENT_TYPE)


async def _http_error(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """What the framework found wrong, in the form that all errors have."""
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    problem = ApiError(
        error.status_code,
        str(error.detail),
        codes.get(error.status_code, "invalid_request"),
        None,
        error.headers,
    )
    return problems.answer(problem)
