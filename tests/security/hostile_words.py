# SPDX-License-Identifier: Apache-2.0
"""Words that a shell, ssh or pdsh would run, split or replace, and programs that say what reached them. No tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from harness.findings import Finding
from harness.gates import check_run
from harness.run.resolved_run import resolve_run
from harness.spec.hostfile import Cluster
from harness.spec.parse.source import Source
from harness.spec.run_spec import RunSpec

HOSTILE = [
    "$(touch ran)", "`touch ran`", '"; touch ran; "', "'; touch ran; '", "a; touch ran", "a && touch ran", "a | touch ran",
    "a\ntouch ran", "a\\", "${IFS}touch${IFS}ran", "~ * ? [a] {b,c} ! # & > ran", "-oProxyCommand=touch ran", "--", "-c",
    " spaces ", "", "\t", "é\u2028", "!!", "a'b\"c", "%h %u %n %%", "\x1b[31m",
]  # fmt: skip
ECHO = "import json, sys; print(json.dumps(sys.argv[1:]))"
DUMP = "import json, os, sys; print(json.dumps({k: os.environ[k] for k in sys.argv[1:]}))"


def run(words: list[str], folder: Path, path: str | None = None) -> str:
    environ = os.environ | ({"PATH": path} if path else {})
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def find_refusals(section: str, **values: object) -> list[Finding]:
    """Errors of SE005 and SE006 on two hosts that pdsh reaches."""
    spec = RunSpec.model_validate({section: values})
    resolved = resolve_run(spec, name="demo", cluster=Cluster.from_pairs((("a", 1), ("b", 1))))
    findings = check_run(resolved, Source("spec.yaml", "yaml", "", {})).findings
    return [finding for finding in findings if finding.gate in ("SE005", "SE006")]
