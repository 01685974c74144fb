# SPDX-License-Identifier: Apache-2.0
"""Cards of exports: nothing of this machine, and no base model that is none."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from harness.spec.run_spec import RunSpec
from harness.views.model_card import render_model_card


def card(folder: Path, **sections: Any) -> str:
    spec = RunSpec.model_validate_json(json.dumps(sections))
    record = SimpleNamespace(
        run=SimpleNamespace(spec=spec),
        name="large-1",
        folder=folder / "runs" / "large-1",
        header={},
        training=SimpleNamespace(points=lambda *_: []),
    )
    return render_model_card(record, folder, "step-00000040")  # type: ignore[arg-type]


def base_of(text: str) -> str | None:
    return yaml.safe_load(text.split("---")[1]).get("base_model")


def test_paths_in_nested_settings_stay_here(tmp_path: Path) -> None:
    offload = {"device": "nvme", "nvme_path": "/home/alice/secret-project/nvme"}
    text = card(tmp_path, model={"name_or_path": "org/name"}, zero={"stage": 3, "offload_optimizer": offload})
    assert "secret-project" not in text
    assert '| `zero.offload_optimizer.device` | `"nvme"` |' in text
    assert base_of(text) == "org/name"


@pytest.mark.parametrize(
    ("model", "begins"),
    [
        ({"name_or_path": "org/name", "random_init": True}, "Trained from random weights"),
        ({"name_or_path": "models/llama"}, "Trained from `llama`"),
    ],
)
def test_random_weights_and_local_folders_have_no_base(model: Any, begins: str, tmp_path: Path) -> None:
    (tmp_path / "models" / "llama").mkdir(parents=True)
    text = card(tmp_path, model=model)
    assert base_of(text) is None
    assert begins in text


def test_a_loss_of_its_own_is_not_the_next_token(tmp_path: Path) -> None:
    assert "with a loss of its own as its objective" in card(tmp_path, objective="custom", plugins={"file": "own.py"})
