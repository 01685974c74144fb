# SPDX-License-Identifier: Apache-2.0
"""Every argument of the installed Trainer has a key of the run spec, or advice."""

from __future__ import annotations

import dataclasses

from transformers import TrainingArguments

from harness.spec.run_spec import RunSpec
from harness.spec.section_fields import section_fields
from harness.spec.trainer_names import ADVICE, SPEC_KEYS


def test_every_argument_of_the_trainer_is_known():
    known = {*SPEC_KEYS, *ADVICE, *RunSpec.model_fields}
    known |= {name for section in RunSpec.model_fields for name in section_fields((section,))}
    arguments = {field.name for field in dataclasses.fields(TrainingArguments)}
    assert len(arguments) > 80
    assert sorted(arguments - known) == []
