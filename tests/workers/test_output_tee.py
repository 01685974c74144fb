# SPDX-License-Identifier: Apache-2.0
"""`output_tee.py` between a rank and the launcher. Needs nothing; seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RELAY = [sys.executable, "-I", "-S", str(ROOT / "harness" / "workers" / "output_tee.py")]


def start(file: Path, rank: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*RELAY, str(file), str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def relayed(file: Path, rank: int, text: bytes) -> bytes:
    child = start(file, rank)
    said, _ = child.communicate(text, timeout=30)
    assert child.returncode == 0
    return said


def test_the_first_ranks_lines_go_on_as_they_are(tmp_path: Path) -> None:
    text = b"step 1/20  loss 3.0\n\nlast words without an end"
    assert relayed(tmp_path / "log", 0, text) == text + b"\n"
    assert (tmp_path / "log").read_bytes() == text


def test_another_ranks_lines_are_marked_once(tmp_path: Path) -> None:
    text = b"hello\n[rank3]: Traceback (most recent call last):\nend"
    expected = b"[rank3]: hello\n[rank3]: Traceback (most recent call last):\n[rank3]: end\n"
    assert relayed(tmp_path / "log", 3, text) == expected
    assert (tmp_path / "log").read_bytes() == text


def test_a_later_start_adds_to_the_file(tmp_path: Path) -> None:
    relayed(tmp_path / "log", 1, b"first\n")
    relayed(tmp_path / "log", 1, b"second\n")
    assert (tmp_path / "log").read_bytes() == b"first\nsecond\n"


def test_many_and_long_lines_arrive_whole(tmp_path: Path) -> None:
    text = b"".join(b"%d %s\n" % (i, b"x" * (i % 9000)) for i in range(3000))
    said = relayed(tmp_path / "log", 2, text)
    assert said == b"".join(b"[rank2]: " + line + b"\n" for line in text.splitlines())


def test_a_bar_that_never_ends_its_line_is_not_hoarded(tmp_path: Path) -> None:
    child = start(tmp_path / "log", 1)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"\r 10%|###" * 8000)
    assert child.stdout.read(9) == b"[rank1]: "
    child.communicate(timeout=30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_what_asks_the_rank_to_end_does_not_end_it(tmp_path: Path, number: int) -> None:
    child = start(tmp_path / "log", 0)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"before\n")
    assert child.stdout.readline() == b"before\n"
    child.send_signal(number)
    child.stdin.write(b"after\n")
    assert child.stdout.readline() == b"after\n"
    child.communicate(timeout=30)


def test_a_file_that_cannot_be_written_holds_nothing_up(tmp_path: Path) -> None:
    assert relayed(tmp_path / "nowhere" / "log", 0, b"said\n") == b"said\n"
    assert relayed(Path("/dev/full"), 0, b"said\n") == b"said\n"


def test_a_launcher_that_is_gone_costs_no_line_of_the_file(tmp_path: Path) -> None:
    child = start(tmp_path / "log", 0)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.close()
    child.stdin.write(b"one\n")
    time.sleep(0.2)
    child.stdin.write(b"two\n")
    child.stdin.close()
    assert child.wait(30) == 0
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"


def test_a_rank_that_crashes_has_said_everything(tmp_path: Path) -> None:
    """Started as a rank starts it; killed in the middle of a line."""
    (tmp_path / "logs").mkdir()
    script = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        " from train_worker import redirect_output; redirect_output(Path(sys.argv[2]), 1, 1);"
        " os.write(2, b'a last word'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    words = [sys.executable, "-c", script, str(ROOT / "harness" / "workers"), str(tmp_path)]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=False, timeout=30, env={**os.environ})
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b"[rank1]: a last word\n"
    assert (tmp_path / "logs" / "rank-00001.log").read_bytes() == b"a last word"
