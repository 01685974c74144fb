# SPDX-License-Identifier: Apache-2.0
"""The manifest of a checkpoint: a JSON file, written last, that lists every other file and has a checksum of its own.

    step-00000100/manifest.json      every file that it lists exists; a folder without it is no checkpoint

It has the progress of training, the layout of its state, the software and the data. Reading it executes nothing, and
no path in it can lead out of the folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from harness.errors import UserError
from harness.file_io import parse_json, read_regular, replace_file
from harness.findings import Finding, Fix
from harness.secret_text import hide_passwords_in

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
UNIVERSAL = "universal"
"""The `layout` of a checkpoint whose tensors lie whole in files of their own, as an import writes it."""
MAX_MANIFEST_BYTES = 128 * 2**20  # about 300 a file of a checkpoint
_MAX_COUNT = 2**63
_MAX_FILES = 300_000
"""100,000 ranks write three each."""
_REQUIRED = {"state": dict, "tag": str, "world": int, "zero_stage": int, "dtype": str, "files": dict}
_OPTIONAL = {
    **dict.fromkeys(("name", "run", "run_id", "layout", "saved_at"), str),
    **dict.fromkeys(("bytes", "node", "total_steps"), int),
    **dict.fromkeys(
        (
            "degrees",
            "offload",
            "optimizer",
            "versions",
            "patches",
            "spec",
            "sha256",
            "shape",
            "evaluation",
            "geometry",
            "imported",
        ),
        dict,
    ),
}
_COUNTS = ("samples", "tokens")
"""Counts in `state`, apart from `step`."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file: its size, the sha256 of its bytes, the rank that wrote it and that rank's node (counted from 0)."""

    bytes: int
    sha256: str
    rank: int = 0
    node: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"bytes": self.bytes, "sha256": self.sha256, "rank": self.rank, "node": self.node}


@dataclass(frozen=True)
class Manifest:
    """A valid manifest. `body` is all of it; `files` are relative paths below `folder`."""

    folder: Path
    body: Mapping[str, Any]
    files: Mapping[str, FileRecord] = field(repr=False)

    def __getitem__(self, key: str) -> Any:
        return self.body[key]

    def get(self, key: str, default: Any = None) -> Any:
        """A field, or `default`."""
        return self.body.get(key, default)

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return int(self.body["state"]["step"])

    @property
    def tag(self) -> str:
        """The folder of DeepSpeed's shards, below the checkpoint."""
        return str(self.body["tag"])

    @property
    def world_size(self) -> int:
        """Ranks that saved it."""
        return int(self.body["world"])

    @property
    def zero_stage(self) -> int:
        """ZeRO stage that saved it."""
        return int(self.body["zero_stage"])

    @property
    def dtype(self) -> str:
        """Number format of the trained weights, as torch calls it."""
        return str(self.body["dtype"])

    @property
    def bytes(self) -> int:
        """Of all files, without the manifest."""
        return sum(record.bytes for record in self.files.values())

    @property
    def local_files(self) -> dict[str, FileRecord]:
        """The files that this folder must have: all of them, or those of its node where hosts share no disk."""
        if self.body.get("layout") != "per-host":
            return dict(self.files)
        return {name: record for name, record in self.files.items() if record.node == self.body.get("node")}


def checksum(body: Mapping[str, Any]) -> str:
    """sha256 of the canonical JSON of everything but the checksum itself."""
    plain = {key: value for key, value in body.items() if key != "checksum"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint. Raises UserError: CK101 when there is no usable one, CK108 when it was
    edited or damaged, CK112 when a path in it leads elsewhere.
    """
    return _check_body(folder, _parse_body(folder))


def parse_manifest(folder: Path, content: bytes) -> Manifest:
    """A manifest from its bytes, which were read elsewhere for `folder`. Raises UserError as `read_manifest`."""
    try:
        body = parse_json(content.decode())
    except ValueError:
        raise damage_error("CK108", folder, f"`{folder / MANIFEST}` cannot be read: it is not JSON") from None
    return _check_body(folder, _check_version(folder, body))


def _check_body(folder: Path, body: dict[str, Any]) -> Manifest:
    if body.get("checksum") != checksum(body):
        raise damage_error("CK108", folder, f"`{folder / MANIFEST}` was changed: its checksum differs")
    field_name = _invalid_field(body)
    if field_name is not None:
        raise damage_error("CK101", folder, f"`{folder / MANIFEST}` has no usable `{field_name}`")
    return Manifest(folder, body, _parse_files(folder, body["files"]))


def _invalid_field(body: Mapping[str, Any]) -> str | None:
    """The first field that is not of its type; readers of a manifest need not check again."""
    for key, kind in _REQUIRED.items():
        if not _has_type(body.get(key), kind):
            return key
    for key, kind in _OPTIONAL.items():
        if body.get(key) is not None and not _has_type(body[key], kind):
            return key
    state, spec = body["state"], body.get("spec") or {}
    if not _has_type(state.get("step"), int) or any(k in state and not _has_type(state[k], int) for k in _COUNTS):
        return "state"
    if not is_safe_path(body["tag"]):
        return "tag"
    return "spec" if not isinstance(spec.get("model") or {}, dict) else None


def _has_type(value: Any, kind: type) -> bool:
    """A count is a whole number from 0 that a machine can hold."""
    return type(value) is int and 0 <= value < _MAX_COUNT if kind is int else isinstance(value, kind)


def _parse_body(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        body = parse_json(read_regular(path, MAX_MANIFEST_BYTES, follow=False).decode())
    except FileNotFoundError:
        raise damage_error(
            "CK101", folder, f"`{folder}` is not a complete checkpoint: it has no `{MANIFEST}`"
        ) from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EFBIG):
            raise damage_error("CK112", folder, f"`{path}` is a link, or larger than any manifest") from None
        raise damage_error(
            "CK108", folder, f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}"
        ) from None
    except ValueError:
        raise damage_error("CK108", folder, f"`{path}` cannot be read: it is not JSON") from None
    return _check_version(folder, body)


def _check_version(folder: Path, body: object) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise damage_error("CK108", folder, f"`{folder / MANIFEST}` is not a map")
    if body.get("format_version") != FORMAT_VERSION:
        version = str(body.get("format_version"))[:40]
        message = f"`{folder}` has format_version {version}, should be {FORMAT_VERSION}"
        raise damage_error("CK101", folder, message)
    return body


def _parse_files(folder: Path, listed: Mapping[str, Any]) -> dict[str, FileRecord]:
    if len(listed) > _MAX_FILES:
        message = f"`{folder / MANIFEST}` lists {len(listed):,} files, more than any save writes"
        raise damage_error("CK112", folder, message)
    files: dict[str, FileRecord] = {}
    for name, record in listed.items():
        if not is_safe_path(name):
            raise damage_error(
                "CK112", folder, f"`{folder / MANIFEST}` lists the path {name!r}, which is outside the checkpoint"
            )
        try:
            file_record = FileRecord(record["bytes"], record["sha256"], record["rank"], record["node"])
        except (KeyError, TypeError):
            file_record = None
        if file_record is None or not (
            _has_type(file_record.sha256, str)
            and all(_has_type(n, int) for n in (file_record.bytes, file_record.rank, file_record.node))
        ):
            raise damage_error("CK101", folder, f"`{folder / MANIFEST}` has no usable entry of `{name}`")
        files[name] = file_record
    return files


def is_safe_path(name: str) -> bool:
    """Is this a relative path that stays below the folder it is relative to?"""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can hold and no file system
        return False
    path = PurePosixPath(name)
    plain = bool(name) and "\0" not in name and "\\" not in name and not path.is_absolute()
    return plain and all(part not in {"..", "."} for part in name.split("/")) and "" not in name.split("/")


def write_manifest(folder: Path, body: Mapping[str, Any]) -> None:
    """Write the manifest of `folder` (every file that it lists is there already), durably. Raises OSError.

    `bytes` and `checksum` are added; the file is complete or not there.
    """
    whole = {"format_version": FORMAT_VERSION, **body}
    whole["bytes"] = sum(record["bytes"] for record in body["files"].values())
    whole = json.loads(json.dumps(hide_passwords_in(whole)))
    whole["checksum"] = checksum(whole)
    replace_file(folder / MANIFEST, json.dumps(whole, indent=1) + "\n")


def merge_hosts(content: bytes) -> bytes:
    """The manifest of a host that has only its own files, as that of a folder which has the files of all hosts; any
    other unchanged.
    """
    body = json.loads(content)
    if body.get("layout") != "per-host":
        return content
    whole = {key: value for key, value in body.items() if key not in ("node", "checksum")} | {"layout": "shared"}
    whole["checksum"] = checksum(whole)
    return (json.dumps(whole, indent=1) + "\n").encode()


def update_manifest(folder: Path, state: Mapping[str, Any], evaluation: Mapping[str, Any]) -> None:
    """Replace what an evaluation after the save changes: the counters in `state`, and `evaluation`, whose `data` stays.
    Raises OSError, and UserError as `read_manifest`.
    """
    body = dict(read_manifest(folder).body)
    data = (body.get("evaluation") or {}).get("data")
    write_manifest(folder, {**body, "state": {**body["state"], **state}, "evaluation": {"data": data, **evaluation}})


def damage_error(gate: str, folder: Path, message: str) -> UserError:
    """The refusal of a checkpoint, with the way out."""
    return UserError([damage_finding(gate, folder, message)])


def damage_finding(gate: str, folder: Path, message: str) -> Finding:
    """The finding of a damaged checkpoint; the next command looks at all of them."""
    fix = Fix(f"name another checkpoint; `harness checkpoint verify {folder.parent}` lists the intact ones")
    return Finding(gate, "error", message, fix=fix)
