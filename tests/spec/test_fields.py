"""The run spec's own checks against pydantic's of the same fields: the same values, the same complaints."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.spec.fields import Section, ValidationError
from harness.spec.model import RunSpec, TrainSpec, ZeroSpec
from harness.spec.schema import twin

TWIN = twin(RunSpec)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70000),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(
        [0.0, 0.5, 1.0, 2.0, 5e8, "", "cpu", "nvme", "none", "adamw", "linear", "a b", "a\n", "debug", "float32", "x"]
    ),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(st.sampled_from(["device", "a", "nvme_path"]), SCALARS, max_size=3),
)


def section_of(kind: type[Section]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from([*kind.model_fields, "nonsense"]), VALUES, max_size=5)


def specs() -> st.SearchStrategy[Any]:
    fields = {}
    for name, field in RunSpec.model_fields.items():
        kind = field.annotation
        fields[name] = section_of(kind) | VALUES if isinstance(kind, type) and issubclass(kind, Section) else VALUES
    return st.fixed_dictionaries({}, optional={**fields, "nonsense": VALUES})


def complaints(make: Any, raw: Any) -> Any:
    try:
        return make(raw).model_dump(mode="json"), make(raw).model_dump(exclude_unset=True)
    except (ValidationError, pydantic.ValidationError) as error:
        return {(e["type"], e["loc"]) for e in error.errors(include_url=False)}


@settings(max_examples=400, deadline=None)
@given(specs())
def test_values_and_complaints_are_those_of_pydantic(raw):
    assert complaints(RunSpec.model_validate, raw) == complaints(TWIN.model_validate, raw)


@pytest.mark.parametrize(
    ("raw", "limits"),
    [
        ({"train": {"max_steps": 0}}, {"ge": 1}),
        ({"train": {"num_train_epochs": 0}}, {"gt": 0}),
        ({"zero": {"stage": 4}}, {"le": 3}),
        ({"data": {"eval_fraction": 1.0}}, {"lt": 1.0}),
        ({"optimizer": {"type": "lion"}}, {"expected": "'adamw', 'adam' or 'sgd'"}),
    ],
)
def test_limits_are_told_as_pydantic_tells_them(raw, limits):
    for make in (RunSpec.model_validate, TWIN.model_validate):
        with pytest.raises((ValidationError, pydantic.ValidationError)) as caught:
            make(raw)
        assert caught.value.errors(include_url=False)[0]["ctx"] == limits


def test_a_section_is_a_frozen_value():
    train = TrainSpec(max_steps=3)
    assert train == TrainSpec(max_steps=3)
    assert train != TrainSpec(max_steps=4)
    assert train.model_fields_set == {"max_steps"}
    assert "max_steps=3" in repr(train)
    with pytest.raises(AttributeError):
        train.max_steps = 4
    with pytest.raises(ValidationError, match="ZeroSpec"):
        ZeroSpec(stage=7)


def test_defaults_of_sections_are_their_own():
    assert RunSpec.model_validate({}).model_dump(mode="json") == TWIN.model_validate({}).model_dump(mode="json")
    one, two = RunSpec.model_validate({}), RunSpec.model_validate({})
    assert one.deepspeed is not two.deepspeed
