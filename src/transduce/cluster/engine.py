"""Recordings through a Ray cluster: connect, examine, ask for lengths, transcribe.

In: where the cluster is and what an actor gets of it, a `Job` and its recordings. Out: what became of each
recording, once each, in the order in which they are done. A worker that ends is begun anew and its task
given to another; a task that ends its workers again and again is divided, and the recording that did it is
an error. Output files and the command line are unknown here.
"""

import logging
import os
import pickle
import re
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from transduce.choice import Choice
from transduce.cluster.plan import GPU_TASK_SECONDS, TASK_SECONDS, Item, Task, alone, chunks, grouped
from transduce.cluster.worker import MOST_ATTEMPTS, Answer, Attempts, Job, Outcome, Worker, examine, lengths
from transduce.errors import DeviceError, ResourceError, TransduceError, import_extra
from transduce.onnx.threads import MOST_THREADS
from transduce.pipeline import Cut

__all__ = ["Cluster", "Pool", "connected"]

CONNECT_SECONDS = 10.0
STDERR = 2
"""The descriptor of standard error; it is open, whoever started the command."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Where the actors are, how many there may be, and what each one gets."""

    address: str | None = None
    """Of the cluster, or auto for the one of this machine; None: RAY_ADDRESS, or else one is started here."""
    min_actors: int = 1
    max_actors: int | None = None
    """None: as many as the cluster has room for."""
    cpus: float = 1.0
    """Cores of an actor; also the threads of its engine, where they are not chosen."""
    gpus: float = 0.0
    """GPUs of an actor, or the share of one."""

    def settled(self, choice: Choice) -> Choice:
        """The choice for an actor, which sees its own GPU but all cores of its machine."""
        threads = choice.threads or min(max(1, int(self.cpus)), MOST_THREADS)
        device = "cpu" if choice.device == "auto" and not self.gpus else choice.device
        return replace(choice, threads=threads, device=device)


@contextmanager
def connected(pool: Pool) -> Iterator["Cluster"]:
    """The cluster; one that was started here ends with the block.

    Raises MissingExtraError without ray, and DeviceError where no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing goes out that nobody asked for
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # Ray's own messages are in its logs
    address = pool.address or os.environ.get("RAY_ADDRESS") or "local"
    _reach(address)
    ray = import_extra("ray", "ray")
    data = import_extra("ray.data", "ray")
    here = {"include_dashboard": False} if address == "local" else {}
    try:
        with _no_native_messages():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **here)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise DeviceError(f"no Ray cluster can be used at {address!r}: {error}") from error
    try:
        _be_quiet(data)
        yield Cluster(ray, data, pool, is_own=address == "local")
    finally:
        ray.shutdown()


@contextmanager
def _no_native_messages() -> Iterator[None]:
    """Ray's core, which is no Python, says on standard error how much it is going to say there."""
    kept = os.dup(STDERR)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), STDERR)
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)


def _reach(address: str) -> None:
    """Raise DeviceError where nothing listens, for which Ray would wait for minutes."""
    if address in ("auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise DeviceError(f"no Ray cluster answers at {address!r} (HOST:PORT, or auto): {error}") from error


class Cluster:
    """A connection to a cluster."""

    def __init__(self, ray: Any, data: Any, pool: Pool, *, is_own: bool) -> None:
        self._ray = ray
        self._data = data
        self._pool = pool
        self._is_own = is_own
        self._workers: set[tuple[str, int]] = set()
        """The machines and processes that have answered."""
        self._num_repeated = 0

    def facts(self) -> dict[str, int]:
        """How many machines and processes did the work, and how often a task had to be begun again."""
        machines = {machine for machine, _ in self._workers}
        return {
            "machines": len(machines),
            "workers": len(self._workers),
            "repeated_tasks": self._num_repeated,
        }

    def missing(self) -> str:
        """What an actor needs that no machine has now; "" where there is room.

        Raises DeviceError where none can come, because the cluster is this machine alone.
        """
        needed = {"CPU": self._pool.cpus, "GPU": self._pool.gpus}
        for node in self._ray.nodes():
            has = node["Resources"]
            if node["Alive"] and all(has.get(name, 0.0) >= amount for name, amount in needed.items()):
                return ""
        wanted = " and ".join(f"{amount:g} {name}" for name, amount in needed.items() if amount)
        if self._is_own:
            raise DeviceError(f"an actor needs {wanted}, which this machine does not have for Ray")
        return wanted

    def num_actors(self) -> int:
        """How many actors the pool may have, at most, on the machines there are now."""
        resources = self._ray.cluster_resources()
        shares = {"CPU": self._pool.cpus, "GPU": self._pool.gpus}
        room = min(int(resources.get(name, 0.0) / share) for name, share in shares.items() if share)
        return max(self._pool.min_actors, min(room, self._pool.max_actors or room))

    def examine(self, job: Job) -> dict[str, str]:
        """What runs the job, by loading its model on one of the machines, as an actor will.

        Raises what `load_model` and `Model.check` raise.
        """
        remote = self._ray.remote(num_cpus=self._pool.cpus, num_gpus=self._pool.gpus)(examine)
        try:
            found = self._ray.get(remote.remote(job))
        except self._ray.exceptions.RayError as error:
            raise DeviceError(f"no worker could load {job.model}: {_reason(error)}") from error
        if isinstance(found, Exception):
            raise found
        facts: dict[str, str] = found
        return facts

    def measured(self, items: Sequence[Item], cut: Cut) -> list[Item]:
        """The items with their lengths, asked for on the machines of the cluster where they are not known."""
        unknown = [item for item in items if item.seconds is None]
        remote = self._ray.remote(lengths)
        asked = [(chunk, remote.remote(chunk, cut)) for chunk in chunks(unknown)]
        known: dict[int, float | None] = {item.index: item.seconds for item in items}
        for chunk, reference in asked:
            known.update(zip((item.index for item in chunk), self._lengths(chunk, reference), strict=True))
        return [replace(item, seconds=known[item.index]) for item in items]

    def _lengths(self, chunk: Sequence[Item], reference: Any) -> list[float | None]:
        try:
            found: list[float | None] = self._ray.get(reference)
        except self._ray.exceptions.RayError:  # one of them ends whatever opens it
            return [None] * len(chunk)
        return found

    def outcomes(
        self, job: Job, items: Sequence[Item], on_progress: Callable[[float], None]
    ) -> Generator[tuple[int, Outcome], None, None]:
        """The index of each item and what became of it, once each, as they are done.

        Raises TransduceError where a model cannot be loaded on one of the machines.
        """
        task_seconds = GPU_TASK_SECONDS if self._pool.gpus else TASK_SECONDS
        waiting = {item.index: item for item in items}
        for is_second in (False, True):
            left = list(waiting.values())
            tasks = alone(left) if is_second else grouped(left, self.num_actors(), task_seconds)
            for answer in self._answers(job, tasks):
                self._workers.add(answer.worker)
                for index, outcome in answer.outcomes:
                    if waiting.pop(index, None) is not None:
                        yield index, outcome
                on_progress(answer.task.seconds if answer.outcomes else 0.0)
        for item in waiting.values():
            yield item.index, _given_up(item)

    def _answers(self, job: Job, tasks: Sequence[Task]) -> Iterator[Answer]:
        """An answer for each task, as they come; for one that Ray gives up there is none."""
        if not tasks:
            return
        attempts = self._ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Attempts).remote()
        rows = [{"task": pickle.dumps(task)} for task in tasks]
        answers = self._data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            Worker,
            fn_constructor_args=(job, attempts),
            compute=self._data.ActorPoolStrategy(
                min_size=self._pool.min_actors,
                max_size=self._pool.max_actors,
                max_tasks_in_flight_per_actor=2,
            ),
            batch_size=1,
            batch_format="numpy",
            num_cpus=self._pool.cpus,
            num_gpus=self._pool.gpus,
        )
        try:
            for row in answers.iter_rows():
                yield pickle.loads(row["answer"])
            self._num_repeated += self._ray.get(attempts.num_repeated.remote())
        except self._ray.exceptions.RayError as error:
            raise _translated(error) from error


def _be_quiet(data: Any) -> None:
    """Progress and messages are the caller's to give; a task that fails is no reason to stop."""
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_errored_blocks = -1
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


def _given_up(item: Item) -> ResourceError:
    return ResourceError(
        f"{item.name} ended {MOST_ATTEMPTS} workers that had nothing else to do: memory that ran out, or a "
        "crash. Ray's logs of the workers say which"
    )


def _translated(error: Exception) -> TransduceError:
    """An error that ended everything: ours, from an actor that could not load its model, or Ray's."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, TransduceError):
        return cause
    return DeviceError(f"the Ray cluster cannot go on: {_reason(error)}")


def _reason(error: Exception) -> str:
    """What a worker raised, or of what Ray says the first line, and the last, which ends a traceback."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return f"{type(cause).__name__}: {cause}"
    plain = re.sub(r"\x1b\[\d*m", "", str(error))  # Ray colours the names of actors
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    return " ... ".join(dict.fromkeys([*lines[:1], *lines[-1:]])) or type(error).__name__
