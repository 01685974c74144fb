# SPDX-License-Identifier: Apache-2.0
"""A job on the gloo ranks of one release of DeepSpeed: `run_job`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.launching.hosts.local_host import find_free_port
from tests.releases.trials import environment_of_rank, overlay
from tests.support.training.runtime_helpers import ROOT

LIMIT_S = 1800.0


def run_job(job: Path, request: Any, release: str, *, ranks: int = 2, has_harness: bool = False) -> dict[str, Any]:
    """The answer of `JOB OUT REQUEST`, where rank 0 writes JSON to OUT, with the release as its `version`.

    `has_harness`: the ranks import the harness. Raises SystemExit where a rank fails, or has another release.
    """
    place, port = overlay(release), str(find_free_port())
    with tempfile.TemporaryDirectory(prefix="release-job-") as scratch:
        asked, out = Path(scratch) / "request.json", Path(scratch) / "out.json"
        asked.write_text(json.dumps(request), encoding="utf-8")
        logs = [Path(scratch) / f"{rank}.log" for rank in range(ranks)]
        started: list[subprocess.Popen[bytes]] = []
        try:
            for rank, log in enumerate(logs):
                environment = environment_of_rank(place, rank, port, ranks)
                if has_harness:
                    environment["PYTHONPATH"] = f"{place}{os.pathsep}{ROOT}"
                with log.open("w") as stream:
                    command = [sys.executable, str(job), str(out), str(asked)]
                    started.append(subprocess.Popen(command, env=environment, stdout=stream, stderr=subprocess.STDOUT))
            codes = [process.wait(timeout=LIMIT_S) for process in started]
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
        if any(codes):
            raise SystemExit(f"{release}: exit codes {codes}\n{logs[0].read_text(errors='replace')[-3000:]}")
        answer: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    if answer["version"] != release:
        raise SystemExit(f"asked for DeepSpeed {release}, {place} has {answer['version']}")
    return answer
