# SPDX-License-Identifier: Apache-2.0
"""Packing of models with convolutions and states along a row. The packages of their kernels need a GPU: reference code in
`tests/support/reference_kernels` stands in for them, behind the same names and arguments.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from harness.interpreter import python_command
from harness.runtime.micro_batch import MicroBatch, find_borders
from harness.runtime.packed_kernels import ask_borders, border_arguments

ROOT = Path(__file__).resolve().parents[3]
KERNELS = ROOT / "tests" / "support" / "reference_kernels"
PROGRAM = """
import torch
from transformers import AutoConfig
from harness.runtime.packed_kernels import ask_borders, border_arguments
for kind in ("qwen3_5_text", "olmo_hybrid", "nemotron_h"):
    answer = ask_borders(AutoConfig.for_model(kind))
    print(kind, answer.apart, answer.reason)
"""
LOSSES = """
import torch
from transformers import AutoConfig
from harness.run.resolved_run import resolve_run
from harness.runtime.micro_batch import MicroBatch, find_borders
from harness.runtime.model_behavior import build_small_copy
from harness.runtime.objectives.causal_lm import CausalLM
from harness.spec.run_spec import RunSpec
model = {"config": {"model_type": "qwen3_5_text"}}
objective = CausalLM(resolve_run(RunSpec.model_validate({"model": model, "data": {"packing": True}})))
config = AutoConfig.for_model("qwen3_5_text")
objective.check_model(config)
objective._device = torch.device("cpu")
model, ids = build_small_copy(config), torch.arange(8, 32).reshape(2, 12)
positions = torch.tensor([[*range(5), *range(7)], [*range(9), *range(3)]])
labels = ids.masked_fill(positions == 0, -100)
with torch.no_grad():
    packed = objective._forward(model, MicroBatch(ids, labels, positions, None, find_borders(positions)), None)
    parts = [part[None] for row, split in ((0, 5), (1, 9)) for part in ids[row].split([split, 12 - split])]
    alone = [model(input_ids=part, labels=part, use_cache=False).loss * (part.shape[1] - 1) for part in parts]
print(float(packed), float(sum(alone)) / sum(part.shape[1] - 1 for part in parts))
"""


def run_program(program: str) -> list[str]:
    """The lines that it prints, with the reference kernels."""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{KERNELS}"}
    process = subprocess.run(
        python_command("-c", program), env=environ, capture_output=True, text=True, check=True, timeout=120
    )
    return process.stdout.splitlines()


def test_the_package_to_install_is_named_where_the_kernels_are_not_here() -> None:
    answer = ask_borders(AutoConfig.for_model("qwen3_5_text"))
    assert answer.apart is False
    assert "Install `causal_conv1d`" in answer.reason


def test_a_state_that_takes_no_borders_is_found() -> None:
    answer = ask_borders(AutoConfig.for_model("mamba2"))
    assert answer.apart is False
    assert "differ from those alone" in answer.reason


def test_documents_are_apart_with_kernels_that_get_their_borders() -> None:
    lines = run_program(PROGRAM)
    assert lines[0].startswith("qwen3_5_text True")
    assert lines[1].startswith("olmo_hybrid True")
    assert lines[2].startswith("nemotron_h False")
    assert "Install `mamba_ssm`" in lines[2], "there is no reference code for it"


def test_a_run_hands_the_borders_to_its_model() -> None:
    """The loss of two packed rows is that of their four documents alone."""
    packed, alone = map(float, run_program(LOSSES)[-1].split())
    assert packed == pytest.approx(alone, rel=1e-4)


def test_rows_become_one_with_borders() -> None:
    positions = torch.tensor([[0, 1, 2, 0], [0, 1, 0, 1]])
    ids = torch.arange(8).reshape(2, 4)
    batch = MicroBatch(ids, ids.clone(), positions, None, find_borders(positions)).as_one_row()
    assert batch.input_ids.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert batch.document_borders == (0, 3, 4, 6, 8)
    arguments = border_arguments(batch.document_borders)
    assert arguments["seq_idx"].tolist() == [[0, 0, 0, 1, 2, 2, 3, 3]]
    assert arguments["cu_seq_lens_q"].tolist() == [0, 3, 4, 6, 8]
    assert arguments["max_length_q"] == 3
    with pytest.raises(ValueError, match="no mask"):
        MicroBatch(ids, ids, positions, torch.ones(2, 4)).as_one_row()
