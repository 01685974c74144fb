# SPDX-License-Identifier: Apache-2.0
"""Compiled ops and extensions: built beforehand, linked without a library, loaded too late, and Windows. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import SITE, diagnose_text, traceback_text

OPS = f"{SITE}/deepspeed/ops"
CACHE = "/root/.cache/torch_extensions/py311_cu121"
LD = "/usr/bin/ld: cannot find -l"
REINSTALL = "DS_BUILD_OPS=0 pip install"


@pytest.mark.parametrize(
    ("message", "cause", "title", "change"),
    [
        (f"{OPS}/odd/odd_adam_op.cpython-311-x86_64-linux-gnu.so: undefined symbol: curandOdd", "LG025",
         "`odd_adam` was compiled with its installation, without a link to CUDA's `libcurand`", f"{REINSTALL} -U"),
        (f"{OPS}/odd/odd_adam_op.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c103oddEv", "LG025",
         "`odd_adam` was compiled with its installation, for another torch", REINSTALL),
        (f"{CACHE}/odd_adam/odd_adam.so: undefined symbol: cublasOddEx", "LG025",
         "`odd_adam` was linked without CUDA's `libcublas`", "LIBRARY_PATH"),
        (f"{CACHE}/odd_adam/odd_adam.so: undefined symbol: GOMP_odd", "LG025", "does not match", "remove the op"),
        ("/job/odd/build/odd.so: undefined symbol: _Z3oddi", "LG223", "`odd.so` was built for another", "c++filt _Z3oddi"),
        ("/lib/libodd.so.1: cannot allocate memory in static TLS block", "LG223", "`libodd.so.1` was loaded too late",
         "LD_PRELOAD=/lib/libodd.so.1"),
        ("/lib/libtorch_cpu.so: undefined symbol: iJIT_Odd", "LG223", "MKL before 2024.1", "mkl<2024.1"),
        (f"{CACHE}/odd_adam/odd_adam.so: file too short", "LG025", "op `odd_adam` is damaged", "remove the op"),
        ("dynamic module does not define module export function (PyInit_cpu_odd)", "LG025", "op `cpu_odd`", "remove"),
        (f"{CACHE}/odd_adam/odd_adam.so: failed to map segment from shared object", "LG051", "`noexec`", "findmnt"),
        ("/lib/odd.so: invalid ELF header", "LG223", "file `/lib/odd.so` is damaged", "--force-reinstall"),
    ],
)  # fmt: skip
def test_an_extension_that_does_not_load_is_likely_at_most(message, cause, title, change):
    diagnosis = diagnose_text(traceback_text([("/job/odd.py", "main", "load()")], f"ImportError: {message}"))
    assert (diagnosis.cause, diagnosis.confidence) == (cause, "likely")
    assert title in diagnosis.title
    assert change in diagnosis.change
    assert decide_action(diagnosis).action == "change and retry"


@pytest.mark.parametrize(
    ("line", "cause", "title", "change"),
    [
        (f"{LD}curand: No such file or directory", "LG158", "does not find `libcurand.so`", "LIBRARY_PATH=$CUDA_HOME"),
        (f"{LD}c10_cuda", "LG024", "does not find `libc10_cuda.so`", "torch/lib"),
        (f"{LD}odd++", "LG024", "does not find `libodd++.so`", "libodd++-dev"),
        ("LINK : fatal error LNK1104: cannot open file 'odd.lib'", "LG158", "does not find `odd.lib`", "CUDA_PATH"),
        ("fatal error C1083: Cannot open include file: 'odd.h': No such LINK", "LG158", "header `odd.h`", "CUDA_PATH"),
        ("odd.h:1:2: fatal error: immintrin.h: No such file or directory", "LG024", "another kind of CPU", "ARM"),
        ("ld: /lib/libc.so.6: undefined reference to `_odd@GLIBC_PRIVATE'", "LG024", "linker of conda", "CXX="),
        ("ld: odd.o: undefined reference to `oddCreate'", "LG024", "finds no `oddCreate`", "LIBRARY_PATH"),
    ],
)
def test_a_library_that_the_linker_does_not_find(line, cause, title, change):
    end = "collect2: error: ld returned 1 exit status\nRuntimeError: Error building extension 'odd_adam'\n"
    diagnosis = diagnose_text(f"{line}\n{end}" if "LINK" not in line else f"{line}\n")
    assert (diagnosis.cause, title in diagnosis.title, change in diagnosis.change) == (cause, True, True)


@pytest.mark.parametrize(
    ("folder", "title", "change"),
    [
        ("C:\\odd\\deepspeed", "installation on Windows compiles all ops beforehand, and `odd_io`", "build_win.bat"),
        ("/odd/pip-req-build-1/deepspeed", "told to compile the op `odd_io` beforehand", "leave `DS_BUILD_OPS` unset"),
    ],
)
def test_an_op_that_cannot_be_compiled_beforehand(folder, title, change):
    frame = f'  File "{folder}\\setup.py", line 5, in abort\n    assert False, msg\n'.replace("\\setup", "/setup" if
             folder[0] == "/" else "\\setup")  # fmt: skip
    log = f"Traceback (most recent call last):\n{frame}AssertionError: Unable to pre-compile odd_io\nDS_BUILD_OPS=1\n"
    diagnosis = diagnose_text(log)
    assert (diagnosis.cause, diagnosis.confidence) == ("LG024", "likely")
    assert title in diagnosis.title
    assert change in diagnosis.change


def test_a_link_that_windows_refuses():
    error = "OSError: [WinError 1314] A required privilege is not held by the client: 'odd' -> 'even'"
    diagnosis = diagnose_text(traceback_text([("/job/odd.py", "main", "os.symlink(a, b)")], error))
    assert (diagnosis.cause, "Developer Mode" in diagnosis.change) == ("LG051", True)
