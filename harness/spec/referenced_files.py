# SPDX-License-Identifier: Apache-2.0
"""Files that a configuration names: looked up from the current folder or from above the file that names them, and read.

Checks no key of theirs.
"""

from __future__ import annotations

from pathlib import Path

from harness.errors import UserError
from harness.file_io import relative_to_cwd
from harness.findings import Finding, Fix, Place
from harness.spec.deepspeed_mapping import DeepSpeedJson
from harness.spec.parse.source import BOM, KeyPath, decode, input_error, join_key, read_bytes
from harness.spec.parse.source_parser import parse_lenient


def find_referenced_file(file: str, name: str) -> str | None:
    """A file that another one names: from the current folder, as its program looks it up, or from a folder above the
    file that names it.
    """
    folders = [Path.cwd(), *Path(file).absolute().parents] if file != "-" else [Path.cwd()]
    candidates = [Path(name)] if Path(name).is_absolute() else [folder / name for folder in folders]
    return next((str(relative_to_cwd(path)) for path in candidates if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or a character that no path has
        return False


def missing_file_finding(name: str, path: KeyPath, place: Place) -> Finding:
    """A referenced file that does not exist: its content was not checked."""
    return Finding(
        "SP021",
        "warning",
        f"`{name}` is not found on this machine, so it was not checked",
        join_key(path),
        place,
        notes=("searched in the current folder, and in every folder above this file",),
        fix=Fix("run it where the path exists, or check that file separately"),
    )


def _deepspeed_keys() -> frozenset[str]:
    from harness.facts.deepspeed_keys import block_keys

    return frozenset(block_keys("") or {})


def _not_a_config_error(file: str) -> UserError:
    """A file without DeepSpeed's keys may be any file of this machine: it is not quoted."""
    message = f"`{file}` is not a DeepSpeed configuration: it contains none of DeepSpeed's keys"
    return input_error("SP016", message, Place(file, 1, 1), "name a DeepSpeed JSON")


def read_deepspeed_json(file: str) -> DeepSpeedJson:
    """A DeepSpeed JSON that another file names, as accelerate and the Trainer read it. Raises UserError."""
    from harness.spec import json_dialects

    content = read_bytes(file)
    text = decode(content, file)
    try:
        document = parse_lenient(text, file)
    except UserError as error:
        if not any(name in text for name in _deepspeed_keys()):
            raise _not_a_config_error(file) from None
        place = error.findings[0].place
        word = json_dialects.find_placeholder(text, place.line, place.column) if place else None
        raise UserError([json_dialects.template_finding(word, place)]) if word and place else error from None
    if document.source.data and not document.source.data.keys() & _deepspeed_keys():
        raise _not_a_config_error(file)
    template = json_dialects.find_template(document)
    if template is not None:
        raise UserError([template])
    dialect_findings = json_dialects.check_dialect(document, "accelerate", bom=content.startswith(BOM))
    return DeepSpeedJson(document.source, (*document.duplicate_keys, *dialect_findings))
