# SPDX-License-Identifier: Apache-2.0
"""CUDA's compiler on the hosts of a survey. Needs nothing; milliseconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.check.check_file import check_file, check_survey
from harness.workers import host_probe
from tests.support.host_surveys import survey_of

SPEC = """\
name: two
model: {name_or_path: llama-3.1-8b}
data: {train: "builtin:python-docs"}
launch: {hostfile: hosts}
"""


@pytest.mark.parametrize(
    ("ops", "nvcc", "is_told"),
    [
        (["fused_adam"], False, True),
        (["pin_memory", "async_io"], False, True),
        (["cpu_adam"], False, False),
        (["fused_adam"], True, False),
        (["fused_adam"], None, False),
    ],
    ids=str,
)
def test_a_host_without_nvcc_is_told_where_its_ranks_need_it(
    ops: list[str], nvcc: bool | None, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC)
    Path("hosts").write_text("worker-0 slots=8\nworker-1 slots=8\n")
    checked = check_file("spec.yaml")
    assert checked.run is not None
    assert checked.source is not None
    assert checked.run.cluster is not None
    survey = survey_of(checked.run.cluster, {"worker-1": {"nvcc": nvcc}, "ops": ops})
    said = [f.message for f in check_survey(checked.run, checked.source, survey).findings if f.gate == "EN048"]
    needed = [op for op in ops if op in ("fused_adam", "async_io")]
    assert said == [f"`worker-1` has no nvcc, and the ranks load `{op}`" for op in needed] * is_told


def test_the_probe_looks_where_deepspeed_does(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("")
    (tmp_path / "bin" / "nvcc").chmod(0o755)
    assert host_probe.has_nvcc({"CUDA_HOME": str(tmp_path), "PATH": ""})
    assert host_probe.has_nvcc({"PATH": str(tmp_path / "bin")})
    assert not host_probe.has_nvcc({"CUDA_HOME": "/no/such", "PATH": str(tmp_path / "bin")})
