"""Models by name: what a name means, where its files are, and how they come here whole.

In: a name, `hf:owner/repo`, an address or a path. Out: a local path that an engine can load. It loads no
model and knows no engine but by name.
"""

from transduce.hub.cache import Cache, Cached
from transduce.hub.catalogue import Artefact, Catalogue, Entry, Sample
from transduce.hub.names import find_model
from transduce.hub.resolving import candidates, installed_engines, is_cached, resolve, sample_path
from transduce.hub.settings import Settings
from transduce.hub.standard import DEFAULT_MODEL, catalogue

__all__ = [
    "DEFAULT_MODEL",
    "Artefact",
    "Cache",
    "Cached",
    "Catalogue",
    "Entry",
    "Sample",
    "Settings",
    "candidates",
    "catalogue",
    "find_model",
    "installed_engines",
    "is_cached",
    "resolve",
    "sample_path",
]
