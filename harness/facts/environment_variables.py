# SPDX-License-Identifier: Apache-2.0
"""Environment variables that choose code for a rank, its launcher or its compiler, each with the reason.

A spec may come from somebody else, so the user must allow these before a run starts.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class CodeVariable(NamedTuple):
    """Variables that choose code. `names` is a pattern of the whole name; `values` one of the values that do so."""

    names: str
    reason: str
    values: str = r"(?s)."
    """Searched in the value; by default any value but an empty one."""


_PATH_OR_COMMAND = r"[^\w.+-]"
"""A path or a command, and not the name of a program or a library that is looked for in the usual places."""

CODE_VARIABLES = (
    # Python's start
    CodeVariable("PYTHON(PATH|HOME|PLATLIBDIR|PYCACHEPREFIX)", "Python imports modules from there"),
    CodeVariable("PYTHONSAFEPATH", "an empty value lets Python import modules of the current folder", r"\A\Z"),
    CodeVariable("PYTHONUSERBASE|HOME", "Python runs what site-packages below it start with"),
    CodeVariable("PYTHONSTARTUP|PYTHONINSPECT|PYTHON_PRESITE", "Python runs what it names, or asks for commands"),
    CodeVariable("PYTHONBREAKPOINT", "Python calls what it names", r"[^0]"),
    CodeVariable("PYTHONWARNINGS", "Python imports the module of a warning's category", r"(^|,)[^:,]*:[^:,]*:[^:,]*\."),
    CodeVariable("PYTHON_EXEC", "torchrun starts it in place of Python"),
    CodeVariable("MPLBACKEND", "matplotlib imports the module that it names", "^module:"),
    CodeVariable("NUMBA_CACHE_DIR", "compiled code is unpickled and loaded from there"),
    CodeVariable("COVERAGE_PROCESS_START", "coverage loads the plug-ins that this file names"),
    # the loader of shared libraries, and libraries that load others
    CodeVariable("LD_(PRELOAD|AUDIT|LIBRARY_PATH)|DYLD_\\w+", "the loader takes shared libraries from there"),
    CodeVariable("GCONV_PATH|OPENSSL_(CONF|ENGINES|MODULES)", "a library loads modules from there"),
    CodeVariable(
        "(CUDA|NVTX)_INJECTION(32|64)_PATH|HSA_TOOLS_LIB|OMP_TOOL_LIBRARIES", "a library loads the tool it names"
    ),
    CodeVariable("N?R?CCL_\\w+_PLUGIN", "NCCL loads the library that it names", "/"),
    CodeVariable("NCCL_CONF_FILE|DS_ENV_FILE", "more variables are read from this file"),
    CodeVariable("UCX_MODULE_DIR|FI_PROVIDER_PATH|RDMAV_DRIVERS|IBV_DRIVERS", "the network loads modules from there"),
    CodeVariable("UCC_COMPONENT_PATH|CCL_(MPI|OFI)_LIBRARY_PATH|OCL_ICD_\\w+", "a library loads what is there"),
    CodeVariable("KRB5_CONFIG", "ssh's Kerberos loads the plug-ins that this file names"),
    CodeVariable("(PERL5|RUBY)(OPT|LIB|DB)|NODE_(OPTIONS|PATH)", "these interpreters load modules as they start"),
    CodeVariable("(JAVA_TOOL|JDK_JAVA|_JAVA)_OPTIONS", "Java loads agents that it names", "agent|@|class-?path"),
    # shells
    CodeVariable("BASH_ENV|SHELLOPTS|BASHOPTS|PS4|PROMPT_COMMAND|ZDOTDIR", "shells run what it says as they start"),
    CodeVariable("ENV", "shells run this file as they start", r"[/$`]"),
    # programs that are found or named
    CodeVariable("PATH", "programs are taken from there", ""),
    CodeVariable("CC|CXX|CPP|AS|LD|AR|NVCC|CUDACXX|CUDAHOSTCXX|HIPCXX", "ops are compiled by it", _PATH_OR_COMMAND),
    CodeVariable(
        "(CUDA|ROCM|HIP|CUTLASS|CUDNN)_(HOME|PATH|ROOT)", "compilers, headers and libraries are taken from there"
    ),
    CodeVariable("PYTORCH_NVCC|NVCC_CCBIN|HIP_CLANG_PATH|HIPCC_\\w+", "ops are compiled by it, or with what it names"),
    CodeVariable("C(XX|PP)?FLAGS|LDFLAGS|NVCC_(PREPEND|APPEND)_FLAGS", "compilers load the plug-ins that it names"),
    CodeVariable("COMPILER_PATH|GCC_EXEC_PREFIX|(C(PLUS)?_INCLUDE_|LIBRARY_|C)PATH", "compilers look there first"),
    CodeVariable("MAKEFLAGS|MAKEFILES|CCACHE_(PREFIX|COMPILER|PATH|CONFIGPATH)\\w*", "a build runs what it names"),
    CodeVariable("EDITOR|VISUAL|PAGER|MANPAGER|LESSOPEN|LESSCLOSE|BROWSER", "programs start it as a command"),
    CodeVariable(
        "GIT_(SSH|SSH_COMMAND|ASKPASS|CONFIG\\w*|EDITOR|SEQUENCE_EDITOR|EXEC_PATH|EXTERNAL_DIFF|PAGER|PROXY_COMMAND"
        "|TEMPLATE_DIR|DIR|COMMON_DIR)|XDG_CONFIG_HOME",
        "git starts it as a command, or reads commands from there",
    ),
    CodeVariable("GIT_PYTHON_GIT_EXECUTABLE|WANDB__EXECUTABLE|CONDA_EXE", "a library starts it as a program"),
    # how other hosts are reached
    CodeVariable(
        "SSH_(SK_PROVIDER|SK_HELPER|PKCS11_HELPER)|(RSYNC|CVS)_RSH", "ssh loads it, or it is started in place of ssh"
    ),
    CodeVariable("(I_MPI_HYDRA|HYDRA)_(BOOTSTRAP|LAUNCHER)_EXEC(_EXTRA_ARGS)?", "mpirun starts it on every host"),
    CodeVariable("PDSH_\\w+|SSH_ASKPASS(_REQUIRE)?", "it changes the command that reaches other hosts"),
    CodeVariable("SLURM_(CONF|PROLOG|EPILOG|TASK_PROLOG|TASK_EPILOG)|SRUN_\\w+LOG", "srun runs what it names"),
    CodeVariable("(OMPI|PRTE|PMIX)_MCA_\\w*(path|agent|file|prefix)\\w*", "mpirun starts or loads what it names"),
    CodeVariable("(OPAL|OMPI|PRTE|PMIX)_(INSTALL_)?PREFIX", "mpirun starts and loads what is there"),
    # compiled code that is kept, and files that are unpickled
    CodeVariable("TORCH_EXTENSIONS_DIR|XDG_CACHE_HOME", "compiled ops are loaded from there"),
    CodeVariable("HARNESS_TRUSTED_ACCOUNTS", "files of these accounts are loaded, compiled ops too"),
    CodeVariable(
        "TRITON_(HOME|CACHE_DIR|CACHE_MANAGER|OVERRIDE_DIR|\\w*PATH|\\w*PLUGIN\\w*)",
        "Triton runs and loads what is there",
    ),
    CodeVariable("TORCHINDUCTOR_CACHE_DIR", "compiled code is unpickled and loaded from there"),
    CodeVariable("TORCHINDUCTOR_(CUTLASS|CK)_DIR|HALIDE_LIB", "torch's compiler imports or loads what is there"),
    CodeVariable("TORCHINDUCTOR_CPP_MARCH", "torch's compiler gets more options by it", r"[^\w.+-]"),
    CodeVariable("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "torch runs code in files that it loads", r"(?i)^(1|y|yes|true)$"),
    CodeVariable("\\w*TRUST_REMOTE_CODE", "code of a repository is run", r"(?i)^(1|y|yes|true|on)$"),
    CodeVariable("HF_MODULES_CACHE", "`transformers` imports modules from there"),
    CodeVariable("HF_ENDPOINT", "models, and your token for the Hub, go through this server"),
)
"""Every variable that is known to make a rank, its launcher or its compiler run code of the value's choosing."""


def code_loading_reason(name: str, value: str) -> str | None:
    """The reason why this variable with this value chooses code; None where it does not."""
    for variable in CODE_VARIABLES:
        if re.fullmatch(variable.names, name):
            return variable.reason if re.search(variable.values, value) else None
    return None
