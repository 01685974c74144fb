# SPDX-License-Identifier: Apache-2.0
"""Attacks by the shards of a checkpoint and by a cache of prepared data, on what loads them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from harness.checkpoints.manifest import read_manifest
from harness.errors import UserError
from harness.runtime.checkpoint import restore
from harness.runtime.checkpoint.consolidate import open_checkpoint
from harness.runtime.checkpoint.consolidate.full_weights import _build_weights
from harness.runtime.checkpoint.consolidate.layouts import RankParams, ShardedParam
from harness.runtime.checkpoint.safe_load import find_unsafe_globals, load_shard
from harness.runtime.dataset.cache import file_sha256, read_cache
from harness.runtime.dataset.mmap_array import map_array
from harness.runtime.export import model_files
from harness.runtime.export.hf_export import export_checkpoint
from harness.runtime.models.safetensors_reader import _open_file
from harness.runtime.train_state import TrainState
from tests.security.attempts import Attempt, attempt_param
from tests.security.hostile_calls import edit_manifest, within
from tests.support.sample_checkpoints import make

pytestmark = pytest.mark.training
SHARD = "mp_rank_00_model_states.pt"


def write_shard(file: Path, pickled: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return file


@Attempt(
    "K21",
    "A shard of 2 MB unpacks to 2 GiB, with the right checksum",
    "6.5 GiB of memory, then a traceback",
    "CK120 before it is unpacked: no save compresses",
)
def test_bomb(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / SHARD, b"\x80\x02X\x00\x00\x00\x01" + b"a" * (1 << 24) + b".", zipfile.ZIP_DEFLATED)
    for read in (load_shard, find_unsafe_globals):
        with pytest.raises(UserError) as refused:
            read(shard)
        assert refused.value.findings[0].gate == "CK120"
        assert "is compressed" in refused.value.findings[0].notes[0]


@Attempt(
    "K22",
    "A shard of 386 bytes calls `bytearray` with 8 GiB, which torch's safe loader allows",
    "8.4 GiB of memory, then a traceback",
    "CK120 before it is unpickled",
)
def test_bytearray(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / SHARD, b"\x80\x02cbuiltins\nbytearray\n\x8a\x05\x00\x00\x00\x00\x02\x85R.")
    with pytest.raises(UserError) as refused:
        load_shard(shard)
    assert "bytearray" in refused.value.findings[0].notes[0]


@Attempt(
    "K23",
    "A shard calls `os.system`",
    "refused, nothing ran",
    "refused by CK120 or CK111, nothing runs",
)
def test_code(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    command = f"touch {marker}".encode()
    pickled = b"\x80\x02cposix\nsystem\nX" + struct.pack("<I", len(command)) + command + b"\x85R."
    shard = write_shard(tmp_path / SHARD, pickled)
    assert find_unsafe_globals(shard) == ["posix.system"]
    with pytest.raises(UserError):
        load_shard(shard)
    assert not marker.exists()


@Attempt(
    "K24",
    "A shard in torch's old format, a text, an empty file, a pipe",
    "CK120, the pipe refused by its manifest",
    "CK120, and the pipe never opened to wait",
)
def test_no_archive(tmp_path: Path) -> None:
    for content in (b"\x80\x02X\xff\xff\xff\x7fabc", b"words", b""):
        (tmp_path / SHARD).write_bytes(content)
        with pytest.raises(UserError) as refused:
            load_shard(tmp_path / SHARD)
        assert refused.value.findings[0].gate == "CK120"
    os.mkfifo(tmp_path / "pipe.pt")
    with within(5), pytest.raises(OSError, match="not a regular file"):
        load_shard(tmp_path / "pipe.pt")


CONTENTS = [
    attempt_param(Attempt("K25", "A shard holds a list", "a traceback: TypeError", "CK120, a list and no map"), [1]),
    attempt_param(Attempt("K26", "A shard is an empty map", "a traceback: KeyError", "CK120, KeyError in words"), {}),
    attempt_param(
        Attempt("K27", "The weights of a shard are a number", "a traceback: KeyError", "CK120, in words"),
        {"module": 3, "param_shapes": 5, "shared_params": 3, "buffer_names": []},
    ),
]


@pytest.mark.parametrize("content", CONTENTS)
def test_content_of_wrong_types(tmp_path: Path, content: object) -> None:
    checkpoint = make(tmp_path, 4)
    for file in (checkpoint / "global_step4").iterdir():
        torch.save(content, file)
    for stage in (0, 2, 3):
        with pytest.raises(UserError) as refused:
            open_checkpoint(checkpoint, {"tag": "global_step4", "zero_stage": stage})
        assert refused.value.findings[0].gate == "CK120"


@Attempt(
    "K28",
    "A shard names a parameter `../../escaped`, and a resume needs another layout",
    "the conversion wrote files outside of its folder",
    "CK120 before anything is written",
)
def test_name_of_a_parameter() -> None:
    for name, states in (("../../escaped", ()), ("/tmp/escaped", ()), ("fine.weight", ("../../escaped",))):  # noqa: S108
        param = ShardedParam(torch.Size([1]), lambda _: torch.zeros(1), states)
        with pytest.raises(UserError, match="which is no name") as refused:
            _build_weights({name: param}, {}, RankParams({name: param}, {}, {}, {}, [], [], None, {}))
        assert refused.value.findings[0].gate == "CK120"


@Attempt(
    "K29",
    "The weights of a manifest are of the type `evil`",
    "`export` ended in a traceback: KeyError",
    "CK127, with the types that an export has",
)
def test_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.runtime.export import hf_export

    checkpoint = make(tmp_path, 4)
    edit_manifest(checkpoint, lambda body: body.update(dtype="evil"))
    monkeypatch.setattr(hf_export, "open_checkpoint", lambda *_: None)
    with pytest.raises(UserError) as refused:
        export_checkpoint(checkpoint, tmp_path / "out")
    assert refused.value.findings[0].gate == "CK127"


@Attempt(
    "K30",
    "The `config.json` of a checkpoint has ten million layers, or experts",
    "`export` built them without an end",
    "CK125 before the model is built",
)
def test_layers(tmp_path: Path) -> None:
    for body in ({"num_hidden_layers": 10**7}, {"text_config": {"num_local_experts": 1e9}}):
        (tmp_path / "config.json").write_text(json.dumps(body))
        with pytest.raises(UserError) as refused:
            model_files.check_layer_count(tmp_path, 11)
        assert refused.value.findings[0].gate == "CK125"
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 126, "num_experts": 512}))
    model_files.check_layer_count(tmp_path, 11)


@Attempt(
    "K31",
    "`huggingface/` of a checkpoint holds a pipe and files that its manifest does not list",
    "the pipe stopped the export with a raw list of errors, the others were exported",
    "listed files alone are exported",
)
def test_unlisted_files(tmp_path: Path) -> None:
    checkpoint = make(tmp_path, 4)
    os.mkfifo(checkpoint / "huggingface/pipe.json")
    (checkpoint / "huggingface/own.py").write_text("import os\n")
    with within(5):
        model_files.copy_hugging_face_files(read_manifest(checkpoint), tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["config.json"]


@Attempt(
    "K32",
    "A checkpoint's random states are a list, or lack parts",
    "a resume ended in a traceback: TypeError",
    "CK101, no random states",
)
def test_random_states(tmp_path: Path) -> None:
    for states in ([1], {}, {"python": (3, [1], None)}, {"python": 1}):
        with pytest.raises(UserError, match="holds no random states") as refused:
            restore._restore_rng_state(tmp_path / "rank-00000.pt", states)
        assert refused.value.findings[0].gate == "CK101"


@Attempt(
    "K33",
    "The place in the data of a manifest is a text, negative, or 2^80",
    "it was taken, and the first batch failed",
    "refused where the state is read: CK101",
)
def test_position() -> None:
    sound = TrainState(3, 4, 5).to_json()
    assert TrainState.from_json(sound).step == 3
    for position in ({"epoch": "x", "offset": 0}, {"epoch": 0, "offset": -1}, {"epoch": 2**80, "offset": 0}):
        with pytest.raises(ValueError, match="is no count"):
            TrainState.from_json({**sound, "position": position})
    with pytest.raises(ValueError, match="`samples` is no count"):
        TrainState.from_json({**sound, "samples": True})


def header(body: Any, data: bytes = b"", size: int | None = None) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


HEADERS = [
    header({}, size=2**60),
    b"",
    header(b"[" * 100_000),
    header({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, b"1234"),
    header({"a": entry([2**40, 2**40], 0, 4)}, b"1234"),
    header({"a": entry([2], 0, 8)}, b"1234"),
    header({"a": entry([-1], 0, 4)}, b"1234"),
]


@Attempt(
    "K34",
    "A safetensors header of 2^60 bytes, nested, with overlaps, with shapes beyond the file or beyond 2^64",
    "SafetensorError, which the caller turns into a finding",
    "SafetensorError, which the caller turns into a finding",
)
def test_safetensors_headers(tmp_path: Path) -> None:
    for content in HEADERS:
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(SafetensorError):
            _open_file(tmp_path / "model.safetensors")


@Attempt(
    "K35",
    "`model.safetensors` of a model folder is a pipe",
    "the launch waited for a writer for ever",
    "OSError, which the caller turns into a finding",
)
def test_safetensors_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with within(5), pytest.raises(OSError, match="not a regular file"):
        _open_file(tmp_path / "model.safetensors")


META: dict[str, Any] = {
    "train_tokens": 1,
    "eval_tokens": 0,
    "train_documents": 1,
    "eval_documents": 0,
    "unigram_entropy": None,
    "sha256": "x",
    "train": [],
    "eval": [],
    "lengths": [],
}
GROUP = {"rows": 1, "packed": True, "masked": False, "weight": None, "documents": 1, "tokens": 1, "trained": 1}
CACHES = [
    attempt_param(
        Attempt(
            "I61",
            "`meta.json` of the data cache is a list, lacks fields, is nested, or has groups of a wrong type",
            "tracebacks: TypeError, KeyError, RecursionError",
            "the folder counts as incomplete, and the data is prepared again",
        ),
        ["[]", '{"a": 1}', "[" * 100_000, json.dumps({**META, "train": [3]}), json.dumps({**META, "train": 1})],
        "{}",
    ),
    attempt_param(
        Attempt(
            "I62",
            "`sizes.json` of the data cache is a list, or names a file outside of the folder",
            "a traceback: AttributeError; the file outside was looked at",
            "the folder counts as incomplete",
        ),
        [json.dumps(META)],
        "[]",
        json.dumps({"/etc/passwd": Path("/etc/passwd").stat().st_size}),
        json.dumps({"../x": 1}),
    ),
    attempt_param(
        Attempt(
            "I63",
            "A group of the data cache is named `../../x`",
            "the files of that name were mapped",
            "the folder counts as incomplete",
        ),
        [json.dumps({**META, "train": [{**GROUP, "name": "../../x", "source": "s"}]})],
        "{}",
    ),
]


@pytest.mark.parametrize("case", [pytest.param(p.values, id=p.id) for p in CACHES])
def test_data_cache(tmp_path: Path, case: tuple[Any, ...]) -> None:
    metas, *sizes = case
    (tmp_path / "x").write_text("x")
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "meta.json").write_text(json.dumps(META))
    (folder / "sizes.json").write_text("{}")
    assert read_cache(folder) is not None
    for meta in metas:
        for size in sizes:
            (folder / "meta.json").write_text(meta)
            (folder / "sizes.json").write_text(size)
            assert read_cache(folder) is None


@Attempt(
    "I64",
    "`meta.json`, `sizes.json` and the notes of checksums in a data cache are pipes",
    "preparation waited for a writer for ever",
    "the folder counts as incomplete, and the file is read again",
)
def test_pipes_in_a_data_cache(tmp_path: Path) -> None:
    data, notes = tmp_path / "data.txt", tmp_path / "files"
    data.write_text("text")
    notes.mkdir()
    digest = file_sha256(data, notes)
    for note in notes.iterdir():
        note.unlink()
        os.mkfifo(note)
    with within(5):
        assert file_sha256(data, notes) == digest
        os.mkfifo(tmp_path / "meta.json")
        assert read_cache(tmp_path) is None


def npy(shape: tuple[int, ...], descr: str, size: int) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(size)


def pickled_array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{}] * 50, dtype=object), allow_pickle=True)
    return file.getvalue()


ARRAYS: list[Callable[[], bytes]] = [
    lambda: npy((2**60,), "<i4", 0),
    lambda: npy((2**60,), "<i4", 200),
    lambda: npy((2, 10), "<f8", 160),
    lambda: b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b" " * 300,
    lambda: b"PK\x03\x04" + b" " * 300,
    pickled_array,
]


@Attempt(
    "I65",
    "A `.npy` file of the data cache claims 2^60 elements in 128 bytes, has two axes, pickles, or is a zip",
    "MemoryError for 4 EiB; two axes were mapped; the others were refused",
    "ValueError: the header must agree with the size, and nothing is unpickled",
)
def test_arrays(tmp_path: Path) -> None:
    for content in ARRAYS:
        (tmp_path / "a.npy").write_bytes(content())
        with pytest.raises(ValueError, match=r"."):
            map_array(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(npy((5,), "<i4", 20))
    assert map_array(tmp_path / "a.npy").tolist() == [0] * 5
    (tmp_path / "a.npy").write_bytes(npy((0,), "<i4", 0))
    assert len(map_array(tmp_path / "a.npy")) == 0


@Attempt(
    "K36",
    "A manifest names a folder of the reader as its model, and `config.json` has an `auto_map`",
    "`export` copied all Python files of that folder into the export",
    "the export has files of the checkpoint alone",
)
def test_python_files_of_the_reader(tmp_path: Path) -> None:
    frozen = min((Path(__file__).parents[1] / "frozen").glob("*/runs/zero2-*"))
    checkpoint = max(Path(shutil.copytree(frozen / "checkpoints", tmp_path / "run/checkpoints")).glob("step-*"))
    (tmp_path / "private").mkdir()
    (tmp_path / "private/secret.py").write_text("SECRET = 1\n")
    config = checkpoint / "huggingface/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"auto_map": {"AutoConfig": "secret.Own"}}))
    content = config.read_bytes()

    def change(body: dict[str, Any]) -> None:
        body["spec"]["model"]["name_or_path"] = str(tmp_path / "private")
        entry = body["files"]["huggingface/config.json"]
        entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    edit_manifest(checkpoint, change)
    out = export_checkpoint(checkpoint, tmp_path / "out")
    assert (out / "model.safetensors").is_file()
    assert not (out / "secret.py").exists()
