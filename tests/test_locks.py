# SPDX-License-Identifier: Apache-2.0
"""Locks between real processes. A second."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.locks import Lock, LockHeld, current_holder, read_holder


def test_a_lock_whose_holder_was_killed_is_free(tmp_path):
    code = f"import pathlib, time; from harness.locks import Lock; l = Lock.acquire(pathlib.Path({str(tmp_path / 'lock')!r})); print(1, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    assert child.stdout.readline()
    assert current_holder(tmp_path / "lock").pid == child.pid
    with pytest.raises(LockHeld):
        Lock.acquire(tmp_path / "lock")
    child.kill()
    child.wait()
    child.stdout.close()
    assert current_holder(tmp_path / "lock") is None
    assert read_holder(tmp_path / "lock").is_alive is False
    Lock.acquire(tmp_path / "lock").release()


def test_on_a_network_file_system_another_machine_is_believed_for_two_minutes(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.hostinfo.machine.is_on_network_filesystem", lambda _: True)
    lock = tmp_path / "lock"
    lock.write_text(json.dumps({"host": "elsewhere:0000", "pid": 7, "ticks": 1, "what": ""}))
    with pytest.raises(LockHeld):
        Lock.acquire(lock)
    os.utime(lock, (time.time() - 200, time.time() - 200))
    Lock.acquire(lock).release()
