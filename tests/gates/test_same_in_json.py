# SPDX-License-Identifier: Apache-2.0
"""One set of gates serves both kinds of file: what a run spec is told, its rendered DeepSpeed JSON is told as well."""

from __future__ import annotations

import json

import pytest

from harness.gates.page import Example
from harness.gates.registry import all_gates
from harness.render.ds_config import render_ds_config
from tests.support.gate_examples import example_of, judge

RENDERED_OTHERWISE = {"TP018"}
"""The harness shards the layers of pipeline stages itself, and its JSON has no degree of AutoTP."""
OF_THE_SPEC_ALONE = {"a run spec", "a launch", "the hosts' answers"}
GATES = [
    gate
    for gate in all_gates()
    if gate.id not in RENDERED_OTHERWISE
    and not OF_THE_SPEC_ALONE & set(gate.needs)
    and example_of(gate, "Example").kind == "yaml"
]  # fmt: skip


def context(run):
    """What a DeepSpeed JSON cannot say, as `--set` overrides."""
    written = run.spec.model_dump(mode="json", exclude_unset=True)
    if run.parallel_dims.pipeline > 1:
        yield f"parallel.pipeline_parallel_size={run.parallel_dims.pipeline}"
    for section in ("model", "launch", "cluster", "export", "data"):
        for name, value in written.get(section, {}).items():
            yield f"{section}.{name}={json.dumps(value)}"
    for name in ("max_steps", "num_train_epochs", "gradient_checkpointing"):
        if name in written.get("train", {}):
            yield f"train.{name}={json.dumps(written['train'][name])}"


@pytest.mark.parametrize("gate", GATES, ids=lambda g: g.id)
def test_the_rendered_json_fires_the_gate_too(gate, write):
    example = example_of(gate, "Example")
    judged = judge(gate, "Example", write)
    text = render_ds_config(judged.run).json_text
    again = judge(gate, "Example", write, list(context(judged.run)), example=Example(text, "json", example.hostfile))
    told = {f.gate for f in again.report.findings} | {f.gate for f in again.loading if f.is_error}
    assert {gate.id, "SP013"} & told, text  # a key that the release does not know is told as that
