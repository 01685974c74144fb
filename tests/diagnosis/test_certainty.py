# SPDX-License-Identifier: Apache-2.0
"""Certain is an answer whose message proves the cause and the change. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.catalogue import all_causes, all_rows, causes_with
from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text, traceback_text

SITE = "/opt/py/lib/python3.11/site-packages"
MAIN = ("/job/fit.py", "<module>", "main()")
OPEN = {
    "a compiler": "/opt/torch/all.h:5:2: error: #error C++20 or later compatible compiler is required to use PyTorch.",
    "a linker": "/usr/bin/ld: cannot find -lcurand",
    "a toolkit": "deepspeed.ops.op_builder.builder.MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA",
    "an architecture": "nvcc fatal   : Unsupported gpu architecture 'compute_35'",
    "an op": "ImportError: /x/odd_op.so: undefined symbol: _ZN3c106detail4oddEv",
    "a removed name": "ImportError: cannot import name 'odd_name' from 'transformers.odd' (/x/transformers/odd/__init__.py)",
    "a module": "ModuleNotFoundError: No module named 'transformers.deepspeed'",
    "a package": "ModuleNotFoundError: No module named 'bitsandbytes'",
    "a command": "go.sh: line 3: deepspeed: command not found",
    "pydantic": "AttributeError: 'FieldInfo' object has no attribute 'field_info'",
    "an extension": "ImportError: flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN2at4_ops5zeros4callE",
    "a library": "OSError: libcudart.so.11.0: cannot open shared object file: No such file or directory",
    "a device": "RuntimeError: No CUDA GPUs are available",
    "a port": "RuntimeError: The server socket has failed to listen on any local network address. EADDRINUSE",
    "the Hub": "OSError: We couldn't connect to 'https://huggingface.co' to load this file",
    "a damaged file": "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    "a loss scale": "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    "a graph": "RuntimeError: Trying to backward through the graph a second time",
    "labels": "ValueError: Expected input batch_size (8) to match target batch_size (4).",
}
PROVED = {
    "a renamed name": "ImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api'",
    "two releases": "Exception: >- DeepSpeed Op Builder: Installed CUDA version 11.8 does not match the version torch was "
    "compiled with 12.1, unable to compile cuda/cpp extensions without a matching cuda version.",
    "a header": "/opt/torch/python_headers.h:12:10: fatal error: Python.h: No such file or directory",
    "a compiler's limit": "error: -- unsupported GNU version! gcc versions later than 12 are not supported!",
    "a key": "node7: Permission denied (publickey,password).",
    "a gate": "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
    "gradient_acc_step * world_size 33 != 4 * 2 * 4",
    "memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "23.64 GiB of which 1.06 GiB is free. Process has 22.50 GiB memory in use.",
    "a path": "ValueError: Expected a string path to an existing deepspeed config, or a dictionary, or a base64 encoded "
    "string. Received: odd/zero7.json",
}


def diagnose_message(message):
    is_exception = message.partition(": ")[0].rpartition(".")[2].endswith(("Error", "Exception"))
    frames = [MAIN, (f"{SITE}/odd/loop.py", "step", "f()")]
    return diagnose_text(traceback_text(frames, message, 0) if is_exception else f"{message}\n")


@pytest.mark.parametrize("name", OPEN)
def test_a_change_that_no_log_proves_is_likely(name):
    diagnosis = diagnose_message(OPEN[name])
    assert diagnosis.cause in causes_with("open-change")
    assert diagnosis.confidence == "likely"


@pytest.mark.parametrize("name", PROVED)
def test_a_message_that_proves_its_change_is_certain(name):
    diagnosis = diagnose_message(PROVED[name])
    assert (diagnosis.state, diagnosis.confidence, diagnosis.is_named) == ("failed", "certain", True)


@pytest.mark.parametrize(
    "name", ["an architecture", "a linker", "a toolkit", "a removed name", "a loss scale", "a graph"]
)
def test_a_failure_that_comes_again_is_not_tried_again_though_its_change_is_likely(name):
    decision = decide_action(diagnose_message(OPEN[name]))
    assert decision.action in ("change and retry", "stop")
    assert decision.is_certain
    assert decision.reason.endswith("likely)")


def test_only_causes_of_an_open_change_have_messages_that_prove_it():
    rows = [(row.cause, row.signature) for row in all_rows()]
    rows += [(cause.id, signature) for cause in all_causes() for signature in cause.signatures]
    proved = {cause for cause, signature in rows if signature.proves_change}
    assert proved
    assert proved <= causes_with("open-change")
