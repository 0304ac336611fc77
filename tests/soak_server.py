"""A demo server for soaks, as a process: `python soak_server.py`, which prints its port.

The application is the one that `transduce serve` runs; `/objects` is added, which counts what the process
holds after a collection.
"""

import asyncio
import gc
import sys
from collections import Counter

from fastapi import FastAPI

from transduce.server import memory
from transduce.server.app import create_app
from transduce.server.serving import bind, serve
from transduce.server.settings import Settings
from transduce.transcriber import load_model

__all__ = ["application", "main"]


def application(app: FastAPI) -> FastAPI:
    """The application with `/objects`."""

    @app.get("/objects")
    async def objects() -> dict[str, object]:
        await forget_cancelled_timers()
        gc.collect()
        held = gc.get_objects()
        kinds = Counter(type(item).__qualname__ for item in held)
        return {"total": len(held), "blocks": sys.getallocatedblocks(), "kinds": kinds}

    return app


async def forget_cancelled_timers() -> None:
    """asyncio keeps them, each with its context, until there are more than 100; then it drops them all."""
    loop = asyncio.get_running_loop()
    for _ in range(200):
        loop.call_later(60.0, loop.stop).cancel()
    await asyncio.sleep(0)


def main() -> None:
    """Serve until SIGTERM."""
    bound = bind("127.0.0.1", 0)
    sys.stdout.write(f"{bound.getsockname()[1]}\n")
    sys.stdout.flush()
    memory.prepare()
    with load_model("demo") as model:
        memory.settle()
        serve(application(create_app(model, Settings(max_audio_seconds=6 * 3600.0))), bound, 10.0)


if __name__ == "__main__":
    main()
