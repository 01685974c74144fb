# SPDX-License-Identifier: Apache-2.0
"""The remedy that a message states itself. Needs nothing; milliseconds."""

from __future__ import annotations

import io

import pytest

from harness.diagnosis import diagnose
from harness.diagnosis.decision import decide_action, find_changes
from harness.diagnosis.rules.stated_remedy import find_stated_remedy


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("Do not set `train_x` in the DeepSpeed config as the loader sets it.", "remove `train_x` from the DeepSpeed config"),
        ("Don't pass --foo-bar when the file has it", "remove `--foo-bar`"),
        ("You cannot create a Placeholder without specifying a schedule in the config file.",
         "add a schedule in the config file"),
        ("`zip_length` must be set to True for this sampler", "set `zip_length: true`"),
        ("the width is odd. Please use a multiple of 8 for `width`.", "use a multiple of 8 for `width`"),
        ("You should install fancy-kernels to use this option", "install fancy-kernels to use this option"),
        ("6 is odd; the valid values for the number of groups are: [2, 3].", "set the number of groups to one of [2, 3]"),
        ("unknown kind. Supported choices for `reducer`: ['sum', 'mean']", "set the `reducer` to one of ['sum', 'mean']"),
        ("bad axis, possible options of axis are [0, 1]", "set the axis to one of [0, 1]"),
        ("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", ""),
        ("the loss is nan", ""),
    ],
)  # fmt: skip
def test_the_remedy_of_a_message(message, remedy):
    assert find_stated_remedy(f"package.errors.ConfigError: {message}") == remedy


def test_a_setting_that_is_to_go_is_a_change():
    assert find_changes(find_stated_remedy("Do not set `a_b` in the DeepSpeed config.")) == {"a_b": None}


def test_a_cause_that_leaves_the_setting_to_the_message_says_it():
    log = (
        "Traceback (most recent call last):\n"
        '  File "/env/lib/python3.11/site-packages/lightning/pytorch/strategies/deepspeed.py", line 7, in setup\n'
        "    raise MisconfigurationException(\n"
        "lightning.fabric.utilities.exceptions.MisconfigurationException: Do not set `some_steps` in the DeepSpeed "
        "config as this will be set with `other_steps`.\n"
    )
    diagnosis = diagnose([io.BytesIO(log.encode())])
    assert diagnosis.cause == "LG185"
    assert diagnosis.change == "remove `some_steps` from the DeepSpeed config"
    decision = decide_action(diagnosis)
    assert decision is not None
    assert decision.changes == {"some_steps": None}
