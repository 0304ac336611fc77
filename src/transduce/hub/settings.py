"""Where models come from and go to, as the environment says.

    TRANSDUCE_CACHE     the cache; else XDG_CACHE_HOME/transduce, else the system's usual place
    TRANSDUCE_OFFLINE, HF_HUB_OFFLINE    1, true, yes or on: never open a connection
    HF_ENDPOINT, HF_TOKEN                another hub, and the token for it

In: the environment. Out: Settings, one value that carries everything a download depends on, so that
a test or an embedding program can replace any part of it.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from transduce.hub import standard
from transduce.hub.cache import Cache
from transduce.hub.catalogue import Catalogue
from transduce.hub.http import Client, Policy
from transduce.hub.progress import Progress, bar

__all__ = ["Settings", "cache_folder"]

ENDPOINT = "https://huggingface.co"
YES = ("1", "true", "yes", "on")
OFFLINE = ("TRANSDUCE_OFFLINE", "HF_HUB_OFFLINE")

logger = logging.getLogger("transduce")


@dataclass(frozen=True)
class Settings:
    """Everything a download depends on."""

    cache: Cache
    catalogue: Catalogue = field(default_factory=standard.catalogue)
    endpoint: str = ENDPOINT
    """Of Hugging Face or a mirror, without a slash at its end."""
    token: str | None = field(default=None, repr=False)
    offline_because: str = ""
    """What forbids connections; empty: nothing does."""
    policy: Policy = field(default_factory=Policy)
    announce: Callable[[str], None] = logger.warning
    """Is given the one line that is said before a download."""
    progress: Progress = bar

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] = os.environ, *, catalogue: Catalogue | None = None
    ) -> "Settings":
        """The settings that the variables above describe."""
        return cls(
            cache=Cache(cache_folder(environ)),
            catalogue=catalogue or standard.catalogue(),
            endpoint=environ.get("HF_ENDPOINT", "").rstrip("/") or ENDPOINT,
            token=environ.get("HF_TOKEN", "").strip() or None,
            offline_because=next(
                (f"{name} is set" for name in OFFLINE if environ.get(name, "").strip().lower() in YES), ""
            ),
        )

    def client(self) -> Client:
        """A client with this token and these time limits."""
        return Client(self.policy, endpoint=self.endpoint, token=self.token)


def cache_folder(environ: Mapping[str, str], platform: str = sys.platform) -> Path:
    """Where models are kept; `platform` is Python's name of the system."""
    if chosen := environ.get("TRANSDUCE_CACHE", "").strip():
        return Path(chosen).expanduser()
    xdg = Path(environ.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():  # the specification has relative ones ignored
        return xdg / "transduce"
    home = Path.home()
    if platform == "win32":
        return Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "transduce" / "cache"
    return home / ("Library/Caches" if platform == "darwin" else ".cache") / "transduce"
