"""What can be set about a server, once, at its start.

Plain data: it knows no HTTP and no command line.
"""

from dataclasses import dataclass, field

from transduce.batching import BATCH_SECONDS
from transduce.pipeline import Limits

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Names, keys and limits of one server."""

    aliases: tuple[str, ...] = ("whisper-1",)
    """Names that clients may use for the model besides its own."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Any of them opens the API; none: it is open."""
    max_requests: int = 32
    """Transcriptions under way, their uploads included; more are refused with 503."""
    max_upload_bytes: int = 2**30
    max_audio_seconds: float = 4 * 3600.0
    limits: Limits = Limits()  # noqa: RUF009 - frozen
    """How recordings are cut; its `batch_seconds` is that of the batches which requests share."""
    queue_seconds: float = 4 * BATCH_SECONDS
    """Audio that waits in memory, all requests together; files that wait longer stay on disk."""
    upload_idle_seconds: float = 60.0
    """An upload that sends nothing for so long is given up."""
    drain_seconds: float = 60.0
    """How long requests under way may go on after SIGTERM."""
