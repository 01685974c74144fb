# SPDX-License-Identifier: Apache-2.0
"""`--profile` and `--debug-distributed`: what they change in the spec, the DeepSpeed JSON and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from harness.cli.launch_options import parse_profile
from harness.launching.setup.environment import distributed_debug_env, with_flops_profiler_output
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from harness.spec.sections.telemetry_spec import TelemetrySpec
from harness.spec.spec_loader import load_spec


def test_profile_becomes_fields_of_the_spec(tmp_path: Path) -> None:
    spec = tmp_path / "a.yaml"
    spec.write_text("model: {config: {model_type: llama}}\n")
    loaded = load_spec(str(spec), overrides=parse_profile("steps=10-12,flops,comms,ranks=0+3"))
    assert not loaded.findings
    telemetry = loaded.spec.telemetry
    assert (telemetry.profile_steps, telemetry.profile_ranks) == ("10-12", (0, 3))
    assert telemetry.flops_profiler
    assert telemetry.comms_logger
    assert load_spec(str(spec), overrides=parse_profile("steps=7")).spec.telemetry.profile_steps == "7"
    assert parse_profile(None) == []


@pytest.mark.parametrize("text", ["10-12", "steps=12-10", "steps=0", "steps=a", "ranks=x", "flop"])
def test_what_profile_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="steps=A-B"):
        parse_profile(text)


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="ends before it begins"):
        TelemetrySpec(profile_steps="12-10")


def test_deepspeeds_profiler_gets_its_step_and_a_file_of_the_run(tmp_path: Path) -> None:
    spec = RunSpec.model_validate(
        {"telemetry": {"flops_profiler": True, "comms_logger": True, "profile_steps": "10-12"}}
    )
    config = render_ds_config(resolve_run(spec, world_size=2)).config
    assert config["flops_profiler"] == {"enabled": True, "profile_step": 9}
    assert config["comms_logger"] == {"enabled": True, "prof_all": True, "verbose": False}
    placed = with_flops_profiler_output(config, tmp_path)
    assert placed["flops_profiler"]["output_file"] == str(tmp_path / "profile/flops.txt")
    assert with_flops_profiler_output({"zero_optimization": {}}, tmp_path) == {"zero_optimization": {}}
    assert not {"flops_profiler", "comms_logger"} & set(render_ds_config(resolve_run(RunSpec(), world_size=2)).config)


def test_variables_for_debugging_are_set_when_asked_for(tmp_path: Path) -> None:
    assert distributed_debug_env(TelemetrySpec(), tmp_path) == {}
    found = distributed_debug_env(TelemetrySpec(debug_distributed=True), tmp_path)
    assert found["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"
    assert found["NCCL_DEBUG"] == "INFO"
    assert found["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"].startswith(str(tmp_path))
