# SPDX-License-Identifier: Apache-2.0
"""Values of another type than a program takes end in a note or a finding, never in a traceback."""

from __future__ import annotations

import pytest

from harness.check.config_comparison import compare_configs
from harness.convert.conversion import convert_file
from harness.convert.programs.arctic import parse_human_number
from harness.errors import UserError
from harness.facts.deepspeed_version import DeepSpeedTarget

TARGET = DeepSpeedTarget("0.19.8", "asked for")
AXOLOTL = "base_model: a/b\nlearning_rate: 0.001\n"
FACTORY = "model_name_or_path: a/b\nstage: sft\nfinetuning_type: full\nmax_steps: 10\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("axolotl.yaml", AXOLOTL + "batch_size: 4\nmicro_batch_size: 0\n"),
        ("axolotl.yaml", AXOLOTL + "max_steps: 9\nval_set_size: 0.1\nevals_per_epoch: .nan\n"),
        ("axolotl.yaml", AXOLOTL + "datasets: [{path: d, type: chat_template, message_property_mappings: 3}]\n"),
        ("factory.yaml", FACTORY + "warmup_ratio: .nan\n"),
        ("ds.json", '{"train_batch_size": 1, "optimizer": null}'),
        ("ds.json", '{"train_batch_size": 1, "optimizer": "Adam"}'),
        ("ds.json", '{"train_batch_size": 1, "optimizer": {"type": "Adam", "params": {"betas": 1}}}'),
        ("ds.json", '{"train_batch_size": 1, "optimizer": {"type": "Adam", "params": []}}'),
    ],
)
def test_an_odd_value_is_no_traceback(name, text, write):
    try:
        converted = convert_file(write(name, text), TARGET)
    except UserError:
        return  # with findings, which other tests read
    assert converted.text
    assert all(item.relation == "same" or item.why for item in compare_configs(converted, TARGET).keys)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1_000", 1000), ("10k", 10_000), ("1.5m", 1_500_000), ("2ki", 2048), ("5e-4", 5e-4), ("2^20", 2**20), ("10%", 0.1), (".5", 0.5), ("1e+5", 1e5), ("a/b-7b", "a/b-7b"), (None, None)],
)  # fmt: skip
def test_numbers_of_arctic_training(text, number):
    assert parse_human_number(text) == number
