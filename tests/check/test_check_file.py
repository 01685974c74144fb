# SPDX-License-Identifier: Apache-2.0
"""A file is loaded once and checked once, with the number of ranks known."""

from __future__ import annotations

import pytest

from harness.check.check_file import check_file, check_loaded_run, load_run
from harness.errors import ExitCode
from harness.spec.host_selection import HostSelection

SPEC = """\
model: {config: {model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}, tokenizer: bytes}
data: {train: x.jsonl}
train: {max_steps: 2, per_device_train_batch_size: 1}
"""


def test_num_gpus_without_hosts_is_an_override():
    loaded = load_run("a.yaml", text=SPEC, local_num_gpus=2)
    assert loaded.overrides == ("launch.num_gpus=2",)
    assert loaded.spec is not None
    assert loaded.spec.launch.num_gpus == 2
    assert check_loaded_run(loaded).run.parallel_dims.world_size == 2


@pytest.mark.parametrize("selection", [HostSelection(hosts="a:x", num_gpus=2), HostSelection(include="a", num_gpus=2)])
def test_num_gpus_does_not_replace_hosts_that_are_wrong(selection):
    loaded = load_run("a.yaml", text=SPEC, selection=selection, local_num_gpus=2)
    assert loaded.overrides == ()
    checked = check_loaded_run(loaded, default_world_size=1)
    assert checked.code is ExitCode.FINDINGS
    assert {finding.gate for finding in checked.report.errors} <= {"HO024", "HO025"}


def test_the_default_counts_only_where_nothing_else_has_a_number():
    for overrides, world in (((), 4), (("launch.num_gpus=2",), 2), (("cluster.gpus_per_node=8",), 8)):
        checked = check_file("a.yaml", text=SPEC, overrides=overrides, default_world_size=4)
        assert checked.run.parallel_dims.world_size == world
    hosts = check_file("a.yaml", text=SPEC, selection=HostSelection(hosts="a:3,b:3"), default_world_size=4)
    assert hosts.run.parallel_dims.world_size == 6
    assert "HO005" not in {finding.gate for finding in hosts.report.findings}
