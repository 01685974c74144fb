# SPDX-License-Identifier: Apache-2.0
"""A filter of the log for the screen: lines that DeepSpeed, torch and ninja print at every start are noise.

Never drops a line of the harness, of a traceback or of an error.
"""

from __future__ import annotations

import re

_NOISE = re.compile(
    r"""
    ^\[\d{4}-\d\d-\d\d\ [\d:,]+\]\ \[(INFO|WARNING|DEBUG)\]\ \[[\w.]+:\d+      # DeepSpeed's logger
  | ^\[[WI]\d{3,4}\ [\d:.]+|^[WI]\d{4}\ [\d:.]+                                # torch's C++ and Python loggers
  | ^\[Gloo\]\ Rank
  | ^\[rank\d+\]:\[[WI]\d+
  | ^(Using|Creating\ extension\ directory)\ .*(torch_extensions|extensions\ root)
  | ^(Detected\ CUDA\ files|Emitting\ ninja\ build|(Building|Loading)\ extension\ module|Allowing\ ninja)
  | ^ninja:\ (no\ work\ to\ do|Entering\ directory)
  | ^Time\ to\ load\ \w+\ op:
  | ^DeepSpeed\ deepspeed\.ops\.\S+\ built\ successfully
  | ^(Adam|CPUAdam|Adagrad|Lion)\ Optimizer\ \#\d+\ is\ created
  | ^Config:\ alpha=
  | ^Stage\ \d\ initialized|^Parameter\ Offload\b
  | ^(Warning|WARNING):?\ .*Triton\ Autotune
  | ^\ ?\[(WARNING|INFO)\]\s.*(async_io|sparse_attn|libaio|FP\ Quantizer|evoformer|NVIDIA|TF32)
  | ^Setting\ ds_accelerator\ to
  | ^.*/torch/utils/cpp_extension\.py:\d+:\ UserWarning
  | ^(rank|node)?\s*\d*:?\s*WORLD\ INFO
  | ^Failed\ to\ load\ CPU\ gemm_4bit_forward\b                                # bitsandbytes, which peft imports
  | ^\#\ ?(0|1)\s*$
    """,
    re.VERBOSE,
)
_RANK_PREFIX = re.compile(r"^(?P<host>[^\s:\[]+: )?\[rank(?P<rank>\d+)\]: ")
"""The mark of `output_tee.py` on the lines of ranks, after pdsh's host where there are several."""
_PROGRESS_LINE = re.compile(r"^step \d+/\d+  loss ")


def is_noise(line: str) -> bool:
    """True for a line without information about this run."""
    text = strip_rank_prefix(line).rstrip()
    return not text or bool(_NOISE.match(text))


def is_progress_line(line: str) -> bool:
    """Whether a line is rank 0's plain progress, which the terminal shows as a bar."""
    return bool(_PROGRESS_LINE.match(line))


def rank_of(line: str) -> int:
    """The rank that printed it; 0 for a line without a mark, which is the first rank's or the launcher's."""
    match = _RANK_PREFIX.match(line)
    return int(match["rank"]) if match else 0


def strip_rank_prefix(line: str) -> str:
    """The line as the rank printed it."""
    return _RANK_PREFIX.sub("", line)
