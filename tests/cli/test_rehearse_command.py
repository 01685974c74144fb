# SPDX-License-Identifier: Apache-2.0
"""`harness rehearse` before anything runs: what is refused and where. Needs the base dependencies alone; seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_validate_config import run

RECIPE = Path(__file__).parents[2] / "ds_configs" / "llama-3.1-70b-zero3-cpu-offload.yaml"


def rehearse(*words: str) -> tuple[int, str]:
    done = run("rehearse", *words)
    return done.exit_code, done.stderr


def test_a_folder_below_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.launching.programs.rehearsal.missing_packages_finding", lambda: None)
    file = tmp_path / "file"
    file.touch()
    code, said = rehearse(str(RECIPE), "--folder", str(file / "below"))
    assert code == 2
    assert "EN011" in said
    assert "not a directory" in said
    assert "Nothing was written or started" in said


def test_a_model_without_configuration_is_shown_where_it_is_named(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "model:\n  name_or_path: nobody/nothing\ntrain: {global_batch_size: 4, max_steps: 2}\ndata: {train: x.jsonl}\n",
        encoding="utf-8",
    )
    code, said = rehearse(str(spec), "--dry-run")
    assert code == 1
    assert "MM008" in said
    assert "spec.yaml:2:17" in said
    assert not (tmp_path / "rehearsals").exists()
