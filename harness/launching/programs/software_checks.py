# SPDX-License-Identifier: Apache-2.0
"""The software of this machine that training needs: packages and compilers, as rows of `harness doctor`."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.check.environment_fit import describe_hidden
from harness.facts.required_ops import COMPILE_SECONDS
from harness.facts.tested_releases import TESTED_RELEASES, describe_untested
from harness.hostinfo import machine
from harness.hostinfo.torch_extensions import describe_unwritable, find_planted_ops, torch_extensions_dir
from harness.hostinfo.training_packages import install_command
from harness.launching.ops.build_cache import find_op_folders
from harness.launching.ops.local_build import planted_ops_finding, unwritable_finding
from harness.launching.programs.doctor_rows import DoctorCheck
from harness.launching.setup.architecture_list import (
    VARIABLE,
    find_unreadable_architectures,
    strip_architecture_suffixes,
)


def check_software() -> Iterator[DoctorCheck]:
    """Python and the packages that train."""
    optimised = bool(sys.flags.optimize or os.environ.get("PYTHONOPTIMIZE"))
    yield DoctorCheck(
        "software",
        "python",
        f"{platform.python_version()} ({sys.executable})",
        "missing" if optimised else "ok",
        "assertions are off, so DeepSpeed would train configurations that it should refuse" if optimised else "",
        "unset PYTHONOPTIMIZE and start Python without -O" if optimised else "",
    )
    yield DoctorCheck(
        "software", "harness", machine.package_version("deepspeed-harness") or "not installed, runs from its folder"
    )
    for name in ("torch", "deepspeed", "transformers", "accelerate", "safetensors"):
        version = machine.package_version(name)
        if version is None:
            needed = name in {"torch", "deepspeed", "transformers", "safetensors"}
            yield DoctorCheck(
                "software",
                name,
                "not installed",
                "missing" if needed else "note",
                "no training; validating, planning and rendering work" if needed else "",
                install_command("train"),
            )
        else:
            yield _check_version(name, version)


def _check_version(name: str, version: str) -> DoctorCheck:
    known = "; the gates know which rules changed between releases" if name == "deepspeed" else ""
    untested = describe_untested(name) if name in TESTED_RELEASES else ""
    means = "; ".join(filter(None, [untested and untested + known, describe_hidden(name)]))
    return DoctorCheck("software", name, version, "note" if means else "ok", means)


def check_compilers(*, accelerated: bool, cuda: str | None) -> Iterator[DoctorCheck]:
    """The programs and libraries that compile DeepSpeed's ops; `cuda`: the CUDA release of torch."""
    compiler = machine.cxx_compiler()
    yield DoctorCheck(
        "compiling",
        "C++ compiler",
        compiler or "none",
        "ok" if compiler else "missing",
        "" if compiler else "DeepSpeed compiles its optimizers on first use",
        "" if compiler else "apt install g++",
    )
    bin_dir = Path(sys.executable).parent
    ninja = shutil.which("ninja", path=f"{bin_dir}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    yield DoctorCheck(
        "compiling",
        "ninja",
        ninja or "none",
        "ok" if ninja else "missing",
        "" if ninja else "torch builds extensions with it",
        "" if ninja else "pip install ninja",
    )
    nvcc = machine.find_nvcc(os.environ)
    if accelerated:
        yield _check_nvcc(nvcc, cuda)
        yield from _check_architectures(os.environ.get(VARIABLE, ""))
    has_aio = machine.can_link_libaio()
    aio_means = "offload to nvme" if has_aio else "no offload to nvme"
    if has_aio and accelerated and nvcc is None:
        aio_means = "offload to nvme, once there is nvcc, too"
    yield DoctorCheck(
        "compiling",
        "libaio",
        "headers and library" if has_aio else "none",
        "ok" if has_aio else "note",
        aio_means,
        "" if has_aio else "apt install libaio-dev",
    )
    make = shutil.which("make")
    yield DoctorCheck(
        "compiling",
        "make",
        make or "none",
        "ok" if make else "note",
        "" if make else "`make demo` and `make test` need it",
    )
    yield _check_compiled_ops(torch_extensions_dir())
    yield _check_one_pass(torch_extensions_dir())


def _check_architectures(value: str) -> Iterator[DoctorCheck]:
    unreadable = find_unreadable_architectures(value)
    if unreadable:
        means = f"DeepSpeed cannot read {' or '.join(unreadable)}: ops for the GPU and offload to nvme do not compile"
        numbers = strip_architecture_suffixes(value)
        fix = "unset it" + (f", or set it to {numbers}" if numbers else "")
        yield DoctorCheck("compiling", VARIABLE, value, "note", means, fix)


def _check_compiled_ops(root: Path) -> DoctorCheck:
    planted = find_planted_ops(root, COMPILE_SECONDS)
    if planted is None:
        reason = describe_unwritable(root)
        if not reason:
            return DoctorCheck("compiling", "compiled ops", str(root))
        finding = unwritable_finding(reason)
        fix = finding.fix.title if finding.fix else ""
        return DoctorCheck("compiling", "compiled ops", str(root), "note", finding.message, fix)
    finding = planted_ops_finding(planted)
    means = f"{planted}, and a launch that needs ops there does not start: {finding.notes[0]}"
    fix = f"{finding.fix.title}; {finding.notes[1]}" if finding.fix else ""
    return DoctorCheck("compiling", "compiled ops", str(root), "note", means, fix)


def _check_one_pass(root: Path) -> DoctorCheck:
    """The op of the patch `one-pass-adam`, which a run can do without."""
    folders = find_op_folders(root, ["cpu_adam_one_pass"])
    is_compiled = any((folder / f"{folder.name}.so").exists() for folder in folders)
    value = "compiled" if is_compiled else "compiled by the first launch with Adam on the CPU"
    return DoctorCheck("compiling", "CPU Adam in one pass", value)


def _check_nvcc(nvcc: str | None, cuda: str | None) -> DoctorCheck:
    if nvcc is None:
        means = (
            "only training with the optimizer in host memory, as `make demo` does, or with torch's own (`torch_adam`): "
            "Adam on the GPU and offload to nvme are compiled with it"
        )
        fix = f"install the CUDA toolkit{f' {cuda}, as torch has,' if cuda else ' of torch'} and set CUDA_HOME"
        return DoctorCheck("compiling", "nvcc", "none", "note", means, fix)
    release = machine.nvcc_release(nvcc)
    value = f"{nvcc}, CUDA {release}" if release else nvcc
    if release and cuda and release.partition(".")[0] != cuda.partition(".")[0]:
        means = f"torch was built for CUDA {cuda}: ops for the GPU may not compile"
        fix = f"install the CUDA toolkit {cuda} and let CUDA_HOME name its folder"
        return DoctorCheck("compiling", "nvcc", value, "note", means, fix)
    return DoctorCheck("compiling", "nvcc", value)
