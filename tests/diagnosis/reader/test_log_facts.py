# SPDX-License-Identifier: Apache-2.0
"""Releases, configuration, ranks and size of the model, as logs state them. Needs nothing; a second."""

from __future__ import annotations

import json

import pytest

from harness.diagnosis.diagnosis_types import LogFacts
from harness.diagnosis.reader.log_facts import FactReader
from tests.support.tracebacks import diagnose_text

CONFIG = {"train_batch_size": 8, "zero_optimization": {"stage": 3}, "fp16": {"enabled": True}}


def printed(config: object, prefix: str = "") -> str:
    """The configuration, as `DeepSpeedConfig.print_user_config` prints it."""
    head = f"{prefix}[2026-11-20 10:00:22,000] [INFO] [config.py:990:print_user_config]   json = "
    text = head + json.dumps(config, sort_keys=True, indent=4, separators=(",", ":"))
    return text.replace("\n", f"\n{prefix}") + "\n"


def facts_of(text: str) -> LogFacts:
    return diagnose_text(text).facts


@pytest.mark.parametrize(
    ("line", "package", "version"),
    [
        ("[INFO] [logging.py:96] [Rank 0] DeepSpeed info: version=0.16.4, git-hash=unknown", "deepspeed", "0.16.4"),
        ("torch version .................... 2.1.2", "torch", "2.1.2"),
        ("deepspeed info ................... 0.12.6, unknown, unknown", "deepspeed", "0.12.6"),
        ("deepspeed==0.15.0", "deepspeed", "0.15.0"),
        ("- `Accelerate` version: 0.30.1", "accelerate", "0.30.1"),
        ("- PyTorch version (GPU?): 2.3.0+cu121 (True)", "torch", "2.3.0"),
        ('  File "/x/site-packages/deepspeed-0.9.5-py3.8.egg/deepspeed/a.py", line 3, in f', "deepspeed", "0.9.5"),
        ("Successfully installed deepspeed-0.16.4", "", ""),
    ],
)
def test_releases(line, package, version):
    assert facts_of(f"{line}\n").versions == ({package: version} if package else {})


@pytest.mark.parametrize("prefix", ["", "worker-0: ", "[rank0]: "])
def test_the_configuration_that_deepspeed_prints(prefix):
    text = f"{prefix}before\n{printed(CONFIG, prefix)}{prefix}after\n"
    assert json.loads(facts_of(text).config) == CONFIG


def test_a_configuration_across_blocks_and_one_without_an_end():
    reader, text = FactReader(), printed(CONFIG).encode()
    for line in text.splitlines(keepends=True):
        reader.add_block(line)
    assert json.loads(reader.facts.config) == CONFIG
    assert facts_of("x  json = {\n" + '    "a": 1,\n' * 100_000).config == ""


def test_ranks_parameters_and_files():
    facts = facts_of(
        "[INFO] [launch.py:170:main] dist_world_size=16\n"
        "Number of trainable parameters = 8,030,261,248\n"
        "cmd = python -u train.py --deepspeed ds.json --x 1\n"
        "['python', 'train.py', '--deepspeed_config', 'conf/z2.json']\n"
        "deepspeed_config_file: /a/b/ds_z3.yaml\n"
    )
    assert (facts.world_size, facts.num_parameters) == (16, 8_030_261_248)
    assert facts.config_files == ["ds.json", "conf/z2.json", "/a/b/ds_z3.yaml"]


def test_facts_of_several_logs():
    one, other = LogFacts({"torch": "2.5"}, world_size=4), LogFacts({"torch": "2.6", "peft": "0.1"}, "{}", ["a.json"])
    one.merge(other)
    assert one.versions == {"torch": "2.5", "peft": "0.1"}
    assert (one.config, one.config_files, one.world_size) == ("{}", ["a.json"], 4)
