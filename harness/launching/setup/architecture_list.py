# SPDX-License-Identifier: Apache-2.0
"""`TORCH_CUDA_ARCH_LIST` as DeepSpeed's builds of ops read it."""

from __future__ import annotations

import re

VARIABLE = "TORCH_CUDA_ARCH_LIST"
_READABLE = re.compile(r"\d+\.\d+(\+PTX)?")
_WITH_SUFFIX = re.compile(r"(\d+\.\d+)[a-z](\+PTX)?")


def find_unreadable_architectures(value: str) -> tuple[str, ...]:
    """The entries for which the build of an op ends with a ValueError.

    Source: `compute_capability_args` of `op_builder/builder.py`, run on 0.19.8 with each form: it takes numbers alone,
    `9.0` or `9.0+PTX`, and neither `9.0a` nor `Hopper`.
    """
    return tuple(entry for entry in value.replace(" ", ";").split(";") if entry and not _READABLE.fullmatch(entry))


def strip_architecture_suffixes(value: str) -> str | None:
    """The list with `9.0` in place of `9.0a`, or None where an entry is no number."""
    entries = [entry for entry in value.replace(" ", ";").split(";") if entry]
    numbers = [_WITH_SUFFIX.sub(lambda match: f"{match[1]}{match[2] or ''}", entry) for entry in entries]
    return ";".join(numbers) if all(map(_READABLE.fullmatch, numbers)) else None
