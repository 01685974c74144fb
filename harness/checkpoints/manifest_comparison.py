# SPDX-License-Identifier: Apache-2.0
"""Two manifests, field by field."""

from __future__ import annotations

from harness.checkpoints.change_meanings import meaning_of
from harness.checkpoints.manifest import Manifest
from harness.checkpoints.resume_compatibility import SettingChange, flatten

_IGNORED_FIELDS = ("files", "checksum", "name", "tag", "saved_at", "bytes", "shape")


def compare_manifests(one: Manifest, other: Manifest) -> list[SettingChange]:
    """Every field that is not the same, files and checksums left out. `meaning` is that of a change in the spec."""
    old, new = (flatten({k: v for k, v in m.body.items() if k not in _IGNORED_FIELDS}) for m in (one, other))
    keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    return [SettingChange(key, old.get(key), new.get(key), meaning_of(key.removeprefix("spec."))) for key in keys]
