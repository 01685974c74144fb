# SPDX-License-Identifier: Apache-2.0
"""Damaged checkpoints: verification finds and names each fault, and no fault harms the reader."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.checkpoints import manifest
from harness.checkpoints.latest import find_latest, verify_with_name
from harness.checkpoints.verify import verify_checkpoint
from tests.support.sample_checkpoints import make

MODEL = "global_step4/mp_rank_00_model_states.pt"
FIRST = "global_step4/zero_pp_rank_0_mp_rank_00_optim_states.pt"
OTHER = "global_step4/zero_pp_rank_1_mp_rank_00_optim_states.pt"


def truncate(folder: Path) -> None:
    with (folder / FIRST).open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 1)


def flip(folder: Path) -> None:
    with (folder / FIRST).open("r+b") as file:
        file.seek(20_000)
        byte = file.read(1)[0] ^ 1
        file.seek(20_000)
        file.write(bytes([byte]))


def swap(folder: Path) -> None:
    (folder / FIRST).rename(folder / "x")
    (folder / OTHER).rename(folder / FIRST)
    (folder / "x").rename(folder / OTHER)


def edit(change: Callable[[dict], None], *, sign: bool = False) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        body = json.loads((folder / manifest.MANIFEST).read_text())
        change(body)
        if sign:
            body["checksum"] = manifest.checksum(body)
        (folder / manifest.MANIFEST).write_text(json.dumps(body))

    return work


def other_name(name: str) -> Callable[[dict], None]:
    def change(body: dict) -> None:
        body["files"][name] = body["files"].pop(MODEL)

    return change


def link(folder: Path) -> None:
    (folder / MODEL).rename(folder.parent / "elsewhere.pt")
    (folder / MODEL).symlink_to(folder.parent / "elsewhere.pt")


def link_folder(folder: Path) -> None:
    (folder / "global_step4").rename(folder.parent / "elsewhere")
    (folder / "global_step4").symlink_to(folder.parent / "elsewhere")


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated by a byte": (truncate, "CK101"),
    "a bit flipped": (flip, "CK101"),
    "deleted": (lambda f: (f / MODEL).unlink(), "CK101"),
    "empty": (lambda f: (f / MODEL).write_bytes(b""), "CK101"),
    "two files swapped": (swap, "CK101"),
    "manifest missing": (lambda f: (f / manifest.MANIFEST).unlink(), "CK101"),
    "manifest empty": (lambda f: (f / manifest.MANIFEST).write_text(""), "CK108"),
    "manifest not UTF-8": (lambda f: (f / manifest.MANIFEST).write_bytes(b"\xff\xfe{"), "CK108"),
    "manifest a list": (lambda f: (f / manifest.MANIFEST).write_text("[]"), "CK108"),
    "manifest nested deeply": (lambda f: (f / manifest.MANIFEST).write_text("[" * 100_000), "CK108"),
    "manifest edited": (edit(lambda b: b["state"].update(step=5)), "CK108"),
    "manifest edited in a size": (edit(lambda b: b["files"][MODEL].update(bytes=1)), "CK108"),
    "manifest of another version": (edit(lambda b: b.update(format_version=9), sign=True), "CK101"),
    "manifest without files": (edit(lambda b: b.pop("files"), sign=True), "CK101"),
    "manifest with a file that is no record": (edit(lambda b: b["files"].update(a=1), sign=True), "CK101"),
    "manifest of another step": (edit(lambda b: b["state"].update(step=5), sign=True), "CK101"),
    "path with dots": (edit(other_name("../../x.pt"), sign=True), "CK112"),
    "absolute path": (edit(other_name("/etc/passwd"), sign=True), "CK112"),
    "path with a backslash": (edit(other_name("..\\x"), sign=True), "CK112"),
    "file is a link": (link, "CK112"),
    "folder is a link": (link_folder, "CK112"),
    "manifest is a link": (lambda f: _as_link(f / manifest.MANIFEST), "CK112"),
    "file is a folder": (lambda f: ((f / MODEL).unlink(), (f / MODEL).mkdir()), "CK101"),
    "tag leaves the folder": (edit(lambda b: b.update(tag="../step-00000002"), sign=True), "CK101"),
}


def _as_link(path: Path) -> None:
    target = path.with_name("target.json")
    path.rename(target)
    path.symlink_to(target)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_found_and_the_one_before_is_taken(tmp_path: Path, fault: str) -> None:
    earlier, later = make(tmp_path, 2), make(tmp_path, 4)
    assert find_latest(tmp_path, verify="bytes") == (later, [])
    damage, gate = FAULTS[fault]
    damage(later)
    errors = [f for f in verify_with_name(later) if f.is_error]
    assert {f.gate for f in errors} == {gate}
    assert str(later) in errors[0].message
    latest, skipped = find_latest(tmp_path, verify="bytes")
    assert latest == earlier
    assert skipped[0] == (later, errors[0].message + (f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""))


def test_sizes_alone_do_not_see_flipped_bits(tmp_path: Path) -> None:
    folder = make(tmp_path, 4)
    flip(folder)
    assert verify_checkpoint(folder, deep=False) == []
    (finding,) = verify_checkpoint(folder)
    assert "sha256" in finding.message
    assert FIRST in finding.message


def test_files_that_nobody_listed_are_a_warning(tmp_path: Path) -> None:
    folder = make(tmp_path, 4)
    (folder / "global_step4" / "extra.pt").write_bytes(b"x")
    (finding,) = verify_checkpoint(folder)
    assert (finding.gate, finding.severity) == ("CK101", "warning")
    assert "extra.pt" in finding.message
    assert find_latest(tmp_path, verify="bytes")[0] == folder


def test_only_the_files_of_this_node_are_wanted_where_disks_are_not_shared(tmp_path: Path) -> None:
    folder = make(tmp_path, 4)
    body = json.loads((folder / manifest.MANIFEST).read_text())
    body["files"]["global_step4/of_another_host.pt"] = {"bytes": 1, "sha256": "0", "rank": 1, "node": 1}
    manifest.write_manifest(folder, body | {"layout": "per-host", "node": 0})
    assert verify_checkpoint(folder) == []
    manifest.write_manifest(folder, body | {"layout": "shared"})
    assert [f.gate for f in verify_checkpoint(folder)] == ["CK101"]


def test_reading_goes_on_byte_by_byte(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    verify_checkpoint(make(tmp_path, 4), progress=lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1] == manifest.read_manifest(tmp_path / "step-00000004").bytes
    assert [d for d, _ in calls] == sorted(d for d, _ in calls)
