# SPDX-License-Identifier: Apache-2.0
"""ssh exit codes, and requests to all hosts at once and in time, with a stand-in for ssh. Needs nothing; seconds."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from harness.launching.hosts import ssh
from harness.launching.hosts.ssh import parse_result, run_on_hosts, ssh_command

SCRIPT = Path(__file__).parents[2] / "harness" / "workers" / "host_probe.py"


@pytest.mark.parametrize(
    ("code", "out", "err", "state", "words"),
    [
        (0, b'motd\nHARNESS-PROBE {"a": 1}\nbye\n', b"", "ok", ""),
        (1, b'HARNESS-PROBE {"a": 1}\n', b"noise", "ok", "noise"),
        (255, b"", b"root@h: Permission denied (publickey).\n", "key refused", "root@h: Permission denied (publickey)"),
        (255, b"", b"@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nx\nHost key verification failed.\n", "host key", "Host key verification failed"),
        (255, b"", b"ssh: connect to host h port 22: Connection refused\n", "unreachable", "ssh: connect to host h port 22: Connection refused"),
        (127, b"", b"sh: 1: exec: /venv/bin/python: not found\n", "no probe", "sh: 1: exec: /venv/bin/python: not found"),
        (0, b"", b"", "no probe", "exit code 0 and 0 bytes of output"),
        (0, b"HARNESS-PROBE {torn\n", b"", "no probe", "exit code 0 and 20 bytes of output"),
        (0, b"HARNESS-PROBE [1]\n", b"", "no probe", "exit code 0 and 18 bytes of output"),
    ],
)  # fmt: skip
def test_what_an_end_means(code, out, err, state, words):
    answer = parse_result("h", code, out, err, (1.0, 2.0))
    assert (answer.state, answer.message) == (state, words)


def test_a_command_is_words_for_both_shells():
    command = ssh_command("h", ["/a b/python", "-", "$(touch x)", "'", "\n"])
    assert command[-3:-1] == ["--", "h"]
    assert shlex.split(command[-1]) == ["exec", "/a b/python", "-", "$(touch x)", "'", "\n"]
    script = f"set -- {command[-1].removeprefix('exec ')}; printf '%s\\0' \"$@\""
    done = subprocess.run(["sh", "-c", script], text=True, capture_output=True, check=True)
    assert done.stdout.split("\0")[:-1] == ["/a b/python", "-", "$(touch x)", "'", "\n"]


@pytest.fixture
def fake_ssh(tmp_path, monkeypatch):
    """An `ssh` that runs the command here, except for `slow` (never ends), `dead` (no connection) and `loud` (no end of words)."""
    program = tmp_path / "ssh"
    program.write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\n'
        'case $2 in slow) sleep 60;; dead) echo "ssh: connect to host dead port 22: No route to host" >&2; exit 255;;\n'
        'loud) exec yes;; *) exec sh -c "$3";; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_one_slow_host_and_one_dead_one_hold_up_nobody(fake_ssh):
    request = {
        "job": "facts",
        "packages": ["pytest", "nothing-like-it"],
        "ports": [],
        "folders": {"x": "/nowhere/at/all"},
    }
    began = time.monotonic()
    answers = run_on_hosts(["a", "slow", "dead", "b"], SCRIPT, request, timeout_seconds=15)
    assert time.monotonic() - began < 40
    assert [a.state for a in answers] == ["ok", "no answer in time", "unreachable", "ok"]
    assert answers[0].body["packages"] == {"pytest": pytest.__version__, "nothing-like-it": None}
    assert answers[0].body["folders"]["x"]["exists"] is False
    json.dumps(answers[0].body)


def test_many_hosts_are_asked_in_their_order_and_a_few_at_a_time(fake_ssh):
    hosts = [f"h{i}" if i % 3 else "dead" for i in range(30)]
    answers = run_on_hosts(
        hosts, SCRIPT, lambda name: {"job": "connect", "targets": [], "seconds": 1, "name": name}, fan_out=4
    )
    assert [a.host for a in answers] == hosts
    assert {a.state for a in answers if a.host != "dead"} == {"ok"}


def test_a_program_that_is_missing_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert ssh.run_on_hosts(["h"], SCRIPT, {})[0].message.startswith("ssh cannot be started")
