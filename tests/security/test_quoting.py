# SPDX-License-Identifier: Apache-2.0
"""Words in a Slurm job, run by the real bash, and in paths. Submission itself needs Slurm: `tests/hosts`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from harness.launching.setup.environment import Variable
from harness.launching.setup.launch_plan import launch_script
from harness.launching.setup.slurm import build_job
from tests.security.attempts import Attempt
from tests.security.hostile_words import DUMP, ECHO, HOSTILE, find_refusals, run


@Attempt(
    "C38",
    "hostile words in the command, folder and `--resume` of a Slurm job",
    "quoted",
    "arrive byte for byte when the real bash runs the script; nothing runs",
)
def test_slurm_script(tmp_path: Path) -> None:
    for number, word in enumerate(HOSTILE):
        folder = tmp_path / f"{number}{word.replace('/', '')}"
        folder.mkdir()
        command = (sys.executable, "-c", ECHO, word)
        job = build_job(word, folder, tmp_path / "out", command, word or "auto", [], "1")
        text = run(["bash", "-c", job.script], folder)
        assert json.loads(text) == [word, "--resume", word or "auto"]
        assert list(folder.iterdir()) == []


@Attempt(
    "C39",
    "a run name with line breaks, `#SBATCH` lines and options, as the name of a job",
    "cut to letters, digits and `_.-`",
    "one `--job-name` of such characters, and not one line more",
)
def test_slurm_name(tmp_path: Path) -> None:
    plain = build_job("a", tmp_path, tmp_path, ("true",), "auto", [], "1")
    for name in ("a\n#SBATCH --wrap=touch", "--wrap=touch ran", "$(touch ran)", "../../x", "%j"):
        job = build_job(name, tmp_path, tmp_path, ("true",), "auto", [], "1")
        assert job.script.count("#SBATCH") == plain.script.count("#SBATCH") + name.count("\0")
        assert job.file.parent == tmp_path / "slurm"
        assert job.argv[-1] == str(job.file)
        assert not job.argv[-1].startswith("-")


@Attempt(
    "C40",
    "hostile text in `launch.output_dir`, which DeepSpeed writes unquoted",
    "SE006",
    "SE006 for each that a shell would run",
)
def test_output_dir() -> None:
    for word in HOSTILE:
        if "touch" in word and not word.startswith("-"):
            assert find_refusals("launch", output_dir=word), word


@Attempt(
    "C41",
    "hostile values, folder and arguments in `launch.sh` of a run",
    "quoted",
    "arrive byte for byte when the real sh and bash run it; nothing runs",
)
def test_launch_script(tmp_path: Path) -> None:
    variables = [Variable(f"V{i}", word, "launch.env") for i, word in enumerate(HOSTILE)]
    names = [variable.name for variable in variables]
    folder = tmp_path / "a'b; touch ran $(touch ran)"
    folder.mkdir()
    for shell in ("sh", "bash"):
        arguments = launch_script((sys.executable, "-c", ECHO, *HOSTILE), folder, variables, None)
        assert json.loads(run([shell, "-c", arguments], folder)) == HOSTILE
        values = launch_script((sys.executable, "-c", DUMP, *names), folder, variables, None)
        assert json.loads(run([shell, "-c", values], folder)) == dict(zip(names, HOSTILE, strict=True))
        assert list(folder.iterdir()) == []
