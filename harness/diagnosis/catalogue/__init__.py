# SPDX-License-Identifier: Apache-2.0
"""The catalogue of known causes and of the messages with which programs report them, read from the text files here.

`causes/FAMILY.txt` defines causes; `messages/PROGRAM.txt` has the messages of one program. Both have one form:

    LG070 collective-timed-out (echo)     a cause: its id, its name, and its level if that is not `root`
        title: ...                        what happened
        change: ...                       what to change
        page: ...                         more for `harness explain ID`
        traits: weak-end, in-warnings     what else `first_cause` and `line_matcher` know of it (`FailureCause.traits`)
        decision: retry                   what to do next, where neither level nor change say so (`diagnosis.decision`)
        order: 2                          its place among causes of its level that compete; 0 comes first
        pattern                           a message: a line that matches has this cause
        * pattern                         a message that allows other causes, too
        ! pattern                         a message that proves its change, too, of a cause whose change is open
        pattern :: frames                 a file or function of the traceback above must match, if there is a traceback
        pattern ::! frames                the same, and a line without a traceback does not match
        pattern ::$ frames                the last file and function must match, and a line without one does not match
            title: ...                    what happened, where this message says more than the cause
            change: ...                   what to change, where this message needs another remedy than the cause

An id alone opens messages of a gate, or of a cause that is defined elsewhere. A text is one line, however long; a
pattern that ends with a space is written with `[ ]`. Messages are tried from the top, files in the order of
`MESSAGE_FILES`, and all of them before the messages of `CAUSE_FILES`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from harness.diagnosis.diagnosis_types import Action, EventLevel, FailureCause, FailureSignature

CATALOGUE = Path(__file__).parent
MESSAGE_FILES = (
    "engine_watch elastic_agents deepspeed_gates kernel_lines schedulers kubernetes ray nccl nccl_errors torch_faults "
    "python_faults deepspeed_zero deepspeed_offload deepspeed_pipeline deepspeed_sequences deepspeed_state "
    "deepspeed_data deepspeed_engine deepspeed_torch_errors deepspeed_launcher deepspeed_ops deepspeed_kernels "
    "deepspeed_conversion deepspeed_experts deepspeed_parallel deepspeed_tools deepspeed_compile megatron versions "
    "frameworks accelerate adapters trainers loading autograd torch data inputs arguments program_fallbacks"
).split()
CAUSE_FILES = (
    "memory_failures device_failures op_refusals op_failures launch_refusals conversion_failures checkpoint_failures "
    "model_failures file_failures parallel_refusals tool_failures host_failures communication_failures "
    "cluster_failures trainer_failures adapter_failures weight_failures torch_failures version_failures "
    "input_failures program_refusals script_failures zero_failures offload_failures engine_failures "
    "parallelism_failures"
).split()
_HEADING = re.compile(r"(?P<id>[A-Z]{2}\d{3})(?: (?P<name>[a-z0-9-]+)(?: \((?P<level>\w+)\))?)?$")
_CAUSE_FIELD = re.compile(r" {4}(title|change|page|traits|order|decision): (.+)")
_MESSAGE = re.compile(r" {4}(?:(?P<mark>[*!]) )?(?P<pattern>\S.*?)(?: ::(?P<required>[!$])? (?P<frames>.+))?$")
_MESSAGE_FIELD = re.compile(r" {8}(title|change): (.+)")

RELEASES_FILE = CATALOGUE / "releases.json"


class MessageRow(NamedTuple):
    """One message: the id of the cause that it leads to, and its pattern."""

    cause: str
    signature: FailureSignature


@cache
def all_rows() -> tuple[MessageRow, ...]:
    """The messages of all programs, in the order in which they are tried."""
    return tuple(row for name in MESSAGE_FILES for row in rows_of(name))


def rows_of(name: str) -> tuple[MessageRow, ...]:
    """The messages of `messages/NAME.txt`."""
    return tuple(parse_rows((CATALOGUE / "messages" / f"{name}.txt").read_text(encoding="utf-8")))


@cache
def all_causes() -> tuple[FailureCause, ...]:
    """Every known cause, in the order in which their messages are tried."""
    texts = ((CATALOGUE / "causes" / f"{name}.txt").read_text(encoding="utf-8") for name in CAUSE_FILES)
    return tuple(cause for text in texts for cause in parse_causes(text))


@cache
def causes_by_id() -> dict[str, FailureCause]:
    """Every known cause by its id."""
    return {cause.id: cause for cause in all_causes()}


@cache
def causes_with(trait: str) -> frozenset[str]:
    """The ids of the causes that have the trait."""
    return frozenset(cause.id for cause in all_causes() if trait in cause.traits)


def parse_rows(text: str) -> Iterator[MessageRow]:
    """The messages of a file of either kind. Raises ValueError for a line that is not of the catalogue's form."""
    for entry in _parse_entries(text):
        yield from (MessageRow(entry.id, FailureSignature(**message)) for message in entry.messages)


def parse_causes(text: str) -> Iterator[FailureCause]:
    """The causes that a file defines. Raises ValueError for a line that is not of the catalogue's form."""
    for entry in _parse_entries(text):
        fields = entry.fields
        yield FailureCause(
            entry.id,
            fields["name"],
            fields["title"],
            fields["change"],
            tuple(FailureSignature(**message) for message in entry.messages),
            level=cast(EventLevel, fields.get("level", "root")),
            page=fields.get("page", ""),
            traits=frozenset(filter(None, fields.get("traits", "").split(", "))),
            order=int(fields["order"]) if "order" in fields else None,
            decision=cast("Action", fields.get("decision", "")),
        )


class _Entry(NamedTuple):
    """What a heading opens: the id, the fields of its cause, and those of its messages."""

    id: str
    fields: dict[str, str]
    messages: list[dict[str, Any]]


def _parse_entries(text: str) -> Iterator[_Entry]:
    entry = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if heading := _HEADING.match(line):
            if entry:
                yield entry
            fields = {key: value for key, value in heading.groupdict().items() if value and key != "id"}
            entry = _Entry(heading["id"], fields, [])
        elif entry and (field := _MESSAGE_FIELD.match(line)) and entry.messages:
            entry.messages[-1][field[1]] = field[2]
        elif entry and not entry.messages and "name" in entry.fields and (field := _CAUSE_FIELD.match(line)):
            entry.fields[field[1]] = field[2]
        elif entry and not line.startswith(" " * 5) and (message := _MESSAGE.match(line)):
            required = message["required"]
            entry.messages.append(
                {
                    "pattern": message["pattern"],
                    "sure": message["mark"] != "*",
                    "proves_change": message["mark"] == "!",
                    "frames": message["frames"] or "",
                    "frames_required": bool(required),
                    "last_frame": required == "$",
                }
            )
        else:
            raise ValueError(f"line {number} is neither a heading, a field nor a message: {line!r}")
    if entry:
        yield entry


def releases_of(pattern: str) -> tuple[str, str] | None:
    """The first and last release that print the message of a row or signature; None if DeepSpeed does not print it."""
    ends = load_releases().get(pattern)
    return (ends[0], ends[1]) if ends else None


@cache
def load_releases() -> dict[str, list[str]]:
    """[first, last release] by the pattern of a row."""
    table: dict[str, list[str]] = json.loads(RELEASES_FILE.read_text(encoding="utf-8"))
    return table
