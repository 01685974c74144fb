# SPDX-License-Identifier: Apache-2.0
"""Words on their way through the real ssh, sshd and pdsh: they arrive byte for byte and run nothing. Seconds.

sshd answers on a pipe of its ssh, so that no port is opened.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.launching.hosts.ssh import encode_request, ssh_command
from tests.security.attempts import Attempt
from tests.security.hostile_words import DUMP, ECHO, HOSTILE, find_refusals, run
from tests.support.boxes import NEEDS_ROOT
from tests.support.deepspeed_commands import exported

pytestmark = [pytest.mark.hosts, *NEEDS_ROOT]


@pytest.fixture(scope="module")
def ssh_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH whose `ssh` is the real one, with a real sshd behind every host name. The home folder is an empty one."""
    folder = tmp_path_factory.mktemp("ssh")
    for key in ("key", "host"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    server = folder / "sshd.conf"
    server.write_text(
        f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/key.pub\nStrictModes no\nPermitRootLogin yes\n"
    )
    start = f"mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec {shutil.which('sshd', path='/usr/sbin')}"
    client = folder / "ssh.conf"
    client.write_text(
        f"ProxyCommand unshare -m sh -c '{start} -i -f {server}'\nIdentityFile {folder}/key\nIdentitiesOnly yes\n"
        "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
    )
    (folder / "bin").mkdir()
    wrapper = folder / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {client} "$@"\n')
    wrapper.chmod(0o755)
    return f"{folder / 'bin'}:{os.environ['PATH']}"


def on_host(folder: Path, *words: str) -> list[str]:
    """The words in the command of a shell on the host, which starts in the home folder."""
    return ["env", "-C", str(folder), *words]


@Attempt(
    "C34",
    "22 hostile words in a command by ssh: substitutions, quotes, line breaks, options, escapes",
    "arrive unchanged",
    "arrive byte for byte through the real ssh, sshd and login shell; nothing runs",
)
def test_ssh(tmp_path: Path, ssh_path: str) -> None:
    words = on_host(tmp_path, sys.executable, "-c", ECHO, *HOSTILE)
    assert json.loads(run(ssh_command("node", words), tmp_path, ssh_path)) == HOSTILE
    assert list(tmp_path.iterdir()) == []


@Attempt(
    "C35",
    "a host called `-oProxyCommand=touch ran`, given to ssh",
    "a host name, not an option: `--` comes before it",
    "a host name, not an option",
)
def test_host_name(tmp_path: Path, ssh_path: str) -> None:
    command = ssh_command("-oProxyCommand=touch ran", ["true"])
    subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PATH": ssh_path}, capture_output=True, check=False, timeout=30
    )
    assert list(tmp_path.iterdir()) == []


@Attempt(
    "C36",
    "hostile values in a request to a host",
    "one base64 word",
    "one base64 word, which the real ssh and sshd deliver",
)
def test_request(tmp_path: Path, ssh_path: str) -> None:
    word = encode_request({"words": HOSTILE})
    words = on_host(tmp_path, sys.executable, "-c", ECHO, word)
    assert json.loads(run(ssh_command("node", words), tmp_path, ssh_path)) == [word]


@Attempt(
    "C37",
    "hostile values of `launch.env` in the command that DeepSpeed gives pdsh",
    "`validate-config` said OK to a double quote that ends the text",
    "what SE005 lets through arrives through the real pdsh, ssh and sshd; only `%h` is replaced, which EN006 refuses",
)
def test_pdsh(tmp_path: Path, ssh_path: str) -> None:
    passed = {f"V{i}": v for i, v in enumerate(HOSTILE) if v and not find_refusals("launch", env={f"V{i}": v})}
    assert 10 <= len(passed) < len(HOSTILE) - 5
    script = f"{exported(passed)} cd {tmp_path}; {sys.executable} -c '{DUMP}' {' '.join(passed)}"
    text = run(["pdsh", "-R", "ssh", "-N", "-w", "node", script], tmp_path, ssh_path)
    expected = {k: v.strip() if v.strip() != "%h %u %n %%" else "node root 0 %" for k, v in passed.items()}
    assert {k: v.strip() for k, v in json.loads(text).items()} == expected
    assert list(tmp_path.iterdir()) == []
