# SPDX-License-Identifier: Apache-2.0
"""Kinds of failures that a rule knows, each with siblings that no row names. Needs nothing; seconds."""

from __future__ import annotations

import io

import pytest

from harness.diagnosis import Diagnosis, diagnose
from harness.diagnosis.decision import decide_action, find_changes, has_remedy
from tests.support.tracebacks import diagnose_text


@pytest.mark.parametrize(
    ("change", "is_remedy"),
    [
        ("install the release of `triton` that this torch requires", True),
        ("`pip install ninja` into the environment of the job", True),
        ("the launcher passes `--x=N` to the script: parse it (`add_argument(1)`), or pass `--no_x`", True),
        ("check the path; if it is right, resume from an older checkpoint", True),
        ("call `engine.step()` once for each batch", True),
        ("read it inside `deepspeed.zero.GatheredParameters`", False),
        ("find out what the rank did (`py-spy dump`), and compare the shapes", False),
        ("pass `datetime.timedelta(seconds=9)` as the timeout", True),
    ],
)
def test_what_says_what_to_do_is_a_change(change, is_remedy):
    assert has_remedy(change) is is_remedy
    action = "change and retry" if is_remedy else "stop"
    assert decide_action(Diagnosis("failed", "certain", "LG096", change=change)).action == action


def test_a_gate_is_about_settings():
    assert decide_action(Diagnosis("failed", "certain", "ZR001", change="`harness explain ZR001`")).action != "stop"


def test_every_key_of_a_list_is_removed():
    keys = find_changes("remove `bf16.a_b`, `bf16.c` and `bf16.d` from the DeepSpeed JSON; `bf16.e` and `f` stay")
    assert keys == {"bf16.a_b": None, "bf16.c": None, "bf16.d": None}


@pytest.mark.parametrize(
    ("model", "keys", "names"),
    [
        ("DeepSpeedFP16Config", ("auto_castt",), "`fp16.auto_castt`"),
        ("DeepSpeedZeroConfig", ("aio", "nvme"), "`zero_optimization.aio` and `zero_optimization.nvme`"),
        ("DeepSpeedZeroOffloadParamConfig", ("ratios",), "`offload_param.ratios`"),
        ("DeepSpeedBF16Config", ("scale_up", "scale_down"), "`bf16.scale_up` and `bf16.scale_down`"),
    ],
)
def test_keys_that_pydantic_refuses_are_named_with_their_block(model, keys, names):
    rows = [
        f"{key}\n  Extra inputs are not permitted [type=extra_forbidden, input_value=1, input_type=int]" for key in keys
    ]
    text = f"pydantic_core._pydantic_core.ValidationError: {len(keys)} validation errors for {model}\n"
    diagnosis = diagnose_text(text + "\n".join(rows) + "\n")
    assert (diagnosis.cause, names in diagnosis.title, names in diagnosis.change) == ("SP005", True, True)
    assert decide_action(diagnosis).action == "change and retry"


@pytest.mark.parametrize(
    "line",
    [
        "TypeError: '<' not supported between instances of 'int' and 'str'",
        "TypeError: '>=' not supported between instances of 'str' and 'float'",
        "TypeError: unsupported operand type(s) for //: 'str' and 'int'",
    ],
)
def test_a_text_for_a_number_may_be_auto_without_a_traceback_too(line):
    diagnosis = diagnose_text(f"{line}\n")
    assert (diagnosis.cause, diagnosis.confidence) == ("SP006", "likely")
    assert '"auto"' in diagnosis.title


@pytest.mark.parametrize("name", ["ds_shape", "partition_gradients", "all_gather_coalesced", "aligned_size"])
def test_a_parameter_without_what_zero3_gives_it_was_not_partitioned(name):
    diagnosis = diagnose_text(f"[rank1]: AttributeError: 'Parameter' object has no attribute '{name}'\n")
    assert (diagnosis.cause, diagnosis.rank, diagnosis.confidence) == ("LG102", 1, "likely")
    assert "unpartitioned" in diagnosis.title


@pytest.mark.parametrize(
    ("variable", "value", "slot"),
    [("CUDA_VISIBLE_DEVICES", "2", "2"), ("HIP_VISIBLE_DEVICES", "4,5", "4"), ("VISIBLE_DEVICES", "7", "7")],
)
def test_an_option_that_the_launcher_made_of_a_variable_is_not_the_hostfiles_fault(variable, value, slot):
    error = f"ValueError: No slot '{slot}' specified on host 'localhost'\n"
    diagnosis = diagnose_text(f"Detected {variable}={value}: setting --include=localhost:{value}\n{error}")
    assert f"`--include=localhost:{value}` of {variable}" in diagnosis.title
    assert decide_action(diagnosis).action == "change and retry"
    assert "hostfile" in diagnose_text(error).title


@pytest.mark.parametrize(
    "lines",
    [
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 71 got signal: 1",
        "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers\n"
        "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 72 closing signal SIGHUP",
        "[E] failed (exitcode: -1) local_rank: 0 (pid: 73) of binary: /usr/bin/python",
    ],
)
def test_a_hangup_is_told_from_other_signals(lines):
    diagnosis = diagnose_text(f"step 1 loss 2.5\n{lines}\n")
    assert (diagnosis.cause, decide_action(diagnosis).action) == ("LG069", "retry")
    assert "SIGHUP" in diagnosis.title
    assert "tmux" in diagnosis.change
    assert "SIGHUP" not in diagnose_text(lines.replace("SIGHUP", "SIGTERM").replace(": 1", ": 15")
                                         .replace("-1)", "-15)") + "\n").title  # fmt: skip


@pytest.mark.parametrize("between", ["", "INFO: x\n"])
def test_an_exception_without_a_prefix_ends_the_traceback_above_it(between):
    rows = (
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/w/fit.py", line 9, in fit\n[rank3]:     go()\n'
    )
    diagnosis = diagnose_text(f"{rows}{between}ZeroDivisionError: division by zero\n")
    assert (diagnosis.rank == 3 and "division" in diagnosis.message) is (not between)


@pytest.mark.parametrize(
    "line",
    [
        "Did not save the model out/model.bin because `stage3_gather_16bit_weights_on_model_save` is False",
        " stage3_gather_16bit_weights_on_model_save=false. Saving the full checkpoint instead",
        "nothing saved: stage3_gather_16bit_weights_on_model_save is false",
    ],
)
def test_a_healthy_log_that_says_what_was_not_saved_has_a_note(line):
    log = f"{{'loss': 2.1}}\n{line}\n"
    diagnosis = diagnose([io.BytesIO(log.encode())])
    assert diagnosis.state == "no failure seen"
    assert any("zero_to_fp32.py" in note for note in diagnosis.notes)
    healthy = diagnose([io.BytesIO(log.replace("alse", "rue").encode())])
    assert not any("zero_to_fp32.py" in note for note in healthy.notes)


@pytest.mark.parametrize(
    ("batch", "micro", "ranks", "sizes"),
    [(100, 4, 6, "96 or 120"), (8, 4, 3, "12"), (7, 1, 2, "6 or 8"), (16, 2, 16, "32")],
)
def test_the_batch_that_would_fit_is_named(batch, micro, ranks, sizes):
    text = "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * "
    diagnosis = diagnose_text(f"AssertionError: {text}world_size {batch} != {micro} * 1 * {ranks}\n")
    assert f"data-parallel ranks{sizes and ': '}{sizes};" in diagnosis.change


@pytest.mark.parametrize(
    ("message", "release"),
    [
        ("ImportError: deepspeed>=0.9.3 is required for this module, but found deepspeed==0.8.3.", "deepspeed>=0.9.3"),
        ("ImportError: huggingface-hub>=0.30.0,<1.0 is required, but found huggingface-hub==0.23.", "huggingface-hub"),
        ("ImportError: tokenizers<0.20 is required for it, but found tokenizers==0.21.1.", "tokenizers<0.20"),
    ],
)
def test_a_release_that_an_import_demands_is_no_missing_package(message, release):
    found = diagnose_text(f'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n{message}\n')
    assert found.cause == "LG227"
    assert release in found.change


@pytest.mark.parametrize(("stage", "element"), [("deepspeed/runtime/pipe/engine.py", 1), ("torch/autograd/x.py", 0)])
def test_a_pipeline_stage_without_a_gradient_is_told_from_a_loss_without_one(stage, element):
    said = f"RuntimeError: element {element} of tensors does not require grad and does not have a grad_fn"
    frames = f'  File "/a/{stage}", line 863, in _exec_backward_pass\n    torch.autograd.backward(tensors=out)\n'
    diagnosis = diagnose_text(f"Traceback (most recent call last):\n{frames}{said}\n")
    assert (diagnosis.cause, diagnosis.title.startswith("a pipeline stage")) == ("LG195", "pipe" in stage)


@pytest.mark.parametrize("name", ["h.0.attn.c_attn.weight", "model.norm.weight"])
def test_a_copy_into_the_meta_device_is_not_certainly_the_callers_fault(name):
    said = f'While copying the parameter named "{name}", an exception occurred : {("Cannot copy out of meta tensor; no data!",)}.'
    diagnosis = diagnose_text(f"RuntimeError: Error(s) in loading state_dict for X:\n\t{said}\n")
    assert (diagnosis.cause, diagnosis.confidence) == ("LG207", "likely")
    assert "released transformers" in diagnosis.change
