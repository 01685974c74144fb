# SPDX-License-Identifier: Apache-2.0
"""GPUs, drivers and kernels on them."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

CAUSES = (
    FailureCause(
        "LG010",
        "driver-too-old",
        "the NVIDIA driver is too old for the CUDA version that torch was built with",
        "update the driver on that host, or install a torch that was built for the CUDA version of this driver",
        (
            FailureSignature(r"CUDA driver version is insufficient for CUDA runtime version"),
            FailureSignature(r"The NVIDIA driver on your system is too old"),
            FailureSignature(r"forward compatibility was attempted on non supported HW"),
        ),
    ),
    FailureCause(
        "LG011",
        "no-kernel-for-this-gpu",
        "torch or an op was built without kernels for this GPU's compute capability",
        "install a torch that was built for this GPU; for DeepSpeed's or other ops set `TORCH_CUDA_ARCH_LIST` and "
        "rebuild them",
        (
            FailureSignature(r"no kernel image is available for execution on the device"),
            FailureSignature(r"CUDA capability sm_\d+ is not compatible with the current PyTorch", sure=False),
            FailureSignature(r"device kernel image is invalid|unsupported gpu architecture"),
        ),
    ),
    FailureCause(
        "LG012",
        "no-gpu",
        "a rank found no GPU",
        "look at `nvidia-smi` on that host and at CUDA_VISIBLE_DEVICES, and check that this torch is a CUDA build",
        (
            FailureSignature(r"No CUDA GPUs are available|no CUDA-capable device is detected"),
            FailureSignature(r"Cannot access accelerator device when none is available"),
        ),
    ),
    FailureCause(
        "LG013",
        "more-ranks-than-gpus",
        "a rank was started for a GPU that does not exist",
        "start no more ranks per host than it has GPUs: `--num_gpus`, the hostfile's `slots`, CUDA_VISIBLE_DEVICES",
        (FailureSignature(r"CUDA error: invalid device ordinal"),),
    ),
    FailureCause(
        "LG014",
        "index-beyond-the-embedding",
        "an index is out of range of its table: most often a token id, position or label",
        "compare the tokenizer's size with `vocab_size` of the model (and labels other than -100 too), and the "
        "sequence length with the model's number of positions; CUDA_LAUNCH_BLOCKING=1 names the place",
        (
            FailureSignature(
                r"(?:indexSelect|index_select|vectorized_gather|IndexKernel|ScatterGather|Indexing|gather).*Assertion"
            ),
            FailureSignature(
                r"Assertion `?(?:srcIndex < srcSelectDimSize|t >= 0 && t < n_classes|-?sizes?\[i\] <= index)"
            ),
            FailureSignature(r"Target -?\d+ is out of bounds"),
        ),
    ),
    FailureCause(
        "LG015",
        "device-side-assert",
        "an assertion of a GPU kernel failed, most often an index out of range",
        "run again with CUDA_LAUNCH_BLOCKING=1, which names the operation; compare token ids with the vocabulary",
        (FailureSignature(r"device-side assert(?:ion)? triggered|hipErrorAssert", sure=False),),
    ),
    FailureCause(
        "LG016",
        "gpu-failed",
        "a GPU reported a hardware error",
        "take that host out of the hostfile (`--exclude`), resume from the last checkpoint, and have the GPU checked "
        "(`nvidia-smi -q`, `dmesg | grep Xid`)",
        (
            FailureSignature(r"uncorrectable ECC error|ECC error encountered"),
            FailureSignature(r"GPU has fallen off the bus"),
            FailureSignature(r"NVRM: Xid .*?: (?:48|63|64|74|79|92|94|95|119|120)\b", sure=False),
            FailureSignature(
                r"CUDA error: (?:hardware stack error|GPU is lost|the launch timed out|unknown error)", sure=False
            ),
            FailureSignature(r"Unable to determine the device handle for GPU|NVML_ERROR_GPU_IS_LOST"),
        ),
    ),
    FailureCause(
        "LG017",
        "illegal-memory-access",
        "a kernel accessed invalid memory: a bug in a kernel, or a broken GPU",
        "run again with CUDA_LAUNCH_BLOCKING=1 to find it; try without custom kernels (flash attention, fused "
        "optimizers); if it always fails on the same host, suspect the GPU",
        (
            FailureSignature(r"an illegal memory access was encountered", sure=False),
            FailureSignature(
                r"unspecified launch failure|misaligned address|CUBLAS_STATUS_EXECUTION_FAILED", sure=False
            ),
            FailureSignature(r"NVRM: Xid .*?: (?:13|31)\b", sure=False),
        ),
    ),
    FailureCause(
        "LG018",
        "segmentation-fault",
        "native code of a rank crashed",
        "check what differs from the last run that worked: driver, NCCL, a compiled op built for another torch "
        "(remove its folder below TORCH_EXTENSIONS_DIR); `python -X faulthandler` names the line",
        (
            FailureSignature(r"failed \(exitcode: -11\)|Signal 11 \(SIGSEGV\)|exited on signal 11"),
            FailureSignature(r"Segmentation fault|Fatal Python error: Segmentation"),
            FailureSignature(r"exits with return code = (?:-4|132|-8|136)\b|Illegal instruction"),
        ),
        level="end",
    ),
    FailureCause(
        "LG019",
        "number-format-not-on-this-device",
        "this device does not support the requested dtype",
        "use bf16 or fp32 there, or another device",
        (
            FailureSignature(r"Type (?:fp16|bf16) is not supported"),
            FailureSignature(r"not implemented for '(?:Half|BFloat16)'"),
            FailureSignature(r"FlashAttention only supports Ampere GPUs|bf16 is only supported on A100"),
        ),
    ),
)
