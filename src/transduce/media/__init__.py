"""What is in a file or an array: one audio track, as blocks at its own rate and with its own channels.

In: a seekable binary file, or an array. Out: a `Track`, whose blocks come once, in order. One rule for
every container: what can be read is read, what is damaged or missing is counted in `Track.damage`, and
lengths are those decoded, not those declared. Nothing here knows paths, mixing or other rates.
"""

from transduce.media.arrays import array_track
from transduce.media.files import open_track
from transduce.media.track import RATES, Track, library

__all__ = ["RATES", "Track", "array_track", "library", "open_track"]
