# SPDX-License-Identifier: Apache-2.0
"""Accelerators, inference, autotuning, profilers and DeepSpeed's other tools."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

CAUSES = (
    FailureCause(
        "LG162",
        "inference-refused",
        "DeepSpeed's inference, or its kernel injection, does not support this model or setting",
        "set `replace_with_kernel_inject: false` (AutoTP or plain torch then runs the model), or change the setting "
        "that the message names; the hybrid engine needs kernel injection: generate without it",
        (FailureSignature(r"You are running with DeepSpeed Inference mode"),),
    ),
    FailureCause(
        "LG174",
        "accelerator-not-there",
        "the accelerator that DeepSpeed should use was not found, or its package is missing",
        "install the accelerator's package for torch, or unset `DS_ACCELERATOR`, so that DeepSpeed detects the "
        "accelerator",
        (),
    ),
    FailureCause(
        "LG175",
        "autotuning-refused",
        "DeepSpeed's autotuning refused its configuration, or found nothing to run",
        "correct what the message names in the `autotuning` block or on the command line, or run without "
        "`--autotuning`",
        (),
    ),
)
