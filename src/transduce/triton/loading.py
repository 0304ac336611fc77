"""The deployed model's files to a model, on the device of its instance.

In: the folder of the version, the settings of `config.pbtxt`, a device. Out: a model. Triton is unknown here.
"""

import logging
from pathlib import Path

from transduce.choice import Choice
from transduce.errors import CheckpointError
from transduce.onnx.threads import num_threads
from transduce.transcriber import Model, load_model
from transduce.triton.settings import Settings

__all__ = ["load"]

logger = logging.getLogger("transduce")


def load(folder: Path, settings: Settings, device: str, num_instances: int) -> Model:
    """Load a deployed model; on a CPU, the instances share the threads. Raises what `load_model` raises."""
    path = folder / settings.model
    if not path.exists():
        raise CheckpointError(f"{path} is not there: write the repository again with transduce triton")
    threads = settings.threads or max(1, num_threads() // num_instances)
    choice = Choice(settings.backend, device, settings.precision, settings.head, threads=threads)
    model = load_model(path, choice, offline=True)
    logger.info("%s", ", ".join(f"{key}: {value}" for key, value in model.backend.describe().items()))
    return model
