# SPDX-License-Identifier: Apache-2.0
"""Passwords in addresses: what is withheld of a text, and that every writer of a run withholds it."""

from __future__ import annotations

import json
import sys
import time
from io import StringIO
from pathlib import Path

import pytest

from harness.checkpoints.manifest import read_manifest, write_manifest
from harness.launching.supervise.restart_files import write_restarts
from harness.launching.supervise.restart_policy import Attempt
from harness.printed_text import GuardedStream
from harness.secret_text import HIDDEN, has_password, hide_passwords, hide_passwords_in_bytes, remove_passwords
from harness.verdicts import Verdict, write_verdict
from harness.views.report import write_report
from tests.support.sample_checkpoints import make

SECRET = "hunter2pass"  # noqa: S105
ADDRESS = f"http://user:{SECRET}@127.0.0.1:9/api"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (ADDRESS, f"http://{HIDDEN}@127.0.0.1:9/api"),
        (f"cannot reach '{ADDRESS}': refused", f"cannot reach 'http://{HIDDEN}@127.0.0.1:9/api': refused"),
        ("postgresql+psycopg2://u:p@db/mlflow", f"postgresql+psycopg2://{HIDDEN}@db/mlflow"),
        ("https://hf_token@huggingface.co/a/b.git", f"https://{HIDDEN}@huggingface.co/a/b.git"),
        ("http://user:p@ss:w@rd@host/x", f"http://{HIDDEN}@host/x"),
        ("https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature=abc&a=b", None),
        ("https://h/x?token=abc", f"https://h/x?token={HIDDEN}"),
        ("ssh://git@github.com/a/b", "ssh://git@github.com/a/b"),
        ("ssh://git:pw@github.com/a/b", f"ssh://{HIDDEN}@github.com/a/b"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("hf://datasets/org/name@main/a.txt", "hf://datasets/org/name@main/a.txt"),
        ("https://host:8080/path@v2?step=3", "https://host:8080/path@v2?step=3"),
        ("mail me@example.com, see https://example.com", "mail me@example.com, see https://example.com"),
        ('{"uri": "http://u:p@h", "b": "c@d"}', f'{{"uri": "http://{HIDDEN}@h", "b": "c@d"}}'),
    ],
)
def test_what_is_withheld(text: str, hidden: str | None) -> None:
    if hidden is None:
        hidden = f"https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature={HIDDEN}&a=b"
    assert hide_passwords(text) == hidden
    assert hide_passwords(hidden) == hidden
    assert has_password(text) is (text != hidden)
    assert hide_passwords_in_bytes(text.encode() + b" \xff") == hidden.encode() + b" \xff"


def test_an_address_without_its_user() -> None:
    assert remove_passwords(ADDRESS) == "http://127.0.0.1:9/api"


def test_long_lines_cost_little() -> None:
    start = time.monotonic()
    for line in ("a" * 2**20 + "://", "://" * 2**18 + "@", "x://" + "u" * 2**20 + "@h", "?key=" * 2**17 + "://@"):
        hide_passwords(line)
    assert time.monotonic() - start < 5


def test_every_writer_of_a_run_withholds_it(tmp_path: Path) -> None:
    text = f"MlflowException: API request to {ADDRESS} failed"
    write_verdict(tmp_path, Verdict("failed", 1, text, notes=(text,)))
    write_restarts(tmp_path, [Attempt(1, 0.0, 1.0, None, 0, 0, 0, "failed", 1, text)])
    folder = make(tmp_path / "checkpoints", 2)
    manifest = read_manifest(folder)
    write_manifest(folder, {**manifest.body, "note": text})
    row = {"type": "tracker_failed", "step": 1, "tracker": "mlflow", "error": text, "time": 1.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")  # of a release that withheld nothing
    report = write_report(tmp_path)
    assert HIDDEN in report.read_text()
    (tmp_path / "metrics.jsonl").unlink()
    read_manifest(folder)  # its checksum is that of what was written
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files if SECRET.encode() in path.read_bytes()] == []
    printed = StringIO()
    GuardedStream(printed).write(text)
    assert printed.getvalue() == f"MlflowException: API request to http://{HIDDEN}@127.0.0.1:9/api failed"


def test_the_output_of_a_rank_and_of_the_launcher(tmp_path: Path) -> None:
    import subprocess

    from harness.launching.supervise.log_streams import LauncherOutput

    tee = Path(__file__).parents[1] / "harness" / "workers" / "output_tee.py"
    lines = f"Retrying {ADDRESS}\nlast words of {ADDRESS}"
    command = [sys.executable, "-I", "-S", str(tee), str(tmp_path / "rank.log"), "0"]
    said = subprocess.run(command, input=lines.encode(), capture_output=True, check=True).stdout
    with subprocess.Popen([sys.executable, "-c", f"print({lines!r}, end='')"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        output = LauncherOutput(child.stdout, tmp_path / "launcher.log")
        output.wait(20.0)
    expected = hide_passwords(lines)
    assert said.decode() == expected + "\n"
    assert (tmp_path / "rank.log").read_text() == expected
    assert (tmp_path / "launcher.log").read_text() == expected
    assert output.pop_lines() == expected.split("\n")
