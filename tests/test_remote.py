"""Recordings at addresses: opened when they are read, with fsspec's own stores as the fake."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from support import data, read_wav

from transduce.audio import load
from transduce.errors import AudioError, MissingExtraError
from transduce.manifest import read_manifest
from transduce.remote import close_source, open_source

RATE = 16000


@pytest.fixture
def store() -> Iterator[Any]:
    """A store in memory, at memory://; empty."""
    found = fsspec.filesystem("memory")
    yield found
    found.store.clear()


def heard(address: str) -> Any:
    source = open_source(address)
    try:
        return load(source, rate=RATE)
    finally:
        close_source(source)


def test_a_path_stays_a_path(tmp_path: Path) -> None:
    assert open_source(str(tmp_path)) == str(tmp_path)
    close_source(str(tmp_path))


@pytest.mark.parametrize("name", ["memory://calls/a.wav", "MEMORY://calls/a.wav"])
def test_an_object_is_read_as_a_file_is(store: Any, name: str) -> None:
    store.pipe_file("/calls/a.wav", data("audio/u03.wav").read_bytes())
    np.testing.assert_array_equal(heard(name).samples, read_wav("u03.wav"))


def test_a_file_address(tmp_path: Path) -> None:
    np.testing.assert_array_equal(heard(f"file://{data('audio/u03.wav')}").samples, read_wav("u03.wav"))


def test_nothing_is_opened_before_it_is_read_and_what_was_is_closed(tmp_path: Path) -> None:
    source: Any = open_source(f"file://{tmp_path}/a.wav")
    (tmp_path / "a.wav").write_bytes(b"abc")
    assert (source.read(2), source.tell(), source.read()) == (b"ab", 2, b"c")
    inner = source._file
    close_source(source)
    assert inner.closed


def test_messages_name_the_address(store: Any) -> None:
    with pytest.raises(
        AudioError, match=r"^memory://b\.wav cannot be read: there is nothing at this address"
    ):
        heard("memory://b.wav")
    store.pipe_file("/b.wav", b"no audio")
    with pytest.raises(AudioError, match=r"^memory://b\.wav cannot be read"):
        heard("memory://b.wav")
    store.pipe_file("/b.wav", b"")
    with pytest.raises(AudioError, match=r"^memory://b\.wav is empty"):
        heard("memory://b.wav")


@pytest.mark.parametrize(
    "address",
    ["http://a.b/c.wav", "HTTPS://a.b/c.wav", "zip://x.wav::https://a.b/c.zip", "file://a::http://b/c"],
)
def test_the_web_is_not_read(address: str) -> None:
    with pytest.raises(AudioError, match="download it first"):
        heard(address)


def test_a_store_without_its_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingExtraError, match=r"s3://bucket/a\.wav cannot be read: .*s3fs"):
        heard("s3://bucket/a.wav")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=r'pip install "transduce\[ray\]"'):
        heard("s3://bucket/a.wav")


def test_an_address_that_no_store_has() -> None:
    with pytest.raises(AudioError, match=r"^nowhere://a\.wav cannot be read: .*nowhere"):
        heard("nowhere://a.wav")


def test_what_a_store_raises_while_it_is_read_is_the_recordings_error(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> bytes:
        raise RuntimeError("the token has expired")

    store.pipe_file("/a.wav", data("audio/u03.wav").read_bytes())
    monkeypatch.setattr(type(store.open("/a.wav")), "read", fail, raising=False)
    with pytest.raises(AudioError, match=r"^memory://a\.wav cannot be read: the token has expired"):
        heard("memory://a.wav")


def test_a_manifest_in_a_store_lists_what_is_beside_it(store: Any) -> None:
    store.pipe_file("/calls/files.jsonl", b'{"path": "2024/a.wav"}\n{"path": "memory://b.wav"}\n')
    entries = read_manifest("memory://calls/files.jsonl")
    assert [entry.path for entry in entries] == ["memory://calls/2024/a.wav", "memory://b.wav"]
