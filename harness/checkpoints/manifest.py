"""The manifest of a checkpoint: a JSON file, written last, that lists every other file and has a checksum of its own.

    step-00000100/manifest.json      what is listed there is there; a folder without it is no checkpoint

It says where training stood, in which shape, with which software and from what data. Reading it executes nothing, and
no path in it can lead out of the folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from harness.errors import Refused
from harness.files import replace_file
from harness.findings import Finding, Fix

FORMAT_VERSION = 2
NAME = "manifest.json"
_LARGEST_BYTES = 256 * 2**20  # a file that is read whole; one line a file of a checkpoint is far below
_NEEDED = {"state": dict, "tag": str, "world": int, "zero_stage": int, "dtype": str, "files": dict}


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
    """A manifest that was read and is whole. `body` is all of it; `files` are relative paths below `folder`."""

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
    def world(self) -> int:
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
    def here(self) -> dict[str, FileRecord]:
        """The files that this folder must have: all, or, on disks that hosts do not share, those of its node."""
        if self.body.get("layout") != "per-host":
            return dict(self.files)
        return {name: record for name, record in self.files.items() if record.node == self.body.get("node")}


def checksum(body: Mapping[str, Any]) -> str:
    """sha256 of the canonical JSON of everything but the checksum itself."""
    plain = {key: value for key, value in body.items() if key != "checksum"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint. Raises Refused: CK101 when there is none that can be used, CK108 when it was
    edited or damaged, CK112 when a path in it leads elsewhere.
    """
    body = _parse(folder)
    if body.get("checksum") != checksum(body):
        raise damaged("CK108", folder, f"`{folder / NAME}` is not as it was written: its checksum differs")
    for key, kind in _NEEDED.items():
        if not isinstance(body.get(key), kind):
            raise damaged("CK101", folder, f"`{folder / NAME}` has no usable `{key}`")
    if type(body["state"].get("step")) is not int or not safe(body["tag"]):
        raise damaged("CK101", folder, f"`{folder / NAME}` has no usable `step` or `tag`")
    return Manifest(folder, body, _files(folder, body["files"]))


def _parse(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    try:
        if path.is_symlink() or path.stat().st_size > _LARGEST_BYTES:
            raise damaged("CK112", folder, f"`{path}` is a link, or larger than any manifest")
        body = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise damaged("CK101", folder, f"`{folder}` is not a complete checkpoint: it has no `{NAME}`") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not JSON"
        raise damaged("CK108", folder, f"`{path}` cannot be read: {reason.lower()}") from None
    if not isinstance(body, dict):
        raise damaged("CK108", folder, f"`{path}` is not a map")
    if body.get("format_version") != FORMAT_VERSION:
        message = f"`{folder}` has format_version {body.get('format_version')}, should be {FORMAT_VERSION}"
        raise damaged("CK101", folder, message)
    return body


def _files(folder: Path, listed: Mapping[str, Any]) -> dict[str, FileRecord]:
    files = {}
    for name, record in listed.items():
        if not safe(name):
            raise damaged("CK112", folder, f"`{folder / NAME}` lists the path {name!r}, which leaves the checkpoint")
        try:
            files[name] = FileRecord(
                int(record["bytes"]), str(record["sha256"]), int(record["rank"]), int(record["node"])
            )
        except (KeyError, TypeError, ValueError):
            raise damaged("CK101", folder, f"`{folder / NAME}` has no usable entry of `{name}`") from None
    return files


def safe(name: str) -> bool:
    """Is this a relative path that stays below the folder it is relative to?"""
    path = PurePosixPath(name)
    plain = bool(name) and "\0" not in name and "\\" not in name and not path.is_absolute()
    return plain and all(part not in {"..", "."} for part in name.split("/")) and "" not in name.split("/")


def write(folder: Path, body: Mapping[str, Any]) -> None:
    """Write the manifest of `folder` (every file that it lists is there already), durably. Raises OSError.

    `bytes` and `checksum` are added; the file is complete or not there.
    """
    whole = {"format_version": FORMAT_VERSION, **body}
    whole["bytes"] = sum(record["bytes"] for record in body["files"].values())
    whole = json.loads(json.dumps(whole))
    whole["checksum"] = checksum(whole)
    replace_file(folder / NAME, json.dumps(whole, indent=1) + "\n")


def damaged(gate: str, folder: Path, message: str) -> Refused:
    """The refusal of a checkpoint, with the way out."""
    return Refused([damage(gate, folder, message)])


def damage(gate: str, folder: Path, message: str) -> Finding:
    """The finding of a damaged checkpoint; the next command looks at all of them."""
    fix = Fix(f"name another checkpoint; `harness checkpoint verify {folder.parent}` tells which are whole")
    return Finding(gate, "error", message, fix=fix)
