# SPDX-License-Identifier: Apache-2.0
"""The findings of `harness validate-config` about the JSON of a running engine, under its own DeepSpeed release.

A child process computes them: the training process imports no gate, and nothing that fails there reaches it.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
from harness.findings import Finding, Fix, Place
from harness.interpreter import python_command

if TYPE_CHECKING:
    from harness.spec.run_spec import Consumer

_TIMEOUT_S = 60
_STDIN_NAME = "the engine's JSON"
_ACCELERATORS_OWN_KEYS = ("steps_per_print",)
"""Keys that accelerate fills in with values of its own."""


def review_config(
    config: dict[str, Any], file: Path | None, consumer: Consumer, release: str, world_size: int
) -> tuple[Finding, ...]:
    """The findings about the file, or about the values of `config` if there is no file, in reading order. Raises
    RuntimeError where the linter gives no answer.
    """
    if file is not None:
        return _review(str(file), "", consumer, release, world_size)
    values = {key: value for key, value in config.items() if key not in _ACCELERATORS_OWN_KEYS}
    return _review("-", json.dumps(values, indent=1, default=str), consumer, release, world_size)


@lru_cache(maxsize=8)
def _review(file: str, text: str, consumer: Consumer, release: str, world_size: int) -> tuple[Finding, ...]:
    options = ["--deepspeed-version", release, "--consumer", consumer, "--world-size", str(world_size)]
    command = python_command("-m", "harness", "validate-config", file, *options, "--format", "json")
    command += ["--stdin-filename", _STDIN_NAME] if file == "-" else []
    package = str(Path(harness.__file__).resolve().parents[1])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        run = subprocess.run(  # noqa: S603  (our own command)
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )
        body = json.loads(run.stdout)
        return tuple(
            _finding_of(row) for row in [*body["findings"], *(f for x in body["files"] for f in x["findings"])]
        )
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise RuntimeError(f"`harness validate-config` gave no answer: {type(error).__name__}") from error


def _finding_of(row: dict[str, Any]) -> Finding:
    place, fix = row["place"], row["fix"]
    return Finding(
        row["gate"],
        row["severity"],
        row["message"],
        key=row["key"],
        place=Place(**place) if place and place["file"] != _STDIN_NAME else None,
        notes=tuple(row["notes"]),
        fix=Fix(fix["title"], effect=fix["effect"]) if fix else None,
    )
