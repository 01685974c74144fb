# SPDX-License-Identifier: Apache-2.0
"""The phase in which a job failed: from the frames of the traceback, else from the last lines before the failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from harness.diagnosis.catalogue import CATALOGUE
from harness.diagnosis.diagnosis_types import FailurePhase, Frame, PhaseMark
from harness.entry_file import read_entries

_PHASES = read_entries(CATALOGUE / "phases" / "frames.txt")
_PATTERNS = tuple((name, re.compile(fields["frames"])) for name, fields in _PHASES.items() if "frames" in fields)
_WAITS_FOR_RANKS = ("subprocess.py wait", "subprocess.py _wait", "subprocess.py _try_wait")
_STEPPED = ("forward", "backward", "optimizer step", "training", "batch")
"""Parts of a step; the last marks say which step."""
_SHARED = ("forward", "batch")
"""Parts of an evaluation, too."""
_NAMED_BY_FRAMES = ("engine", "op", "optimizer states")
"""Phases that are calls: a whole traceback without their frames is from later, whatever was printed last."""


def find_phase(frames: Sequence[Frame], mark: PhaseMark, *, is_over: bool = False) -> FailurePhase | None:
    """The phase of a failure with this traceback, after this mark; None where neither says anything.

    `is_over`: the log merely ends there, nothing failed.
    """
    name = phase_of_frames(frames)
    functions = {frame.function for frame in frames if not frame.file.startswith("<frozen")}
    is_at_start = bool(functions) and functions <= {"<module>", ""}  # the script's own frames only import
    if name == "import" and (mark.name not in ("", "import") or not is_at_start):
        name = ""
    source: Literal["traceback", "lines"] = "traceback" if name else "lines"
    name = name or mark.name
    is_whole = bool(frames) and frames[0].function in ("<module>", "main")  # it begins where the script does
    if not name or (source == "lines" and name in _NAMED_BY_FRAMES and is_whole):
        return None
    fields = _PHASES[name]
    text = fields["text"] if source == "traceback" else fields.get("after its lines", fields["text"])
    if name in _SHARED and mark.name == "evaluation" and not mark.has_trained:
        name, text = mark.name, _PHASES[mark.name]["text"]
    is_step = name in _STEPPED
    has_begun = mark.name in ("training", "engine") or mark.has_bar
    if is_step and not mark.has_trained and has_begun and mark.step in (None, 0):
        part = "" if name == "training" else f", {fields['text']}"
        return FailurePhase("first step", f"in the first step{part}", None, source)
    step = mark.step if mark.has_trained or mark.step else None
    if step is not None and (is_step or name in ("saving", "evaluation", "generation", "ending", "best model")):
        text += f", after step {step}"
    elif is_step and mark.has_trained and name != "training":
        text += ", after other steps"
    if is_over and source == "lines":
        text = f"the last lines are from {fields['last lines']}" if "last lines" in fields else text
    return FailurePhase(name, text, step, source)


def phase_of_frames(frames: Sequence[Frame]) -> str:
    """The most specific phase that a frame shows; empty where none does."""
    texts = [f"{frame.file} {frame.function}" for frame in frames]
    for name, pattern in _PATTERNS:
        if any(pattern.search(text) for text in texts):
            return "" if name == "launcher" and any(text.endswith(_WAITS_FOR_RANKS) for text in texts) else name
    return ""
