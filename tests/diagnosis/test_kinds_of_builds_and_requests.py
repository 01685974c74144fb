# SPDX-License-Identifier: Apache-2.0
"""Kinds of failures in builds, requests, options and files of weights, each with siblings. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text, traceback_text

SCRIPT = "/job/fit.py"
LAUNCHER = ("deepspeed/launcher/runner.py", "main", "slots = [int(x) for x in text]")


def check(text: str, cause: str, words: str, action: str = "change and retry") -> None:
    diagnosis = diagnose_text(text)
    decision = decide_action(diagnosis)
    assert (diagnosis.cause, diagnosis.confidence) == (cause, "likely")
    assert words in f"{diagnosis.title} -> {diagnosis.change}"
    assert decision is not None
    assert decision.action == action


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("NoDevFiles", "gave this job no GPU"),
        ("void", "gave this job no GPU"),
    ],
)
@pytest.mark.parametrize("frame", [LAUNCHER, (SCRIPT, "pick", "ids = [int(i) for i in text]"), None])
def test_visible_devices_that_are_no_numbers(value, words, frame):
    error = f"ValueError: invalid literal for int() with base 10: '{value}'"
    check(traceback_text([frame], error) if frame else f"{error}\n", "LG061", words)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("--extra: invalid loads value: '{a: 1}'", "`--extra` takes JSON, and got `{a: 1}`"),
        ("--steps: invalid int value: 'many'", "refuses its command line"),
    ],
)
def test_a_type_that_a_parser_cannot_make(said, words):
    check(f"fit.py: error: argument {said}\n", "LG065", words)


@pytest.mark.parametrize(
    "said",
    [
        "[Errno 101] Network is unreachable",
        "[Errno 113] No route to host",
        "[Errno -3] Temporary failure in name resolution",
    ],
)
@pytest.mark.parametrize("package", ["urllib3/connection.py", "requests/adapters.py", "aiohttp/connector.py"])
def test_a_host_without_a_way_to_the_network(said, package):
    text = traceback_text([(SCRIPT, "main", "load()"), (package, "connect", "raise err")], f"OSError: {said}")
    check(text, "LG040", "no way to the")


def test_a_request_that_may_pass_is_tried_again():
    error = "ConnectionResetError: [Errno 104] Connection reset by peer"
    text = traceback_text([(SCRIPT, "main", "load()"), ("urllib3/connection.py", "recv", "raise err")], error)
    check(text, "LG040", "start again", "retry")


@pytest.mark.parametrize(
    "causes",
    [
        "ImportError: cannot import name 'ODD' from 'op_builder.odd' (/tmp/op_builder/odd.py)",
        "error: subprocess-exited-with-error",
    ],
)
def test_a_build_of_deepspeed_without_torch(causes):
    check(
        f"[WARNING] Unable to import torch, pre-compiling ops will be disabled. Please\n{causes}\n",
        "LG302",
        "was built without torch",
    )


def test_a_refused_file_whose_exception_is_cut():
    said = "to learn more about types accepted by default with weights_only"
    text = traceback_text([(SCRIPT, "main", "accelerator.load_state(path)")], "")[:-1]
    check(f"[rank1]: Check the documentation of torch.load {said}\n{text}", "LG035", "refuse")


@pytest.mark.parametrize(
    ("file", "cause", "words"),
    [
        ("deepspeed/compile/odd.py", "LG149", "(`compile`, `start`: `x = optimizer.odd_part`) reads `odd_part`"),
        ("deepspeed/inference/odd.py", "LG149", "(`inference`, `start`"),
    ],
)
def test_an_attribute_that_deepspeed_itself_reads_in_vain(file, cause, words):
    error = "AttributeError: 'DeepSpeedZeRoOffload' object has no attribute 'odd_part'"
    check(
        traceback_text([(SCRIPT, "main", "engine.compile()"), (file, "start", "x = optimizer.odd_part")], error),
        cause,
        words,
    )


@pytest.mark.parametrize("said", ["command not found", "未找到命令", "Kommando nicht gefunden"])
def test_an_option_that_the_shell_runs(said):
    diagnosis = diagnose_text(f"run.sh: line 9: --odd_option: {said}\n")
    assert (diagnosis.cause, diagnosis.state) == ("LG065", "failed")
    assert diagnose_text(f"run.sh: line 9: oddtool: {said}\n").cause == "LG064"


@pytest.mark.parametrize("name", ["torch.cuda.OutOfMemoryError", "torch.OutOfMemoryError:"])
def test_memory_of_a_gpu_without_a_message(name):
    frames = [("deepspeed/runtime/zero/stage_1_and_2.py", "__init__", "self.parts.append(part.float())")]
    diagnosis = diagnose_text(traceback_text(frames, name))
    assert diagnosis.cause == "LG001"
    assert diagnosis.allocation.name == "optimizer-states"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "Expecting property name enclosed in double quotes: line 7 column 3 (char 90)",
            "not valid at line 7, column 3",
        ),
        ("Extra data: line 2 column 1 (char 40)", "not valid at line 2, column 1"),
        ("Expecting value: line 1 column 1 (char 0)", "a file is not valid JSON (Expecting value: line 1"),
    ],
)
def test_a_place_in_json(said, words):
    check(f"json.decoder.JSONDecodeError: {said}\n", "LG044", words)


@pytest.mark.parametrize("path", ["out/odd/pytorch_model.bin", "odd/x.safetensors"])
def test_a_file_of_weights_is_no_folder(path):
    error = "HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name'"
    check(f"{error}: '{path}'. Use `repo_type` argument\n", "LG041", f"`{path}` names a file of weights")


@pytest.mark.parametrize(("host", "words"), [("localhost", "has no slot 5 on this host"), ("node-b", "raise `slots=`")])
def test_a_slot_that_is_not_there(host, words):
    check(f"ValueError: No slot '5' specified on host '{host}'\n", "LG061", words)


def test_a_rate_before_the_first_step():
    frame = ("deepspeed/runtime/lr_schedules.py", "get_last_lr", "assert getattr(self, '_last_lr', None) is not None")
    check(traceback_text([frame], "AssertionError: need to call step() first"), "LG146", "fp16 skipped")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("AssertionError: DeepSpeed does not recognize LR scheduler WarmupCosineLR", "LG227"),
        ("AssertionError: DeepSpeed does not recognize LR scheduler OddLR", "OP021"),
        ("AttributeError: module 'torch.optim' has no attribute 'Lion'", "LG227"),
    ],
)
def test_a_name_of_the_json_that_only_newer_releases_have(error, cause):
    diagnosis = diagnose_text(f"{error}\n")
    assert (diagnosis.cause, "too old for" in diagnosis.title) == (cause, cause == "LG227")


@pytest.mark.parametrize("end", ["", " 2"])
def test_a_mismatch_that_is_broken_over_lines(end):
    text = "ValueError: Please correct the following DeepSpeed config values that mismatch\nTrainingArguments values:\n"
    check(f"{text}- ds gradient_clipping=4 vs hf max_grad_norm{end}\n", "LG180", "gradient_clipping")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("httpx.ConnectError: [Errno 101] Network is unreachable", "no way to the network"),
        (
            "requests.exceptions.SSLError: x (Caused by SSLError(1, 'certificate verify failed'))",
            "does not trust the cert",
        ),
    ],
)
def test_a_request_in_a_quote_without_frames(said, words):
    check(f"{said}\n", "LG040", words)


def test_a_network_between_ranks_is_no_request():
    assert diagnose_text("OSError: [Errno 113] No route to host\n").cause != "LG040"


@pytest.mark.parametrize("code", ["w = state_dict['odd.weight']", "w = ckpt.pop('odd.weight')"])
def test_a_key_of_a_file_of_weights(code):
    text = traceback_text([(SCRIPT, "load", code)], "KeyError: 'odd.weight'")
    check(text, "LG031", "the checkpoint has no 'odd.weight'")


@pytest.mark.parametrize("end", ["error: subprocess-exited-with-error", "error: metadata-generation-failed"])
def test_a_package_that_a_build_does_not_see(end):
    check(f"  ModuleNotFoundError: No module named 'oddlib'\n  [end of output]\n{end}\n", "LG302", "needs `oddlib`")


def test_a_shell_with_wide_colons():
    check("run.sh\uff1a\u884c 8\uff1a oddtool\uff1a\u672a\u627e\u5230\u547d\u4ee4\n", "LG064", "the command `oddtool`")
