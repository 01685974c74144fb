# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that cannot be converted for other parallel dims, and universal checkpoints that do not load."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

_REPORT = (
    "report it to DeepSpeed with the parallel dims of the run that saved and of the run that loads; until it is "
    "fixed, resume with the parallel dims that saved it, without `checkpoint.load_universal`"
)

CAUSES = (
    FailureCause(
        "LG163",
        "checkpoint-not-converted",
        "the checkpoint cannot be converted to a universal checkpoint or to consolidated weights",
        "resume with the parallel dims that saved it (then no conversion is needed), or convert with the DeepSpeed "
        "that saved it, or a newer one; `zero_to_fp32.py` consolidates the weights alone",
        (FailureSignature(r"[Uu]niversal checkpoint conversion .*not supported"),),
    ),
    FailureCause(
        "LG164",
        "universal-checkpoint-does-not-fit",
        "the universal checkpoint does not match the parameters or the parallel dims of this run",
        "load it into the same model (layers, hidden sizes, vocabulary and its padding), with a tensor degree that "
        "divides the sizes in the message; convert it again if an older DeepSpeed converted it",
        (),
        page="`ds_to_universal` writes each parameter consolidated, and each rank takes its own shard when it loads. "
        "Checkpoints with uneven tensor shards need the sizes of the shards, which only newer releases record.",
    ),
    FailureCause(
        "LG165",
        "expert-checkpoint-contradicts-itself",
        "the metadata of AutoEP's experts in a checkpoint contradict the files, or this run",
        "load it with the expert and tensor degrees, and the DeepSpeed, that saved it; do not mix files of two saves "
        "in one folder; if a fresh save fails the same way, report it to DeepSpeed and save without AutoEP "
        "(`expert_parallel.enabled: false`)",
        (FailureSignature(r"AutoEP .*metadata .*(?:missing|invalid|inconsistent|malformed)", sure=False),),
    ),
    FailureCause(
        "LG166",
        "layout-maps-contradict",
        "the maps that describe how parameters are laid out over ranks conflict with each other",
        _REPORT,
        (
            FailureSignature(r"\bInvalidMapError\b"),
            FailureSignature(r"\bUnsupportedLayoutError\b"),
            FailureSignature(r"\bAffineTransferError\b"),
            FailureSignature(r"\bInvalidReplicaPolicyError\b"),
        ),
        page="This is an invariant inside DeepSpeed (`checkpoint/affine*.py`). A user alone cannot break it, except "
        "with files of different saves in one folder.",
    ),
)
