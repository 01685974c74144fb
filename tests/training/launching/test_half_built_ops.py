# SPDX-License-Identifier: Apache-2.0
"""Ops that were left half done, and where a rank has its ops. Needs the training extra; seconds, once
`deepspeed_shm_comm` is compiled.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.hostinfo.torch_extensions import VARIABLE, torch_extensions_dir
from harness.launching.hosts.ssh import encode_request
from tests.support.training.runtime_helpers import ROOT, rank_environment

OP = "deepspeed_shm_comm"
ASK = """
from harness.patches.no_mlflow import import_deepspeed
import_deepspeed()
from torch.utils import cpp_extension
print(cpp_extension._get_build_directory("cpu_adam", verbose=False))
"""


def build(root: Path) -> list[dict[str, object]]:
    """What a host is asked to do before ranks start, and what it says."""
    request = encode_request({"path": [str(ROOT)], "environ": {VARIABLE: str(root)}, "ops": [OP]})
    command = [sys.executable, str(ROOT / "launch" / "build_ops.py"), "--request", request]
    done = subprocess.run(command, env=rank_environment(), text=True, capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"event"')]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder of ops with what was compiled of this one."""
    root = torch_extensions_dir()
    build(root)
    shutil.copytree(root / OP, tmp_path / OP)
    return tmp_path


def test_half_an_op_and_a_lock_that_nobody_holds_are_in_nobodys_way(copied: Path) -> None:
    library, lock = copied / OP / f"{OP}.so", copied / OP / "lock"
    whole = library.stat().st_size
    lock.touch()
    with library.open("r+b") as file:
        file.truncate(whole // 2)
    said = build(copied)
    assert [event["event"] for event in said] == ["lock", "unloadable", "start", "done"]
    assert said[0] == {"event": "lock", "file": str(lock), "removed": True}
    assert (said[2]["compiled"], said[3]["compiled"]) == (False, True)
    assert library.stat().st_size == whole
    assert not lock.exists()
    assert build(copied) == []


def test_an_op_that_was_compiled_before_is_loaded(copied: Path) -> None:
    start, done = build(copied)  # no stamp of the harness is in this folder
    assert start == {"event": "start", "op": OP, "compiled": True}
    assert (done["event"], done["compiled"]) == ("done", False)


def test_a_rank_compiles_into_the_folder_of_its_environment(tmp_path: Path) -> None:
    environ = {**rank_environment(), "XDG_CACHE_HOME": str(tmp_path)}
    del environ[VARIABLE]
    done = subprocess.run([sys.executable, "-c", ASK], env=environ, text=True, capture_output=True, check=True)
    assert Path(done.stdout.splitlines()[-1]) == torch_extensions_dir(environ) / "cpu_adam"
    assert (tmp_path / "torch_extensions") in torch_extensions_dir(environ).parents
