# SPDX-License-Identifier: Apache-2.0
"""A save in the background keeps training waiting for a third of what a save in line does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import ROOT


def test_the_stall_of_a_background_save(forked: ForkedRanks, tmp_path: Path) -> None:
    """On more than 200 MB of state; in line and in the background by turns, in one run. A tenth on busy cores; one that
    waits for the files or their hashes takes as long as one in line.
    """
    script = ROOT / "benchmarks" / "checkpoint_stall.py"
    forked.run(script, "--measure", str(tmp_path), "--megabytes", "210", ranks=1)
    result = json.loads((tmp_path / "result.json").read_text())
    print(result, file=sys.stderr)
    assert result["megabytes"] > 200
    assert result["background_over_in_line"] < 0.35, result
