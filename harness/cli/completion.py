# SPDX-License-Identifier: Apache-2.0
"""Values that the shell completes: called at a press of TAB alone. Where nothing fits, the shell completes files."""

from __future__ import annotations

import re
from pathlib import Path

_PLAIN_NAME = re.compile(r"[\w.+@%=,-]+")
"""Other names are not offered: the script of zsh evaluates what it gets, and typer's quotes do not hold `\\$(...)`."""


def complete_run(incomplete: str) -> list[str]:
    """`latest` and the names of the runs below `runs`."""
    from harness.run_records.run_list import OUTPUT_DIR, is_run_dir

    folder = Path(OUTPUT_DIR)
    try:
        names = sorted(path.name for path in folder.iterdir() if is_run_dir(path))
    except OSError:
        return []
    return [name for name in names if name.startswith(incomplete) and _PLAIN_NAME.fullmatch(name)]


def complete_resume(incomplete: str) -> list[str]:
    """Values of `--resume`: its two words, and runs."""
    return [*(word for word in ("auto", "never") if word.startswith(incomplete)), *complete_run(incomplete)]


def complete_explained(incomplete: str) -> list[str]:
    """Ids of findings, and keys of the run spec: by their whole names, by their last part, and by DeepSpeed's names."""
    from harness.check.finding_index import list_rows
    from harness.spec.deepspeed_mapping import json_key_of
    from harness.spec.parse.source import split_key
    from harness.spec.section_fields import list_spec_keys

    keys = list(list_spec_keys())
    json_keys = filter(None, (json_key_of(split_key(key)) for key in keys))
    names = [*(row.id for row in list_rows()), *keys, *(key.rpartition(".")[2] for key in keys), *json_keys]
    return [name for name in dict.fromkeys(names) if name.startswith((incomplete, incomplete.upper()))]


def complete_override(incomplete: str) -> list[str]:
    """Words for `--set`: the keys that have a value, with the equals sign."""
    from harness.spec.section_fields import list_spec_keys

    keys = list(list_spec_keys())
    sections = {key.rpartition(".")[0] for key in keys}
    return [f"{key}=" for key in keys if key.startswith(incomplete) and key not in sections]
