# SPDX-License-Identifier: Apache-2.0
"""The base of all sections: strict values, no unknown keys, nothing changes after loading; and types of fields.

No section is here. The files of sections do not postpone their annotations: pydantic would have to evaluate hundreds of
strings at every start.
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from harness.units import parse_bytes


def _as_whole_number(value: object) -> object:
    """Accept `5e8` as a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def numbers_to_texts(value: object) -> object:
    """Read numbers in a map of texts as texts."""
    if not isinstance(value, dict):
        return value
    return {
        name: str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item
        for name, item in value.items()
    }


def off_to_text(value: object) -> object:
    """Read YAML's false of an unquoted `off` as the word, also as a value of a map."""
    if isinstance(value, dict):
        return {name: off_to_text(item) for name, item in value.items()}
    return "off" if value is False else value


def check_size(text: str) -> str:
    """A text that is a size in bytes, such as `5GB`. Raises ValueError with a sentence when it is not."""
    if parse_bytes(text) < 1:
        raise ValueError(f"`{text}` is no size")
    return text


Positive = Annotated[int, BeforeValidator(_as_whole_number), Field(ge=1)]
Count = Annotated[int, BeforeValidator(_as_whole_number), Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Strings = Annotated[tuple[str, ...], Field(strict=False)]


class Section(BaseModel):
    """Common rules: unknown keys are refused, values are never coerced, nothing changes after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )
