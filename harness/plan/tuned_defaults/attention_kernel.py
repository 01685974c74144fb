# SPDX-License-Identifier: Apache-2.0
"""The kernel of attention where `model.attn_implementation` leaves it open. Imports nothing that plans memory."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from typing import NamedTuple

from harness.facts import model_table
from harness.hostinfo import machine
from harness.plan.tuned_defaults.default_inputs import DefaultInputs
from harness.run.resolved_run import ATTN_IMPLEMENTATION
from harness.run.tuned_default import TunedDefault
from harness.spec.run_spec import RunSpec

_HOPPER = re.compile(r"\bG?H(?:20|100|200|800)\b")
_BEFORE_AMPERE = re.compile(r"\b(?:[VP]100|P40?|M[46]0|K80|T4|RTX 20[678]0|TITAN|Instinct|MI\d+X?)\b|GTX|Quadro RTX")
_MAX_HEAD_SIZE = 256
"""Of flash kernels, torch's own and the packages'."""
_SHORT_ROWS = 256
"""Tokens below which a mask costs less than a call for each document, measured on the CPU."""
_PACKAGES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}


class AttentionNeeds(NamedTuple):
    """The facts that decide. `gpu`: the name of the device, empty for the CPU; `packages`: importable modules."""

    gpu: str
    is_16bit: bool
    head_size: int
    family: str
    max_length: int
    packing: bool
    dropout: bool
    whole_model: bool
    packages: frozenset[str]


def choose_attention_kernel(inputs: DefaultInputs) -> TunedDefault | None:
    """The kernel for `auto`, by this machine's packages and the device of the spec, or of this machine."""
    if inputs.run.spec.model.attn_implementation != "auto":
        return None
    value, reason = choose_kernel(_find_needs(inputs))
    return TunedDefault("attention kernel", ATTN_IMPLEMENTATION, value, "sdpa", reason, ours=True)


def choose_kernel(needs: AttentionNeeds) -> tuple[str, str]:
    """(kernel, reason). None of the choices was timed on CUDA."""
    reason = _why_sdpa(needs) or _why_short_rows(needs)
    if reason:
        return "sdpa", reason
    cause = _why_no_flash_kernel(needs)
    if cause:
        return "sdpa_varlen", f"{cause}: a call for each document, no mask of {needs.max_length:,} tokens squared"
    is_hopper = _HOPPER.search(needs.gpu) is not None and not needs.dropout
    kernel = "flash_attention_3" if is_hopper and _PACKAGES["flash_attention_3"] in needs.packages else ""
    kernel = kernel or ("flash_attention_2" if _PACKAGES["flash_attention_2"] in needs.packages else "")
    if kernel:
        return kernel, f"packed rows in 16 bit without a mask, and `{_PACKAGES[kernel]}` is installed here"
    return "sdpa_varlen", f"no mask; {_cost_of_missing(needs, is_hopper=is_hopper)}"


def _why_sdpa(needs: AttentionNeeds) -> str:
    if not needs.packing:
        return "rows of one document need no mask, and use torch's own flash kernel in 16 bit"
    if not needs.whole_model:
        return "pipeline stages and compiled models separate documents by masks"
    if not model_table.holds(needs.family, "borders"):
        return f"`{needs.family or 'the model'}` is not known to keep documents apart without masks"
    return ""


def _why_no_flash_kernel(needs: AttentionNeeds) -> str:
    if not needs.gpu:
        return "on the CPU"
    if not needs.is_16bit:
        return "fp32 has no flash kernel"
    if needs.head_size > _MAX_HEAD_SIZE:
        return f"heads of {needs.head_size} have no flash kernel"
    return "this GPU has no flash kernel" if _BEFORE_AMPERE.search(needs.gpu) else ""


def _why_short_rows(needs: AttentionNeeds) -> str:
    if needs.max_length >= _SHORT_ROWS or not _why_no_flash_kernel(needs):
        return ""
    return f"a mask of {needs.max_length:,} tokens squared costs less than a call for each document"


def _cost_of_missing(needs: AttentionNeeds, *, is_hopper: bool) -> str:
    """The price of the package that is not installed here."""
    if needs.dropout:
        return "without `flash_attn` here, dropout needs one call per document instead of one per layer"
    if is_hopper:
        return (
            "torch's flash kernel; without `flash_attn_interface` here, attention takes up to twice the time (figure "
            "of its authors, not run)"
        )
    return "torch's flash kernel, of the same algorithm and memory as `flash_attn`, which is not installed here"


def missing_package(kernel: str | None) -> str | None:
    """The package that a kernel needs and that cannot be imported here; None where nothing is missing."""
    package = _PACKAGES.get(kernel or "")
    return package if package is not None and find_spec(package) is None else None


def _find_needs(inputs: DefaultInputs) -> AttentionNeeds:
    run, model, spec = inputs.run, inputs.model, inputs.run.spec
    return AttentionNeeds(
        _gpu_name(spec),
        spec.precision.bf16 or spec.precision.fp16,
        model.head_dim if model is not None else 0,
        model.family if model is not None else "",
        spec.data.max_length,
        spec.data.packing,
        model is None or model.attention_dropout,
        run.parallel_dims.pipeline == 1 and not spec.train.torch_compile,
        frozenset(package for package in _PACKAGES.values() if find_spec(package) is not None),
    )


def _gpu_name(spec: RunSpec) -> str:
    if spec.cluster.gpu is not None:
        return "" if spec.cluster.gpu == "cpu" else spec.cluster.gpu
    devices = machine.accelerators_for({**os.environ, **spec.launch.env})
    return devices[0].name if devices else ""
