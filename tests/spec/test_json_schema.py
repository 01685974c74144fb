# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema: every field documented, every shipped spec accepted, wrong ones refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from annotated_types import BaseMetadata, Ge, Gt, Le, Lt

from harness.spec.json_schema import field_docs, run_spec_schema
from harness.spec.run_spec import RunSpec
from harness.spec.section_fields import inner_model


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


VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 3, 5, 70_000, 1e9, 1.0, 1.5, 0.5, -0.5, "x", "", "a b", "auto", "5GB", "1-2"),
    *([], ["x"], [1], [-1], [0.5, 0.9], [0.5, 2.0], [1, 2, 3], {}, {"x": "y"}, {"x": 1}, {"x": 0}),
]
YAML_OFF = {"launch.engine_checks", "launch.patches"}
"""Fields that also take the false that YAML 1.1 makes of `off`; an editor has the text."""


def leaves(model: Any = RunSpec, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every field of the spec, of all sections, with pydantic's description of it."""
    for name, field in model.model_fields.items():
        yield (*path, name), field
        inner = inner_model(field.annotation)
        if inner not in (None, dict):
            yield from leaves(inner, (*path, name))


def spec_with(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The smallest spec that has the value in this place, with the keys that its sections require."""
    spec: dict[str, Any] = {}
    node = spec
    for part in path[:-1]:
        node = node.setdefault(part, {})
    node[path[-1]] = copy.deepcopy(value)
    required = {("zero",): {"stage": 0}, ("data", "train"): {"path": "x"}, ("data", "eval"): {"path": "x"}}
    required |= {("zero", f"offload_{kind}"): {"device": "cpu"} for kind in ("optimizer", "param")}
    for depth in range(1, len(path)):
        section: Any = spec
        for part in path[:depth]:
            section = section[part]
        section |= {key: needed for key, needed in required.get(path[:depth], {}).items() if key not in section}
    return spec


def accepts(spec: dict[str, Any]) -> bool:
    try:
        RunSpec.model_validate(spec)
    except ValueError:
        return False
    return True


def test_no_value_of_any_field_divides_the_schema_and_the_model():
    validator = jsonschema.Draft202012Validator(run_spec_schema())
    refused = 0
    for path, _ in leaves():
        for value in VALUES:
            spec = spec_with(path, value)
            by_model = accepts(spec)
            refused += not by_model
            if ".".join(path) not in YAML_OFF or value is not False:
                assert validator.is_valid(spec) == by_model, (path, value)
    assert refused > 3000


def bounds(annotation: Any) -> Iterator[BaseMetadata]:
    for part in (*getattr(annotation, "metadata", ()), *getattr(annotation, "__metadata__", ())):
        yield from (item for item in (part, *getattr(part, "metadata", ())) if isinstance(item, (Ge, Gt, Le, Lt)))
    for part in (getattr(annotation, "annotation", None), *getattr(annotation, "__args__", ())):
        if part is not None:
            yield from bounds(part)


def just_outside(bound: Any) -> float:
    if isinstance(bound, Ge):
        return bound.ge - 1
    if isinstance(bound, Gt):
        return bound.gt
    return bound.le + 1 if isinstance(bound, Le) else bound.lt


def test_every_bound_of_the_model_is_one_of_the_schema():
    """Also those that no value of the list above touches, such as the ports."""
    validator = jsonschema.Draft202012Validator(run_spec_schema())
    checked = 0
    for path, field in leaves():
        for bound in bounds(field) if inner_model(field.annotation) is None else ():
            spec = spec_with(path, just_outside(bound))
            assert not accepts(spec), (path, bound)
            assert not validator.is_valid(spec), (path, bound)
            checked += 1
    assert checked > 60
