# SPDX-License-Identifier: Apache-2.0
"""Ops that DeepSpeed compiles when they are first used."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

CAUSES = (
    FailureCause(
        "LG020",
        "cuda-versions-differ",
        "the installed CUDA toolkit has another version than the CUDA that torch was built with",
        "install the toolkit of torch's CUDA version and point CUDA_HOME at it, or a torch for the installed toolkit; "
        "set DS_SKIP_CUDA_CHECK=1 only where the two are known to be compatible",
        (
            FailureSignature(r"CUDAMismatchException"),
            FailureSignature(
                r"The detected CUDA version \((?P<have>[\d.]+)\) mismatches the version that was used to compile"
            ),
        ),
    ),
    FailureCause(
        "LG021",
        "no-cuda-toolkit",
        "DeepSpeed must compile an op, but this host has no CUDA toolkit",
        "install the toolkit (nvcc) on every host, or build the ops in the image (`DS_BUILD_OPS=1 pip "
        "install deepspeed`)",
        (
            FailureSignature(r"CUDA_HOME does not exist, unable to compile CUDA op"),
            FailureSignature(r"MissingCUDAException|CUDA_HOME environment variable is not set"),
            FailureSignature(r"No such file or directory: '[^']*/nvcc'|nvcc: (?:command )?not found|which: no nvcc"),
        ),
    ),
    FailureCause(
        "LG022",
        "no-compiler",
        "DeepSpeed must compile an op, but a compiler, ninja or Python's headers are missing",
        "install `ninja`, a C++ compiler and the headers of this Python (python3-dev) on every host",
        (
            FailureSignature(r"Ninja is required to load C\+\+ extensions|No such file or directory: 'ninja'"),
            FailureSignature(
                r"(?:No such file or directory: ')(?:c\+\+|g\+\+|gcc|cc|clang\+\+|x86_64\S*-g(?:cc|\+\+))'"
            ),
            FailureSignature(
                r"(?:c\+\+|g\+\+|gcc|cc1plus|ninja): (?:command )?not found|command '\S*(?:gcc|g\+\+|cc)' failed"
            ),
            FailureSignature(r"Python\.h: No such file or directory"),
            FailureSignature(r"Error checking compiler version for|Command '\['which', '(?:c\+\+|g\+\+|ninja)'\]'"),
        ),
    ),
    FailureCause(
        "LG023",
        "libaio-missing",
        "asynchronous I/O needs libaio, which is missing or cannot be used on a host",
        "install `libaio-dev` (Debian, Ubuntu) or `libaio-devel` on every host, or offload to `cpu` instead of `nvme`",
        (
            FailureSignature(r"libaio\.so\S*: cannot open shared object file"),
            FailureSignature(r"undefined symbol: io_(?:setup|submit|getevents|pgetevents)"),
            FailureSignature(r"io_setup.*(?:failed|error)|errno:? ?11.*io_setup", sure=False),
        ),
    ),
    FailureCause(
        "LG024",
        "op-does-not-build",
        "an op of DeepSpeed failed to compile on this host",
        "read the compiler's first error below; `ds_report` and `harness doctor` list what is missing; build it "
        "once before the job, with a low MAX_JOBS if memory is short",
        (
            FailureSignature(r"Error building extension '(?P<op>\w+)'"),
            FailureSignature(r"ninja: build stopped", sure=False),
            FailureSignature(r"Command '\['ninja'[^\]]*\]' (?:returned non-zero|died with)", sure=False),
            FailureSignature(r"fatal error: \S+\.(?:h|hpp|cuh): No such file or directory", sure=False),
        ),
    ),
    FailureCause(
        "LG025",
        "op-of-another-build",
        "a compiled op does not match this Python, torch or C library",
        "remove the op's folder below TORCH_EXTENSIONS_DIR (~/.cache/torch_extensions) to rebuild it; do not share "
        "that folder between different machines",
        (
            FailureSignature(r"ImportError: \S+\.so: (?:undefined symbol|cannot open shared object file)"),
            FailureSignature(r"undefined symbol: _ZN?K?(?:\d*c10|\d*at|\d*torch|3c10|2at|5torch)"),
        ),
    ),
    FailureCause(
        "LG026",
        "stale-lock-of-an-op",
        "ranks wait for the lock file of a compiled op that no process holds any more",
        "remove the file `lock` in the folder named, while no job builds that op; `harness launch` builds ops in one "
        "process beforehand",
        (FailureSignature(r"(?:[Ww]aiting for|stale|held).*torch_extensions\S*/lock"),),
        page="torch makes a file `lock` in the op's folder below TORCH_EXTENSIONS_DIR while it builds. A "
        "build that was killed leaves it there, and every later run waits for it forever, silently: the last line is "
        "`Using ... as PyTorch extensions root`.",
    ),
)
