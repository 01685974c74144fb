# SPDX-License-Identifier: Apache-2.0
"""Commands in this process on files that somebody else made: what they print, an end by an own sentence, in time."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from harness.checkpoints.manifest import MANIFEST, checksum
from harness.cli.app import build_app
from harness.errors import UserError


def call(*words: object) -> str:
    """What a command prints, with the findings of a refusal; any other exception is raised."""
    arguments = [str(word) for word in words]
    result = CliRunner().invoke(build_app(arguments), arguments)
    if isinstance(result.exception, UserError):
        return result.output + "".join(f"{f.gate}: {f.message}\n" for f in result.exception.findings)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def edit_manifest(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest and make its checksum right, which needs no key."""
    file = checkpoint / MANIFEST
    body = json.loads(file.read_text())
    change(body)
    file.write_text(json.dumps(body | {"checksum": checksum(body)}))


def file_entry(size: int = 1) -> dict[str, Any]:
    """A line of a manifest for a file that need not exist."""
    return {"bytes": size, "sha256": "x", "rank": 0, "node": 0}


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fails where the block hangs, as a read of a pipe does that nobody writes to."""

    def ring(*_: object) -> None:
        raise AssertionError(f"no end within {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def nest_folders(folder: Path, depth: int) -> None:
    """Folders one in the other, deeper than a path can name."""
    start = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.chdir(folder)
        for _ in range(depth):
            os.mkdir("d")  # noqa: PTH102
            os.chdir("d")
    finally:
        os.fchdir(start)
        os.close(start)
