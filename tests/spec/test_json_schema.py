# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema: every field documented, every shipped spec accepted, wrong ones refused."""

from __future__ import annotations

import jsonschema
import pytest

from harness.spec.json_schema import field_docs, run_spec_schema
from harness.spec.run_spec import RunSpec


def test_every_field_has_a_description_in_the_schema():
    schema = run_spec_schema()
    for name, definition in {"RunSpec": schema, **schema["$defs"]}.items():
        for key, field in definition["properties"].items():
            assert field.get("description"), f"{name}.{key}"
    assert ("TrainSpec", "max_steps") in field_docs()


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(run_spec_schema())


@pytest.mark.parametrize(
    ("spec", "valid"),
    [
        ({"zero": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "train": {"max_steps": 5}}, True),
        ({"data": {"train": ["a", "b"]}, "optimizer": {"betas": [0.9, 0.95]}}, True),
        ({"zero": {"stage": 4}}, False),
        ({"train": {"max_stepz": 5}}, False),
        ({"optimizer": {"learning_rate": "1e-4"}}, False),
        ({"train": {"per_device_train_batch_size": 0}}, False),
        ({"launch": {"num_gpus": 1}, "eval": {"eval_steps": 0}}, False),
    ],
)
def test_the_schema_and_the_model_agree(spec, valid):
    by_schema = jsonschema.Draft202012Validator(run_spec_schema()).is_valid(spec)
    try:
        RunSpec.model_validate(spec)
        by_model = True
    except ValueError:
        by_model = False
    assert by_schema == by_model == valid
