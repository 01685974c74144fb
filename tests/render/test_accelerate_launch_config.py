# SPDX-License-Identifier: Apache-2.0
"""`harness render --accelerate`: what accelerate's own reader and ours find in the file, and for which runs there is none."""

from __future__ import annotations

import json

import pytest

from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.spec.spec_loader import load_spec
from tests.cli.test_validate_config import run

SPEC = """\
model: {name_or_path: meta-llama/Llama-3.1-8B}
data: {train: x.jsonl}
train: {max_steps: 1, per_device_train_batch_size: 2}
precision: {bf16: true}
zero: {stage: 3, offload_optimizer: {device: cpu}}
"""


def render(tmp_path, *options: str, spec: str = SPEC):
    (tmp_path / "run.yaml").write_text(spec)
    return run("render", str(tmp_path / "run.yaml"), "--accelerate", str(tmp_path / "out.yaml"), *options)


def test_the_file_says_what_the_spec_says(tmp_path) -> None:
    assert render(tmp_path, "--world-size", "8").exit_code == 0
    loaded = load_spec(str(tmp_path / "out.yaml"), (), DeepSpeedTarget("0.19.8", "asked for"))
    assert loaded.spec is not None
    assert not [finding for finding in loaded.findings if finding.is_error]
    assert (loaded.format, loaded.spec.zero.stage, loaded.spec.cluster.gpus_per_node) == ("accelerate-yaml", 3, 8)
    assert loaded.spec.precision.bf16
    assert json.loads((tmp_path / "out.json").read_text())["train_micro_batch_size_per_gpu"] == 2


def test_accelerate_reads_it(tmp_path) -> None:
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=4\nb slots=4\n")
    assert render(tmp_path, "--hostfile", str(hosts)).exit_code == 0
    read = config_args.load_config_from_file(str(tmp_path / "out.yaml"))
    assert (read.num_processes, read.num_machines, str(read.distributed_type)) == (8, 2, "DistributedType.DEEPSPEED")
    assert read.deepspeed_config["deepspeed_hostfile"] == str(hosts)
    assert read.deepspeed_config["deepspeed_config_file"] == str(tmp_path / "out.json")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--world-size N"),
        (("--world-size", "8", "--set", "parallel.tensor_parallel_size=2", "--set", "zero.stage=1"), "own loop"),
        (("--world-size", "8", "--check"), "in a call of its own"),
    ],
)
def test_what_has_no_file_writes_none(tmp_path, options, said) -> None:
    result = render(tmp_path, *options)
    assert result.exit_code == 2
    assert said in result.output
    assert not (tmp_path / "out.yaml").exists()
