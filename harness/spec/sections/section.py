# SPDX-License-Identifier: Apache-2.0
"""The base of all sections: strict values, no unknown keys, nothing changes after loading; and types of fields.

No section is here. The files of sections do not postpone their annotations: pydantic would have to evaluate hundreds of
strings at every start.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from harness.errors import UnreadableKeyError
from harness.units import SIZE_PATTERN, parse_bytes


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


def _check_size(text: str) -> str:
    """A text that is a size in bytes, such as `5GB`. Raises ValueError with a sentence when it is not."""
    if parse_bytes(text) < 1:
        raise ValueError(f"`{text}` is no size")
    return text


WholeNumber = Annotated[int, BeforeValidator(_as_whole_number)]
Positive = Annotated[WholeNumber, Field(ge=1)]
Count = Annotated[WholeNumber, Field(ge=0)]
Quantity = Annotated[str | int, BeforeValidator(_as_whole_number)]
"""A number with a unit, such as `2TB`, or a plain number."""
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
FileSize = Annotated[str, AfterValidator(_check_size), Field(json_schema_extra={"pattern": SIZE_PATTERN})]
Strings = Annotated[tuple[str, ...], Field(strict=False)]


class Section(BaseModel):
    """Common rules: unknown keys are refused, values are never coerced, nothing changes after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )

    def is_written(self, name: str) -> bool:
        """Does the file have this field? Raises UnreadableKeyError where the field cannot be read."""
        if name in type(self).model_fields:
            getattr(self, name)
        return name in self.model_fields_set

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """All fields as pydantic writes them. Raises UnreadableKeyError where one of them cannot be read."""
        self._require_all_fields()
        return super().model_dump(**options)

    def __getattr__(self, name: str) -> Any:
        """Called for an attribute that is not there: of a partial spec, a field that cannot be read."""
        if name in type(self).model_fields:
            raise UnreadableKeyError(name)
        return super().__getattr__(name)  # type: ignore[misc]  # pydantic hides it from type checkers

    def _require_all_fields(self) -> None:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Section):
                value._require_all_fields()
