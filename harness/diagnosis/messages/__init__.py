# SPDX-License-Identifier: Apache-2.0
"""Maps the messages with which programs end to their causes. One module per program, each with a table `MESSAGES`.

A row is `ID pattern`: the id of a gate, a finding or a cause, and a pattern that the line must contain. Marks:

    ID * pattern              the pattern alone does not prove the cause
    ID pattern :: frames      a file or function of the traceback above must match, if there is a traceback
    ID pattern ::! frames     the same, and a line without a traceback does not match
    ID pattern ::$ frames     the last file and function must match, and a line without a traceback does not match
        title: ...            what happened, where this message says more than the cause
        change: ...           what to change, where this message needs another remedy than the cause

Indented lines belong to the row above. A long `title:` or `change:` continues on the next indented line, and so does a
long pattern, which is joined without a space. Rows are tried from the top, tables in the order of `all_rows`, and all
of them before the signatures in `harness.diagnosis.causes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from harness.diagnosis.diagnosis_types import FailureSignature

_ROW = re.compile(
    r"(?P<cause>[A-Z]{2}\d{3}) (?P<unsure>\* )?(?P<pattern>.+?)(?: ::(?P<required>[!$])? (?P<frames>.+))?$"
)
_FIELD = re.compile(r"(title|change): ")


class MessageRow(NamedTuple):
    """One row of a table: the id of the cause, and the message."""

    cause: str
    signature: FailureSignature


@cache
def all_rows() -> tuple[MessageRow, ...]:
    """The rows of all tables, in the order in which they are tried."""
    from harness.diagnosis.messages import (
        accelerate_messages,
        adapter_messages,
        argument_messages,
        autograd_messages,
        data_messages,
        deepspeed_compile,
        deepspeed_conversion,
        deepspeed_data,
        deepspeed_engine,
        deepspeed_experts,
        deepspeed_gates,
        deepspeed_kernels,
        deepspeed_launcher,
        deepspeed_offload,
        deepspeed_ops,
        deepspeed_parallel,
        deepspeed_pipeline,
        deepspeed_sequences,
        deepspeed_state,
        deepspeed_tools,
        deepspeed_torch_errors,
        deepspeed_zero,
        elastic_agents,
        engine_watch_messages,
        framework_messages,
        input_messages,
        kernel_lines,
        kubernetes,
        loading_messages,
        megatron_messages,
        nccl,
        nccl_errors,
        program_fallbacks,
        python_faults,
        ray,
        schedulers,
        torch_faults,
        torch_messages,
        trainer_messages,
        version_messages,
    )

    modules = (
        engine_watch_messages,
        elastic_agents,
        deepspeed_gates,
        kernel_lines,
        schedulers,
        kubernetes,
        ray,
        nccl,
        nccl_errors,
        torch_faults,
        python_faults,
        deepspeed_zero,
        deepspeed_offload,
        deepspeed_pipeline,
        deepspeed_sequences,
        deepspeed_state,
        deepspeed_data,
        deepspeed_engine,
        deepspeed_torch_errors,
        deepspeed_launcher,
        deepspeed_ops,
        deepspeed_kernels,
        deepspeed_conversion,
        deepspeed_experts,
        deepspeed_parallel,
        deepspeed_tools,
        deepspeed_compile,
        megatron_messages,
        version_messages,
        framework_messages,
        accelerate_messages,
        adapter_messages,
        trainer_messages,
        loading_messages,
        autograd_messages,
        torch_messages,
        data_messages,
        input_messages,
        argument_messages,
        program_fallbacks,
    )
    return tuple(row for module in modules for row in parse_rows(module.MESSAGES))


def parse_rows(table: str) -> Iterator[MessageRow]:
    """The rows of one table. Raises ValueError for a line that is not part of a row."""
    row, name = dict[str, str](), ""
    for line in table.strip("\n").splitlines():
        text = line.strip()
        if not line.startswith(" "):
            if row:
                yield _make_row(row)
            row, name = {"row": text}, ""
        elif match := _FIELD.match(text):
            name = match[1]
            row[name] = text[match.end() :]
        elif name:
            row[name] += f" {text}"
        elif row:
            row["row"] += text
        else:
            raise ValueError(f"neither a row nor a field of one: {line!r}")
    if row:
        yield _make_row(row)


def _make_row(fields: dict[str, str]) -> MessageRow:
    match = _ROW.match(fields["row"])
    if match is None:
        raise ValueError(f"not a row of messages: {fields['row']!r}")
    signature = FailureSignature(
        match["pattern"],
        sure=not match["unsure"],
        frames=match["frames"] or "",
        frames_required=bool(match["required"]),
        last_frame=match["required"] == "$",
        title=fields.get("title", ""),
        change=fields.get("change", ""),
    )
    return MessageRow(match["cause"], signature)
