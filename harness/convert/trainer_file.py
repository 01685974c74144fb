# SPDX-License-Identifier: Apache-2.0
"""A file of another training program: its values, its program, and the run spec that is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.convert.draft import Draft, NoteKind
from harness.spec.parse.source import Source
from harness.spec.run_spec import RunSpec

Values = Mapping[str, Any]


class Default(NamedTuple):
    """A fact: the value that a program uses where its file leaves a key out.

    `value` may be a function of the file's values; None then means that the program has no default.
    `since` and `until` are releases of the program: the first with this value, the first without.
    """

    key: str
    value: Any
    source: str
    since: str = ""
    until: str = ""
    when: Callable[[Values], bool] | None = None


@dataclass(frozen=True)
class Program:
    """A training program: the meaning of its keys, and its defaults.

    `keys` are copied by name. `harmless`, `lossy` and `manual` say what becomes of the others; `lossy` maps a key to
    its effect, `manual` to the spec's key and a text. `neutral` has values that ask for nothing.
    """

    name: str
    releases: tuple[str, str]
    keys: Mapping[str, str]
    defaults: tuple[Default, ...]
    convert: Callable[[TrainerFile], None]
    harmless: frozenset[str] = frozenset()
    lossy: Mapping[str, str] = field(default_factory=dict)
    manual: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass
class TrainerFile:
    """A file under conversion. `values` are its keys; `handled` are those that the draft has, or a note names."""

    program: Program
    source: Source
    values: dict[str, Any]
    release: str
    draft: Draft = field(default_factory=Draft)
    handled: set[str] = field(default_factory=set)
    ranks: int | None = None
    """The world size, where the file says it."""
    launch: dict[str, Any] = field(default_factory=dict)
    """Options of `accelerate launch` before the script, but those that count ranks."""

    def take_value(self, *names: str) -> Any:
        """The value of the first of these keys that has one; all of them are handled."""
        self.handled.update(name for name in names if name in self.values)
        return next((self.values[name] for name in names if self.values.get(name) not in (None, "")), None)

    def name_of(self, *names: str) -> str:
        """The first of these keys that has a value, to name it in a note."""
        return next((name for name in names if self.values.get(name) not in (None, "")), names[0])

    def put(self, key: str, value: Any) -> None:
        """Set a key of the spec."""
        self.draft.put(key, value)

    def add_note(self, kind: NoteKind, name: str, message: str) -> None:
        """Add a note about a key of the file; `name` may be dotted."""
        place = self.source.place(tuple(name.split(".")), of_key=True)
        self.draft.add_note(place, message, kind, name)
        self.handled.add(name.split(".", maxsplit=1)[0])

    def put_template(self, key: str, text: str | None) -> bool:
        """The program's own chat template as a file beside the spec; is it known? Empty: as the tokenizer's."""
        if text:
            name = f"{self.program.name}-{self.values[key]}.jinja".lower()
            self.draft.files[name] = text
            self.put("data.chat_template", name)
            self.add_harmless(
                key, f"its text, as the installed {self.program.name} has it, is `{name}`, which `-o` writes"
            )
        elif text is not None:
            self.add_harmless(key, f"the installed {self.program.name} has the same tokens by the tokenizer's own")
        return text is not None

    def add_manual(self, name: str, text: str) -> None:
        """Something that the user sets in the spec."""
        self.add_note("manual", name, f"`{self.show(name)}`: {text}")

    def add_lossy(self, name: str, text: str) -> None:
        """Something that the spec trains otherwise."""
        self.add_note("lossy", name, f"`{self.show(name)}`: {text}")

    def add_harmless(self, name: str, text: str = "") -> None:
        """Something that does not decide what is trained."""
        self.add_note("harmless", name, f"`{self.show(name)}`" + (f": {text}" if text else ""))

    def show(self, name: str) -> str:
        """`key: value` for a message, cut where it is long."""
        value: Any = self.values
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None or isinstance(value, (dict, list)):
            return name
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return f"{name}: {text[:40]}{'...' if len(text) > 40 else ''}"


def apply_defaults(file: TrainerFile) -> None:
    """Write the program's defaults for keys that the file leaves out, where they differ from the run spec's."""
    for default in file.program.defaults:
        if file.draft.has(default.key) or not is_valid_in(default, file.release):
            continue
        if default.when is not None and not default.when(file.values):
            continue
        value = default.value(file.values) if callable(default.value) else default.value
        if value is not None and value != spec_default(default.key):
            file.draft.put(default.key, value, f"{file.program.name}'s default")


def is_valid_in(default: Default, release: str) -> bool:
    """Does the program have this default in a release?"""
    version = parse_release(release)
    since, until = parse_release(default.since), parse_release(default.until)
    return version >= since and (not default.until or version < until)


def parse_release(text: str) -> tuple[int, ...]:
    """`0.9.5` as numbers; what follows a letter does not count."""
    numbers = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def spec_default(key: str) -> Any:
    """The run spec's own default of a dotted key; None if it has none."""
    model: Any = RunSpec
    *sections, name = key.split(".")
    for section in sections:
        inner = model.model_fields.get(section)
        model = (
            next((kind for kind in _classes(inner.annotation) if hasattr(kind, "model_fields")), None)
            if inner
            else None
        )
        if model is None:
            return None
    spec_field = model.model_fields.get(name)
    value = spec_field.get_default(call_default_factory=False) if spec_field is not None else None
    return list(value) if isinstance(value, tuple) else value


def _classes(annotation: Any) -> Iterator[Any]:
    arguments = getattr(annotation, "__args__", None)
    if arguments is None:
        yield annotation
    for inner in arguments or ():
        yield from _classes(inner)


def is_on(value: Any) -> bool:
    """Does a value switch something on?"""
    return value not in (None, False, "", 0, [], {}) and str(value).strip().lower() not in (
        "false",
        "no",
        "none",
        "off",
    )


def add_leftover_notes(file: TrainerFile) -> None:
    """One note for each key that is neither in the spec nor in a note, in the order of the file."""
    program = file.program
    for name, value in file.values.items():
        if name in file.handled or value is None or value in ("", [], {}):
            continue
        if name in program.harmless:
            file.add_harmless(name)
        elif any(
            value is neutral or (value == neutral and type(value) is type(neutral))
            for neutral in program.neutral.get(name, (False,))
        ):
            file.handled.add(name)
        elif name in program.lossy:
            file.add_lossy(name, program.lossy[name])
        elif name in program.manual:
            key, text = program.manual[name]
            file.add_manual(name, f"set `{key}`{text}")
        else:
            file.add_lossy(name, f"not a key of {program.name} that the harness knows; left out of the spec")
