# SPDX-License-Identifier: Apache-2.0
"""`harness plan --calibrate` and `--calibration` from the command line. Needs nothing; seconds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app, main
from harness.plan.time import calibration_file
from harness.plan.time.machine_fingerprint import Machine
from harness.spec.yaml_text import spec_as_yaml
from tests.support.sample_run import head, on_device, on_gpus, step, write_run

RUN = on_gpus()
MACHINE = {"cpu": "Model 1", "host_memory_bytes": 2**41, "torch": "2.8.0", "deepspeed": "0.18.0", "harness": "0.1.0"}
GPU = {"device": "NVIDIA H100 80GB HBM3", "device_memory_bytes": 80 * 2**30, "clock": "device", "machine": MACHINE}
SHARES = {"data": 0.01, "forward": 0.2, "backward": 0.43, "optimizer": 0.35, "loop": 0.01}
SECONDS = 12.0
HERE = Machine("Model 1", 2048, "2.8.0", "0.18.0", ("NVIDIA H100 80GB HBM3",))


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(calibration_file, "this_machine", lambda: HERE)
    lines = [head(RUN, **GPU), *(step(n, SECONDS, SHARES) | on_device(n) for n in range(1, 21))]
    return write_run(tmp_path / "run", RUN, lines)


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "large.yaml"
    file.write_text(spec_as_yaml(RUN.spec.model_dump(mode="json", exclude_unset=True)))
    return str(file)


def harness(*arguments: str) -> Any:
    return CliRunner().invoke(
        build_app(list(arguments)), list(arguments), catch_exceptions=False, env={"COLUMNS": "100"}
    )


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentences on stderr of wrong usage, on one line."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["harness", "plan", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
    output = capsys.readouterr()
    assert (caught.value.code, output.out) == (2, "")
    return " ".join(output.err.split())


def plan_of(spec: str, *arguments: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(harness("plan", spec, "--format", "json", *arguments).stdout)
    return body


def test_a_calibrated_plan_is_the_measured_run_within_its_spread(run_dir: Path, spec: str) -> None:
    before = plan_of(spec)
    assert (before["calibration"], before["calibration_note"]) == (None, None)
    assert [each["key"] for each in before["unknown_inputs"]] == ["cluster.host_memory_bandwidth"]
    assert harness("plan", "--calibrate", str(run_dir)).exit_code == 0
    after = plan_of(spec)
    measured = SECONDS * 0.98
    low, high = after["step_seconds_range"]
    assert after["step_seconds"] == pytest.approx(measured, rel=0.03)
    assert low < measured < high
    assert high / low < 1.3 < before["step_seconds_range"][1] / before["step_seconds_range"][0]
    assert after["calibration"]["runs"] == ["run"]
    assert after["calibration"]["fingerprint"]["cpu"] == "Model 1"
    assert after["unknown_inputs"] == [], "its rates are measured"
    assert after["gpu_allocated_bytes"] == pytest.approx(33 * 2**30, rel=1e-6)
    assert after["gpu_reserved_bytes"] == pytest.approx(38 * 2**30, rel=1e-6)


def test_text_and_json_say_what_a_run_has_changed(run_dir: Path, spec: str) -> None:
    result = harness("plan", "--calibrate", str(run_dir))
    file = calibration_file.calibration_path()
    assert result.stdout.startswith("8 x H100-80GB, one host, 1 run\n")
    assert "  not in these runs, as before: collectives, NVMe" in result.stdout
    assert f"Wrote {file}." in result.stdout
    assert file.is_file()
    body = json.loads(harness("plan", "--calibrate", str(run_dir), "--format", "json").stdout)
    assert (body["file"], len(body["calibrations"])) == (str(file), 1)
    assert "compute" in body["calibrations"][0]["rates_in_runs"]
    assert "Calibrated by 1 run on this kind of host" in harness("plan", spec).stdout


def test_on_another_machine_it_is_not_applied_and_the_plan_says_why(
    run_dir: Path, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = plan_of(spec)
    harness("plan", "--calibrate", str(run_dir))
    monkeypatch.setattr(
        calibration_file, "this_machine", lambda: Machine("Model 2", 2048, "2.9.0", "0.18.0", HERE.gpus)
    )
    after = plan_of(spec)
    assert after["step_seconds_range"] == before["step_seconds_range"]
    assert after["calibration"] is None
    assert after["calibration_note"] == (
        "it is of torch 2.8.0, and 2.9.0 is installed; it is of a host with Model 1, this one has Model 2"
    )
    assert "Not calibrated: it is of torch 2.8.0" in harness("plan", spec).stdout


def test_a_named_file_that_is_not_of_the_plans_machine_is_refused(
    run_dir: Path, spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "their.json")
    harness("plan", "--calibrate", str(run_dir), "--calibration", file)
    assert not calibration_file.calibration_path().exists()
    assert plan_of(spec, "--calibration", file)["calibration"] is not None
    said = refuse(capsys, spec, "--calibration", file, "--set", "cluster.gpu=A100-80GB")
    assert "is not of the machine of this plan: it is of H100-80GB, the plan is for A100-80GB" in said


def test_a_search_ranks_by_the_calibration(run_dir: Path, spec: str) -> None:
    harness("plan", "--calibrate", str(run_dir))
    body = json.loads(harness("plan", spec, "--search", "--format", "json").stdout)
    assert body["calibration"]["runs"] == ["run"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--params 8e9 --calibration x", "`--params` answers another question"),
        ("--model llama-3.1-8b --gpus 8 --gpu H100 --longest --calibration x", "`--longest` answers another question"),
        ("--model llama-3.1-8b --cheapest --calibration x", "`--cheapest` answers another question"),
        ("--model llama-3.1-8b --gpu H100 --min-gpus --calibration x", "`--min-gpus` answers another question"),
        ("--calibrate x --longest", "`--calibrate` and `--longest` cannot be combined"),
        ("--calibrate x --params 8e9", "`--params` and `--calibrate` cannot be combined"),
        ("--calibrate x --precision fp32", "`--precision` has no effect with `--calibrate`"),
        ("--calibrate x --plot y.svg", "`--plot` has no effect with `--calibrate`"),
        ("run.yaml --calibrate x", "a spec and `--calibrate` are both given"),
        ("--model llama-3.1-8b --gpus 8 --gpu H100 --calibration none.json", "`none.json` does not exist"),
    ],
)
def test_what_means_nothing_is_refused_with_a_sentence(
    arguments: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in refuse(capsys, *arguments.split())


def test_a_run_that_cannot_be_used_changes_no_file(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    harness("plan", "--calibrate", str(run_dir))
    before = calibration_file.calibration_path().read_bytes()
    (run_dir / "metrics.jsonl").write_text(json.dumps(head(RUN, **GPU)) + "\n")
    assert "cannot be used for a calibration: it has 0 steps" in refuse(capsys, "--calibrate", str(run_dir))
    assert calibration_file.calibration_path().read_bytes() == before
