# SPDX-License-Identifier: Apache-2.0
"""The page `docs/resume-changes.md`, which `python -m tests.docs.resume_page` prints: every key of a run spec, and what a
resume does with a change of it. What is applied is what `tests/training/checkpoint/test_allowed_changes.py` shows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from harness.checkpoints.change_meanings import meaning_of, reason_of
from harness.spec.section_fields import list_spec_keys
from tests.support.changed_keys import BASE, BASES, CHANGES, NOT_SHOWN, Change

HEAD = """# What a resume may change

Written by `make pages` from the rules of a resume and from the cases of its test; a test compares it. The prose is in
[checkpoints](checkpointing.md#resume).

* **free**: the run resumes. *Reported*: a line of the launch names the old and the new value. *Resharded*: the checkpoint is converted
  first.
* **applied**: refused (`harness explain CK107`) unless `--allow-change KEY`, or a section of it, allows it. Then the step after the resume
  is the one that plain torch takes with the new value, from the same weights and optimizer states: the values in the last column were
  compared, `python -m pytest tests/training/checkpoint/test_allowed_changes.py`, on ZeRO-2 in fp32 with the engine checks on, and those of
  the optimizer also on ZeRO 0 to 3, with the optimizer on the CPU and on NVMe, in a pipeline, with tensor parallelism and through a
  resharded checkpoint.
* **by effect**: what the keys come to is compared. The same sequences a step, or the same rates for the steps that are left, in other
  keys or on other ranks: free. Else as *applied*.
* **refused**: `--allow-change` does not allow it, and the message says why.

| Key | A change is | Shown with, or why |
| --- | --- | --- |
"""
KINDS = {
    "shape": "free, resharded",
    "effect": "by effect",
    "blocks": "applied",
    "fixed": "refused",
    "notable": "free, reported",
    "harmless": "free",
}
CONTENTS = {
    "model.name_or_path": "the configuration is compared, and the weights are the checkpoint's",
    "model.revision": "the configuration is compared, and the weights are the checkpoint's",
    "model.tokenizer": "the content is compared; another one: as *applied*",
    "data.chat_template": "the content is compared; another one: as *applied*, by `data.train` and `model.tokenizer`",
    "plugins.file": "the content is compared; another one: as *applied*",
    "deepspeed": "keys that change no number are free and reported; `optimizer.type` is refused, `scheduler` only with the "
    "same kind of schedule, one of DeepSpeed's",
}
"""What the kind alone does not say."""


def leaf_keys() -> list[str]:
    """The keys of a run spec that are no sections."""
    keys = list(list_spec_keys())
    sections = {key.rpartition(".")[0] for key in keys}
    return [key for key in keys if key not in sections]


def shown_changes(key: str) -> list[Change]:
    """The cases of the test that change a key, or one below it."""
    return [c for c in CHANGES if any(name == key or name.startswith(f"{key}.") for name in c.values)]


def rows() -> Iterator[tuple[str, str, str]]:
    """(key, kind, remark), of sections that are alike one row."""
    whole = ["checkpoint", "eval", "export", "logging", "telemetry", "launch", "cluster", "parallel"]
    whole += ["zero.offload_optimizer", "zero.offload_param"]
    for section in whole:
        assert len({meaning_of(key) for key in leaf_keys() if key.startswith(f"{section}.")}) == 1
    done = set()
    for key in leaf_keys():
        section = next((s for s in whole if key.startswith(f"{s}.")), None)
        if section in done:
            continue
        done.add(section or key)
        kind = meaning_of(key)
        name = f"{section}.*" if section else key
        yield name, KINDS[kind], _remark(key, kind)


def _remark(key: str, kind: str) -> str:
    if key.startswith(("data.train.", "data.eval.")):
        return "the content of the training data is compared; another one: as *applied*"
    if key in CONTENTS:
        return CONTENTS[key]
    if kind == "fixed":
        return reason_of(key)
    if kind in ("blocks", "effect"):
        values = [_format_change(key, change) for change in shown_changes(key)]
        return ", ".join(dict.fromkeys(values)) or f"not by a step: {NOT_SHOWN[key]}"
    return ""


def _format_change(key: str, change: Change) -> str:
    written, new = next((n, value) for n, value in change.values.items() if n == key or n.startswith(f"{key}."))
    if written != key:
        return f"`{written}` → {_format(new)}"
    saved = {**BASES[change.base]}
    section, _, name = key.partition(".")
    old = saved.get(key, BASE.get(section, {}).get(name))
    return f"{_format(old)} → {_format(new)}" if old is not None else _format(new)


def _format(value: Any) -> str:
    text = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`"


def to_markdown() -> str:
    """The page."""
    return HEAD + "".join(f"| `{key}` | {kind} | {remark} |\n" for key, kind, remark in rows())


if __name__ == "__main__":
    sys.stdout.write(to_markdown())
