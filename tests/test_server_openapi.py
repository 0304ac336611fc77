"""The OpenAPI document against the server: no request that it allows, or nearly allows, ends in a 5xx."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from fakes import click_model, clicks, write_wav
from http_support import CLICKS, TRANSCRIPTIONS, Site, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance
from support import num_cases

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]
EXAMPLES = settings(
    max_examples=num_cases(40, 1000),
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
STATUSES = {
    ("POST", TRANSCRIPTIONS): {200, 400, 404},
    ("GET", "/v1/models"): {200},
    ("GET", "/v1/models/{model}"): {200, 404, 405},
    ("GET", "/health"): {200},
    ("GET", "/ready"): {200},
    ("GET", "/metrics"): {200},
}
"""Operation -> the statuses that it may have here."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving(click_model(), CLICKS) as site:
        yield site


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_wav(tmp_path_factory.mktemp("clicks") / "a.wav", clicks(1, {0.5: 1})).read_bytes()


def document(site: Site) -> dict[str, Any]:
    assert site.app is not None
    return site.app.openapi()


def statuses_of(site: Site, recording: bytes, operation: tuple[str, str], mode: GenerationMode) -> set[int]:
    """Send requests of one operation, some with a real recording; their statuses."""
    method, path = operation
    schema = schemathesis.openapi.from_dict(document(site))[path][method]
    statuses = set()

    @EXAMPLES
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        case = data.draw(schema.as_strategy(generation_mode=mode))
        if path == TRANSCRIPTIONS and isinstance(case.body, dict) and data.draw(st.booleans()):
            case.body = {**case.body, "file": recording, "model": "whisper-1"}
        response = case.call(base_url=site.url)
        case.validate_response(response, checks=CHECKS)
        statuses.add(response.status_code)

    holds()
    return statuses


@pytest.mark.parametrize("operation", STATUSES)
def test_what_the_document_allows_is_answered(
    site: Site, recording: bytes, operation: tuple[str, str]
) -> None:
    found = statuses_of(site, recording, operation, GenerationMode.POSITIVE)
    assert found <= STATUSES[operation]
    assert 200 in found or "{" in operation[1]


def test_what_breaks_the_document_is_the_senders_error(site: Site, recording: bytes) -> None:
    found = statuses_of(site, recording, ("POST", TRANSCRIPTIONS), GenerationMode.NEGATIVE)
    assert found <= {200, 400, 404}
    assert 400 in found


def test_the_document_is_complete(site: Site) -> None:
    found = document(site)
    assert sorted(found["paths"]) == sorted(path for _, path in STATUSES)
    form = found["paths"][TRANSCRIPTIONS]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert set(form["properties"]) >= {
        *("file", "model", "language", "prompt", "response_format", "temperature", "stream"),
        *("timestamp_granularities[]", "include[]", "chunking_strategy"),
    }
    assert all(field["description"] for field in form["properties"].values())
    references = re.findall(r"'#/components/schemas/(\w+)'", repr(found))
    assert set(references) <= set(found["components"]["schemas"])


def test_the_viewer_is_there(site: Site) -> None:
    assert "swagger" in site.get("/docs").text
    assert site.get("/openapi.json").json["info"]["title"] == "transduce"
