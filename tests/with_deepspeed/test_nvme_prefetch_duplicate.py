"""Parameters on NVMe that are used twice within reach of the read-ahead: bare DeepSpeed ends (`test_tripwires.py`)."""

from __future__ import annotations

import json
from pathlib import Path

from forked_ranks import ForkedRanks

JOB = Path(__file__).parent / "jobs" / "nvme_prefetch.py"


def test_they_are_read_once_and_training_goes_on(forked: ForkedRanks, tmp_path: Path) -> None:
    forked.run(JOB, str(tmp_path / "out.json"), ranks=1)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["asked"] > found["read"] > 0
    assert found["losses"] == sorted(found["losses"], reverse=True)
