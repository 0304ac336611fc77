"""Which reader reads a file: WAV here, then PyAV, then soundfile."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO

from transduce.errors import AudioError, MissingExtraError
from transduce.media.containers import UnreadableError, av_track, soundfile_track
from transduce.media.track import Track
from transduce.media.wav import wav_track

__all__ = ["open_track"]


@contextmanager
def open_track(file: BinaryIO, name: str, track: int | None) -> Iterator[Track]:
    """Open audio track number `track` (from 0; None: the default one); `name` is for messages.

    WAV is read without a library. PyAV comes before soundfile, because only it goes on behind a
    damaged packet. Raises AudioError, or MissingExtraError where no library is there to read it.
    """
    with ExitStack() as stack:
        yield wav_track(file, name, track) or _library_track(file, name, track, stack)


def _library_track(file: BinaryIO, name: str, track: int | None, stack: ExitStack) -> Track:
    failures: list[Exception] = []
    for reader in (av_track, soundfile_track):
        file.seek(0)
        try:
            return reader(file, name, track, stack)
        except (MissingExtraError, UnreadableError) as error:
            failures.append(error)
    reasons = "; ".join(map(str, failures))
    if all(isinstance(failure, MissingExtraError) for failure in failures):
        raise MissingExtraError(f"{name} cannot be read: {reasons}")
    raise AudioError(f"{name} cannot be read: it is damaged, or no audio file ({reasons})")
