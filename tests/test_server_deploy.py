"""`deploy/` and `docs/server.md` against the server: options, paths, probes, metrics and times are real ones.

Nothing is built or run. The options are read from the command itself, the metrics from a running server.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import yaml
from fakes import click_model
from http_support import CLICKS, Site, serving
from support import ROOT
from typer.main import get_command

from transduce import cli_serve
from transduce.server.settings import Settings

DEPLOY = ROOT / "deploy"
FILES = ("Dockerfile", "compose.yaml", "transduce.service", "kubernetes.yaml")
DRAIN_SECONDS = 60


def text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def options() -> dict[str, str]:
    """Option of `transduce serve` -> its environment variable."""
    app = typer.Typer()
    app.callback()(lambda: None)
    cli_serve.register(app)
    parameters = get_command(app).commands["serve"].params  # type: ignore[attr-defined]
    return {p.opts[0]: str(p.envvar) for p in parameters if p.name != "help"}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving(click_model(), CLICKS) as site:
        site.transcribe(b"no audio")
        yield site


def metrics(site: Site) -> set[str]:
    lines = site.get("/metrics").text.splitlines()
    return {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}


@pytest.mark.parametrize("name", FILES)
def test_variables_are_the_commands(name: str) -> None:
    known = {*options().values(), "TRANSDUCE_CACHE"}
    used = set(re.findall(r"TRANSDUCE_[A-Z_]+", text(name)))
    assert used
    assert used <= known


@pytest.mark.parametrize("name", FILES)
def test_it_says_that_it_was_not_tried(name: str) -> None:
    assert re.search(r"Not (built|run) here", text(name))


def test_every_option_has_its_variable() -> None:
    for option, variable in options().items():
        assert variable == "TRANSDUCE_" + option.lstrip("-").replace("-", "_").upper()


def kubernetes() -> dict[str, Any]:
    documents = {document["kind"]: document for document in yaml.safe_load_all(text("kubernetes.yaml"))}
    assert set(documents) == {"Deployment", "Service", "PodDisruptionBudget"}
    return documents


def test_kubernetes_probes(site: Site) -> None:
    spec = kubernetes()["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    paths = {
        name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")
    }
    assert paths == {"startup": "/health", "liveness": "/health", "readiness": "/ready"}
    for path in paths.values():
        assert site.get(path).status == 200
    (port,) = container["ports"]
    assert port["containerPort"] == 8000
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/models", "/tmp"}


def test_there_is_time_to_drain() -> None:
    pod = kubernetes()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert float(environment["TRANSDUCE_DRAIN_SECONDS"]) == Settings().drain_seconds == DRAIN_SECONDS
    _, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > DRAIN_SECONDS + int(seconds)
    compose = yaml.safe_load(text("compose.yaml"))["services"]["transduce"]
    assert int(compose["stop_grace_period"].removesuffix("s")) > DRAIN_SECONDS
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", text("transduce.service"), re.MULTILINE)
    assert int(stop) > DRAIN_SECONDS


def test_images_install_extras_that_exist() -> None:
    (extras,) = re.findall(r"^ARG EXTRAS=(.+)$", text("Dockerfile"), re.MULTILINE)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE)
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text("Dockerfile"), re.MULTILINE)
    assert all((ROOT / name).exists() for line in copied for name in line.split())


def test_monitoring_reads_what_there_is(site: Site) -> None:
    compose = yaml.safe_load(text("compose.yaml"))
    scrape = yaml.safe_load(compose["configs"]["prometheus"]["content"])["scrape_configs"][0]
    assert scrape["static_configs"] == [{"targets": ["transduce:8000"]}]
    dashboard = json.loads(text("grafana-dashboard.json"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = set(re.findall(r"\b(?:transduce|process)_[a-z_]+", " ".join(expressions)))
    assert len(used) > 12
    assert used <= metrics(site)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_docs_know_the_options_and_the_metrics(site: Site) -> None:
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(--[a-z-]+)", page)) - {"--help"}
    assert named <= set(options())
    own = set(options()) - {"--model", "--vad", "--head", "--backend", "--device", "--precision", "--decoder"}
    assert own - {"--threads", "--offline", "--verbose"} <= named
    shown = set(re.findall(r"`(transduce_[a-z_]+)", page)) | set(
        re.findall(r"rate\((transduce_[a-z_]+)", page)
    )
    series = metrics(site)
    assert all(name in series or f"{name}_count" in series for name in shown)
    families = {re.sub(r"_(total|count|sum|bucket|created)$", "", name) for name in series}
    ours = {name for name in families if name.startswith("transduce_")}
    assert ours <= {name.removesuffix("_total") for name in shown}
