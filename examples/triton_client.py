#!/usr/bin/env python3
"""Send recordings to the models that `transduce triton` writes, and print what was said.

    pip install "tritonclient[grpc,http]"
    python examples/triton_client.py examples/digits.wav                       HTTP, port 8000
    python examples/triton_client.py --protocol grpc examples/digits.wav       gRPC, port 8001
    python examples/triton_client.py --protocol stream examples/digits.wav     each segment as it is final

Recordings are sent together, and their answers printed in order; a recording that fails is one line on
standard error, and exit code 1.
"""

import argparse
import json
import queue
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

PORTS = {"http": 8000, "grpc": 8001, "stream": 8001}


def audio_input(module: ModuleType, path: Path) -> Any:
    """The tensor AUDIO: one row, the bytes of the file. Whatever FFmpeg decodes will do."""
    tensor = module.InferInput("AUDIO", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[path.read_bytes()]], np.object_))
    return tensor


def samples_inputs(module: ModuleType, samples: Any, rate: int) -> list[Any]:
    """The same for mono float32 samples `[n]`; a client that pads them also sends NUM_SAMPLES."""
    audio = module.InferInput("SAMPLES", [1, len(samples)], "FP32")
    audio.set_data_from_numpy(np.asarray(samples, np.float32)[None])
    sample_rate = module.InferInput("SAMPLE_RATE", [1, 1], "INT32")
    sample_rate.set_data_from_numpy(np.array([[rate]], np.int32))
    return [audio, sample_rate]


def text_of(result: Any, name: str) -> str:
    """The one row of an output."""
    return str(result.as_numpy(name)[0, 0], "utf-8")


def transcribe(protocol: str, url: str, model: str, path: Path) -> dict[str, Any]:
    """The whole result of one recording: what `transduce transcribe -f json` writes."""
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    options = {"network_timeout": 3600.0, "connection_timeout": 3600.0} if protocol == "http" else {}
    with module.InferenceServerClient(url, **options) as client:
        wanted = [module.InferRequestedOutput("TRANSCRIPT")]
        result = client.infer(model, [audio_input(module, path)], outputs=wanted)
    content: dict[str, Any] = json.loads(text_of(result, "TRANSCRIPT"))
    return content


def stream(url: str, model: str, path: Path) -> Iterator[str]:
    """The text of each segment as soon as it is final; joined they are the text."""
    answers: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(model, [audio_input(tritonclient.grpc, path)])
        while True:
            result, error = answers.get()
            if error is not None:
                raise error
            if text_of(result, "TRANSCRIPT"):  # only the last response has it
                return
            yield text_of(result, "TEXT")


def described(error: InferenceServerException) -> str:
    return f"{error.message()} ({error.status()})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--protocol", choices=list(PORTS), default="http")
    parser.add_argument("--url", help="host:port  [default: 127.0.0.1 and the protocol's port]")
    parser.add_argument("--model", help="[default: transduce, or transduce_stream]")
    arguments = parser.parse_args()
    url = arguments.url or f"127.0.0.1:{PORTS[arguments.protocol]}"
    model = arguments.model or ("transduce_stream" if arguments.protocol == "stream" else "transduce")
    num_failed = 0
    with ThreadPoolExecutor(8) as threads:
        if arguments.protocol != "stream":
            asked = [threads.submit(transcribe, arguments.protocol, url, model, f) for f in arguments.files]
        for number, path in enumerate(arguments.files):
            try:
                if arguments.protocol == "stream":
                    for text in stream(url, model, path):
                        print(text, end="", flush=True)
                    print()
                else:
                    print(asked[number].result()["text"])
            except InferenceServerException as error:
                print(f"{path}: {described(error)}", file=sys.stderr)
                num_failed += 1
    return min(num_failed, 1)


if __name__ == "__main__":
    sys.exit(main())
