"""What `transduce triton` deploys: Triton's tensors in, Triton's tensors out; all work is the batcher's.

In: requests with AUDIO (the bytes of a file), or SAMPLES with SAMPLE_RATE and, where they are padded,
NUM_SAMPLES. Out: TEXT, WORDS, SEGMENTS and TRANSCRIPT, once a request; in a model with a decoupled
transaction policy once a segment. `execute` returns at once, so that recordings of all requests that are
under way share batches; a request that fails fails alone.
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from transduce.errors import AudioError, DeviceError
from transduce.server import memory
from transduce.transcript import Transcript
from transduce.triton import outputs
from transduce.triton.loading import load
from transduce.triton.recordings import INPUTS, read_recordings
from transduce.triton.service import Failure, Request, Service, failure_of
from transduce.triton.settings import Settings
from transduce.types import Segment

__all__ = ["TritonPythonModel"]


class TritonPythonModel:
    """One instance of the model, in a process of its own; the name is Triton's."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model and warm it up; what goes wrong is the model's status in Triton."""
        _check_numpy()
        _log_to_triton()
        memory.prepare()
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        settings = Settings.from_parameters(parameters)
        is_gpu = args["model_instance_kind"] == "GPU"
        device = f"cuda:{args['model_instance_device_id']}" if is_gpu else "cpu"
        num_instances = sum(group.get("count", 1) for group in config["instance_group"])
        folder = Path(args["model_repository"], args["model_version"])
        self._is_streamed = pb_utils.using_decoupled_model_transaction_policy(config)
        self._service = Service(load(folder, settings, device, num_instances), settings)
        memory.settle()

    def execute(self, requests: Sequence[Any]) -> None:
        """Begin the requests; each is answered through its own sender."""
        for request in requests:
            answer = _Answer(request.get_response_sender(), request.requested_output_names())
            try:
                self._service.start(self._read(request, answer))
            except Exception as error:  # noqa: BLE001 - one request must not take the others with it
                answer.fail(failure_of(error))

    def finalize(self) -> None:
        """Finish what is under way and free everything."""
        self._service.close()

    def _read(self, request: Any, answer: "_Answer") -> Request:
        tensors = (pb_utils.get_input_tensor_by_name(request, name) for name in INPUTS)
        recordings = read_recordings(*(tensor and tensor.as_numpy() for tensor in tensors))
        if not self._is_streamed:
            return Request(recordings, answer.finish, answer.fail, is_cancelled=answer.is_cancelled)
        if len(recordings) != 1:
            raise AudioError(f"a stream is of one recording; the request has {len(recordings)}")
        return Request(recordings, answer.end, answer.fail, answer.add, answer.is_cancelled)


class _Answer:
    """The way back to the client of one request."""

    def __init__(self, sender: Any, wanted: Collection[str]) -> None:
        self._sender = sender
        self._wanted = wanted

    def is_cancelled(self) -> bool:
        return bool(self._sender.is_cancelled())

    def finish(self, transcripts: Sequence[Transcript]) -> None:
        """The only response: a row for each recording."""
        self._send([outputs.of_transcript(transcript, self._wanted) for transcript in transcripts])

    def add(self, segment: Segment) -> None:
        """A segment of a stream."""
        self._send([outputs.of_segment(segment, self._wanted)], flags=0)

    def end(self, transcripts: Sequence[Transcript]) -> None:
        """The last response of a stream."""
        self._send([outputs.of_end(transcript, self._wanted) for transcript in transcripts])

    def fail(self, failure: Failure) -> None:
        """The only response, or the last one of a stream."""
        error = pb_utils.TritonError(failure.message, getattr(pb_utils.TritonError, failure.status))
        response = pb_utils.InferenceResponse(error=error)
        self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _send(
        self, rows: Sequence[Mapping[str, str]], flags: int = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    ) -> None:
        tensors = [
            pb_utils.Tensor(name, np.array([[row[name].encode()] for row in rows], np.object_))
            for name in rows[0]
        ]
        self._sender.send(pb_utils.InferenceResponse(tensors), flags=flags)


def _check_numpy() -> None:
    """Refuse a numpy that this stub cannot read.

    A stub built for numpy 1 takes the size of numpy 2's arrays from the wrong place: every output would be
    empty, and only clients would notice (triton-inference-server/server issue 8019).
    """
    sent = np.arange(1, 5, dtype=np.float32)
    tensor = pb_utils.Tensor("PROBE", sent)
    received = pb_utils.Tensor.from_dlpack("PROBE", tensor.to_dlpack()).as_numpy()
    if not np.array_equal(sent, received):
        raise DeviceError(
            f"this Triton's Python backend cannot read the arrays of numpy {np.__version__}: install "
            'an older one beside it, pip install "numpy<2"'
        )


class _TritonHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if record.levelno >= logging.ERROR:
            pb_utils.Logger.log_error(text)
        elif record.levelno >= logging.WARNING:
            pb_utils.Logger.log_warn(text)
        else:
            pb_utils.Logger.log_info(text)


def _log_to_triton() -> None:
    """Our messages in Triton's log."""
    logger = logging.getLogger("transduce")
    logger.handlers = [_TritonHandler()]
    logger.setLevel(logging.INFO)
