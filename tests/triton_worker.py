"""A client of Triton as a process of its own, in the environment that `scripts/make_triton_env` makes.

In: a line of JSON for each request, on standard input: "id", "protocol" (http, grpc, or stream: gRPC of a
decoupled model), "url", "model", "inputs" (name -> "dtype", "shape", "data" in base64 or "paths" of files),
"outputs" (names) and, for gRPC, "cancel_seconds". Out: a line for each, in any order: "id", "wall_seconds",
and "outputs" (name -> texts) or, of a stream, "responses" (of that kind, with the "seconds" since the
request), or "error" ("status", "message").
"""

import base64
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

Job = dict[str, Any]

MODULES = {"http": tritonclient.http, "grpc": tritonclient.grpc, "stream": tritonclient.grpc}
TIMEOUT_SECONDS = 600.0


def client(job: Job) -> Any:
    if job["protocol"] == "http":
        options = {"network_timeout": TIMEOUT_SECONDS, "connection_timeout": TIMEOUT_SECONDS}
        return tritonclient.http.InferenceServerClient(job["url"], **options)
    return tritonclient.grpc.InferenceServerClient(job["url"])


def array(given: dict[str, Any]) -> Any:
    """The tensor that a request describes; BYTES are a list of contents in base64, or a file."""
    if given["dtype"] == "BYTES":
        contents = [Path(path).read_bytes() for path in given.get("paths", ())]
        contents += [base64.b64decode(text) for text in given.get("data", ())]
        return np.array(contents, np.object_).reshape(given["shape"])
    kinds = {"FP32": np.float32, "INT32": np.int32}
    return np.frombuffer(base64.b64decode(given["data"]), kinds[given["dtype"]]).reshape(given["shape"])


def inputs(job: Job) -> list[Any]:
    tensors = []
    for name, given in job["inputs"].items():
        tensor = MODULES[job["protocol"]].InferInput(name, given["shape"], given["dtype"])
        tensor.set_data_from_numpy(array(given))
        tensors.append(tensor)
    return tensors


def outputs(result: Any, names: list[str]) -> dict[str, list[str]]:
    arrays = {name: result.as_numpy(name) for name in names}
    return {
        name: [content.decode() for content in a.reshape(-1)] for name, a in arrays.items() if a is not None
    }


def infer(job: Job) -> Job:
    with client(job) as server:
        wanted = [MODULES[job["protocol"]].InferRequestedOutput(name) for name in job["outputs"]]
        result = server.infer(job["model"], inputs(job), outputs=wanted)
        return {"outputs": outputs(result, job["outputs"])}


def infer_and_cancel(job: Job) -> Job:
    """A gRPC request that its client cancels after a time."""
    answers: Queue[Any] = Queue()
    with client(job) as server:
        call = server.async_infer(job["model"], inputs(job), lambda result, error: answers.put(error))
        time.sleep(job["cancel_seconds"])
        call.cancel()
        error = answers.get(timeout=TIMEOUT_SECONDS)
        if error is not None:
            raise error
        return {"outputs": {}}


def stream(job: Job) -> Job:
    """All responses of a decoupled model, up to the final one."""
    answers: Queue[Any] = Queue()
    started = time.monotonic()
    responses: list[Job] = []
    with client(job) as server:
        server.start_stream(lambda result, error: answers.put((result, error)))
        server.async_stream_infer(job["model"], inputs(job), enable_empty_final_response=True)
        while True:
            left = started + job.get("cancel_seconds", TIMEOUT_SECONDS) - time.monotonic()
            try:
                result, error = answers.get(timeout=max(0.0, left))
            except Empty:
                server.stop_stream(cancel_requests=True)
                break
            if error is not None:
                return {"responses": responses} | failure(error)
            response = {"seconds": time.monotonic() - started, **outputs(result, job["outputs"])}
            responses.append(response)
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
    return {"responses": responses}


def failure(error: Exception) -> Job:
    status = error.status() if isinstance(error, InferenceServerException) else type(error).__name__
    message = error.message() if isinstance(error, InferenceServerException) else str(error)
    return {"error": {"status": str(status), "message": str(message)}}


def answer(job: Job, lock: threading.Lock) -> None:
    kind = stream if job["protocol"] == "stream" else infer_and_cancel if "cancel_seconds" in job else infer
    started = time.monotonic()
    try:
        reply = kind(job)
    except Exception as error:  # noqa: BLE001 - it is the answer
        reply = failure(error)
    with lock:
        line = {"id": job["id"], "wall_seconds": time.monotonic() - started} | reply
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def main() -> None:
    lock = threading.Lock()
    with ThreadPoolExecutor(128) as threads:
        for line in sys.stdin:
            threads.submit(answer, json.loads(line), lock)


if __name__ == "__main__":
    main()
