# SPDX-License-Identifier: Apache-2.0
"""The packages that would keep packed documents apart in layers that are no attention.

`transformers` hands `seq_idx` and `cu_seq_lens_q` to such layers; without the kernels it raises and names them.
"""

from __future__ import annotations

import inspect
import re
import sys

from harness.hostinfo.model_answers import Answer
from harness.runtime.model_questions.small_copy import SmallCopy
from harness.runtime.packed_kernels import compare_documents

_PACKAGES = {
    "causal_conv1d": "causal-conv1d",
    "mamba_ssm": "mamba-ssm",
    "(fla\\b|chunk_gated_delta_rule)": "flash-linear-attention",
}
_BORDERS = ("seq_idx", "cu_seq_lens_q")


def ask(small: SmallCopy) -> Answer:
    """True where the borders alone do it here, without packages."""
    if small.apart:
        return Answer(True, "none is needed")
    source = inspect.getsource(sys.modules[type(small.model).__module__])
    taken = [name for name in _BORDERS if re.search(rf"\b{name}\b", source)]
    named = tuple(package for word, package in _PACKAGES.items() if re.search(rf"\b{word}", source))
    if not taken:
        return Answer(False, "none is known: its layers take neither `seq_idx` nor `cu_seq_lens_q`")
    borders = compare_documents(small.model)
    return Answer(True, borders.reason) if borders.apart else Answer(None, borders.reason, named)
