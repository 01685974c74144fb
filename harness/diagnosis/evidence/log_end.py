# SPDX-License-Identifier: Apache-2.0
"""A log that simply stops -> the part of the job in which it stops. A job killed from outside leaves nothing else."""

from __future__ import annotations

import re

_ENDED = re.compile(
    rb"train_runtime|[Tt]raining (?:is )?(?:completed|finished|done)|exits successfully|[Ss]aved? (?:the )?final|"
    rb"successfully finished|^(?:real|user|sys)\s+\d+m|\b[Dd]one[.!]?\s*$|[Ff]inished[.!]?\s*$|\bcompleted\b"
)
_PARTS = (
    (re.compile(rb"Loading (?:checkpoint shards|weights|safetensors)|from_pretrained"), "the loading of a model"),
    (re.compile(rb"[Ss]aving|checkpoint\S* is about to be saved|\[Torch\] Saving|Saving model checkpoint"), "a save"),
    (re.compile(rb"\*\*\* Running Eval|^Evaluat(?:ing|ion)\b|\b[Ee]valuating\b"), "an evaluation"),
    (re.compile(rb"^(?:Map|Filter|Tokeniz\w+|Generating)\b.*%\|"), "the preparation of data"),
    (re.compile(rb"PyTorch extensions root|Building extension|ninja"), "the build of an op"),
    (re.compile(rb"NCCL INFO|[Ii]nitializing torch distributed|endezvous"), "the setup of communication"),
)
_RATE = re.compile(rb"it/s|s/it|SamplesPerSec|oss['\"]?\s?[=:]\s?\d|\bstep[s=: ]+\d|\d%\|")
_LAST_LINES = 12
_STARTED = re.compile(rb"\[launch\.py.*spawned with command")
_STARTED_NOTE = (
    "the log ends after the launcher started the ranks, which printed nothing: they may still import packages, wait"
    " for each other, or wait for the lock of a compiled op that a killed build left behind (the file `lock` in a "
    "folder below TORCH_EXTENSIONS_DIR, by default ~/.cache/torch_extensions); `py-spy dump --pid PID` of a rank "
    "shows which"
)
_NEXT_STEP = (
    "if the job failed, read the logs of its other ranks and hosts, the scheduler's log, and `dmesg` on each host; if "
    "it still runs, `py-spy dump --pid PID` of each rank shows where it waits"
)


def describe_open_end(tail: bytes) -> str:
    """The next step where a log shows no failure, by its last bytes."""
    rows = [row for row in tail.split(b"\n") if row.strip()][-_LAST_LINES:]
    if not rows or any(_ENDED.search(row) for row in rows):
        return _NEXT_STEP
    if _STARTED.search(rows[-1]):
        return _STARTED_NOTE
    for row in reversed(rows):
        part = next((name for pattern, name in _PARTS if pattern.search(row)), "")
        if part or _RATE.search(row):
            return (
                f"the log ends in the middle of {part or 'the training'}, without an end or an error: the job may "
                "still run, or hang, or was killed from outside (SIGKILL, the host's memory, a lost node, a time "
                "limit), which leaves no message; check `dmesg`, the scheduler and the exit code"
            )
    return _NEXT_STEP
