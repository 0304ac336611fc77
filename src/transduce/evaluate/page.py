"""An evaluation as one page of HTML that needs nothing else: no network, no server.

In: an `Evaluation`. Out: the page as text. Everything is in it and in its order without a script; the script
sorts columns and hides rows. Every control is a button or a field, so a keyboard is enough.
"""

from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files

from transduce.evaluate.report import Evaluation, Row, count_of, per_cent
from transduce.evaluate.running import Measurement, Outcome
from transduce.evaluate.scoring import Stretch
from transduce.writers import printable

__all__ = ["render_page"]


def render_page(evaluation: Evaluation) -> str:
    """The page, in UTF-8's characters; write it with `writers.write_atomic`."""
    style, script = (
        files("transduce.evaluate").joinpath(f"page.{end}").read_text("utf-8") for end in ("css", "js")
    )
    title = f"Word errors: {escape(evaluation.manifest)}"
    return printable(f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p>{_about(evaluation)}</p>
</header>
<main>
{_models(evaluation)}
<h2 id="utterances">Utterances, the worst first</h2>
<p class="legend">
<del>true word</del><ins>word in its place</ins> · <del class="lost">left out</del> ·
<ins class="added">added</ins>
</p>
<form role="search">
<label>Find <input type="search" id="find" autocomplete="off"></label>
<label><input type="checkbox" id="only-wrong"> only with errors</label>
<label{" hidden" if len(evaluation.measurements) == 1 else ""}>
<input type="checkbox" id="only-different"> only where models differ</label>
<output id="count">{count_of(len(evaluation.utterances))}</output>
</form>
{_rows(evaluation)}
</main>
<script>
{script}</script>
</body>
</html>
""")


def _about(evaluation: Evaluation) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in evaluation.machine.items())
    facts = (
        count_of(len(evaluation.utterances)),
        f"{evaluation.num_failed} failed",
        f"normaliser: {evaluation.normalizer}",
        evaluation.date,
        machine,
    )
    return " · ".join(map(escape, facts))


def _models(evaluation: Evaluation) -> str:
    head = (
        "Model",
        "WER %",
        "CER %",
        "Words",
        "Substituted",
        "Left out",
        "Added",
        "Failed",
        "Times real time",
    )
    body = "\n".join(map(_model, evaluation.measurements))
    return f"<table>\n{_head(head)}\n<tbody>\n{body}\n</tbody>\n</table>"


def _model(measurement: Measurement) -> str:
    words = measurement.words
    counts = (words.length, words.substitutions, words.deletions, words.insertions, measurement.num_failed)
    facts = ", ".join(f"{name}: {value}" for name, value in measurement.facts.items() if value is not None)
    cells = (
        f'<th scope="row" title="{escape(facts)}">{escape(measurement.label)}</th>',
        *(_rate(rate) for rate in (words.rate, measurement.characters.rate)),
        *(_number(count) for count in counts),
        _number(round(measurement.rtfx, 1)),
    )
    return f"<tr>{''.join(cells)}</tr>"


def _rows(evaluation: Evaluation) -> str:
    labels = [measurement.label for measurement in evaluation.measurements]
    head = ("Recording", "Words", *(f"{label}: WER %" for label in labels), "Wrong words", "Texts")
    body = "\n".join(_row(row, labels) for row in evaluation.worst_first())
    return (
        f'<table id="rows" aria-labelledby="utterances">\n{_head(head)}\n<tbody>\n{body}\n</tbody>\n</table>'
    )


def _row(row: Row, labels: Iterable[str]) -> str:
    length = max(outcome.words.length for outcome in row.outcomes)
    texts = {outcome.comparison.hypothesis if outcome.comparison else None for outcome in row.outcomes}
    kinds = [
        name
        for name, holds in (("wrong", row.num_errors or row.is_failed), ("different", len(texts) > 1))
        if holds
    ]
    cells = (
        f'<th scope="row">{escape(row.utterance.name)}</th>',
        _number(length),
        *(_rate(None if outcome.error else outcome.words.rate) for outcome in row.outcomes),
        _number(row.num_errors),
        f"<td><dl>{''.join(_texts(row.outcomes, labels))}</dl></td>",
    )
    return f'<tr class="{" ".join(kinds)}">{"".join(cells)}</tr>'


def _texts(outcomes: Iterable[Outcome], labels: Iterable[str]) -> Iterator[str]:
    for outcome, label in zip(outcomes, labels, strict=True):
        text = "".join(_changed(outcome.comparison.stretches)) if outcome.comparison else _failure(outcome)
        yield f"<dt>{escape(label)}</dt><dd>{text}</dd>"


def _failure(outcome: Outcome) -> str:
    return f"<strong>{escape(f'{outcome.error} [{outcome.error.code}]')}</strong>" if outcome.error else ""


def _changed(stretches: Iterable[Stretch]) -> Iterator[str]:
    for stretch in stretches:
        true, found = escape(stretch.reference), escape(stretch.hypothesis)
        match stretch.kind:
            case "equal":
                yield f"{true} "
            case "substitute":
                yield f"<del>{true}</del><ins>{found}</ins> "
            case "delete":
                yield f'<del class="lost">{true}</del> '
            case "insert":
                yield f'<ins class="added">{found}</ins> '


# Tables that sort


def _head(names: Iterable[str]) -> str:
    return f"<thead><tr>{''.join(map(_column, names))}</tr></thead>"


def _column(name: str) -> str:
    kind = "" if name in ("Model", "Recording", "Texts") else ' class="number"'
    return f'<th scope="col"{kind}><button type="button">{escape(name)}</button></th>'


def _rate(rate: float | None) -> str:
    """A cell; what has no rate sorts below 0."""
    return f'<td data-value="{-1 if rate is None else rate}">{per_cent(rate)}</td>'


def _number(value: float) -> str:
    return f'<td data-value="{value}">{value}</td>'
