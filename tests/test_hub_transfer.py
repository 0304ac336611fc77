"""One file from a bad server: what comes out is the right file or one clear error, and no half file.

Group J of the field bugs, number 78. The server is real and local; the content is random and its hash is
Python's.
"""

import errno
import hashlib
import io
import random
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hub_server import Fault, HubServer, no_proxies, running
from support import num_cases

from transduce.errors import DownloadError, ResourceError
from transduce.hub import disk
from transduce.hub.digests import Digest
from transduce.hub.http import Client, Policy, _Redirects
from transduce.hub.transfer import RemoteFile, StoredFile, fetch, part_path

CONTENT = random.Random(1).randbytes(300_000)
SHA256 = Digest("sha256", hashlib.sha256(CONTENT).hexdigest())
CUT = Fault(cut_after=100_000)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    no_proxies(monkeypatch)


@pytest.fixture
def server() -> Iterator[HubServer]:
    with running(HubServer()) as started:
        yield started


@pytest.fixture
def pauses() -> list[float]:
    """The seconds that the client would have slept."""
    return []


@pytest.fixture
def client(pauses: list[float]) -> Client:
    return Client(Policy(timeout_seconds=5, sleep=pauses.append))


def file_at(
    server: HubServer, *faults: Fault, digest: Digest | None = SHA256, size: bool = True
) -> RemoteFile:
    """A remote file `m.nemo` with the content above, whose next requests meet the faults."""
    url = server.put("/m.nemo", CONTENT, *faults)
    return RemoteFile("m.nemo", url, len(CONTENT) if size else None, digest)


def get(file: RemoteFile, folder: Path, client: Client) -> StoredFile:
    return fetch(file, folder, client, lambda _: None)


def ranges(server: HubServer) -> list[str | None]:
    return [request.headers.get("Range") for request in server.asked("/m.nemo")]


def only_file(folder: Path) -> bytes:
    """The content of the folder's only file, which is not a part."""
    (path,) = [path for path in folder.iterdir() if path.is_file()]
    assert path.name == "m.nemo"
    return path.read_bytes()


# What goes right


def test_a_good_server_is_asked_once(server: HubServer, client: Client, tmp_path: Path) -> None:
    stored = get(file_at(server), tmp_path, client)
    assert stored == StoredFile("m.nemo", len(CONTENT), SHA256)
    assert only_file(tmp_path) == CONTENT
    assert ranges(server) == [None]


def test_the_file_may_lie_in_a_folder_and_be_empty(server: HubServer, client: Client, tmp_path: Path) -> None:
    url = server.put("/empty", b"")
    stored = get(RemoteFile("a/b/empty.txt", url), tmp_path, client)
    assert (tmp_path / "a" / "b" / "empty.txt").read_bytes() == b""
    assert stored.digest.value == hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize("size", [True, False], ids=["size known", "size unknown"])
@pytest.mark.parametrize(
    "digest",
    [
        SHA256,
        Digest("md5", hashlib.md5(CONTENT).hexdigest()),
        Digest("git-sha1", hashlib.sha1(b"blob 300000\0" + CONTENT).hexdigest()),
        None,
    ],
    ids=["sha256", "md5", "git-sha1", "no hash"],
)
def test_every_hash_holds_for_a_file_in_pieces(
    server: HubServer, client: Client, tmp_path: Path, digest: Digest | None, size: bool
) -> None:
    size = size or (digest is not None and digest.kind == "git-sha1")
    stored = get(file_at(server, CUT, CUT, digest=digest, size=size), tmp_path, client)
    assert only_file(tmp_path) == CONTENT
    assert stored.digest == (digest or SHA256)
    last = str(len(CONTENT) - 1) if size else ""
    assert ranges(server) == [None, f"bytes=100000-{last}", f"bytes=200000-{last}"]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(drops=True),
        Fault(is_chunked=True, cut_after=100_000),
        Fault(503),
        Fault(500),
        Fault(429, {"Retry-After": "1"}),
        Fault(cut_after=0),
    ],
    ids=lambda fault: str(fault.status) if fault.status != 200 else "broken connection",
)
def test_a_passing_fault_is_tried_again(
    server: HubServer, client: Client, pauses: list[float], tmp_path: Path, fault: Fault
) -> None:
    get(file_at(server, fault, fault), tmp_path, client)
    assert only_file(tmp_path) == CONTENT
    assert len(pauses) == 2
    assert pauses == ([1.0, 1.0] if fault.status == 429 else [0.5, 1.0])


def test_cut_connections_that_bring_much_are_never_too_many(client: Client, tmp_path: Path) -> None:
    content = random.Random(2).randbytes(15 << 20)
    digest = Digest("sha256", hashlib.sha256(content).hexdigest())
    with running(HubServer()) as server:
        url = server.put("/m.nemo", content, *[Fault(cut_after=(1 << 20) + 1)] * 12)
        get(RemoteFile("m.nemo", url, len(content), digest), tmp_path, client)
    assert only_file(tmp_path) == content


def test_a_server_without_ranges_is_read_from_the_start(
    server: HubServer, client: Client, tmp_path: Path
) -> None:
    get(file_at(server, CUT, Fault(ignores_range=True)), tmp_path, client)
    assert only_file(tmp_path) == CONTENT


@pytest.mark.parametrize("digest", [SHA256, None], ids=["hash", "no hash"])
def test_another_range_than_the_one_asked_for_is_not_taken(
    server: HubServer, client: Client, tmp_path: Path, digest: Digest | None
) -> None:
    get(file_at(server, CUT, Fault(wrong_range=True), digest=digest), tmp_path, client)
    assert only_file(tmp_path) == CONTENT
    assert ranges(server)[-1] is None


def test_a_length_that_lies_does_not_matter_where_the_hash_is_right(
    server: HubServer, client: Client, tmp_path: Path
) -> None:
    get(file_at(server, Fault(headers={"Content-Length": "400000"}), size=False), tmp_path, client)
    assert only_file(tmp_path) == CONTENT
    assert ranges(server) == [None]


def test_without_a_hash_a_file_that_changed_meanwhile_is_read_from_the_start(
    server: HubServer, client: Client, tmp_path: Path
) -> None:
    old = bytes(len(CONTENT))
    file = file_at(server, Fault(body=old, cut_after=100_000, headers={"ETag": '"old"'}), digest=None)
    get(file, tmp_path, client)
    assert only_file(tmp_path) == CONTENT
    assert server.asked("/m.nemo")[1].headers["If-Range"] == '"old"'


def test_without_hash_and_etag_nothing_is_continued(
    server: HubServer, client: Client, tmp_path: Path
) -> None:
    file = file_at(server, Fault(cut_after=100_000, headers={"ETag": ""}), digest=None)
    get(file, tmp_path, client)
    assert only_file(tmp_path) == CONTENT
    assert ranges(server) == [None, None]


# Parts of earlier runs


def leave_part(file: RemoteFile, folder: Path, content: bytes) -> Path:
    path = part_path(file, folder)
    path.write_bytes(content)
    return path


def test_a_second_run_continues(server: HubServer, client: Client, tmp_path: Path) -> None:
    file = file_at(server)
    leave_part(file, tmp_path, CONTENT[:123_456])
    seen: list[int] = []
    fetch(file, tmp_path, client, seen.append)
    assert only_file(tmp_path) == CONTENT
    assert ranges(server) == ["bytes=123456-299999"]
    assert (seen[0], seen[-1]) == (123_456, len(CONTENT))


def test_a_whole_part_needs_no_connection(server: HubServer, client: Client, tmp_path: Path) -> None:
    file = file_at(server)
    leave_part(file, tmp_path, CONTENT)
    get(file, tmp_path, client)
    assert only_file(tmp_path) == CONTENT
    assert ranges(server) == []


@pytest.mark.parametrize(
    "left",
    [CONTENT[:99_999] + b"?", bytes(150_000), CONTENT + b"more", bytes(len(CONTENT))],
    ids=["one wrong byte", "zeros", "too long", "whole and wrong"],
)
@pytest.mark.parametrize("size", [True, False], ids=["size known", "size unknown"])
def test_a_damaged_part_does_no_harm(
    server: HubServer, client: Client, tmp_path: Path, left: bytes, size: bool
) -> None:
    file = file_at(server, size=size)
    leave_part(file, tmp_path, left)
    get(file, tmp_path, client)
    assert only_file(tmp_path) == CONTENT


def test_a_part_of_other_content_is_left_alone(server: HubServer, client: Client, tmp_path: Path) -> None:
    other = RemoteFile("m.nemo", "http://x.invalid/", 10, Digest("sha256", "0" * 64))
    stale = leave_part(other, tmp_path, b"stale")
    get(file_at(server), tmp_path, client)
    assert (tmp_path / "m.nemo").read_bytes() == CONTENT
    assert stale.read_bytes() == b"stale"


def test_an_interrupted_download_leaves_a_part_and_no_file(
    server: HubServer, client: Client, tmp_path: Path
) -> None:
    file = file_at(server)

    def interrupt(num_bytes: int) -> None:
        if num_bytes > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(file, tmp_path, client, interrupt)
    assert not (tmp_path / "m.nemo").exists()
    left = part_path(file, tmp_path).read_bytes()
    assert len(left) > 100_000
    assert CONTENT.startswith(left)


# What goes wrong


def refused(file: RemoteFile, folder: Path, client: Client, kind: type[Exception] = DownloadError) -> str:
    """The message of the error, one line, after which no file is there."""
    with pytest.raises(kind) as caught:
        get(file, folder, client)
    message = str(caught.value)
    assert "\n" not in message
    assert not (folder / file.path).exists()
    return message


def test_one_wrong_byte_keeps_nothing(server: HubServer, client: Client, tmp_path: Path) -> None:
    wrong = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    message = refused(file_at(server, Fault(body=wrong)), tmp_path, client)
    assert hashlib.sha256(wrong).hexdigest() in message
    assert SHA256.value in message
    assert "Try again" in message
    assert list(tmp_path.iterdir()) == []
    get(file_at(server), tmp_path, client)
    assert only_file(tmp_path) == CONTENT


def test_a_wrong_byte_after_a_cut_is_tried_once_more_from_the_start(
    server: HubServer, client: Client, tmp_path: Path
) -> None:
    wrong = bytes(100) + CONTENT[100:]
    get(file_at(server, Fault(body=wrong, cut_after=100_000)), tmp_path, client)
    assert only_file(tmp_path) == CONTENT
    assert ranges(server) == [None, "bytes=100000-299999", None]


def test_a_server_that_always_cuts_and_always_lies_is_given_up(
    server: HubServer, client: Client, tmp_path: Path
) -> None:
    file = RemoteFile("m.nemo", server.put("/m.nemo", bytes(300_000)), 300_000, SHA256)
    server.faults["/m.nemo"].extend([CUT, Fault(), CUT, Fault()])
    assert "belongs" in refused(file, tmp_path, client)
    assert len(ranges(server)) == 4
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_closes_at_half_is_given_up_and_continued_later(
    server: HubServer, client: Client, pauses: list[float], tmp_path: Path
) -> None:
    file = file_at(server, *[Fault(cut_after=150_000)], *[Fault(cut_after=0)] * 5)
    message = refused(file, tmp_path, client)
    assert "150,000 of 300,000" in message
    assert "tried 6 times" in message
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0]
    get(file, tmp_path, client)
    assert only_file(tmp_path) == CONTENT
    assert ranges(server)[-1] == "bytes=150000-299999"


@pytest.mark.parametrize("digest", [SHA256, None], ids=["hash", "no hash"])
def test_a_web_page_is_not_a_model(
    server: HubServer, client: Client, tmp_path: Path, digest: Digest | None
) -> None:
    page = Fault(body=b"<html>Please log in</html>", headers={"Content-Type": "text/html; charset=utf-8"})
    message = refused(file_at(server, page, digest=digest, size=False), tmp_path, client)
    assert "web page" in message
    assert list(tmp_path.iterdir()) == []
    assert len(ranges(server)) == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(403), "403 Forbidden"),
        (Fault(401), "401 Unauthorized"),
        (Fault(404), "check the name"),
        (Fault(410), "not there"),
        (Fault(451), "451"),
        (Fault(204), "204"),
        (Fault(200, {"Content-Encoding": "gzip"}), "gzip"),
        (Fault(body=CONTENT[:-5]), "299,995 bytes where 300,000 belong"),
        (Fault(302, {"Location": "/m.nemo"}), "circle"),
        (Fault(302, {"Location": "ftp://127.0.0.1/m.nemo"}), "unsafe"),
        (Fault(429, {"Retry-After": "86400"}), "86400 s"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_final_refusal_is_not_tried_again(
    server: HubServer, client: Client, pauses: list[float], tmp_path: Path, fault: Fault, words: str
) -> None:
    file = file_at(server)
    server.always["/m.nemo"] = fault
    message = refused(file, tmp_path, client)
    assert words in message
    assert f"127.0.0.1:{server.server_port}/m.nemo" in message
    assert pauses == []


def test_more_bytes_than_the_file_has(server: HubServer, client: Client, tmp_path: Path) -> None:
    endless = Fault(body=CONTENT + CONTENT, is_chunked=True)
    assert "more bytes" in refused(file_at(server, endless), tmp_path, client)
    assert list(tmp_path.iterdir()) == []


def test_half_a_file_is_not_taken_for_a_whole_one(server: HubServer, client: Client, tmp_path: Path) -> None:
    """Without length, chunks and hash an end of the connection says nothing."""
    unmarked = Fault(without_length=True, cut_after=1000)
    message = refused(file_at(server, unmarked, digest=None, size=False), tmp_path, client)
    assert "#sha256=" in message
    get(file_at(server, Fault(is_chunked=True), digest=None, size=False), tmp_path, client)
    assert only_file(tmp_path) == CONTENT


def test_retry_after_may_be_a_date(
    server: HubServer, client: Client, pauses: list[float], tmp_path: Path
) -> None:
    soon = Fault(503, {"Retry-After": formatdate(time.time() + 30, usegmt=True)})
    never = Fault(503, {"Retry-After": "when it pleases"})
    get(file_at(server, soon, never), tmp_path, client)
    assert 27 < pauses[0] <= 30
    assert pauses[1] == 1.0


@pytest.mark.alone
def test_no_server_at_all_ends_soon(pauses: list[float], tmp_path: Path) -> None:
    with running(HubServer()) as server:
        url = server.url
    start = time.monotonic()
    message = refused(RemoteFile("m.nemo", url + "/m"), tmp_path, Client(Policy(sleep=pauses.append)))
    assert "no answer" in message
    assert sum(pauses) + time.monotonic() - start < 5


def test_an_unknown_host_is_named(client: Client, tmp_path: Path) -> None:
    assert "nowhere.invalid" in refused(RemoteFile("m", "http://nowhere.invalid/m"), tmp_path, client)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://x/y", "http://[bad", "http://host:port/x", "//x"]
)
def test_only_web_addresses_are_opened(client: Client, tmp_path: Path, url: str) -> None:
    refused(RemoteFile("m", url), tmp_path, client)


@pytest.mark.alone
def test_a_silent_server_is_given_up(tmp_path: Path, pauses: list[float]) -> None:
    with running(HubServer()) as server:
        file = file_at(server, *[Fault(cut_after=1000, hangs_seconds=20)] * 2)
        client = Client(Policy(timeout_seconds=0.2, waits_seconds=(0.1,), sleep=pauses.append))
        start = time.monotonic()
        message = refused(file, tmp_path, client)
    assert time.monotonic() - start < 5
    assert "time ran out" in message


# The disk


def test_a_full_disk_is_seen_before_the_download(
    server: HubServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    message = refused(file_at(server), tmp_path, client, ResourceError)
    assert "300 kB are to come and 1.0 kB are free" in message
    assert "TRANSDUCE_CACHE" in message


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, ResourceError), (errno.EROFS, DownloadError), (errno.EACCES, DownloadError)],
)
def test_what_the_disk_says_is_translated(tmp_path: Path, number: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="TRANSDUCE_CACHE") as caught, disk.writing(tmp_path / "m"):
        raise OSError(number, "the system's words")
    assert str(tmp_path / "m") in str(caught.value)
    assert "the system's words" in str(caught.value)


@pytest.mark.posix
def test_a_disk_that_fills_up_meanwhile_is_an_error_of_ours(server: HubServer, tmp_path: Path) -> None:
    """A process whose files may have 100 kB stands for a full disk."""
    file = file_at(server)
    program = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
from pathlib import Path
from transduce.errors import ResourceError
from transduce.hub.http import Client, Policy, _Redirects
from transduce.hub.transfer import RemoteFile, fetch
try:
    fetch(RemoteFile("m.nemo", {file.url!r}), Path({str(tmp_path)!r}), Client(Policy()), print)
except ResourceError as error:
    print("caught:", error)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "caught: " in run.stdout, run.stderr
    assert "no room" in run.stdout


# Redirects, tokens, proxies, certificates


def test_redirects_are_followed_and_ranges_go_along(
    server: HubServer, client: Client, tmp_path: Path
) -> None:
    with running(HubServer()) as storage:
        target = storage.put("/real", CONTENT, CUT)
        for status in (301, 302, 303, 307, 308):
            server.put("/m.nemo", CONTENT)
            server.always["/m.nemo"] = Fault(status, {"Location": target})
            storage.faults["/real"].append(CUT)
            folder = tmp_path / str(status)
            get(RemoteFile("m.nemo", server.url + "/m.nemo", len(CONTENT), SHA256), folder, client)
            assert only_file(folder) == CONTENT
            assert storage.requests[-1].headers["Range"].startswith("bytes=")


def test_a_token_stays_with_its_server(server: HubServer, tmp_path: Path) -> None:
    with running(HubServer()) as storage:
        target = storage.put("/real", CONTENT)
        server.put("/m.nemo", CONTENT, Fault(307, {"Location": "/moved"}))
        server.put("/moved", CONTENT, Fault(302, {"Location": f"{target}?signature=1"}))
        client = Client(Policy(), endpoint=server.url, token="hf_secret")
        get(RemoteFile("m.nemo", server.url + "/m.nemo", None, SHA256), tmp_path, client)
        get(RemoteFile("m.nemo", target, None, SHA256), tmp_path, client)
    assert [r.headers.get("Authorization") for r in server.requests] == ["Bearer hf_secret"] * 2
    assert [r.headers.get("Authorization") for r in storage.requests] == [None] * 2


def test_messages_hold_no_secrets(server: HubServer, tmp_path: Path) -> None:
    server.always["/m"] = Fault(403)
    client = Client(Policy(), endpoint="http://x", token="hf_secret")
    message = refused(RemoteFile("m", f"{server.url}/m?signature=secret#secret"), tmp_path, client)
    assert "403" in message
    assert "secret" not in message
    address = server.url.replace("//", "//user:secret@")
    assert "secret" not in refused(RemoteFile("m", f"{address}/m"), tmp_path, client)


def test_https_is_not_left_for_http() -> None:
    request = urllib.request.Request("https://a.invalid/m")
    body, headers = io.BytesIO(), Message()
    with pytest.raises(DownloadError, match="unsafe"):
        _Redirects().redirect_request(request, body, 302, "Found", headers, "http://b.invalid/m")
    assert body.closed


def test_a_proxy_is_asked_and_no_proxy_is_obeyed(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    server.put("/m.nemo", CONTENT)
    get(RemoteFile("m.nemo", "http://model.invalid/m.nemo", None, SHA256), tmp_path / "a", Client(Policy()))
    assert only_file(tmp_path / "a") == CONTENT
    assert server.requests[-1].headers["Host"] == "model.invalid"
    monkeypatch.setenv("no_proxy", "model.invalid")
    waits = Policy(waits_seconds=())
    refused(RemoteFile("m.nemo", "http://model.invalid/m.nemo", None, SHA256), tmp_path / "b", Client(waits))


def test_an_untrusted_certificate_says_what_to_set(client: Client, tmp_path: Path) -> None:
    certificate = ssl.SSLCertVerificationError(1, "certificate verify failed")
    certificate.verify_message = "self-signed certificate in certificate chain"

    class Opener:
        def open(self, request: object, timeout: float) -> object:
            raise urllib.error.URLError(certificate)

    client._opener = Opener()  # type: ignore[assignment]
    message = refused(RemoteFile("m", "https://host.invalid/m"), tmp_path, client)
    assert "self-signed certificate in certificate chain" in message
    assert "SSL_CERT_FILE" in message


# At random


def test_random_faults_end_in_the_right_file_or_a_clear_error(
    server: HubServer, client: Client, tmp_path: Path, record_property: Any
) -> None:
    """Whatever comes first, a second run with a good server has the right file."""
    draw = random.Random(7)
    num_recovered = 0
    for case in range(num_cases(60, 2000)):
        folder = tmp_path / str(case)
        has_hash = draw.random() < 0.8
        size = not has_hash or draw.random() < 0.5  # without either, half a file may look whole
        file = file_at(
            server,
            *(random_fault(draw) for _ in range(draw.randrange(6))),
            digest=SHA256 if has_hash else None,
            size=size,
        )
        try:
            get(file, folder, client)
        except DownloadError:
            assert not (folder / "m.nemo").exists()
            num_recovered += 1
            server.faults["/m.nemo"].clear()
            get(file, folder, client)
        server.faults["/m.nemo"].clear()
        assert only_file(folder) == CONTENT
    record_property("recovered by a second run", num_recovered)


def random_fault(draw: random.Random) -> Fault:
    cut = draw.randrange(len(CONTENT))
    return draw.choice(
        [
            Fault(cut_after=cut),
            Fault(cut_after=cut),
            Fault(cut_after=cut, is_chunked=True),
            Fault(ignores_range=True, cut_after=cut),
            Fault(wrong_range=True),
            Fault(draw.choice([403, 404, 408, 429, 500, 503])),
            Fault(drops=True),
            Fault(headers={"Content-Length": str(draw.randrange(1, 600_000))}),
            Fault(body=b"<html></html>", headers={"Content-Type": "text/html"}),
        ]
    )
