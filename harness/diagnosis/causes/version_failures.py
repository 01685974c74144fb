# SPDX-License-Identifier: Apache-2.0
"""Packages that are incompatible. `messages` has the errors of their imports."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause

CAUSES = (
    FailureCause(
        "LG220",
        "optional-package-missing",
        "a package that this configuration needs is not installed, or is too old",
        "install it with the command that the message shows, on every host, in the environment that the ranks use",
        (),
    ),
    FailureCause(
        "LG221",
        "numpy-of-another-major",
        "a package was built for another major version of numpy than the installed one",
        'install `"numpy<2"`, or a newer release of the package whose file the traceback ends in (DeepSpeed from '
        "0.14.4 imports with numpy 2)",
        (),
    ),
    FailureCause(
        "LG222",
        "pydantic-of-another-major",
        "a package expects another major version of pydantic",
        'install a newer DeepSpeed (or the package named), or `"pydantic<2"` for an old one; a package that imports '
        "from pydantic 2 needs `pydantic>=2`",
        (),
    ),
    FailureCause(
        "LG223",
        "extension-of-another-torch",
        "a compiled package was built for another torch, CUDA or Python than the installed one",
        "uninstall it and install the wheel for this torch, CUDA and Python, or build it here "
        "(`pip install --no-build-isolation --no-cache-dir --force-reinstall PACKAGE`)",
        (),
    ),
    FailureCause(
        "LG224",
        "bitsandbytes-without-gpu-code",
        "bitsandbytes found no library for this CUDA version, so it has no GPU code",
        "run `python -m bitsandbytes`; install a bitsandbytes whose wheel has this CUDA version, or set "
        "BNB_CUDA_VERSION and LD_LIBRARY_PATH to the installed CUDA",
        (),
    ),
    FailureCause(
        "LG225",
        "cuda-library-missing",
        "a shared library of CUDA that a package was linked with is not found",
        "install the package built for the CUDA of this torch (the number in the library's name is its major version), "
        "or add the folder of that CUDA's libraries to LD_LIBRARY_PATH",
        (),
    ),
    FailureCause(
        "LG226",
        "triton-of-another-torch",
        "the installed triton does not match this torch, or the package that uses it",
        "install the triton that torch requires (`pip install --force-reinstall torch` of the same version brings it), "
        "or a newer release of the package whose file the traceback ends in",
        (),
    ),
    FailureCause(
        "LG227",
        "package-releases-conflict",
        "two packages have incompatible releases: one imports or calls a name that the installed release of the "
        "other lacks",
        "install matching releases of both (`pip list` shows them): the traceback's last file belongs to the "
        "caller, the message names the package that is too new or too old",
        (),
    ),
    FailureCause(
        "LG228",
        "python-too-old-or-new",
        "a package does not support this version of Python",
        "use a Python that it supports (`pip show PACKAGE`), or another release of the package",
        (),
    ),
)
