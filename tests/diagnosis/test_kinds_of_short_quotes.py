# SPDX-License-Identifier: Apache-2.0
"""Kinds of failures in quotes of a few lines, each with siblings. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text, traceback_text

FORWARD = ("deepspeed/runtime/engine.py", "forward", "loss = self.module(*inputs, **kwargs)")


@pytest.mark.parametrize(
    ("frame", "code", "said"),
    [(0, 6, 2), (2, 4, 4), (0, 0, 4), (6, 8, 10)],
)
@pytest.mark.parametrize(
    "error", ["AttributeError: 'FieldInfo' object has no attribute 'kind_info'", "KeyError: 'bucket'"]
)
def test_an_exception_that_somebody_indented_ends_its_traceback(frame, code, said, error):
    quote = f'{" " * frame}File "[...]/odd_utils.py", line 8, in _check\n{" " * code}if a.b:\n{" " * said}{error}\n'
    diagnosis = diagnose_text(quote)
    assert (diagnosis.message, diagnosis.line) == (error, 3)
    assert diagnosis.cause == ("LG222" if "FieldInfo" in error else "")


@pytest.mark.parametrize("code", ["raise OddError(", "OddError", "ValueError"])
def test_a_line_of_source_that_names_an_exception_ends_no_traceback(code):
    frames = f'  File "/a/odd.py", line 8, in go\n    x = y\n    {code}\n  File "/a/odd.py", line 9, in end\n    z\n'
    diagnosis = diagnose_text(f"Traceback (most recent call last):\n{frames}OddError: bad\n")
    assert (diagnosis.message, diagnosis.where) == ("OddError: bad", "/a/odd.py:9 in end")


@pytest.mark.parametrize(
    ("key", "frame", "is_of_json"),
    [
        ("train_batch_size", None, True),
        ("zero_optimization", None, True),
        ("stage3_prefetch_bucket_size", None, True),
        ("scheduler", None, False),
        ("odd_batch_size", None, False),
        ("scheduler", ("/job/train.py", "main", "lr = ds_config['scheduler']"), True),
        ("scheduler", ("/job/train.py", "main", "lr = saved['scheduler']"), False),
        ("fp16", ("accelerate/utils/deepspeed.py", "fill", "x = values['fp16']"), True),
        ("pixels", ("accelerate/utils/deepspeed.py", "fill", "x = values['pixels']"), False),
    ],
)
def test_a_key_of_the_json_is_told_from_other_keys(key, frame, is_of_json):
    error = f"KeyError: '{key}'"
    diagnosis = diagnose_text(traceback_text([frame], error) if frame else f"{error}\n")
    assert (diagnosis.cause == "LG181") is is_of_json
    if is_of_json:
        assert (diagnosis.confidence, decide_action(diagnosis).action) == ("likely", "change and retry")
        assert f"add `{key}` to the DeepSpeed JSON" in diagnosis.change


@pytest.mark.parametrize(
    ("frames", "shape", "elements", "cause"),
    [
        ([FORWARD], "[-1, 0]", 3072, "LG083"),
        ([FORWARD, ("/job/model.py", "forward", "x.view(2, 0)")], "[2, 0]", 64, "LG083"),
        ([], "[8, -1, 0]", 512, "LG083"),
        ([FORWARD], "[-1, 50]", 3072, "LG082"),
        ([FORWARD], "[4, 0, 16]", 64, "LG082"),
        ([("/job/plain.py", "forward", "x.view(-1, 0)")], "[-1, 0]", 64, "LG082"),
    ],
)
def test_a_size_of_0_that_a_tensor_cannot_have_was_read_from_a_weight_in_pieces(frames, shape, elements, cause):
    error = f"RuntimeError: shape '{shape}' is invalid for input of size {elements}"
    diagnosis = diagnose_text(traceback_text(frames, error) if frames else f"{error}\n")
    assert (diagnosis.cause, diagnosis.confidence) == (cause, "likely")
    assert decide_action(diagnosis).action == ("change and retry" if cause == "LG083" else "stop")


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("[W socket.cpp:9] [c10d] The client socket has failed to connect to [{0}]:2950 (errno: 99 - Cannot).", "LG239"),
        ("[W socket.cpp:9] [c10d] The client socket has failed to connect to [{0}]:2950 (errno: 111 - No).", "LG239"),
        ("[E socket.cpp:9] [c10d] The client socket has timed out after 60s while trying to connect to ({0}, 2950).", "LG067"),
        ("a.DistNetworkError: The client socket has failed to connect to any network address of ({0}, 2950).", "LG067"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "10.0.0.7"])
def test_ones_own_host_that_does_not_answer_needs_another_address(line, cause, address):
    diagnosis = diagnose_text(line.format(address) + "\n")
    is_own = address != "10.0.0.7" or "errno: 99" in line
    assert diagnosis.cause == cause
    assert diagnosis.change.startswith("set MASTER_ADDR=127.0.0.1 and one host") is is_own
    is_final = is_own or "any network address" in line  # the others may be a matter of time
    assert decide_action(diagnosis).action == ("change and retry" if is_final else "retry")


@pytest.mark.parametrize(
    "line",
    [
        "[E socket.cpp:4] [c10d] The server socket has failed to bind to [odd7]:2950 (errno: 99 - Cannot assign requested address).",
        "RuntimeError: The server socket has failed to listen on any local network address. bind to 10.0.0.3:2950 (errno: 99 - no).",
        "OSError: [Errno 99] Cannot assign requested address",
    ],
)  # fmt: skip
def test_an_address_that_a_host_does_not_have_is_no_port_in_use(line):
    diagnosis = diagnose_text(line + "\n")
    assert (diagnosis.cause, decide_action(diagnosis).action) == ("LG067", "change and retry")
    assert diagnose_text(line.replace("99", "98") + "\n").cause != "LG067"


@pytest.mark.parametrize("slot", [2, 5])
def test_a_slot_that_is_not_there_may_be_hidden_by_the_visible_devices(slot):
    diagnosis = diagnose_text(f"ValueError: No slot '{slot}' specified on host 'localhost'\n")
    assert "unset CUDA_VISIBLE_DEVICES" in diagnosis.change


@pytest.mark.parametrize("file", ["~/odd/images/7.jpg", "/data/odd/clips/8.WAV", "coco/train2017/9.png"])
def test_a_missing_file_of_a_record_is_no_path_that_a_host_lacks(file):
    diagnosis = diagnose_text(f"FileNotFoundError: [Errno 2] No such file or directory: '{file}'\n")
    assert (diagnosis.cause, decide_action(diagnosis).action) == ("LG054", "stop")
    assert diagnosis.title == f"a record of the data names a file that is not there: `{file}`"
    other = diagnose_text(f"FileNotFoundError: [Errno 2] No such file or directory: '{file}.json'\n")
    assert (other.cause, "record" in other.title) == ("LG054", False)


@pytest.mark.parametrize(
    "line", ["Layer a.weight, shape: torch.Size([0]), requires_grad: True", "b.shape = torch.Size([0])"]
)
def test_a_printed_shape_is_no_failure(line):
    assert diagnose_text(f"{line}\n").state == "no failure seen"
    error = "RuntimeError: Function OddBackward0 returned an invalid gradient at index 0 - got [0] but expected shape compatible with [9]"
    diagnosis = diagnose_text(f"{line}\n{error}\n")
    assert (diagnosis.cause, diagnosis.message) == ("LG083", error)


TICKED = "You can't use same `Accelerator()` instance with multiple models when using DeepSpeed"


@pytest.mark.parametrize(
    "line",
    [
        f"ValueError: {TICKED}",
        f"ValueError: {TICKED.replace('`', '')}",
        f"ValueError: {TICKED.replace('`', chr(39))}",
        f"ValueError\uff1a {TICKED.replace(chr(39), chr(0x2019))}",
    ],
)
def test_a_message_that_lost_its_quotes_in_a_paste_is_known(line):
    assert diagnose_text(f"{line}\n").cause == "LG186"
    if chr(0xFF1A) not in line:
        own = diagnose_text(traceback_text([("/job/odd.py", "go", "x()")], line))
        assert (own.cause == "LG186") is ("`" in line)


@pytest.mark.parametrize("name", ["Zero-3", "ZeRO-3", "Zreo-3"])
def test_a_message_that_somebody_typed_is_known(name):
    line = (
        f"ValieError; DeepSpeed {name} is not compatible with 'low_cpu_mem_usage=True' or with passing a 'device_map'."
    )
    assert diagnose_text(f"{line}\n").cause == "LG183"


@pytest.mark.parametrize("folder", ["odd/checkpoint-7", "x"])
def test_the_exception_below_its_own_line_of_source_is_quoted(folder):
    code = 'raise ValueError(f"Can\'t find a valid checkpoint at {place}")'
    error = f"ValueError: Can't find a valid checkpoint at /a/{folder}"
    both = diagnose_text(f"{code}\n{error}\n")
    assert (both.cause, both.message, both.line) == ("LG034", error, 2)
    assert diagnose_text(f"{code}\n").message == code


@pytest.mark.parametrize(("path", "is_home"), [("/.cache", True), ("/.triton/x", True), ("/data/.cache", False)])
def test_a_home_that_is_the_root_folder_needs_a_variable(path, is_home):
    diagnosis = diagnose_text(f"[rank1]: PermissionError: [Errno 13] Permission denied: '{path}'\n")
    assert diagnosis.cause == "LG051"
    assert diagnosis.change.startswith("set HOME") is is_home
    assert decide_action(diagnosis).action == "change and retry"
