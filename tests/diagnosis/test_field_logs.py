# SPDX-License-Identifier: Apache-2.0
"""Logs in the forms that clusters print them. Needs nothing; a second."""

from __future__ import annotations

import pytest

from tests.support.field_logs import CASES
from tests.support.tracebacks import diagnose_text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_first_cause_its_rank_and_its_host(case):
    diagnosis = diagnose_text(case.text)
    assert (diagnosis.state, diagnosis.cause) == ("failed", case.cause), diagnosis
    assert case.rank is None or diagnosis.rank == case.rank, diagnosis
    assert not case.host or diagnosis.host == case.host, diagnosis
    if case.never_certain or not case.cause:
        assert diagnosis.confidence != "certain"
    assert 0 < len(diagnosis.lines) <= 10
    assert diagnosis.title
    assert diagnosis.change


TORCHRUN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 28, in <module>
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB. GPU 1 has a total capacity of 79.15 GiB
Root Cause (first observed failure):
[0]:
  time      : 2025-03-01_12:00:10
  host      : gpu-node-02
  rank      : {rank} (local_rank: 1)
  exitcode  : 1 (pid: 102)
"""


@pytest.mark.parametrize(("rank", "host"), [(1, "gpu-node-02"), (3, "")])
def test_the_host_of_torchruns_summary_is_that_of_the_rank_that_it_names(rank, host):
    diagnosis = diagnose_text(TORCHRUN.format(rank=rank))
    assert (diagnosis.cause, diagnosis.rank, diagnosis.host) == ("LG001", 1, host)


@pytest.mark.parametrize(
    ("file", "function", "code", "is_told"),
    [
        ("transformers/models/llama/modeling_llama.py", "forward", "logits = logits.float()", True),
        ("transformers/loss/loss_utils.py", "ForCausalLMLoss", "logits = logits.float()", True),
        ("torch/nn/functional.py", "cross_entropy", "return torch._C._nn.cross_entropy_loss(", True),
        ("transformers/models/llama/modeling_llama.py", "forward", "hidden = self.mlp(hidden)", False),
        ("harness/runtime/chunked_cross_entropy.py", "forward", "logits = lm_head(chunk)", False),
    ],
)
@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_memory_that_ran_out_in_the_logits(file, function, code, is_told, prefix):
    lines = [
        "Traceback (most recent call last):",
        '  File "/x/train.py", line 7, in <module>',
        "    loss = model(batch).loss",
        f'  File "/x/site-packages/{file}", line 9, in {function}',
        f"    {code}",
        "             ^^^^^^^^^^^^^^",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB.",
    ]
    diagnosis = diagnose_text("".join(f"{prefix}{line}\n" for line in lines))
    assert diagnosis.cause == "LG001"
    assert ("`train.loss_chunk_size`" in diagnosis.change) is is_told
    assert (diagnosis.allocation is not None and diagnosis.allocation.name == "logits") is is_told


@pytest.mark.parametrize("is_loading", [True, False])
def test_a_rank_that_is_killed_while_it_loads_a_model(is_loading):
    progress = "Loading checkpoint shards:  40%|####      | 6/15 [00:50<01:14]\n" if is_loading else "step 812\n"
    diagnosis = diagnose_text(
        f"{progress}[ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = -9\n"
    )
    assert diagnosis.cause == "LG003"
    allocation = diagnosis.allocation
    assert (allocation is not None and "each rank reads all of it into host memory" in allocation.text) is is_loading
