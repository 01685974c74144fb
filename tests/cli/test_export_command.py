# SPDX-License-Identifier: Apache-2.0
"""`harness export` whose process is killed. Needs nothing; a second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.sample_checkpoints import make

KILLED = """
import sys
from pathlib import Path
from harness.launching.programs import model_export
model_export.missing_packages_finding = lambda names: None
workers = Path(sys.argv.pop(1))
model_export.workers_folder = lambda: workers
from harness.cli.app import main
main()
"""


def test_a_killed_export_says_by_whom_and_what_there_is(tmp_path: Path) -> None:
    workers = tmp_path / "workers"
    workers.mkdir()
    (workers / "export_worker.py").write_text("import os; os.kill(os.getpid(), 9)")
    checkpoint = make(tmp_path / "checkpoints", 4)
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-P", "-c", KILLED, str(workers), "export", str(checkpoint), str(out)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"NO_COLOR": "1"},
    )
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    line = f"the export was killed by SIGKILL, {out} was not made; the same command starts anew"
    assert line in done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    assert not out.exists()
