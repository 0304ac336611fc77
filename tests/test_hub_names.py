"""Names of models: what they mean, what each engine would read, what is said of one that means nothing.

Expected values are those of the issue, of the facts about upstream, and of the repositories' lists of files.
"""

import re
from collections import Counter
from pathlib import Path

import pytest
from support import ROOT, data

from transduce import hub
from transduce.errors import CheckpointError, DownloadError, TransduceError, UnsupportedModelError
from transduce.hub import candidates, find_model
from transduce.hub.catalogue import Artefact, Bundled, Entry, RepoFiles, WebFile, normalize
from transduce.hub.digests import Digest
from transduce.hub.paths import is_safe_path
from transduce.hub.selection import CheckpointFile, OnnxFiles
from transduce.hub.settings import Settings, cache_folder

CATALOGUE = hub.catalogue()
EVERY_ENTRY = pytest.mark.parametrize("entry", CATALOGUE.entries, ids=lambda entry: entry.name)


def entry_of(name: str) -> Entry:
    found = find_model(name, CATALOGUE)
    assert isinstance(found, Entry)
    return found


def best(name: str, *engines: str, precision: str = "fp32") -> Artefact:
    return candidates(entry_of(name), engines, precision)[0]


def repository(artefact: Artefact) -> str:
    assert isinstance(artefact.source, RepoFiles)
    return artefact.source.repo


def web_files(artefact: Artefact) -> dict[str, WebFile]:
    assert isinstance(artefact.source, tuple)
    return {file.path: file for file in artefact.source}


# The catalogue as a whole


def test_no_name_means_two_models() -> None:
    names = Counter(normalize(name) for entry in CATALOGUE.entries for name in (entry.name, *entry.aliases))
    assert [name for name, count in names.items() if count > 1] == []
    assert not names.keys() & CATALOGUE.foreign.keys()


@EVERY_ENTRY
def test_every_entry_says_what_a_user_wants_to_know(entry: Entry) -> None:
    assert entry.licence
    assert entry.languages
    assert set(entry.kind.split("+")) <= {"rnnt", "tdt", "ctc"}
    for artefact in entry.artefacts:
        assert artefact.num_bytes
        assert set(artefact.engines) <= {"onnx", "torch"}
        assert artefact.precision in ("fp32", "int8")


@EVERY_ENTRY
def test_every_artefact_has_a_folder_of_its_own(entry: Entry) -> None:
    keys = [entry.key(artefact) for artefact in entry.artefacts]
    assert len(set(keys)) == len(keys)
    assert all(is_safe_path(key) and key.count("/") == 1 for key in keys)


@EVERY_ENTRY
def test_every_name_finds_its_entry_however_it_is_written(entry: Entry) -> None:
    for name in (entry.name, *entry.aliases):
        assert entry_of(name) is entry
        assert entry_of(name.upper().replace("-", "_")) is entry


# What the issue promises


def test_the_default_model_is_the_onnx_export_or_the_checkpoint_as_the_engine_reads() -> None:
    assert hub.DEFAULT_MODEL == "parakeet-tdt-0.6b-v3"
    assert repository(best(hub.DEFAULT_MODEL, "onnx")) == "istupakov/parakeet-tdt-0.6b-v3-onnx"
    assert repository(best(hub.DEFAULT_MODEL, "onnx", "torch")) == "istupakov/parakeet-tdt-0.6b-v3-onnx"
    assert repository(best(hub.DEFAULT_MODEL, "torch")) == "nvidia/parakeet-tdt-0.6b-v3"
    assert best(hub.DEFAULT_MODEL, "torch").main == ("*.nemo",)
    sizes = [best(hub.DEFAULT_MODEL, "onnx", precision=precision).num_bytes for precision in ("fp32", "int8")]
    assert [round((size or 0) / 1e8) for size in sizes] == [26, 7]


@pytest.mark.parametrize(
    ("short", "full"),
    [("rnnt", "v3_rnnt"), ("ctc", "v3_ctc"), ("e2e_rnnt", "v3_e2e_rnnt"), ("e2e_ctc", "v3_e2e_ctc")],
)
def test_gigaams_short_names_mean_v3(short: str, full: str) -> None:
    assert entry_of(short) is entry_of(full) is entry_of(f"gigaam-{full}")


def test_gigaams_checkpoint_brings_its_tokenizer_along() -> None:
    files = web_files(best("v3_e2e_rnnt", "torch"))
    server = "https://cdn.chatwm.opensmodel.sberdevices.ru/GigaAM"
    assert files == {
        "v3_e2e_rnnt.ckpt": WebFile(
            "v3_e2e_rnnt.ckpt",
            f"{server}/v3_e2e_rnnt.ckpt",
            Digest("md5", "2730de7545ac43ad256485a462b0a27a"),
        ),
        "v3_e2e_rnnt_tokenizer.model": WebFile(
            "v3_e2e_rnnt_tokenizer.model",
            f"{server}/v3_e2e_rnnt_tokenizer.model",
            Digest("md5", "3b3bf8370e882885d79731592fc99f98"),
        ),
    }
    assert list(web_files(best("v2_rnnt", "torch"))) == ["v2_rnnt.ckpt"]
    assert "v1_rnnt_tokenizer.model" in web_files(best("v1_rnnt", "torch"))


@pytest.mark.shared
def test_gigaams_hashes_are_those_of_the_facts() -> None:
    facts = data("facts/formats.md").read_text(encoding="utf-8")
    checkpoints, _, tokenizers = facts.partition("tokenizers v3_e2e_rnnt")
    stated = re.findall(r"\b(v\d_(?:e2e_)?(?:ctc|rnnt)) ([0-9a-f]{32})\b", checkpoints)
    assert len(stated) == 8
    for name, md5 in stated:
        assert web_files(best(name, "torch"))[f"{name}.ckpt"].digest == Digest("md5", md5)
    assert tokenizers.startswith(
        " 3b3bf8370e882885d79731592fc99f98, v3_e2e_ctc 2a9cd0c246db42d076e92abb31055deb"
    )
    source = best("v3_e2e_rnnt", "onnx").source
    assert isinstance(source, RepoFiles)
    graphs = re.findall(r"(encoder|decoder|joint|vocab)\s+([0-9a-f]{64})", facts)
    assert {f"v3_e2e_rnnt_{part}": Digest("sha256", sha256) for part, sha256 in graphs} == {
        path.partition(".")[0]: digest for path, digest in source.digests.items()
    }


def test_a_model_without_an_export_is_read_by_torch_alone() -> None:
    assert candidates(entry_of("gigaam-v1-rnnt"), ["onnx"]) == []
    assert best("gigaam-v1-rnnt", "onnx", "torch").engines == ("torch",)


def test_int8_is_taken_where_asked_for_and_never_in_the_place_of_fp32() -> None:
    assert best("gigaam-v3-ctc", "torch", "onnx", precision="int8").label == "onnx-int8"
    assert best("gigaam-v1-ctc", "torch", precision="int8").precision == "fp32"
    for precision in ("fp32", "bf16", "fp16", "auto"):
        found = candidates(entry_of("gigaam-v3-ctc"), ["onnx", "torch"], precision)
        assert [artefact.label for artefact in found] == ["onnx", "checkpoint"]
    assert best("sherpa-onnx-nemo-parakeet-tdt-0.6b-v3-int8", "onnx").precision == "int8"


def test_the_demo_ships_with_the_package() -> None:
    entry = find_model("demo", hub.catalogue())
    assert isinstance(entry, Entry)
    assert [isinstance(artefact.source, Bundled) for artefact in entry.artefacts] == [True, True]


def test_servers_can_be_replaced() -> None:
    replaced = hub.catalogue(gigaam_server="http://mirror", nvidia_sample_url="http://mirror/sample.wav")
    urls = [
        file.url
        for entry in replaced.entries
        for artefact in entry.artefacts
        if isinstance(artefact.source, tuple)
        for file in artefact.source
    ]
    recordings = [entry.sample.source for entry in replaced.entries if entry.sample]
    samples = [recording.url for recording in recordings if isinstance(recording, WebFile)]
    assert urls
    assert samples
    assert all(url.startswith("http://mirror/") for url in urls + samples)


# Everything else that one may write


def test_what_exists_here_goes_before_every_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_model("demo", CATALOGUE) == Path("demo")
    assert find_model(str(tmp_path), CATALOGUE) == tmp_path


def test_a_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "m.nemo").touch()
    assert find_model("~/m.nemo", CATALOGUE) == tmp_path / "m.nemo"


@pytest.mark.parametrize(
    ("text", "repo", "revision", "folder"),
    [
        ("hf:owner/repo", "owner/repo", "main", "owner--repo@main"),
        ("hf:owner/repo@v1.0", "owner/repo", "v1.0", "owner--repo@v1.0"),
        ("hf:o-1/r_2.x@refs/pr/3", "o-1/r_2.x", "refs/pr/3", "o-1--r_2.x@refs--pr--3"),
    ],
)
def test_a_repository(text: str, repo: str, revision: str, folder: str) -> None:
    entry = entry_of(text)
    assert [artefact.label for artefact in entry.artefacts] == ["onnx", "onnx-int8", "checkpoint"]
    for artefact in entry.artefacts:
        assert isinstance(artefact.source, RepoFiles)
        assert (artefact.source.repo, artefact.source.revision) == (repo, revision)
        assert entry.key(artefact) == f"{artefact.label}/{folder}"


def test_an_address() -> None:
    sha256 = "0" * 64
    entry = entry_of(f"https://host/dir/m%20x.nemo?key=secret#sha256={sha256}")
    (artefact,) = entry.artefacts
    url = "https://host/dir/m%20x.nemo?key=secret"
    assert artefact.source == (WebFile("m x.nemo", url, Digest("sha256", sha256)),)
    assert artefact.engines == ()
    assert entry.name == "host/dir/m%20x.nemo"
    other = entry_of("https://host/other/m%20x.nemo")
    assert entry.key(artefact) != other.key(other.artefacts[0])


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("parakeet", DownloadError, "did you mean parakeet-tdt-0.6b-v3 or"),
        ("parakeet-tdt-0.6-v3", DownloadError, "parakeet-tdt-0.6b-v3"),
        ("gigam-v3-e2e-rnnt", DownloadError, "gigaam-v3-e2e-rnnt"),
        ("GIGAAM_V3_RNT", DownloadError, "gigaam-v3-rnnt"),
        ("nvidia/parakeet-tdt-9b", DownloadError, "hf:nvidia/parakeet-tdt-9b"),
        ("qqqqqqqqqqqqqqqq", DownloadError, "transduce models"),
        ("", DownloadError, "transduce models"),
        ("x" * 5000, DownloadError, "transduce models"),
        ("a\0b", DownloadError, "transduce models"),
        ("emo", UnsupportedModelError, "emotion"),
        ("v2_ssl", UnsupportedModelError, "recognises no speech"),
        ("models/missing.nemo", CheckpointError, "no such file"),
        ("./missing", CheckpointError, "no such file"),
        ("~nobody-of-that-name/x", CheckpointError, "no such file"),
        ("hf:", DownloadError, "hf:owner/repository"),
        ("hf:gpt2", DownloadError, "hf:owner/repository"),
        ("hf:a/b/c", DownloadError, "hf:owner/repository"),
        ("hf:../..", DownloadError, "hf:owner/repository"),
        ("hf:a/b@../../x", DownloadError, "hf:owner/repository"),
        ("hf:a/b@x y", DownloadError, "hf:owner/repository"),
        ("https://host/", DownloadError, "file's name"),
        ("https://host/..", DownloadError, "file's name"),
        ("https://host/a%2F..", DownloadError, "file's name"),
        ("https://host/con", DownloadError, "file's name"),
        ("https://host/m.tar.bz2", DownloadError, "archives"),
        ("https://host/m.nemo#sha256=12", DownloadError, "no hash"),
        ("https://host/m.nemo#crc=12", DownloadError, "no hash"),
        ("https://[host/m.nemo", DownloadError, "not a usable address"),
    ],
    ids=lambda value: value[:30].replace("\0", "NUL") if isinstance(value, str) else "",
)
def test_what_means_nothing_is_one_clear_line(text: str, kind: type[TransduceError], words: str) -> None:
    with pytest.raises(kind) as caught:
        find_model(text, CATALOGUE)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(DownloadError) as caught:
        find_model("https://user:secret@host/m.zip?key=secret", CATALOGUE)
    assert "secret" not in str(caught.value)


# Which files of a repository

ONNX_ASR = (
    *("encoder-model.onnx", "encoder-model.onnx.data", "encoder-model.int8.onnx"),
    *("decoder_joint-model.onnx", "decoder_joint-model.int8.onnx", "vocab.txt", "config.json"),
    *("README.md", ".gitattributes", "test_wavs/0.wav", "onnx/model.onnx"),
)


@pytest.mark.parametrize(
    ("precision", "names", "picked"),
    [
        (
            "fp32",
            ONNX_ASR,
            "decoder_joint-model.onnx encoder-model.onnx config.json encoder-model.onnx.data vocab.txt",
        ),
        (
            "int8",
            ONNX_ASR,
            "decoder_joint-model.int8.onnx encoder-model.int8.onnx config.json vocab.txt",
        ),
        (
            "int8",  # as sherpa-onnx ships GigaAM: only the encoder is int8
            ("encoder.int8.onnx", "decoder.onnx", "joiner.onnx", "tokens.txt", "README.md"),
            "decoder.onnx encoder.int8.onnx joiner.onnx tokens.txt",
        ),
        (
            "fp32",  # where there is nothing else
            ("encoder.int8.onnx", "decoder.int8.onnx", "joiner.int8.onnx", "tokens.txt"),
            "decoder.int8.onnx encoder.int8.onnx joiner.int8.onnx tokens.txt",
        ),
        (
            "fp32",
            ("encoder.onnx", "encoder.weights", "decoder.onnx", "joiner.onnx", "tokens.txt"),
            "decoder.onnx encoder.onnx joiner.onnx encoder.weights tokens.txt",
        ),
        ("fp32", ("model_q4f16.onnx", "model_fp16.onnx", "model.onnx"), "model.onnx"),
        ("fp32", ("vocab.txt", "config.json", "sub/model.onnx"), ""),
        ("fp32", (), ""),
    ],
)
def test_onnx_files(precision: str, names: tuple[str, ...], picked: str) -> None:
    assert OnnxFiles(precision).pick(names) == tuple(picked.split())


@pytest.mark.parametrize(
    ("names", "picked"),
    [
        (("README.md", "parakeet-tdt-0.6b-v3.nemo", "model.safetensors"), "parakeet-tdt-0.6b-v3.nemo"),
        (("a.ckpt", "a_tokenizer.model", "b.txt"), "a.ckpt a_tokenizer.model"),
        (("a.nemo", "b.nemo"), ""),
        (("a.ckpt", "b.ckpt"), ""),
        (("sub/a.nemo",), ""),
        ((".nemo",), ""),
    ],
)
def test_checkpoint_files(names: tuple[str, ...], picked: str) -> None:
    assert CheckpointFile().pick(names) == tuple(picked.split())


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "..",
        "a/../b",
        "/a",
        "a//b",
        "a/",
        "a\\b",
        "C:a",
        "a\nb",
        "nul",
        "x/aux.txt",
        "COM1",
        "a.",
        "a ",
        "a?",
    ],
)
def test_paths_that_lead_astray(path: str) -> None:
    assert not is_safe_path(path)


@pytest.mark.parametrize(
    "path", ["a", "a/b.onnx", ".gitattributes", "мои модели/м 1.nemo", "console", "a..b"]
)
def test_paths_that_do_not(path: str) -> None:
    assert is_safe_path(path)


@pytest.mark.parametrize("text", ["sha256:12", "md5=" + "g" * 32, "sha1:" + "0" * 40, "", "sha256"])
def test_hashes_are_checked(text: str) -> None:
    with pytest.raises(ValueError, match=r"hash|hexadecimal"):
        Digest.parse(text)


# The environment


@pytest.mark.parametrize(
    ("environ", "platform", "folder"),
    [
        ({"TRANSDUCE_CACHE": "/data/models", "XDG_CACHE_HOME": "/xdg"}, "linux", "/data/models"),
        ({"TRANSDUCE_CACHE": "~/models"}, "linux", "/home/u/models"),
        ({"XDG_CACHE_HOME": "/xdg"}, "linux", "/xdg/transduce"),
        ({"XDG_CACHE_HOME": "relative"}, "linux", "/home/u/.cache/transduce"),
        ({}, "linux", "/home/u/.cache/transduce"),
        ({}, "darwin", "/home/u/Library/Caches/transduce"),
        ({"XDG_CACHE_HOME": "/xdg"}, "darwin", "/xdg/transduce"),
        ({"LOCALAPPDATA": "/local"}, "win32", "/local/transduce/cache"),
        ({}, "win32", "/home/u/AppData/Local/transduce/cache"),
    ],
)
def test_the_cache_is_where_each_system_has_it(
    environ: dict[str, str], platform: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/u"))
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.setenv("USERPROFILE", "/home/u")
    assert cache_folder(environ, platform) == Path(folder)


def test_the_environment_is_read() -> None:
    settings = Settings.from_environment({"HF_ENDPOINT": "https://mirror/", "HF_TOKEN": " hf_x \n"})
    assert (settings.endpoint, settings.token, settings.offline_because) == ("https://mirror", "hf_x", "")
    assert "hf_x" not in repr(settings)
    empty = Settings.from_environment({"HF_ENDPOINT": "", "HF_TOKEN": ""})
    assert (empty.endpoint, empty.token) == ("https://huggingface.co", None)


@pytest.mark.parametrize("token", ["bad\ntoken", "bad token", "токен", "t\u00f6ken", "tok\0en"])
def test_a_token_that_can_be_none_is_not_repeated(token: str) -> None:
    settings = Settings.from_environment({"HF_TOKEN": token})
    with pytest.raises(DownloadError, match="HF_TOKEN holds characters that no token has") as caught:
        settings.client()
    assert token not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSDUCE_OFFLINE"])
@pytest.mark.parametrize(("value", "is_offline"), [("1", True), ("TRUE", True), ("0", False), ("", False)])
def test_offline_switches(name: str, value: str, is_offline: bool) -> None:
    because = Settings.from_environment({name: value}).offline_because
    assert because == (f"{name} is set" if is_offline else "")


# The page


def test_the_page_lists_exactly_the_catalogue() -> None:
    page = (ROOT / "docs" / "model-names.md").read_text(encoding="utf-8")
    table = page.partition("## The names")[2].partition("\nThe ONNX exports")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert [name for row in rows for name in re.findall(r"`([^`]+)`", row)] == [
        entry.name for entry in CATALOGUE.entries
    ]
