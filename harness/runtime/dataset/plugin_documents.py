# SPDX-License-Identifier: Apache-2.0
"""The plug-in's `load_documents`: its records become a JSONL file, prepared like any other."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.runtime import plugin_loader
from harness.runtime.user_errors import user_error
from harness.spec.run_spec import RunSpec
from harness.spec.sections.data_spec import DataSource, DataSpec

_MAX_KEPT_FILES = 3
"""Files of records that stay in a cache."""


def add_plugin_documents(spec: RunSpec, folder: Path) -> DataSpec:
    """The `data` section, with the plug-in's documents as training data if it has any.

    Each start writes the records again, to a file named by their sha256: the inputs of the function may have changed.
    Raises UserError (MD157, MD158).
    """
    plugin = plugin_loader.load_plugin(spec)
    if plugin is None or plugin.load_documents is None:
        return spec.data
    if spec.data.train:
        raise user_error(
            "MD158",
            "`data.train` is set, and the plug-in has `load_documents`",
            key="data.train",
            fix="remove one of the two",
        )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        path = _write_records(plugin.load_documents(spec), folder)
    except OSError:
        raise
    except Exception as error:
        raise user_error(
            "MD158",
            f"`load_documents` of the plug-in fails: {type(error).__name__}: {error}",
            key="plugins.file",
            notes=('it must yield records such as {"text": "..."}, of values that JSON can hold',),
            fix="fix the function",
        ) from error
    for old in sorted(folder.glob("*.jsonl"), key=lambda p: p.stat().st_mtime)[:-_MAX_KEPT_FILES]:
        old.unlink(missing_ok=True)
    return spec.data.model_copy(update={"train": (DataSource(path=str(path)),)})


def _write_records(records: Iterable[Mapping[str, Any]], folder: Path) -> Path:
    """Write one record a line; the file appears when it is complete."""
    digest = hashlib.sha256()
    handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=folder)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            for record in records:
                line = json.dumps(dict(record), ensure_ascii=False).encode() + b"\n"
                digest.update(line)
                file.write(line)
        path = folder / f"{digest.hexdigest()[:32]}.jsonl"
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
