"""A backend that may be closed while other threads use it.

In: a backend. Out: the same one, with an end: batches that run are waited for, later ones are refused. What
is recognised is unknown here.
"""

import threading
from collections.abc import Mapping, Sequence

from transduce.errors import DeviceError
from transduce.types import Backend, FloatArray, Hypothesis, ModelSpec

__all__ = ["Guarded"]


class Guarded:
    """A `Backend` around a backend, for any number of threads."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._changed = threading.Condition()
        self._num_running = 0
        self._is_closed = False

    @property
    def spec(self) -> ModelSpec:
        return self._backend.spec

    def recognize(self, waveforms: Sequence[FloatArray]) -> list[Hypothesis]:
        """As the backend does. Raises DeviceError once it is closed."""
        with self._changed:
            self.check()
            self._num_running += 1
        try:
            return self._backend.recognize(waveforms)
        finally:
            with self._changed:
                self._num_running -= 1
                self._changed.notify_all()

    def describe(self) -> Mapping[str, str]:
        return self._backend.describe()

    def check(self) -> None:
        """Raise DeviceError if it is closed."""
        if self._is_closed:
            raise DeviceError(f"{self.spec.name} was closed; load the model again")

    def close(self) -> None:
        """Refuse what comes, wait for the batches that run, close the backend; a second time, nothing."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.wait_for(lambda: not self._num_running)
        self._backend.close()
