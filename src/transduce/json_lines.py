"""JSON lines, as manifests are written: an object a line.

In: numbered lines of text. Out: each object, where it stands, and what of it is a time. Other keys are
unknown here.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["objects", "seconds_of"]


def objects(location: str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The object of each line, after its place: the file's name and the line's number.

    Raises ValueError, which begins with the place, for what is none.
    """
    for number, line in lines:
        place = f"{location}, line {number}"
        row = _value(place, line)
        if not isinstance(row, dict):
            raise ValueError(f'{place}: is no JSON object like {{"audio_filepath": "talk.wav"}}')
        yield place, row


def _value(place: str, line: str) -> object:
    try:
        value: object = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: is not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError(f"{place}: is no JSON that can be read: it is nested too deep") from error
    except ValueError as error:  # Python reads no integers of more than some thousands of digits
        raise ValueError(f"{place}: is no JSON that can be read: a number has too many digits") from error
    return value


def seconds_of(place: str, row: Mapping[str, object], key: str) -> float | None:
    """A number of seconds, also one written as text; None where there is none.

    Raises ValueError, which begins with the place, for what is no number from 0 on.
    """
    value = row.get(key)
    if value is None:
        return None
    try:
        seconds = math.nan  # also of true and false, which are integers to Python
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            seconds = float(value)
    except (ValueError, OverflowError):
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f'{place}: "{key}" is no number of seconds from 0 up: {value!r:.60}')
    return seconds
