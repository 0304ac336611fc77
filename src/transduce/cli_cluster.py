"""`transduce transcribe --engine ray`: recordings through a cluster into a sink.

In: what is asked for, inputs, a sink and a ledger. Out: results in the sink, counts and failures in the
ledger, messages and progress on standard error; exit code 3 where nothing could be tried. Only this process
writes files, so machines of the cluster need to see the recordings and the model, not the results.
"""

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from itertools import chain

import typer

from transduce import outputs
from transduce.cli_progress import Bar, Lines, audio_bar
from transduce.cli_work import Putting, complain, complain_of, say_finished
from transduce.cluster import Cluster, Item, Job, Pool, connected
from transduce.errors import AudioError, TransduceError
from transduce.ledger import Failure, Ledger
from transduce.sources import describe_source, is_address

__all__ = ["Order", "located", "transcribe_all"]

FAILED, UNUSABLE = 1, 3
"""Exit codes."""

logger = logging.getLogger("transduce")


@dataclass(frozen=True)
class Order:
    """What is asked of a cluster."""

    job: Job
    pool: Pool
    fail_fast: bool
    is_quiet: bool

    def say(self, message: str) -> None:
        """A message that is no error."""
        if not self.is_quiet:
            complain(message)


def located(model: str) -> str:
    """A model's path as every machine with the same file systems has it; a name as it is."""
    return os.path.abspath(model) if os.path.exists(model) else model


def transcribe_all(
    order: Order, entries: Sequence[outputs.Input], sink: outputs.Sink, ledger: Ledger
) -> None:
    """Run everything that has no results yet, put what succeeds, report what does not.

    Raises typer.Exit where the cluster or the model cannot be used, and typer.BadParameter for limits that
    make no sense.
    """
    entries = [_within_reach(entry) for entry in entries]
    if not order.is_quiet:
        say_finished(entries)
    try:
        if not any(entry.is_open for entry in entries):
            with ledger:
                _put_errors(order, entries, sink, ledger)
            return
        with connected(order.pool) as cluster:
            _examine(cluster, order)
            with ledger:
                _run(cluster, order, entries, sink, ledger)
    except TransduceError as error:
        complain_of(error)
        raise typer.Exit(FAILED if ledger.has_begun else UNUSABLE) from None


def _within_reach(entry: outputs.Input) -> outputs.Input:
    if entry.path != outputs.STDIN:
        return entry
    return replace(entry, error=AudioError("standard input cannot be read by a cluster: give it a file"))


def _put_errors(order: Order, entries: Sequence[outputs.Input], sink: outputs.Sink, ledger: Ledger) -> None:
    putting = Putting(entries, sink, ledger, Bar(), is_quiet=order.is_quiet)
    putting.put_all(_failed(entries), fail_fast=order.fail_fast)


def _failed(entries: Sequence[outputs.Input]) -> list[tuple[int, Failure]]:
    """What is wrong before anything was opened."""
    return [(index, entry.error) for index, entry in enumerate(entries) if entry.error is not None]


def _examine(cluster: Cluster, order: Order) -> None:
    """Say what runs, or that nothing can."""
    if missing := cluster.missing():
        order.say(f"waiting: no machine of the cluster has {missing} for an actor")
    try:
        facts = cluster.examine(order.job)
    except TransduceError:
        raise
    except ValueError as error:
        raise typer.BadParameter(f"--max-segment: {error}") from error
    logger.info("%s", ", ".join(f"{key}: {value}" for key, value in facts.items()))
    if order.job.choice.precision == "auto":
        order.say(f"precision: {facts['precision']}")


def _run(
    cluster: Cluster, order: Order, entries: Sequence[outputs.Input], sink: outputs.Sink, ledger: Ledger
) -> None:
    items = [_item(index, entry) for index, entry in enumerate(entries) if entry.is_open]
    items = cluster.measured(items, order.job.cut)
    with (
        _bar(order, items) as bar,
        closing(cluster.outcomes(order.job, items, bar.advance)) as outcomes,
    ):
        putting = Putting(entries, sink, ledger, bar, is_quiet=order.is_quiet)
        putting.put_all(chain(_failed(entries), outcomes), fail_fast=order.fail_fast)
    ledger.facts = cluster.facts()


def _item(index: int, entry: outputs.Input) -> Item:
    location = entry.path if is_address(entry.path) else os.path.abspath(entry.path)
    return Item(index, location, describe_source(entry.path), entry.claimed_seconds)


def _bar(order: Order, items: Sequence[Item]) -> AbstractContextManager[Bar]:
    """A bar on a terminal, lines in a log."""
    if order.is_quiet:
        return nullcontext(Bar())
    whole_seconds = sum(item.seconds or 0.0 for item in items)
    if sys.stderr.isatty():
        return audio_bar(len(items), whole_seconds)
    return nullcontext(Lines(len(items), whole_seconds, complain))
