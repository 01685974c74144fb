# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's questions about the CPU and Muon, answered without starting Python or a compiler. Needs the training extra;
seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import ROOT, rank_environment

ASK = """
import json, subprocess, sys
from harness.patches.no_mlflow import import_deepspeed
import_deepspeed()
started = []
popen = subprocess.Popen
class Watched(popen):
    def __init__(self, words, *a, **k):
        started.append(str(words)); super().__init__(words, *a, **k)
subprocess.Popen = Watched
from cpuinfo import get_cpu_info
first, second = get_cpu_info(), get_cpu_info()
import cpuinfo
from harness.patches.lazy_compile import import_without_compile
import_without_compile()
from deepspeed.runtime.zero.muon import original_muon
print(json.dumps({
    "started": [words for words in started if "cpuinfo" in words], "same": first == second, "info": first,
    "version": cpuinfo.CPUINFO_VERSION_STRING, "inductor": "torch._inductor.compile_fx" in sys.modules,
    "muon": callable(original_muon.zeropower_via_newtonschulz5)}))
"""


def asked(folder: Path) -> dict[str, object]:
    environ = {**rank_environment(), "TORCH_EXTENSIONS_DIR": str(folder), "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environ, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_the_cpu_is_described_once_a_machine_and_again_after_a_torn_file(tmp_path: Path) -> None:
    (tmp_path / "cpu-info.json").write_text('{"torn')
    first, second = asked(tmp_path), asked(tmp_path)
    assert len(first["started"]) == 1
    assert second["started"] == []
    assert first["info"] == second["info"]
    assert first["same"]
    assert {"arch", "flags", "vendor_id_raw"} <= set(second["info"])
    assert second["version"]  # other attributes are those of the real module
    assert second["muon"]


def test_it_is_compiled_when_it_is_called(forked: ForkedRanks, tmp_path: Path) -> None:
    """As `torch.compile` would have at once: the same function under the same compiler."""
    script = tmp_path / "job.py"
    script.write_text(
        "import torch\nfrom harness.patches import lazy_compile\nseen = []\n"
        "def compiler(function, **options):\n    seen.append(options)\n    return function\n"
        "late = lazy_compile._compile_on_first_call(compiler)\n"
        "for kept in (late(lambda x: x + 1), late(lambda x: x + 1, dynamic=False), late(dynamic=False)(lambda x: x + 1)):\n"
        "    before = len(seen)\n    assert kept(1) == 2 and kept(2) == 3\n    assert len(seen) == before + 1\n"
        "assert seen == [{}, {'dynamic': False}, {'dynamic': False}], seen\n"
        "assert torch.compile.__module__ == 'torch'\n"
    )
    forked.run(script, ranks=1)
