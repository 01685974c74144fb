# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own messages, as logs of 2 to 4 interleaved ranks, lead to the gate or the cause that they belong to.

`deepspeed_messages.tsv` holds what DeepSpeed 0.14.5 to 0.19.8 said when it was run with configurations that it refuses;
the ids were compared with what `validate-config` says of the same configurations. Needs nothing; seconds.
"""

from __future__ import annotations

import io
from itertools import cycle, product
from pathlib import Path

import pytest

from harness.diagnosis import diagnose
from harness.diagnosis.explanation import describe_cause

ROWS = [line.split("\t") for line in (Path(__file__).parent / "deepspeed_messages.tsv").read_text().splitlines()]
FORMS = ["[rank{r}]: ", "worker-{r}: [rank{r}]: ", "{r}: ", "[default{r}]:", ""]
OF_THE_LAUNCHER = ("LG003", "LG018", "LG060", "LG061", "LG062", "LG063", "LG065")
ECHOES = "{p}RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:52924\n"


def interleave(message: str, form: str, ranks: int, id_: str) -> str:
    """The message on all ranks but the last, which lost its peers. The ranks take turns line by line."""
    if id_ in OF_THE_LAUNCHER:
        return message + "\n"
    lines = message.split(" | ")
    start = "" if form else "[2026-03-01 10:00:00,000] [INFO] [logging.py:107:log_dist] [Rank 0] DeepSpeed info\n"
    body = "".join(f"{form.format(r=r)}{line.rstrip()}\n" for line, r in product(lines, range(ranks - 1)))
    return start + body + ECHOES.format(p=form.format(r=ranks - 1))


@pytest.mark.parametrize("form", FORMS, ids=["torch", "pdsh", "slurm", "torchrun", "bare"])
def test_every_message_leads_to_its_gate_or_cause(form):
    failures = []
    sizes = cycle((2, 3, 4))
    for id_, message in ROWS:
        text = interleave(message, form, next(sizes), id_)
        diagnosis = diagnose([io.BytesIO(text.encode())])
        if diagnosis.cause != id_:
            failures.append((id_, diagnosis.confidence, diagnosis.cause, message[:80]))
        elif form and id_ not in OF_THE_LAUNCHER:
            assert diagnosis.rank == 0, (message, diagnosis)
    assert len(ROWS) > 250
    assert [row for row in failures if row[1] == "certain"] == []
    assert failures == []


def test_every_cause_can_be_described():
    assert [id_ for id_, _ in ROWS if not all(describe_cause(id_))] == []
