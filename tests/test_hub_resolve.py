"""From a name to files: what is downloaded, what is announced, and what is never asked again.

Group J of the field bugs, number 82, and the promises of issue 6 about the cache. A fake Hugging Face and a
file server stand for the network; the catalogue is small and its files are random.
"""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hub_server import FakeHub, Fault, HubServer, no_proxies, running

from transduce import hub
from transduce.errors import DownloadError, MissingExtraError, ResourceError
from transduce.hub import progress
from transduce.hub.cache import Cache
from transduce.hub.catalogue import Artefact, Catalogue, Entry, RepoFiles, WebFile
from transduce.hub.digests import Digest
from transduce.hub.http import Policy
from transduce.hub.selection import CheckpointFile, Named
from transduce.hub.settings import Settings

DRAW = random.Random(3)
GRAPHS = {
    "encoder-model.onnx": DRAW.randbytes(200_000),
    "decoder_joint-model.onnx": DRAW.randbytes(5_000),
    "vocab.txt": b"<unk> 0\n",
    "config.json": b"{}",
    "encoder-model.int8.onnx": DRAW.randbytes(50_000),
    "README.md": b"read me",
}
FP32 = ("encoder-model.onnx", "decoder_joint-model.onnx", "vocab.txt", "config.json")
NEMO = {"m.nemo": DRAW.randbytes(100_000), "README.md": b"read me"}
CHECKPOINT, TOKENIZER = DRAW.randbytes(90_000), DRAW.randbytes(500)


@dataclass
class World:
    """The servers, the settings that lead to them, and what was announced."""

    hub: HubServer
    storage: HubServer
    fake: FakeHub
    settings: Settings
    said: list[str]

    @property
    def num_requests(self) -> int:
        return len(self.hub.requests) + len(self.storage.requests)

    def resolve(
        self, name: str = "small", *engines: str, precision: str = "fp32", offline: bool = False
    ) -> Path:
        engines = engines or ("onnx", "torch")
        return hub.resolve(
            name, engines=engines, precision=precision, offline=offline, settings=self.settings
        )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    no_proxies(monkeypatch)
    said: list[str] = []
    with running(HubServer()) as front, running(HubServer()) as storage:
        fake = FakeHub(front, storage)
        fake.add("o/small-onnx", GRAPHS, licence="cc-by-4.0")
        fake.add("o/small", NEMO)
        settings = Settings(
            cache=Cache(tmp_path / "мой кэш"),
            catalogue=small_catalogue(storage),
            endpoint=front.url,
            policy=Policy(timeout_seconds=5, sleep=lambda _: None),
            announce=said.append,
            progress=progress.silent,
        )
        yield World(front, storage, fake, settings, said)


def small_catalogue(storage: HubServer) -> Catalogue:
    graphs = Named(FP32[:3], ("config.json", "encoder-model.onnx.data"))
    int8 = Named(("encoder-model.int8.onnx", "vocab.txt"))
    checkpoint = (
        WebFile("g.ckpt", storage.put("/g.ckpt", CHECKPOINT), md5(CHECKPOINT)),
        WebFile("g_tokenizer.model", storage.put("/g_tokenizer.model", TOKENIZER)),
    )
    return Catalogue(
        (
            Entry(
                "small",
                (
                    Artefact("onnx", ("onnx",), RepoFiles("o/small-onnx", graphs)),
                    Artefact("onnx-int8", ("onnx",), RepoFiles("o/small-onnx", int8), "int8"),
                    Artefact("nemo", ("torch",), RepoFiles("o/small", CheckpointFile()), main=("*.nemo",)),
                ),
                licence="CC-BY-4.0",
            ),
            Entry(
                "giga", (Artefact("checkpoint", ("torch",), checkpoint, num_bytes=90_500, main=("*.ckpt",)),)
            ),
        )
    )


def md5(content: bytes) -> Digest:
    return Digest("md5", hashlib.md5(content).hexdigest())


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


# What comes


def test_onnx_gives_the_folder_of_its_graphs(world: World) -> None:
    folder = world.resolve("small", "onnx")
    assert names_in(folder) == set(FP32)
    assert all((folder / name).read_bytes() == GRAPHS[name] for name in FP32)


def test_torch_gives_the_checkpoint(world: World) -> None:
    path = world.resolve("small", "torch")
    assert path.name == "m.nemo"
    assert path.read_bytes() == NEMO["m.nemo"]


def test_int8_has_a_folder_of_its_own(world: World) -> None:
    int8 = world.resolve(precision="int8")
    fp32 = world.resolve()
    assert names_in(int8) == {"encoder-model.int8.onnx", "vocab.txt"}
    assert names_in(fp32) == set(FP32)


def test_gigaams_checkpoint_lies_beside_its_tokenizer(world: World) -> None:
    path = world.resolve("giga", "torch")
    assert path.read_bytes() == CHECKPOINT
    assert path.with_name("g_tokenizer.model").read_bytes() == TOKENIZER


def test_a_repository_that_nobody_knows(world: World) -> None:
    assert names_in(world.resolve("hf:o/small-onnx", "onnx")) == set(FP32)
    assert world.resolve("hf:o/small", "onnx", "torch").name == "m.nemo"
    assert "licence" not in world.said[0]
    assert "CC-BY-4.0" in world.said[0]


def test_a_revision_is_obeyed(world: World) -> None:
    other = {"m.nemo": b"another" * 1000}
    commit = world.fake.add("o/small", other, revision="v2")
    assert world.resolve("hf:o/small@v2", "torch").read_bytes() == other["m.nemo"]
    assert world.resolve(f"hf:o/small@{commit}", "torch").read_bytes() == other["m.nemo"]
    assert world.resolve("hf:o/small", "torch").read_bytes() == NEMO["m.nemo"]


def test_an_address(world: World) -> None:
    url = world.storage.put("/dir/my.nemo", CHECKPOINT)
    for name in (url, f"{url}#{md5(CHECKPOINT)}"):
        path = world.resolve(name)
        assert path.name == "my.nemo"
        assert path.read_bytes() == CHECKPOINT


def test_local_files_and_the_demo_need_no_network(world: World, tmp_path: Path) -> None:
    local = tmp_path / "x.nemo"
    local.touch()
    assert world.resolve(str(local), offline=True) == local
    demo = hub.resolve("demo", engines=("torch",), offline=True)
    assert demo.is_file()
    assert demo.name == "hybrid.nemo"
    assert world.num_requests == 0


# What is said


def test_one_line_says_what_is_about_to_come(world: World) -> None:
    folder = world.resolve()
    commit = json.loads(world.hub.files[world.fake.api("o/small-onnx")])["sha"]
    place = f"127.0.0.1:{world.hub.server_port}/o/small-onnx@{commit[:8]}"
    assert world.said == [f"downloading small: {place}, 205 kB, CC-BY-4.0, to {folder}"]
    world.resolve()
    assert len(world.said) == 1


def test_it_says_how_much_is_already_here(world: World) -> None:
    broken = world.fake.storage_path(GRAPHS["encoder-model.onnx"])
    world.storage.faults[broken].extend([Fault(cut_after=65_536), *[Fault(cut_after=0)] * 5])
    with pytest.raises(DownloadError):
        world.resolve()
    world.resolve()
    assert "205 kB (66 kB of it already here)" in world.said[-1]


def test_a_published_size_stands_in_where_the_server_lists_none(world: World) -> None:
    world.resolve("giga", "torch")
    server = f"127.0.0.1:{world.storage.server_port}"
    assert world.said[0].startswith(f"downloading giga: {server}, 90 kB, licence not stated, to ")


def test_without_any_setting_the_line_goes_to_standard_error(world: World) -> None:
    program = """
from transduce import hub
hub.resolve("hf:o/small", engines=["torch"])
"""
    environ = {"HF_ENDPOINT": world.hub.url, "TRANSDUCE_CACHE": str(world.settings.cache.root)}
    run = run_python(program, environ)
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1
    assert run.stderr.startswith("downloading hf:o/small: ")


def test_progress_counts_over_all_files(world: World) -> None:
    seen: list[int] = []
    titles: list[tuple[str, int | None]] = []

    class Recorder:
        def __init__(self, title: str, num_bytes: int | None) -> None:
            titles.append((title, num_bytes))

        def __enter__(self) -> progress.Show:
            return seen.append

        def __exit__(self, *_: object) -> None: ...

    world.settings = replace(world.settings, progress=Recorder)
    world.resolve()
    total = sum(len(GRAPHS[name]) for name in FP32)
    assert titles == [("small", total)]
    assert seen[-1] == total
    assert seen == sorted(seen)


# The cache


def run_python(program: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A fresh process with a clean environment but for `environ`."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "SYSTEMROOT") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-c", program], env=kept | environ, capture_output=True, text=True, timeout=60
    )


SEALED = """
import os, sys
def seal(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.bind"):
        raise RuntimeError("a connection was attempted")
    writes = event in ("os.mkdir", "os.rename", "os.remove", "os.truncate", "os.chmod")
    writes = writes or (event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    if writes and str(args[0]).startswith(ROOT):
        raise PermissionError(13, "read-only")
sys.addaudithook(seal)
"""
"""Makes a process fail at every connection and at every change below ROOT, as a read-only disk does."""


@pytest.mark.parametrize("name", ["hf:o/small", "hf:o/small-onnx"])
def test_what_is_cached_is_used_without_a_connection_and_without_writing(world: World, name: str) -> None:
    expected = world.resolve(name)
    root = str(world.settings.cache.root)
    program = f"""
ROOT = {root!r}
{SEALED}
from transduce import hub
print(hub.resolve({name!r}, engines=["onnx", "torch"]))
"""
    environ = {"TRANSDUCE_CACHE": root, "HF_ENDPOINT": "http://127.0.0.1:9", "PYTHONIOENCODING": "utf-8"}
    for offline in ({}, {"HF_HUB_OFFLINE": "1"}):
        run = run_python(program, environ | offline)
        assert run.stdout.strip() == str(expected), run.stderr
        assert run.stderr == ""


def test_a_read_only_cache_without_the_model_says_what_to_do(world: World) -> None:
    root = str(world.settings.cache.root)
    program = f"""
ROOT = {root!r}
{SEALED.replace('"socket.connect", "socket.getaddrinfo", ', "")}
from transduce import hub
from transduce.errors import DownloadError
try:
    hub.resolve("hf:o/small", engines=["torch"])
except DownloadError as error:
    print(error)
"""
    run = run_python(
        program, {"TRANSDUCE_CACHE": root, "HF_ENDPOINT": world.hub.url, "PYTHONIOENCODING": "utf-8"}
    )
    assert "cannot be written (read-only)" in run.stdout, run.stderr
    assert "TRANSDUCE_CACHE" in run.stdout


def test_a_cached_model_asks_nothing(world: World) -> None:
    world.resolve()
    before = world.num_requests
    world.resolve()
    world.resolve(offline=True)
    assert world.num_requests == before


def test_what_is_cached_goes_before_a_download_for_a_better_engine(world: World) -> None:
    checkpoint = world.resolve("small", "torch")
    assert world.resolve("small", "onnx", "torch") == checkpoint
    assert world.resolve("small", "onnx") != checkpoint
    assert world.resolve("small", "onnx", "torch") != checkpoint


def test_int8_in_the_cache_is_not_taken_for_fp32(world: World) -> None:
    int8 = world.resolve(precision="int8")
    with pytest.raises(DownloadError):
        world.resolve(offline=True)
    assert world.resolve() != int8


@pytest.mark.parametrize("name", FP32)
@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_a_missing_or_cut_file_is_fetched_again_alone(world: World, name: str, harm: str) -> None:
    folder = world.resolve()
    if harm == "gone":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(GRAPHS[name][:-1])
    with pytest.raises(DownloadError, match=name):
        world.resolve(offline=True)
    world.hub.requests.clear()
    world.resolve()
    assert all((folder / each).read_bytes() == GRAPHS[each] for each in FP32)
    resolved = [r.path for r in world.hub.requests if "/resolve/" in r.path]
    assert [path.rpartition("/")[2] for path in resolved] == [name]


def test_what_was_completed_before_a_failure_is_kept(world: World) -> None:
    """Also where the server gives no sizes: the large checkpoint is not fetched twice."""
    world.storage.faults["/g_tokenizer.model"].append(Fault(404))
    with pytest.raises(DownloadError, match="g_tokenizer"):
        world.resolve("giga", "torch")
    world.resolve("giga", "torch")
    assert len(world.storage.asked("/g.ckpt")) == 1
    assert len(world.storage.asked("/g_tokenizer.model")) == 2


def test_a_repository_that_changed_between_two_tries_is_not_mixed(world: World) -> None:
    broken = world.fake.storage_path(GRAPHS["encoder-model.onnx"])
    world.storage.faults[broken].append(Fault(404))
    order = ("decoder_joint-model.onnx", "vocab.txt")
    with pytest.raises(DownloadError):
        world.resolve()
    changed = GRAPHS | {name: GRAPHS[name][::-1] for name in order}
    world.fake.add("o/small-onnx", changed)
    folder = world.resolve()
    assert all((folder / name).read_bytes() == changed[name] for name in FP32)


def test_same_size_and_other_content_is_replaced(world: World) -> None:
    """A file that an earlier try completed, and the repository has changed since."""
    names = ("a.onnx", "b.onnx")
    old = {name: DRAW.randbytes(3000) for name in names}
    world.fake.add("o/two", old)
    world.storage.faults[world.fake.storage_path(old["b.onnx"])].append(Fault(404))
    with pytest.raises(DownloadError):
        world.resolve("hf:o/two", "onnx")
    new = {name: DRAW.randbytes(3000) for name in names}
    world.fake.add("o/two", new)
    folder = world.resolve("hf:o/two", "onnx")
    assert {name: (folder / name).read_bytes() for name in names} == new


def test_stale_parts_do_no_harm_and_go(world: World) -> None:
    folder = world.settings.cache.folder("onnx/small")
    folder.mkdir(parents=True)
    stale = folder / "encoder-model.onnx.0123456789abcdef.part"
    stale.write_bytes(b"stale")
    assert names_in(world.resolve()) == set(FP32)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"format": 99}', b'{"format": 1, "files": 3}', b"\xff", b"[" * 100_000]
    + [
        json.dumps({"format": 1, "name": "", "origin": "", "licence": "", "files": [file]}).encode()
        for file in (
            {"path": "../../x", "bytes": 1, "digest": None},
            {"path": "x", "bytes": "1", "digest": None},
            {"path": "x", "bytes": 1, "digest": "sha256:0"},
            3,
        )
    ],
    ids=range(12),
)
def test_a_damaged_list_is_made_anew(world: World, content: bytes) -> None:
    folder = world.resolve()
    (folder / ".files.json").write_bytes(content)
    with pytest.raises(DownloadError):
        world.resolve(offline=True)
    assert world.resolve() == folder


@pytest.mark.posix
def test_a_linked_cache_works(world: World, tmp_path: Path) -> None:
    folder = world.resolve()
    moved = tmp_path / "elsewhere"
    shutil.move(folder, moved)
    folder.symlink_to(moved, target_is_directory=True)
    assert world.resolve(offline=True) == folder


def test_hidden_and_foreign_files_of_a_repository_stay_away(world: World) -> None:
    """A hub that lies about names cannot write elsewhere or forge the cache's own list."""
    names = ("../evil.onnx", "/abs.onnx", "a\\..\\b.onnx", ".files.json", "good.onnx")
    world.fake.add("o/evil", dict.fromkeys(names, b"x" * 2000))
    assert names_in(world.resolve("hf:o/evil", "onnx")) == {"good.onnx"}
    assert not list(world.settings.cache.root.parent.rglob("evil.onnx"))


# Offline


@pytest.mark.alone
@pytest.mark.parametrize("switch", ["argument", "settings"])
def test_missing_and_offline_lists_what_is_missing_at_once(world: World, switch: str) -> None:
    if switch == "settings":
        world.settings = replace(world.settings, offline_because="HF_HUB_OFFLINE is set")
    start = time.monotonic()
    with pytest.raises(DownloadError) as caught:
        world.resolve("small", "onnx", offline=switch == "argument")
    assert time.monotonic() - start < 1
    message = str(caught.value)
    assert "\n" not in message
    for words in (
        *FP32[:3],
        "o/small-onnx",
        "transduce download small",
        str(world.settings.cache.folder("onnx/small")),
    ):
        assert words in message
    assert ("HF_HUB_OFFLINE is set" in message) == (switch == "settings")
    assert world.num_requests == 0


def test_one_file_missing_and_offline_names_that_one(world: World) -> None:
    folder = world.resolve()
    (folder / "vocab.txt").unlink()
    with pytest.raises(DownloadError, match=r"missing: vocab\.txt\. Run") as caught:
        world.resolve(offline=True)
    assert "encoder-model.onnx" not in str(caught.value)


@pytest.mark.alone
def test_missing_without_a_network_ends_within_five_seconds(world: World) -> None:
    with running(HubServer()) as gone:
        endpoint = gone.url
    pauses: list[float] = []
    world.settings = replace(world.settings, endpoint=endpoint, policy=Policy(sleep=pauses.append))
    start = time.monotonic()
    with pytest.raises(DownloadError, match="no answer"):
        world.resolve()
    assert pauses
    assert sum(pauses) + time.monotonic() - start < 5


# What goes wrong at the hub


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(401, {"X-Error-Code": "RepoNotFound"}), "no such repository"),
        (Fault(401), "HF_TOKEN"),
        (Fault(403, {"X-Error-Code": "GatedRepo"}), "accept its conditions"),
        (Fault(404, {"X-Error-Code": "RevisionNotFound"}), "no such revision"),
        (Fault(404), "no such repository"),
        (Fault(500), "tried 6 times"),
        (Fault(429, {"Retry-After": "3600"}), "3600 s"),
        (Fault(body=b"<html>"), "not JSON"),
        (Fault(body=b"[" * 200_000), "not JSON"),
        (Fault(body=b"[]"), "makes no sense"),
        (Fault(body=b'{"sha": "main", "siblings": []}'), "makes no sense"),
        (Fault(body=b'{"sha": "%s", "siblings": [3]}' % (b"0" * 40)), "makes no sense"),
        (Fault(body=b'{"sha": "%s", "siblings": []}' % (b"0" * 40)), "holds nothing"),
        (Fault(body=b"9" * (33 << 20)), "absurdly long"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hub_that_refuses_or_answers_nonsense(world: World, fault: Fault, words: str) -> None:
    world.hub.always[world.fake.api("o/small-onnx")] = fault
    with pytest.raises(DownloadError) as caught:
        world.resolve("small", "onnx")
    assert words in str(caught.value)
    assert "o/small-onnx" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not world.settings.cache.folder("onnx/small").exists()


def test_a_token_is_sent_to_the_hub_and_not_to_its_storage(world: World) -> None:
    world.settings = replace(world.settings, token="hf_x")
    world.resolve()
    assert {request.headers.get("Authorization") for request in world.hub.requests} == {"Bearer hf_x"}
    assert {request.headers.get("Authorization") for request in world.storage.requests} == {None}


def test_a_hub_that_contradicts_the_catalogue(world: World) -> None:
    digests = {"encoder-model.onnx": Digest("sha256", "0" * 64)}
    source = RepoFiles("o/small-onnx", Named(FP32), digests=digests)
    entry = Entry("known", (Artefact("onnx", ("onnx",), source),))
    world.settings = replace(world.settings, catalogue=Catalogue((entry,)))
    with pytest.raises(DownloadError, match="newer transduce"):
        world.resolve("known")
    assert world.storage.requests == []


def test_our_own_hash_holds_where_the_hub_has_another_kind(world: World) -> None:
    digests = {"vocab.txt": Digest("sha256", "0" * 64)}
    source = RepoFiles("o/small-onnx", Named(FP32), digests=digests)
    entry = Entry("known", (Artefact("onnx", ("onnx",), source),))
    world.settings = replace(world.settings, catalogue=Catalogue((entry,)))
    with pytest.raises(DownloadError, match=r"vocab\.txt"):
        world.resolve("known")


def test_a_repository_without_a_model_says_what_it_holds(world: World) -> None:
    with pytest.raises(DownloadError) as caught:
        world.resolve("hf:o/small", "onnx")
    assert "no ONNX graphs (.onnx) in o/small; o/small holds README.md, m.nemo" in str(caught.value)


def test_an_engine_that_is_not_installed_is_named(world: World) -> None:
    with pytest.raises(MissingExtraError, match=r"transduce\[torch\]"):
        world.resolve("giga", "onnx")
    with pytest.raises(MissingExtraError, match=r"transduce\[cpu\].* or .*transduce\[torch\]"):
        hub.resolve("small", engines=(), settings=world.settings)
    assert world.num_requests == 0


def test_a_full_disk_is_seen_before_anything_is_announced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(ResourceError, match="205 kB are to come"):
        world.resolve()
    assert world.said == []
    assert world.storage.requests == []


# Several at once


def test_threads_download_once(world: World) -> None:
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(world.resolve())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(folders)) == 1
    assert len(folders) == 6
    assert len(world.storage.requests) == 2
    assert sum(line.startswith("downloading") for line in world.said) == 1


def test_who_waits_for_another_says_so(world: World) -> None:
    cache = world.settings.cache
    with cache.lock("onnx/small"):
        waiting = threading.Thread(target=world.resolve)
        waiting.start()
        while not world.said:
            time.sleep(0.01)
        assert world.said[0].startswith("waiting for another process")
        assert world.storage.requests == []
    waiting.join()
    assert world.resolve(offline=True).is_dir()


def test_what_another_process_writes_is_not_removed(world: World) -> None:
    world.resolve()
    cache = world.settings.cache
    with cache.lock("onnx/small"), pytest.raises(DownloadError, match="another process"):
        cache.remove("onnx/small")
    cache.remove("onnx/small")
    assert cache.all() == []
    assert not (cache.root / "onnx").exists()


# What is in the cache


def test_the_cache_lists_what_it_holds(world: World) -> None:
    cache = world.settings.cache
    assert cache.all() == []
    world.resolve()
    world.resolve("hf:o/small", "torch")
    broken = world.fake.storage_path(GRAPHS["encoder-model.int8.onnx"])
    world.storage.faults[broken].append(Fault(404))
    with pytest.raises(DownloadError):
        world.resolve(precision="int8")
    found = {cached.key: (cached.name, cached.is_whole) for cached in cache.all()}
    assert found == {
        "checkpoint/o--small@main": ("hf:o/small", True),
        "onnx-int8/small": ("small", False),
        "onnx/small": ("small", True),
    }
    sizes = {cached.key: cached.num_bytes for cached in cache.all()}
    assert sizes["onnx/small"] >= sum(len(GRAPHS[name]) for name in FP32)


def test_damage_is_found_by_reading_everything(world: World) -> None:
    folder = world.resolve()
    cache = world.settings.cache
    assert cache.damaged(cache.look("onnx/small")) == []
    content = bytearray(GRAPHS["encoder-model.onnx"])
    content[1000] ^= 1
    (folder / "encoder-model.onnx").write_bytes(content)
    (folder / "vocab.txt").unlink()
    assert sorted(cache.damaged(cache.look("onnx/small"))) == ["encoder-model.onnx", "vocab.txt"]


def test_what_came_without_a_hash_has_one_afterwards(world: World) -> None:
    path = world.resolve("giga", "torch")
    cache = world.settings.cache
    assert cache.damaged(cache.look("checkpoint/giga")) == []
    path.with_name("g_tokenizer.model").write_bytes(bytes(500))
    assert cache.damaged(cache.look("checkpoint/giga")) == ["g_tokenizer.model"]
