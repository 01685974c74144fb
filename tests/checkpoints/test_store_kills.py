# SPDX-License-Identifier: Apache-2.0
"""A process that uploads and removes checkpoints is killed at random: what the store has is never torn.

HARNESS_STORE_KILLS: how many kills, 5 by default.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.latest import describe_problem
from harness.checkpoints.store_source import find_stored_checkpoint
from harness.checkpoints.store_transfer import download_checkpoint
from harness.checkpoints.stored_run import StoredRun, prune_store
from harness.errors import UserError
from harness.object_stores.object_store import ObjectStore
from harness.object_stores.store_url import parse_store_url
from harness.spec.sections.checkpoint_spec import CheckpointSpec
from tests.support.object_store import StoreServer, needs_store

pytestmark = needs_store
URL = "s3://bucket/runs/one"
KILLS = int(os.environ.get("HARNESS_STORE_KILLS", "5"))
UPLOADER = """
import sys
from pathlib import Path
from tests.checkpoints.test_stored_run import open_run, upload
from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.stored_run import prune_store
from harness.spec.sections.checkpoint_spec import CheckpointSpec

stored, step = open_run(), int(sys.argv[2])
print("ready", flush=True)
while True:
    upload(stored, Path(sys.argv[1]), step)
    print(step, flush=True)
    prune_store(stored, CheckpointSpec(save_total_limit=2), Evaluations(), newest=step)
    step += 1
"""


def test_the_store_is_never_torn(s3: StoreServer, tmp_path: Path) -> None:
    draw, step = random.Random(7), 1  # noqa: S311
    for kill in range(KILLS):
        command = [sys.executable, "-c", UPLOADER, str(tmp_path / f"disk-{kill}"), str(step)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(draw.uniform(0.0, 1.5))
            child.send_signal(signal.SIGKILL)
            said = [int(line) for line in child.stdout]
        published = max(said, default=step - 1)
        try:
            source, _, _ = find_stored_checkpoint(URL)
        except UserError:
            assert not published  # nothing was complete yet
            continue
        assert source.step >= published
        target = tmp_path / f"copy-{kill}" / source.folder_name
        download_checkpoint(StoredRun(ObjectStore(parse_store_url(URL))), source.step, target)
        assert describe_problem(target, "bytes") is None
        step = source.step + 1
    stored = StoredRun(ObjectStore(parse_store_url(URL)))
    stored.claim("one-1", "one-1", ())
    newest = find_stored_checkpoint(URL)[0].step
    prune_store(stored, CheckpointSpec(save_total_limit=1), Evaluations(), newest=newest + 2)
    left = {key.split("/")[2] for key in s3.keys("bucket")}
    assert left == {"run.json", f"step-{newest:08d}"}
