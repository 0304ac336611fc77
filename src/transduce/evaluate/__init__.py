"""Word errors, character errors and speed of models on recordings with known texts.

In: a manifest and models. Out: an `Evaluation`, for a terminal, as JSON, and as a page of HTML. The command
is `transduce eval`.
"""

from transduce.evaluate.machine import describe_machine, now
from transduce.evaluate.manifest import Utterance, read_manifest
from transduce.evaluate.normalizers import NORMALIZERS, Normalizer
from transduce.evaluate.page import render_page
from transduce.evaluate.report import Evaluation, count_of, marked, per_cent, shortened
from transduce.evaluate.running import Measurement, Outcome, measure
from transduce.evaluate.scoring import Comparison, Counts, Stretch, compare

__all__ = [
    "NORMALIZERS",
    "Comparison",
    "Counts",
    "Evaluation",
    "Measurement",
    "Normalizer",
    "Outcome",
    "Stretch",
    "Utterance",
    "compare",
    "count_of",
    "describe_machine",
    "marked",
    "measure",
    "now",
    "per_cent",
    "read_manifest",
    "render_page",
    "shortened",
]
