# SPDX-License-Identifier: Apache-2.0
"""Disks, files and permissions."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

CAUSES = (
    FailureCause(
        "LG050",
        "disk-full",
        "a disk is full, or a quota is used up",
        "free space (old checkpoints, ~/.cache), or write elsewhere; `harness plan` counts a checkpoint's bytes",
        (
            FailureSignature(r"No space left on device|Errno 28\b|ENOSPC"),
            FailureSignature(r"Disk quota exceeded|Errno 122\b|EDQUOT"),
            FailureSignature(
                r"PytorchStreamWriter failed writing file|inline_container\.cc.*unexpected pos \d+ vs \d+", sure=False
            ),
            FailureSignature(r"basic_ios::clear: iostream error", sure=False),
        ),
    ),
    FailureCause(
        "LG051",
        "permission-denied",
        "a rank has no permission to read or write a file",
        "give the job's user access to the path on every host, or set another path",
        (
            FailureSignature(r"PermissionError: \[Errno 1?3?\] ?.*|\[Errno 13\] Permission denied"),
            FailureSignature(r"^(?:bash|sh|/\S+): (?:line \d+: )?\S+: Permission denied"),
            FailureSignature(r"Read-only file system|Errno 30\b"),
        ),
    ),
    FailureCause(
        "LG052",
        "file-system-failed",
        "a disk or file system returned an I/O error",
        "check the disk or the network file system of that host; resume from the last checkpoint",
        (
            FailureSignature(r"Stale file handle|Errno 116\b"),
            FailureSignature(r"\[Errno 5\] Input/output error|Remote I/O error|Errno 121\b"),
            FailureSignature(r"Transport endpoint is not connected|Errno 107\b"),
        ),
    ),
    FailureCause(
        "LG053",
        "too-many-open-files",
        "a rank reached its limit of open files",
        "raise `ulimit -n` on that host, use fewer data loader workers, or "
        "`torch.multiprocessing.set_sharing_strategy('file_system')`",
        (FailureSignature(r"Too many open files|Errno 24\b"),),
    ),
    FailureCause(
        "LG054",
        "file-not-found",
        "a file that a rank needs does not exist",
        "check the path on the host of that rank: all hosts must see it under the same name",
        (
            FailureSignature(r"can't open file '(?P<path>[^']+)': \[Errno 2\]"),
            FailureSignature(
                r"FileNotFoundError: \[Errno 2\] No such file or directory: '?(?P<path>[^']*)", sure=False
            ),
            FailureSignature(r"(?:IsADirectoryError|NotADirectoryError): \[Errno \d+\]"),
            FailureSignature(r"^(?:bash|sh): (?:line \d+: )?(?:cd: )?\S+: No such file or directory"),
        ),
    ),
    FailureCause(
        "LG055",
        "nvme-io-failed",
        "reading or writing swapped tensors on NVMe failed",
        "check free space, the disk and `aio` in the configuration; `harness doctor --tune-nvme` measures the disk",
        (
            FailureSignature(r"(?:async_io|aio|swap).*(?:Input/output error|failed|Invalid argument)", sure=False),
            FailureSignature(r"AssertionError", sure=False, frames=r"swap_tensor/", frames_required=True),
        ),
    ),
)
