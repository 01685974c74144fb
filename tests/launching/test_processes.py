# SPDX-License-Identifier: Apache-2.0
"""Finding and ending processes, on real ones. Needs Linux; a few seconds."""

import os
import signal
import subprocess
import sys
import time

import pytest

from harness.hostinfo.machine import process_start_ticks
from harness.launching.process.processes import (
    find_mapped_files,
    find_run_processes,
    kill_all,
    pids_with_open_file,
    read_process,
)
from harness.launching.process.shm import find_buffers, remove_unused_buffers

ORPHAN = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); print('up', flush=True); time.sleep(60)"],
                         start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
child.stdout.readline()
print(child.pid, flush=True)
os._exit(0)
"""


@pytest.fixture
def orphan(tmp_path):
    """A process that lost its parent, has a session of its own and ignores SIGTERM."""
    env = {**os.environ, "HARNESS_RUN_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", ORPHAN], env=env, capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    yield pid
    if read_process(pid) is not None:
        os.kill(pid, signal.SIGKILL)


def test_an_orphan_that_ignores_sigterm_is_found_and_ended(orphan, tmp_path):
    assert [p.pid for p in find_run_processes(tmp_path, session=-1)] == [orphan]
    assert kill_all(lambda: find_run_processes(tmp_path, session=-1), 0.3) == []
    end = time.monotonic() + 5  # a killed process that exits has no environment to be found by, and no core to exit on
    while (left := read_process(orphan)) is not None and not left.has_exited and time.monotonic() < end:
        time.sleep(0.01)
    assert left is None or left.has_exited


def test_a_run_directory_whose_name_begins_alike_is_another_run(orphan, tmp_path):
    assert find_run_processes(tmp_path.parent / tmp_path.name[:-1], session=-1) == []


def test_descendants_belong_and_the_caller_does_not(tmp_path):
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        end = time.monotonic() + 10
        while len(find_run_processes(tmp_path, child.pid)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        assert len(find_run_processes(tmp_path, child.pid)) == 2
        assert os.getpid() not in {p.pid for p in find_run_processes(tmp_path, os.getsid(0))}
    finally:
        kill_all(lambda: find_run_processes(tmp_path, child.pid), 1.0)
        child.wait()


def test_a_zombie_is_gone_and_tells_its_signal():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert process_start_ticks(child.pid) == read_process(child.pid).start_ticks
    child.kill()
    end = time.monotonic() + 5
    while not read_process(child.pid).has_exited and time.monotonic() < end:
        time.sleep(0.01)
    assert read_process(child.pid).exit_signal == signal.SIGKILL
    child.wait()
    assert read_process(child.pid) is None


def test_who_holds_a_file_open(tmp_path):
    file = tmp_path / "lock"
    file.write_text("")
    assert pids_with_open_file(file) == []
    with file.open():
        assert pids_with_open_file(file) == [os.getpid()]


def test_buffers_in_use_stay(tmp_path):
    import mmap

    names = [
        f"deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1_{port}_{rank}"
        for port, rank in ((29001, 0), (29001, 1), (29002, 0))
    ]
    for name in [*names, "somebody_else", f"deepspeed_allreduce_buffer_{os.getuid() + 1}_127.0.0.1_29001_0"]:
        (tmp_path / name).write_bytes(b"x" * 4096)
    with (tmp_path / names[0]).open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert find_mapped_files(str(tmp_path)) == {str(tmp_path / names[0])}
        assert [b.in_use for b in find_buffers(tmp_path)] == [True, False, False]
        assert remove_unused_buffers({29001}, tmp_path, older_than=60) == 0
        os.utime(tmp_path / names[1], (time.time() - 61, time.time() - 61))
        assert remove_unused_buffers({29001}, tmp_path, older_than=60) == 4096
        assert remove_unused_buffers({29001}, tmp_path) == 0
    assert sorted(
        p.name for p in tmp_path.iterdir() if p.name.startswith(f"deepspeed_allreduce_buffer_{os.getuid()}_")
    ) == [names[0], names[2]]
