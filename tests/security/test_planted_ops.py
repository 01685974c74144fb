# SPDX-License-Identifier: Apache-2.0
"""Compiled ops that another user of a shared host plants, and code that `torch.compile` keeps."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from harness.errors import UserError
from harness.facts.environment_variables import code_loading_reason
from harness.hostinfo import torch_extensions
from harness.launching.ops import build_cache, local_build
from harness.launching.ops.build_events import BuildProgress
from harness.launching.programs import software_checks
from harness.launching.programs.doctor_rows import DoctorCheck
from harness.workers import op_builder
from tests.security.attempts import Attempt, attempt_param
from tests.support.other_user import MALLORY, give_to_other, needs_root, shared_folder

pytestmark = needs_root
OP = "cpu_adam"
ANOTHER_USER = "belongs to another user"


@pytest.fixture
def shared() -> Iterator[Path]:
    with shared_folder() as folder:
        yield folder


@pytest.fixture
def ops(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the op compiled, below one that may be planted, too."""
    monkeypatch.setattr(build_cache, "build_stamp_key", lambda _: "k")
    root = shared / "above" / "ext"
    built(root)
    return root


def built(root: Path) -> Path:
    """The op as a launch leaves it: its library is in the stamp, and no builder starts."""
    library = root / OP / f"{OP}.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"code")
    (root / OP / "build.ninja").write_text("")
    status = library.stat()
    record = {OP: {"file": str(library), "mtime_ns": status.st_mtime_ns, "size": status.st_size}}
    build_cache.build_stamp_file(root).write_text(json.dumps({build_cache.build_stamp_key({}): record}))
    return library


def load_ops(root: Path) -> None:
    context = Mock()
    context.scripts = Path("/nonexistent")
    local_build.ensure_ops([OP], {"TORCH_EXTENSIONS_DIR": str(root)}, root.parent / "ops.log", context)


def refusal(root: Path) -> str:
    with pytest.raises(UserError) as refused:
        load_ops(root)
    (finding,) = refused.value.findings
    assert finding.gate == "EN018"
    assert finding.fix is not None
    return " ".join((finding.message, *finding.notes, finding.fix.title))


def test_own_ops_are_loaded(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = built(shared / "ext")
    build_cache.build_stamp_file(shared / "ext")
    monkeypatch.setattr(build_cache, "build_stamp_key", lambda _: "k")
    stamp = build_cache.build_stamp_file(shared / "ext")
    stamp.write_text(json.dumps({"k": next(iter(json.loads(stamp.read_text()).values()))}))
    load_ops(shared / "ext")
    assert library.exists()


def _library(root: Path) -> None:
    give_to_other(root / OP / f"{OP}.so")


def _folder(root: Path) -> None:
    give_to_other(root / OP)


def _root(root: Path) -> None:
    give_to_other(root)


def _writable(root: Path) -> None:
    (root / OP / f"{OP}.so").chmod(0o666)


def _group(root: Path) -> None:
    os.chown(root, -1, MALLORY)
    root.chmod(0o775)


def _above(root: Path) -> None:
    root.parent.chmod(0o777)


def _link(root: Path) -> None:
    real = root.rename(root.with_name("real"))
    root.symlink_to(real)
    give_to_other(root)


def _object(root: Path) -> None:
    (root / OP / "cpu_adam.o").write_text("")
    give_to_other(root / OP / "cpu_adam.o")


@pytest.mark.parametrize(
    ("plant", "reason"),
    [
        attempt_param(
            Attempt("S40", "another user's library in the folder of compiled ops", "every rank loads it", "EN018"),
            _library,
            ANOTHER_USER,
        ),
        attempt_param(
            Attempt("S41", "another user made the op's folder before its user, in a shared cache", "loaded", "EN018"),
            _folder,
            ANOTHER_USER,
        ),
        attempt_param(
            Attempt("S42", "another user made `TORCH_EXTENSIONS_DIR`, as in `/tmp`", "loaded", "EN018"),
            _root,
            ANOTHER_USER,
        ),
        attempt_param(
            Attempt("S43", "a library of compiled ops that everybody may write", "loaded", "EN018, with a `chmod`"),
            _writable,
            "every user",
        ),
        attempt_param(
            Attempt("S44", "a folder of compiled ops that a group may write", "loaded", "EN018, with a `chmod`"),
            _group,
            "the group 54321",
        ),
        attempt_param(
            Attempt("S45", "a folder above the ops that everybody may write: the ops are replaced", "loaded", "EN018"),
            _above,
            "every user",
        ),
        attempt_param(
            Attempt("S46", "another user's link leads to one's own compiled ops, for now", "followed", "EN018"),
            _link,
            ANOTHER_USER,
        ),
        attempt_param(
            Attempt("S47", "another user's object file, which the next build links into the op", "linked", "EN018"),
            _object,
            ANOTHER_USER,
        ),
    ],
)
def test_planted_ops(plant: Callable[[Path], None], reason: str, ops: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(ops)
    text = refusal(ops)
    assert reason in text
    assert "HARNESS_TRUSTED_ACCOUNTS" in text
    monkeypatch.setenv("HARNESS_TRUSTED_ACCOUNTS", f"{MALLORY}, @{MALLORY}" if "every user" not in reason else "*")
    load_ops(ops)


def test_a_private_folder_above_shields_what_a_group_may_write(ops: Path) -> None:
    _group(ops)
    ops.parent.chmod(0o700)
    load_ops(ops)


@Attempt(
    "S48",
    "planted ops on another host of a run",
    "the builder there loads them, and every rank",
    "the builder loads nothing, and the launch says EN018 with the host",
)
def test_builder(shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    root = shared / "ext"
    give_to_other(built(root))
    monkeypatch.setattr(sys, "argv", ["op_builder.py", OP])
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(root))
    monkeypatch.setattr(op_builder, "build_ops", lambda *_: {})
    mask = os.umask(0o002)
    try:
        assert op_builder.main() == 1
        progress = BuildProgress("b")
        progress.feed(capsys.readouterr().out.encode(), Mock())
        assert progress.planted is not None
        finding = local_build.planted_ops_finding(progress.planted, "b")
        assert "it is on b" in finding.notes[0]
        assert os.umask(0o022) == 0o022, "what it compiles is for its user alone to write"
    finally:
        os.umask(mask)


@Attempt("S49", "planted ops, as `doctor` sees them", "not mentioned", "a row with the fix")
def test_doctor(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = shared / "ext"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(root))

    def ask() -> DoctorCheck:
        rows = software_checks.check_compilers(accelerated=False, cuda=None)
        return next(row for row in rows if row.name == "compiled ops")

    assert ask().state == "ok"
    give_to_other(built(root))
    row = ask()
    assert row.state == "note"
    assert "belongs to another user" in row.means
    assert "HARNESS_TRUSTED_ACCOUNTS" in row.fix


@Attempt(
    "S50",
    "`launch.env` of a foreign spec trusts another user: `HARNESS_TRUSTED_ACCOUNTS`",
    "there was no such variable",
    "SE008: `--allow-local-code`",
)
def test_trust_by_a_spec() -> None:
    assert code_loading_reason("HARNESS_TRUSTED_ACCOUNTS", "mallory") is not None


@Attempt(
    "S51",
    "another user makes `torchinductor_USER` in `/tmp`, from which `torch.compile` loads code",
    "torch loads what is there",
    "the ranks keep compiled code in the user's own cache; else the folder is made with mode 0700",
)
def test_inductor_cache(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    monkeypatch.setenv("LOGNAME", "alice")
    environ = {"XDG_CACHE_HOME": "/cache"}
    torch_extensions.set_compile_cache_dir(environ)
    folder = shared / "torchinductor_alice"
    assert "TORCHINDUCTOR_CACHE_DIR" not in environ
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    give_to_other(folder)
    torch_extensions.set_compile_cache_dir(environ)
    assert environ["TORCHINDUCTOR_CACHE_DIR"] == "/cache/harness/torchinductor"
