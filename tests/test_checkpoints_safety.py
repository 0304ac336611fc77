"""Model files are data from strangers: nothing in them runs, and every fault is one clear line in time.

Damaged, truncated, malicious and absurd files of every container that is read. The right outcome of
each is a TransduceError whose message is one line and begins with the file, within seconds and without
memory that the file's size does not explain; a file that is read all the same must also run.
"""

import argparse
import builtins
import collections
import copyreg
import gzip
import io
import os
import pathlib
import random
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import omegaconf
import pytest
import torch
import yaml
from checkpoint_builder import (
    ALPHABET,
    RUSSIAN,
    Conformer,
    GigaamModel,
    NemoModel,
    Transducer,
    gigaam_content,
    lightning_content,
    nemo_members,
    random_arrays,
    saved,
    tar_of,
    tensors,
    tiny_nemo,
    train_sentencepiece,
)
from support import BUNDLED, DEMO, data, num_cases

from transduce import checkpoints
from transduce.checkpoints import Checkpoint
from transduce.checkpoints.state import StateDict
from transduce.errors import CheckpointError, MissingExtraError, TransduceError, UnsupportedModelError
from transduce.nn.backend import TorchBackend
from transduce.transcriber import load_model

SECONDS = 20.0
"""More than any of these small files may take, on a busy machine too."""

NEMO = NemoModel(Conformer(num_layers=1), Transducer(durations=(0, 1, 2)), ctc=True)
GIGAAM = GigaamModel(
    Conformer(1, 16, 2, 64, "conv1d", 4, 16, 5, 5, "layer_norm", "rotary"),
    Transducer(joint_index=1),
    window=320,
    name="v3_rnnt",
)
WAVEFORM = np.random.default_rng(0).standard_normal(1600, np.float32)


@contextmanager
def in_time() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < SECONDS


def refused(path: Path, kind: type[TransduceError] = TransduceError) -> str:
    """The message of the error that a file ends in."""
    with in_time(), pytest.raises(kind) as caught:
        checkpoints.load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert len(message) < 1000
    return message


def loads_or_is_refused(path: Path, sound: Checkpoint | None = None) -> Checkpoint | None:
    """What a file that may be damaged holds; None: it was refused in one line.

    What it holds also runs; that is not tried where it is what the `sound` file is.
    """
    failure = None
    with in_time():
        try:
            read = checkpoints.load(path)
            if sound is None or read.spec != sound.spec:
                run(read)
        except TransduceError as error:
            failure = str(error)
    if failure is None:
        return read
    assert "\n" not in failure
    assert str(path) in failure
    return None


def run(read: Checkpoint) -> None:
    backend = TorchBackend(read.spec, read.weights, device="cpu")
    for hypothesis in backend.recognize([WAVEFORM, WAVEFORM[:100]]):
        read.tokenizer.texts(hypothesis.ids)


def gigaam_file(path: Path, **parts: Any) -> Path:
    """A small checkpoint of which some parts are replaced or added."""
    content = gigaam_content(GIGAAM, RUSSIAN, random_arrays(GIGAAM.shapes()))
    torch.save(content | parts, path)
    return path


def nemo_file(path: Path, **members: bytes) -> Path:
    """A small archive of which some members are replaced: `config` and `weights`."""
    given = nemo_members(NEMO.config() | {"labels": ALPHABET}, random_arrays(NEMO.shapes()))
    names = {"config": "model_config.yaml", "weights": "model_weights.ckpt"}
    path.write_bytes(tar_of(given | {names[key]: content for key, content in members.items()}))
    return path


def test_the_small_files_are_sound(tmp_path: Path) -> None:
    """Else everything below would pass for the wrong reason."""
    assert loads_or_is_refused(gigaam_file(tmp_path / "v3_rnnt.ckpt"))
    assert loads_or_is_refused(nemo_file(tmp_path / "m.nemo"))


# Pickles that run something


class Runs:
    """Unpickled by pickle itself, it calls `function(*arguments)`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def attacks(victim: Path) -> dict[str, Runs]:
    """Ways to make a file, by the name that the refusal must give."""
    return {
        f"{os.name}.system": Runs(os.system, f"touch '{victim}'"),
        "builtins.exec": Runs(exec, f"open({str(victim)!r}, 'w')"),
        "builtins.eval": Runs(eval, f"open({str(victim)!r}, 'w')"),
        "io.open": Runs(open, str(victim), "w"),
        "builtins.getattr": Runs(builtins.getattr, pathlib.Path(victim), "touch"),
    }


PLACES: dict[str, Callable[[Any], Mapping[str, Any]]] = {
    "state dict": lambda evil: {"state_dict": {"encoder.layers.0.norm_out.weight": evil}},
    "beside the tensors": lambda evil: {"extra": [1, (evil,)]},
    "plain config": lambda evil: {"cfg": {"encoder": {"n_heads": evil}}},
    "omegaconf": lambda evil: {"cfg": with_object({"encoder": {}}, "device", evil)},
    "hyper-parameters": lambda evil: (
        lightning_content("v3_rnnt", {"x": torch.ones(1)})
        | {"hyper_parameters": {"model_name": "v3_rnnt", "scheduler": evil}}
    ),
    "optimizer": lambda evil: {"optimizer_states": [{"state": {0: {"step": evil}}}]},
}


def with_object(config: dict[str, Any], key: str, value: Any) -> omegaconf.DictConfig:
    """A DictConfig that holds a foreign object, which OmegaConf would not take by itself."""
    created: omegaconf.DictConfig = omegaconf.OmegaConf.create(config)
    node = omegaconf.nodes.AnyNode(None)
    node.__dict__["_val"] = value
    created.__dict__["_content"][key] = node
    return created


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("attack", attacks(Path("x")))
def test_a_malicious_pickle_is_refused(attack: str, place: str, tmp_path: Path) -> None:
    victim = tmp_path / "touched"
    path = gigaam_file(tmp_path / "v3_rnnt.ckpt", **PLACES[place](attacks(victim)[attack]))
    assert attack in refused(path, CheckpointError)
    assert not victim.exists()


@pytest.mark.parametrize("attack", attacks(Path("x")))
def test_a_malicious_pickle_in_an_archive_is_refused(attack: str, tmp_path: Path) -> None:
    victim = tmp_path / "touched"
    weights = saved({"encoder.layers.0.norm_out.weight": attacks(victim)[attack]})
    assert attack in refused(nemo_file(tmp_path / "m.nemo", weights=weights), CheckpointError)
    assert not victim.exists()


@pytest.mark.parametrize(
    "pickled", [b"cos\nsystem\n(S'touch touched'\ntR.", b"\x80\x04\x8c\x02os\x8c\x06system\x93."]
)
def test_other_pickle_protocols_are_refused(pickled: bytes, tmp_path: Path) -> None:
    path = rezipped(gigaam_file(tmp_path / "v3_rnnt.ckpt"), {"data.pkl": lambda _: pickled})
    assert "opcode" in refused(path, CheckpointError)


def test_a_pickle_that_is_no_torch_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.ckpt"
    path.write_bytes(b"cos\nsystem\n(S'touch touched'\ntR.")
    refused(path, UnsupportedModelError)


def test_what_is_allowed_for_one_file_is_not_allowed_afterwards(tmp_path: Path) -> None:
    before = set(torch.serialization.get_safe_globals())
    checkpoints.load(gigaam_file(tmp_path / "v3_rnnt.ckpt"))
    refused(gigaam_file(tmp_path / "bad.ckpt", cfg={"x": Runs(os.system, "true")}))
    assert set(torch.serialization.get_safe_globals()) == before


def test_threads_do_not_take_each_others_allowance_away(tmp_path: Path) -> None:
    path = gigaam_file(tmp_path / "v3_rnnt.ckpt")
    with ThreadPoolExecutor(8) as pool:
        names = [read.spec.name for read in pool.map(checkpoints.load, [path] * 40)]
    assert names == ["v3_rnnt"] * 40


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (argparse.Namespace(model_name="v3_rnnt", lr=1e-5), "argparse.Namespace"),
        ({"model_name": "v3_rnnt", "path": pathlib.PurePosixPath("x")}, "pathlib"),
        ({"model_name": "v3_rnnt", "score": np.float64(0.1)}, "numpy"),
    ],
)
def test_objects_that_are_not_plain_data_are_named(value: object, named: str, tmp_path: Path) -> None:
    assert named in refused(gigaam_file(tmp_path / "v3_rnnt.ckpt", hyper_parameters=value), CheckpointError)


# Allowed classes in odd ways


class Made:
    """Unpickled, it is a `kind` that got `state`, whatever its constructor would say."""

    def __init__(self, kind: type, state: object) -> None:
        self.kind, self.state = kind, state

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self.kind  # pickle compares

    def __reduce__(self) -> Any:
        return copyreg.__newobj__, (self.kind,), self.state  # type: ignore[attr-defined]


def nested(depth: int) -> dict[str, Any]:
    """Ten to the power of `depth` dicts, in a few: each holds the next one ten times."""
    content: dict[str, Any] = {"n_heads": 2}
    for _ in range(depth):
        content = {f"k{i}": content for i in range(10)}
    return content


def looped() -> dict[str, Any]:
    content: dict[str, Any] = {}
    content["encoder"] = content
    return content


METADATA = vars(omegaconf.OmegaConf.create({}))["_metadata"]

ODD: dict[str, Callable[[], object]] = {
    "much memory": lambda: Runs(bytearray, 10**13),
    "much memory as a tensor": lambda: Runs(torch.FloatTensor, 10**13),
    "much memory as a storage": lambda: Runs(torch.UntypedStorage, 10**13),
    "a long number": lambda: Runs(int, "9" * 5000),
    "a text of something endless": lambda: Runs(str, nested(12)),
    "a list of something endless": lambda: Runs(list, nested(12)),
    "a config made of something endless": lambda: Runs(omegaconf.DictConfig, nested(12)),
    "a call of typing.Any": lambda: Runs(Any),  # type: ignore[arg-type]
    "a config without anything": lambda: Made(omegaconf.DictConfig, {}),
    "a config without content": lambda: Made(omegaconf.DictConfig, {"_metadata": METADATA}),
    "a config that is a number": lambda: Made(omegaconf.DictConfig, {"_metadata": METADATA, "_content": 5}),
    "a config that is a list": lambda: Made(
        omegaconf.DictConfig, {"_metadata": METADATA, "_content": [1, 2]}
    ),
    "a config with a bad state": lambda: Made(omegaconf.DictConfig, [1, 2]),
    "a config with a loop": lambda: Made(omegaconf.DictConfig, {"_metadata": METADATA, "_content": looped()}),
    "a config without end": lambda: Made(
        omegaconf.DictConfig, {"_metadata": METADATA, "_content": nested(12)}
    ),
    "a plain config without end": lambda: nested(12),
    "a plain config with a loop": looped,
    "a node without a value": lambda: {"encoder": {"n_heads": Made(omegaconf.nodes.AnyNode, {"x": 1})}},
    "keys that take for ever to hash": lambda: {endless_tuple(): 1},
    "a default factory": lambda: collections.defaultdict(omegaconf.DictConfig, {"encoder": {"n_heads": "x"}}),
}


def endless_tuple() -> tuple[Any, ...]:
    value: tuple[Any, ...] = ()
    for _ in range(18):  # pickling it must hash it once; 50 levels would take a reader a year
        value = (value, value)
    return value


@pytest.mark.parametrize("odd", ODD)
def test_allowed_classes_in_odd_ways_are_refused(odd: str, tmp_path: Path) -> None:
    refused(gigaam_file(tmp_path / "v3_rnnt.ckpt", cfg=ODD[odd]()))


def test_an_interpolation_is_never_resolved(tmp_path: Path) -> None:
    config = GIGAAM.config(RUSSIAN)
    config["encoder"]["n_heads"] = "${oc.env:NUM_HEADS}"
    path = gigaam_file(tmp_path / "v3_rnnt.ckpt", cfg=omegaconf.OmegaConf.create(config))
    assert "${oc.env:NUM_HEADS}" in refused(path, CheckpointError)


# Torch's zip


def rezipped(
    path: Path, edits: Mapping[str, Callable[[bytes], bytes]], method: int = zipfile.ZIP_STORED
) -> Path:
    """The file with some records changed (by the end of their name), checksums made anew."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in records.items():
            edit = next((edits[end] for end in edits if name.endswith(end)), None)
            archive.writestr(name, edit(content) if edit else content)
    return path


def test_a_damaged_weight_is_noticed(tmp_path: Path) -> None:
    """Half a download of the right length: zeros where weights should be."""
    path = gigaam_file(tmp_path / "v3_rnnt.ckpt")
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda record: record.file_size)
    start = largest.header_offset + 200
    content[start : start + 100] = bytes(100)
    path.write_bytes(content)
    assert "CRC" in refused(path, CheckpointError)


def test_files_without_checksums_are_read(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        path = gigaam_file(tmp_path / "v3_rnnt.ckpt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert loads_or_is_refused(path)


def test_compressed_records_are_refused(tmp_path: Path) -> None:
    """torch.save compresses nothing, and a megabyte can unpack to a gigabyte."""
    path = rezipped(gigaam_file(tmp_path / "v3_rnnt.ckpt"), {}, zipfile.ZIP_DEFLATED)
    assert "compressed" in refused(path, CheckpointError)


def test_records_that_share_bytes_are_refused(tmp_path: Path) -> None:
    path = gigaam_file(tmp_path / "v3_rnnt.ckpt")
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda record: record.file_size)
    with zipfile.ZipFile(path, "a") as archive:
        for index in range(50):
            copy = zipfile.ZipInfo(f"v3_rnnt/data/again{index}")
            copy.header_offset, copy.CRC = largest.header_offset, largest.CRC
            copy.file_size = copy.compress_size = largest.file_size
            archive.filelist.append(copy)
        archive._didModify = True  # type: ignore[attr-defined]
    assert "overlap" in refused(path, CheckpointError)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_records_of_one_name_are_refused(tmp_path: Path) -> None:
    path = gigaam_file(tmp_path / "v3_rnnt.ckpt")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("v3_rnnt/data.pkl", b"\x80\x02}.")
    assert "several of one name" in refused(path, CheckpointError)


def resized(content: bytes, old: int, new: int) -> bytes:
    """A pickle that names a storage of another size."""
    assert old < 2**16
    old_code, new_code = b"M" + old.to_bytes(2, "little"), b"J" + new.to_bytes(4, "little")
    assert old_code in content
    return content.replace(old_code, new_code)


@pytest.mark.parametrize("new", [2**31 - 1, 10_000, 10])
def test_a_storage_is_as_large_as_its_record(new: int, tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    torch.save({"state_dict": {"encoder.layers.0.norm_out.weight": torch.zeros(1003)}}, path)
    message = refused(rezipped(path, {"data.pkl": lambda pkl: resized(pkl, 1003, new)}), CheckpointError)
    assert "4012 bytes" in message


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"encoder.layers.0.norm_out.weight": torch.zeros(1).expand(10**12)}, id="strides of 0"),
        pytest.param(
            {"encoder.x": torch.zeros(1, dtype=torch.half).expand(10**6, 10**6)}, id="and half precision"
        ),
        pytest.param(
            dict.fromkeys((f"encoder.{i}" for i in range(100)), torch.zeros(10**5)), id="one for many"
        ),
    ],
)
def test_tensors_are_backed_by_the_file(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    assert "it was not loaded" in refused(
        gigaam_file(tmp_path / "v3_rnnt.ckpt", state_dict=state), CheckpointError
    )
    refused(nemo_file(tmp_path / "m.nemo", weights=saved(state)), CheckpointError)


@pytest.mark.parametrize(
    "state",
    [
        {"encoder.x": torch.zeros(2, 2).to_sparse()},
        {"encoder.x": torch.zeros(2, device="meta")},
        {"encoder.x": torch.zeros(2, dtype=torch.complex64)},
        {"encoder.x": "a text"},
        [torch.zeros(2)],
        torch.zeros(2),
        {},
    ],
    ids=["sparse", "meta", "complex", "text", "list", "tensor", "empty"],
)
def test_weights_that_are_no_state_dict(state: Any, tmp_path: Path) -> None:
    refused(nemo_file(tmp_path / "m.nemo", weights=saved(state)))
    refused(gigaam_file(tmp_path / "v3_rnnt.ckpt", state_dict=state))


# Tar archives


def tar_with(member: tarfile.TarInfo, content: bytes = b"") -> bytes:
    """The small archive with one more member."""
    stream = io.BytesIO()
    members = nemo_members(NEMO.config() | {"labels": ALPHABET}, random_arrays(NEMO.shapes()))
    with tarfile.open(fileobj=stream, mode="w:") as tar:
        for name, part in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(part)
            tar.addfile(info, io.BytesIO(part))
        tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    info.size = 4 if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    "info",
    [
        member("../evil"),
        member("a/../../evil"),
        member("/tmp/evil"),
        member("link", tarfile.SYMTYPE, "/etc"),
        member("model_config.yaml", tarfile.SYMTYPE, "/etc/passwd"),
        member("hard", tarfile.LNKTYPE, "model_config.yaml"),
        member("model_weights.ckpt", tarfile.LNKTYPE, "/etc/passwd"),
        member("zero", tarfile.CHRTYPE),
        member("disk", tarfile.BLKTYPE),
        member("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.name} {info.type!r}",
)
@pytest.mark.parametrize("compress", [False, True])
def test_members_that_point_elsewhere_are_refused(
    info: tarfile.TarInfo, compress: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    content = tar_with(info, b"evil" if info.isreg() else b"")
    (folder / "m.nemo").write_bytes(gzip.compress(content) if compress else content)
    before = sorted(tmp_path.rglob("*"))
    assert "was not loaded" in refused(folder / "m.nemo", CheckpointError)
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/tmp/evil").exists()


def test_absurd_sizes_in_a_tar_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.nemo"
    for name in ("model_config.yaml", "model_weights.ckpt"):
        content = tar_of({name: b"x"}, prefix="")
        info = tarfile.TarInfo(name)
        info.size = 1 << 40
        path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + content[512:])
        refused(path, CheckpointError)


def test_a_negative_size_does_not_read_in_a_circle(tmp_path: Path) -> None:
    info = tarfile.TarInfo("model_config.yaml")
    info.size = 1
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (-512 % 256**12).to_bytes(12, "big")  # base 256, the tar's own form
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "m.nemo"
    path.write_bytes(bytes(header) + bytes(10240))
    refused(path, CheckpointError)


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("model_weights.ckpt")
    info.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"%011o\0" % (1 << 32)  # its size with the holes
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "m.nemo"
    path.write_bytes(bytes(header) + bytes(10240))
    refused(path, CheckpointError)


def test_a_tar_of_too_many_members_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.nemo"
    path.write_bytes(tar_of({f"file{i}": b"" for i in range(1100)}))
    assert "members" in refused(path, CheckpointError)


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    """64 MB in 64 kB: the limit is in the file's own sizes, so a smaller one proves it."""
    path = tmp_path / "m.nemo"
    path.write_bytes(gzip.compress(tar_of({"model_weights.ckpt": bytes(64 << 20)})))
    assert path.stat().st_size < 1 << 17
    assert "unpacks to an absurd size" in refused(path, CheckpointError)


# YAML


def laughs(merge: bool) -> bytes:
    """Each line holds the one before ten times."""
    lines = ["a0: &a0 {x: 1}" if merge else "a0: &a0 [x]"]
    for i in range(1, 12):
        aliases = ", ".join([f"*a{i - 1}"] * 10)
        lines.append(f"a{i}: &a{i} {{<<: [{aliases}]}}" if merge else f"a{i}: &a{i} [{aliases}]")
    return "\n".join([*lines, "encoder: *a11", "preprocessor: {normalize: *a11}"]).encode()


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(laughs(merge=False), id="aliases of aliases"),
        pytest.param(laughs(merge=True), id="merges of merges"),
        pytest.param(b"encoder: &a {x: *a}\npreprocessor: *a", id="a loop"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b"a: " * 3000 + b"1", id="deep in one line"),
        pytest.param(b"{" * 500 + b"}" * 500, id="half deep"),
        pytest.param(b"x: " + b"9" * 5_000, id="a long number"),
        pytest.param(b"x: 2001-99-99", id="no date"),
        pytest.param(b"!!python/object/apply:os.system ['touch touched']", id="a python object"),
        pytest.param(b"encoder: !!python/name:os.system", id="a python name"),
        pytest.param(b"\xff\xfe\x00", id="no utf-8"),
        pytest.param(b"\x00" * 100, id="zeros"),
        pytest.param(b"", id="empty"),
        pytest.param(b"- 1\n- 2", id="a list"),
        pytest.param(b"just a text", id="a text"),
        pytest.param(b"a: 1\n---\nb: 2", id="two documents"),
        pytest.param(b"? [1, 2]\n: x", id="a list as a key"),
        pytest.param(b"a: *nowhere", id="an alias to nothing"),
        pytest.param(b"\ttab: 1", id="a tab"),
        pytest.param(b"%YAML 9.9\n---\na: 1", id="of the future"),
    ],
)
def test_a_config_that_is_no_config_is_refused(
    config: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(nemo_file(tmp_path / "m.nemo", config=config))
    assert not (tmp_path / "touched").exists()


def test_plain_aliases_are_read(tmp_path: Path) -> None:
    """As a script writes them that dumps one list in two places."""
    config = NEMO.config() | {"labels": ALPHABET}
    config["joint"]["vocabulary"] = config["labels"]
    dumped = yaml.safe_dump(config)
    assert "*id001" in dumped
    assert loads_or_is_refused(nemo_file(tmp_path / "m.nemo", config=dumped.encode()))


@pytest.mark.parametrize("stride", [1 / 16000, 0.001, 1e-9, 0.0, -0.01, 100.0])
def test_a_stride_that_gives_no_sensible_number_of_frames_is_refused(stride: float, tmp_path: Path) -> None:
    """At one sample a frame, five seconds kept an encoder busy for minutes."""
    assert "preprocessor.window_stride = " in refused(with_stride(tmp_path, stride), CheckpointError)


def test_frames_of_seconds_are_refused(tmp_path: Path) -> None:
    """A segment of 30 s must hold some; the command line would call its own --max-segment wrong."""
    assert "samples do not fit" in refused(with_stride(tmp_path, 1.0), CheckpointError)


@pytest.mark.parametrize("stride", ["0.01", None, [0.01], float("nan"), float("inf")])
def test_a_stride_that_is_no_number_is_refused(stride: object, tmp_path: Path) -> None:
    refused(with_stride(tmp_path, stride), CheckpointError)


def with_stride(folder: Path, stride: object) -> Path:
    config = NEMO.config() | {"labels": ALPHABET}
    config["preprocessor"]["window_stride"] = stride
    return nemo_file(folder / "m.nemo", config=yaml.safe_dump(config).encode())


def test_a_hop_that_gives_no_sensible_number_of_frames_is_refused(tmp_path: Path) -> None:
    content = gigaam_content(GIGAAM, RUSSIAN, random_arrays(GIGAAM.shapes()))
    content["cfg"]["preprocessor"]["hop_length"] = 1
    torch.save(content, tmp_path / "v3_rnnt.ckpt")
    message = refused(tmp_path / "v3_rnnt.ckpt", CheckpointError)
    assert "preprocessor.hop_length = 1 is not a number from 32 to 400000" in message


# Sound files that are not read


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128])
def test_numbers_of_a_kind_that_is_not_read(kind: torch.dtype, tmp_path: Path) -> None:
    """They are no damage, so fetching the file again would not help."""
    arrays = random_arrays(GIGAAM.shapes())
    content = gigaam_content(GIGAAM, RUSSIAN, arrays)
    content["state_dict"] = {name: torch.tensor(array).to(kind) for name, array in arrays.items()}
    torch.save(content, tmp_path / "v3_rnnt.ckpt")
    message = refused(tmp_path / "v3_rnnt.ckpt", UnsupportedModelError)
    assert "tensors of a kind that is not read (torch." in message
    assert message.endswith("save them as torch.float32")


def test_torch_files_of_before_version_1_6(tmp_path: Path) -> None:
    content = gigaam_content(GIGAAM, RUSSIAN, random_arrays(GIGAAM.shapes()))
    torch.save(content, tmp_path / "v3_rnnt.ckpt", _use_new_zipfile_serialization=False)
    weights = io.BytesIO()
    torch.save(random_arrays(NEMO.shapes()), weights, _use_new_zipfile_serialization=False)
    archive = nemo_file(tmp_path / "m.nemo", weights=weights.getvalue())
    for path in (tmp_path / "v3_rnnt.ckpt", archive):
        assert "torch's format before version 1.6" in refused(path, UnsupportedModelError)


def test_what_is_no_model_is_said_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    path = tmp_path / "file"
    for content in (b"RIFF....WAVE", b"root:x:0:0", b""):
        path.write_bytes(content)
        with pytest.raises((CheckpointError, UnsupportedModelError), match=r"neither a NeMo|is empty"):
            load_model(path)
    with pytest.raises(CheckpointError, match="/dev/null: is not a file"):
        load_model("/dev/null")
    with pytest.raises(MissingExtraError, match=r"torch is needed .*transduce\[torch\]"):
        load_model(DEMO)


# Other kinds of files


def other_kinds() -> dict[str, bytes]:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", "<document/>")
    return {
        "empty": b"",
        "one byte": b"P",
        "zeros": bytes(100_000),
        "noise": random.Random(0).randbytes(100_000),
        "html": b"<!DOCTYPE html>\n<html><head><title>404</title></head><body>Not found</body></html>",
        "json": b'{"error": "not found"}',
        "lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 449000000\n",
        "wav": (BUNDLED / "audio" / "u00.wav").read_bytes(),
        "document": stream.getvalue(),
        "empty zip": b"PK\x05\x06" + bytes(18),
        "zip magic alone": b"PK\x03\x04",
        "gzip magic alone": b"\x1f\x8b",
        "gzip of a text": gzip.compress(b"hello"),
        "gzip cut short": gzip.compress(random.Random(0).randbytes(10_000))[:5000],
        "gzip of zeros": gzip.compress(bytes(20_000)),
        "tar of something": tar_of({"readme.txt": b"hello"}),
        "empty tar": bytes(10240),
        "tokenizer": (BUNDLED / "models/gigaam/v3_e2e_rnnt_tokenizer.model").read_bytes(),
        "safetensors": (8).to_bytes(8, "little") + b"{}      ",
    }


@pytest.mark.parametrize("kind", other_kinds())
@pytest.mark.parametrize("suffix", [".nemo", ".ckpt"])
def test_other_kinds_of_files_are_refused(kind: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(other_kinds()[kind])
    refused(path)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("zeros", "not fetched whole"), ("html", "web page"), ("lfs pointer", "git lfs pull")],
)
def test_failed_downloads_are_called_so(kind: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    path.write_bytes(other_kinds()[kind])
    assert message in refused(path, CheckpointError)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path)
    refused(tmp_path / "nowhere.nemo", CheckpointError)
    refused(Path(os.devnull), CheckpointError)  # like a pipe, it may be read for ever


# Damage at random


def sound_files(folder: Path) -> list[Path]:
    """Small files of every container, with each kind of vocabulary."""
    model = NemoModel(Conformer(num_layers=1), num_labels=60)
    members = nemo_members(model.config(), random_arrays(model.shapes()), train_sentencepiece(60))
    (folder / "bpe.nemo").write_bytes(tar_of(members))
    (folder / "gzip.nemo").write_bytes(tar_of(members, compress=True))
    tuned = lightning_content("v3_rnnt", tensors(random_arrays(GIGAAM.shapes())))
    tuned["hyper_parameters"]["cfg"] = GIGAAM.config(RUSSIAN)
    torch.save(tuned, folder / "tuned.ckpt")
    files = [gigaam_file(folder / "v3_rnnt.ckpt"), nemo_file(folder / "m.nemo")]
    return [*files, folder / "bpe.nemo", folder / "gzip.nemo", folder / "tuned.ckpt"]


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    cut = tmp_path / "cut.ckpt"
    for path in sound_files(tmp_path):
        content = path.read_bytes().rstrip(b"\0")  # a tar without its end is whole
        for index in range(num_cases(12, 100)):
            cut.write_bytes(content[: len(content) * index // num_cases(12, 100)])
            refused(cut)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Flipped bits, a run of zeros or noise, or bytes left out; often near an end, where headers are."""
    changed = bytearray(content)
    position = rng.choice(
        [rng.randrange(len(content)), rng.randrange(2000), len(content) - 1 - rng.randrange(2000)]
    )
    kind = rng.randrange(4)
    if kind == 0:
        for _ in range(rng.randrange(1, 8)):
            changed[(position + rng.randrange(64)) % len(changed)] ^= 1 << rng.randrange(8)
    elif kind == 1:
        changed[position : position + 512] = bytes(len(changed[position : position + 512]))
    elif kind == 2:
        changed[position : position + 16] = rng.randbytes(len(changed[position : position + 16]))
    else:
        del changed[position : position + rng.randrange(1, 600)]
    return bytes(changed)


def test_mutated_files_load_or_are_refused(tmp_path: Path) -> None:
    rng = random.Random(6)
    files = [path.read_bytes() for path in sound_files(tmp_path)]
    path = tmp_path / "mutated.ckpt"
    num_loaded = 0
    for index in range(num_cases(60, 1000)):
        path.write_bytes(mutated(files[index % len(files)], rng))
        num_loaded += loads_or_is_refused(path) is not None
    assert num_loaded < num_cases(60, 1000) // 2  # most damage is noticed: weights have checksums


def test_mutated_released_files_load_or_are_refused(tmp_path: Path) -> None:
    """The bundled files of NeMo and GigaAM: larger records, and a tokenizer inside or beside."""
    rng = random.Random(7)
    files = [data(f"models/{name}").read_bytes() for name in ("nemo/hybrid.nemo", "gigaam/v3_e2e_rnnt.ckpt")]
    path = tmp_path / "mutated.ckpt"
    tokenizer = data("models/gigaam/v3_e2e_rnnt_tokenizer.model").read_bytes()
    (tmp_path / "mutated_tokenizer.model").write_bytes(tokenizer)
    for index in range(num_cases(10, 500)):
        path.write_bytes(mutated(files[index % len(files)], rng))
        loads_or_is_refused(path)


# Configs with values of the wrong kind

STRANGE = (
    None,
    [],
    {},
    "x",
    "",
    -1,
    0,
    10**30,
    0.5,
    float("nan"),
    float("inf"),
    True,
    [[]],
    {"a": 1},
    [1, 2],
    "7",
)


def places(config: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a tree of dicts and lists, sections too."""
    if path:
        yield path
    if isinstance(config, dict):
        for key, value in config.items():
            yield from places(value, (*path, key))
    elif isinstance(config, list):
        for index in range(min(2, len(config))):
            yield from places(config[index], (*path, index))


def replaced(config: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the tree with one value replaced."""
    if not path:
        return value
    copy = config.copy()
    copy[path[0]] = replaced(config[path[0]], path[1:], value)
    return copy


def strange_configs(config: dict[str, Any], seed: int, quick: int) -> list[dict[str, Any]]:
    cases = [replaced(config, path, value) for path in places(config) for value in STRANGE]
    return random.Random(seed).sample(cases, min(len(cases), num_cases(quick, len(cases))))


def test_strange_values_in_a_nemo_config(tmp_path: Path) -> None:
    config = NEMO.config() | {"labels": ALPHABET}
    weights = saved(tensors(random_arrays(NEMO.shapes())))
    path = tmp_path / "m.nemo"
    sound = checkpoints.load(nemo_file(path))
    outcomes = set()
    for strange in strange_configs(config, 1, quick=100):
        members = {"model_config.yaml": yaml.safe_dump(strange).encode(), "model_weights.ckpt": weights}
        path.write_bytes(tar_of(members))
        outcomes.add(loads_or_is_refused(path, sound) is None)
    assert outcomes == {True, False}


def test_strange_values_in_a_gigaam_config(tmp_path: Path) -> None:
    content = gigaam_content(GIGAAM, RUSSIAN, random_arrays(GIGAAM.shapes()))
    path = tmp_path / "m.ckpt"
    sound = checkpoints.load(gigaam_file(path))
    outcomes = set()
    for strange in strange_configs(GIGAAM.config(RUSSIAN), 2, quick=100):
        torch.save(content | {"cfg": strange}, path)
        outcomes.add(loads_or_is_refused(path, sound) is None)
    assert outcomes == {True, False}


def test_strange_shapes_of_parameters(tmp_path: Path) -> None:
    """A parameter of other sizes, other dimensions or another type, one or two at a time."""
    rng = random.Random(3)
    members = nemo_members(NEMO.config() | {"labels": ALPHABET}, {})
    arrays = random_arrays(NEMO.shapes())
    path = tmp_path / "m.nemo"
    for _ in range(num_cases(40, 1000)):
        changed = dict(arrays)
        for key in rng.sample(sorted(arrays), rng.randrange(1, 3)):
            changed[key] = strange_array(changed[key], rng)
        path.write_bytes(tar_of(members | {"model_weights.ckpt": saved(tensors(changed))}))
        loads_or_is_refused(path)


def strange_array(array: np.ndarray[Any, Any], rng: random.Random) -> np.ndarray[Any, Any]:
    shape = list(array.shape) or [1]
    shape[rng.randrange(len(shape))] = rng.choice([0, 1, 2, 3, 7, 2 * shape[0]])
    return rng.choice(
        [
            np.ones(shape, np.float32),
            np.ones(array.shape[1:], np.float32),
            np.ones((*array.shape, 1), np.float32),
            array.astype(np.int32),
            array.astype(np.float64),
            np.full(array.shape, np.nan, np.float32),
        ]
    )


def test_a_whole_hybrid_is_shrunk_together(tmp_path: Path) -> None:
    """Shapes that agree with each other and are still no model: heads that do not divide the width."""
    for num_heads, width in ((3, 16), (16, 16), (1, 15)):
        model = NemoModel(Conformer(1, width, num_heads))
        loads_or_is_refused(tiny_nemo(tmp_path / "m.nemo", model))
    message = refused(tiny_nemo(tmp_path / "m.nemo", NemoModel(Conformer(1, 15, 1))), CheckpointError)
    assert "15 wide" in message


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    state = StateDict({"joint.enc.weight": np.array([[1.0, value]], np.float32)}, "a.nemo")
    with pytest.raises(CheckpointError, match=r"a.nemo: joint.enc.weight holds numbers that are not finite"):
        state.take("joint.enc.weight", 1, 2)
