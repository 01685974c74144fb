# SPDX-License-Identifier: Apache-2.0
"""Frozen and trained parameters: `model.freeze` and `model.train_only`, globs over parameter names.

A frozen parameter has no gradient, no optimizer state and no master copy, at any ZeRO stage. Stages 0-2 keep it whole
on every rank in the training format; stage 3 shards it like any other.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import torch

from harness.runtime.user_errors import user_error
from harness.spec.run_spec import ModelSpec


def freeze_parameters(model: torch.nn.Module, spec: ModelSpec) -> None:
    """Freeze by the spec. Raises UserError (MD152 a pattern that fits nothing, MD153 nothing left to train)."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)  # a tied parameter has several
    for key, patterns in (("freeze", spec.freeze), ("train_only", spec.train_only)):
        _check_patterns(key, patterns, [name for parameter_names in names.values() for name in parameter_names])
    for parameter in model.parameters():
        parameter_names = names[id(parameter)]
        is_trained = (
            _matches_any(parameter_names, spec.train_only)
            if spec.train_only
            else not _matches_any(parameter_names, spec.freeze)
        )
        if not is_trained:
            parameter.requires_grad_(False)
    check_any_trainable(model, "model.freeze" if spec.freeze else "model.train_only")


def check_any_trainable(model: torch.nn.Module, key: str) -> None:
    """Raise UserError (MD153) when every parameter is frozen."""
    if not any(p.requires_grad for p in model.parameters()):
        raise user_error(
            "MD153",
            f"`{key}` leaves no parameter to train",
            key=key,
            notes=("the optimizer would have no parameters",),
            fix=f"remove a pattern from `{key}`",
        )


def _matches_any(names: Sequence[str], patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def _check_patterns(key: str, patterns: Sequence[str], names: list[str]) -> None:
    for pattern in patterns:
        if not _matches_any(names, (pattern,)):
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3) or names[:3]
            raise user_error(
                "MD152",
                f"`{pattern}` in `model.{key}` matches no parameter of the model",
                key=f"model.{key}",
                notes=("near it: " + ", ".join(f"`{name}`" for name in near), "`*` matches any text, dots included"),
                fix=f"write `{_to_glob(near[0])}`, or another name of the model",
            )


def _to_glob(name: str) -> str:
    """The name with `*` for its layer number."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
