"""torch.save's files: checked for what they say they hold, then read by torch.

In: a binary file. Out: what was saved, its tensors as numpy arrays. Before torch sees the file, its
records must be whole (checksums), plain (no compression) and no larger than the file, and its pickle
may name and call only what is listed here or allowed by the caller. Nothing of it is ever run.
"""

import pickle
import re
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import IO, Any, ClassVar

from transduce.checkpoints.config import one_line, translated
from transduce.errors import CheckpointError, UnsupportedModelError, import_extra

__all__ = ["LEGACY_MAGIC", "load_torch_file"]

MAX_PICKLE_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20
LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
"""How torch.save's format before torch 1.6 begins, a row of pickles without records."""

STORAGE_ITEM_BYTES = {
    "torch.DoubleStorage": 8,
    "torch.FloatStorage": 4,
    "torch.HalfStorage": 2,
    "torch.BFloat16Storage": 2,
    "torch.LongStorage": 8,
    "torch.IntStorage": 4,
    "torch.ShortStorage": 2,
    "torch.CharStorage": 1,
    "torch.ByteStorage": 1,
    "torch.BoolStorage": 1,
}
CALLED = {
    "collections.OrderedDict",
    "collections.defaultdict",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_tensor_v2",
    "torch.device",
    "torch.Size",
}
"""What a pickle may call: its size in memory is then at most that of the file."""
NAMED = CALLED | set(STORAGE_ITEM_BYTES)

OPCODES = frozenset(
    pickle.PROTO
    + (pickle.GLOBAL + pickle.REDUCE + pickle.NEWOBJ + pickle.BUILD + pickle.BINPERSID)
    + (pickle.NONE + pickle.NEWTRUE + pickle.NEWFALSE + pickle.BINFLOAT)
    + (pickle.BININT + pickle.BININT1 + pickle.BININT2 + pickle.LONG1)
    + (pickle.BINUNICODE + pickle.SHORT_BINSTRING)
    + (pickle.MARK + pickle.EMPTY_TUPLE + pickle.TUPLE + pickle.TUPLE1 + pickle.TUPLE2 + pickle.TUPLE3)
    + (pickle.EMPTY_LIST + pickle.APPEND + pickle.APPENDS)
    + (pickle.EMPTY_DICT + pickle.SETITEM + pickle.SETITEMS)
    + (pickle.BINPUT + pickle.LONG_BINPUT + pickle.BINGET + pickle.LONG_BINGET)
    + pickle.STOP
)
"""What torch.save writes and torch's restricted reader understands."""


def load_torch_file(file: IO[bytes], source: str, allowed: Sequence[Callable[..., Any]] = ()) -> Any:
    """What torch.save wrote to `file`; a class that is neither plain data nor in `allowed` is refused."""
    import_extra("torch", "torch")
    from transduce.nn.loading import load_pickled

    with translated(source):
        _check(file, source, {f"{kind.__module__}.{kind.__qualname__}" for kind in allowed})
        file.seek(0)
        return load_pickled(file, source, allowed)


def _check(file: IO[bytes], source: str, allowed: Collection[str]) -> None:
    """Raise CheckpointError unless the file is whole and holds nothing but plain data."""
    file.seek(0)
    if file.read(len(LEGACY_MAGIC)) == LEGACY_MAGIC:
        raise UnsupportedModelError(
            f"{source}: is in torch's format before version 1.6, which is not read; load it with torch and "
            "save it anew"
        )
    try:
        with zipfile.ZipFile(file) as archive:
            _check_records(archive, file.seek(0, 2))
            folder = archive.namelist()[0].partition("/")[0]
            outline = _outline(archive, folder)
            _check_kinds(outline, source)
            _check_storages(archive, folder, outline)
    except (zipfile.BadZipFile, NotImplementedError, pickle.UnpicklingError, EOFError) as error:
        raise CheckpointError(
            f"{source}: cannot be read as a torch checkpoint; it is damaged or cut short "
            f"({one_line(error)}). Fetch the file again"
        ) from error
    _check_names(outline, source, allowed)


def _check_records(archive: zipfile.ZipFile, file_bytes: int) -> None:
    """Records as torch.save writes them: stored as they are, each once, whole."""
    records = archive.infolist()
    is_plain = all(record.compress_type == zipfile.ZIP_STORED for record in records)
    if not is_plain or sum(record.file_size for record in records) > file_bytes:
        raise zipfile.BadZipFile("its records are compressed or overlap")
    if not records or len(set(archive.namelist())) < len(records):
        raise zipfile.BadZipFile("it has no records, or several of one name")
    for record in records:
        if record.CRC == 0:  # torch.save was told to write no checksums
            del record.CRC  # then zipfile asks for none
        with archive.open(record) as content:  # raises BadZipFile at the end of damaged content
            while content.read(CHUNK_BYTES):
                pass


@dataclass
class _Outline:
    """What a pickle names, calls and refers to."""

    named: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    storages: list[Any] = field(default_factory=list)


class _OutlineReader(pickle._Unpickler):
    """Follows a pickle and builds nothing of it: every class is a stand-in, no dict is filled.

    It is the standard library's reader in Python: the one in C can be made to reserve any memory.
    """

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, content: bytes) -> None:
        super().__init__(BytesIO(content))
        self.outline = _Outline()

    def read_outline(self) -> _Outline:
        try:
            self.load()
        except KeyError as error:  # of `dispatch`
            raise pickle.UnpicklingError(f"its pickle holds the unknown opcode {error}") from error
        return self.outline

    def find_class(self, module: str, name: str) -> Any:
        """A stand-in class, called as in Python 3: protocol 2 spells names as Python 2 did."""
        path = ".".join(NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name)))
        self.outline.named.add(path)
        return type(path, (_StandIn,), {"called": self.outline.called})

    def persistent_load(self, reference: Any) -> Any:
        self.outline.storages.append(reference)
        return _StandIn.__new__(_StandIn)

    def load_setitem(self) -> None:
        _, key = self.stack.pop(), self.stack.pop()
        _check_keys([key])

    def load_setitems(self) -> None:
        _check_keys(self.pop_mark()[::2])

    dispatch: ClassVar[dict[int, Any]] = {
        **{code: read for code, read in pickle._Unpickler.dispatch.items() if code in OPCODES},
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
    }


def _check_keys(keys: list[Any]) -> None:
    """Names and numbers: the hash of a nested tuple, say, can take for ever."""
    if not all(key is None or isinstance(key, str | int | float) for key in keys):
        raise pickle.UnpicklingError("it has a dictionary with keys that are no names")


class _StandIn:
    """An object of a class that is not loaded: takes any arguments, state and items, keeps none."""

    called: ClassVar[set[str]]

    def __new__(cls, *_: Any) -> "_StandIn":
        return super().__new__(cls)

    def __init__(self, *_: Any) -> None:
        """Met by REDUCE alone: NEWOBJ stops at __new__."""
        self.called.add(type(self).__name__)

    def __setstate__(self, _: Any) -> None: ...


def _outline(archive: zipfile.ZipFile, folder: str) -> _Outline:
    name = f"{folder}/data.pkl"
    if name not in archive.namelist():
        raise zipfile.BadZipFile("it holds no data.pkl")
    if archive.getinfo(name).file_size > MAX_PICKLE_BYTES:
        raise zipfile.BadZipFile("its data.pkl is of absurd size")
    return _OutlineReader(archive.read(name)).read_outline()


def _check_kinds(outline: _Outline, source: str) -> None:
    """Numbers of 8 bits or complex ones, say, are torch's too, but no model's that we know."""
    kinds = {kind.__name__ for _, kind, *_ in outline.storages} - set(STORAGE_ITEM_BYTES)
    if any(re.fullmatch(r"torch\.(storage\.)?[A-Za-z0-9]*Storage", kind) for kind in kinds):
        names = [name for name in outline.named - outline.called - NAMED if name.startswith("torch.")]
        raise UnsupportedModelError(
            f"{source}: holds tensors of a kind that is not read ({', '.join(sorted(names)[:3])}); "
            "save them as torch.float32"
        )


def _check_storages(archive: zipfile.ZipFile, folder: str, outline: _Outline) -> None:
    """Every storage is as large as its record: no more is reserved or read for it."""
    for _, kind, key, _, num_items in outline.storages:
        num_bytes = num_items * STORAGE_ITEM_BYTES.get(kind.__name__, 0)
        record = archive.getinfo(f"{folder}/data/{key}")
        if num_bytes != record.file_size:
            raise zipfile.BadZipFile(f"{record.filename} has {record.file_size} bytes, not {num_bytes}")


def _check_names(outline: _Outline, source: str, allowed: Collection[str]) -> None:
    strangers = sorted((outline.named - NAMED - set(allowed)) | (outline.called - CALLED))
    if strangers:
        raise CheckpointError(
            f"{source}: holds a pickled object ({', '.join(strangers[:3])}) that is not plain data and could "
            "run code; it was not loaded. Ask for the file in its released form, or save its tensors anew"
        )
