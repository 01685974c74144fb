# SPDX-License-Identifier: Apache-2.0
"""Ops that do not exist for a device, that their compiler refuses, and kernels that refuse their tensors."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

CAUSES = (
    FailureCause(
        "LG155",
        "op-not-on-this-accelerator",
        "DeepSpeed does not have this op on this kind of accelerator",
        "switch off the feature that needs it, or run on an accelerator that has it: `ds_report` lists the ops of the "
        "accelerator in use, and `DS_ACCELERATOR` chooses it",
        (),
    ),
    FailureCause(
        "LG156",
        "compiler-not-for-this-toolkit",
        "nvcc refuses the C++ compiler of this host",
        "install a gcc that this CUDA toolkit supports (its `host_config.h` names the newest) and point `CC`, `CXX` "
        "and `CUDAHOSTCXX` at it, or use a newer toolkit; with conda: `conda install gxx_linux-64=VERSION`",
        (
            FailureSignature(r"unsupported GNU version! gcc versions (?:later|older) than (?P<newest>[\d.]+)"),
            FailureSignature(r"unsupported (?:GNU|clang|Microsoft Visual Studio) version!"),
            FailureSignature(r"unsupported GNU compiler version"),
        ),
    ),
    FailureCause(
        "LG157",
        "compiler-killed",
        "the compiler of an op was killed, most often because the host ran out of memory",
        "build with fewer processes (`MAX_JOBS=2`), once and before the job (`DS_BUILD_OPS=1 pip install deepspeed`, "
        "or one rank alone), or give the container more memory",
        (),
    ),
    FailureCause(
        "LG158",
        "cuda-toolkit-incomplete",
        "the CUDA toolkit that compiles lacks a header or a library",
        "install the whole toolkit of torch's CUDA version (the `-devel` image, `cuda-toolkit`, or `conda install -c "
        "nvidia cuda-toolkit`) and set `CUDA_HOME` to it; torch's wheels contain the libraries, but no compiler and "
        "not all headers; `LIBRARY_PATH` must contain the folder with the `lib*.so` that the linker misses",
        (
            FailureSignature(
                r"fatal error: (?P<header>cuda\w*\.h|cublas\w*\.h|curand\w*\.h|cusparse\w*\.h|cusolver\w*\.h|cufile\.h|"
                r"nvrtc\.h|cuda/\S+|thrust/\S+|cub/\S+|cooperative_groups\.h|device_launch_parameters\.h|crt/\S+|"
                r"nv/target|cudnn\w*\.h|nccl\.h|driver_types\.h|vector_types\.h): No such file"
            ),
        ),
    ),
    FailureCause(
        "LG159",
        "cpu-optimizer-op-missing",
        "the op of a CPU optimizer could not be built or loaded, so creating the optimizer failed",
        "fix the first error of that op further up, which is the cause (a compiler, `ninja`, the CUDA toolkit): "
        'build the op alone with `python -c "from deepspeed.ops.op_builder import CPUAdamBuilder; '
        'CPUAdamBuilder().load()"`, or leave out `offload_optimizer`',
        (),
        level="end",
        page="`DeepSpeedCPUAdam.__del__` of releases up to 0.19.7 reads `ds_opt_adam`, which `__init__` sets after "
        "the op has loaded: the AttributeError only follows the failure of the build, which is further up in the log.",
    ),
    FailureCause(
        "LG160",
        "optimizer-refuses-its-parameters",
        "an optimizer of DeepSpeed got parameters, gradients or dtypes that it does not support",
        "use an optimizer that takes them (`torch.optim.AdamW` with `zero_force_ds_cpu_optimizer: false`, or "
        "`torch_adam: true`), or change what the message names",
        (),
    ),
    FailureCause(
        "LG161",
        "kernel-refuses-its-tensors",
        "an optional kernel of DeepSpeed does not support these tensors, or not on this device",
        "switch the kernel off, so that torch's own operation runs, or change the tensors as the message says",
        (FailureSignature(r"fused (?:RMSNorm|RoPE) (?:needs|supports|runs|is|expected|treats) "),),
    ),
    FailureCause(
        "LG176",
        "libaio-not-found",
        "DeepSpeed did not find libaio",
        "only offload to NVMe needs it: install `libaio-dev` (Debian, Ubuntu) or `libaio-devel` on every host for that",
        (FailureSignature(r"please install the libaio\S* package with"),),
        level="hint",
        page="DeepSpeed links a test program to find out, and warns whenever it looks through its ops: `cannot find "
        "-laio` and `cannot find -lcufile` are lines of that test. A job without offload to NVMe continues.",
    ),
    FailureCause(
        "LG177",
        "optimized-linear-refused",
        "`deepspeed.linear` (LoRA with sharded or quantized base weights) refused its configuration",
        "correct the argument that the message names; the base weights are sharded over all ranks or over none, and "
        "are quantized in bfloat16 only",
        (),
    ),
    FailureCause(
        "LG178",
        "sparse-attention-refused",
        "DeepSpeed's sparse attention refused its layout or its tensors",
        "correct the size that the message names, or use the attention of torch or flash-attn: sparse attention "
        "works with fp16 on old GPUs and Triton 1 only, and newer DeepSpeed releases no longer have it",
        (FailureSignature(r"sparse attention only supports training in fp16"),),
    ),
)
