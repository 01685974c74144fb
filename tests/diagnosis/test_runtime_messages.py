# SPDX-License-Identifier: Apache-2.0
"""Failures inside deepspeed/runtime that jobs report most, written around the messages and frames of its sources.

`tests/training/diagnosis/test_log_catalogue.py` asks every message of the installed release; here are those of older
releases, those of torch inside DeepSpeed, and what must not be taken for one of them. Needs nothing; a second.
"""

from __future__ import annotations

import re

import pytest

from harness.diagnosis import Diagnosis
from tests.support.tracebacks import diagnose_text

COORDINATOR = "deepspeed/runtime/zero/partitioned_param_coordinator.py"
ENGINE = "deepspeed/runtime/engine.py"
FACTORY = "deepspeed/runtime/state_dict_factory.py"
ZERO_3 = "deepspeed/runtime/zero/stage3.py"
ZERO_2 = "deepspeed/runtime/zero/stage_1_and_2.py"
CASES = [
    # message, frames (file, function), cause, a word of the answer
    ("RuntimeError: still have inflight params [{'id': 723}]", [(COORDINATOR, "reset_step")], "LG100", "0.15.3"),
    ("RuntimeError: tracing error at step 12: ", [(COORDINATOR, "fetch_sub_module")], "LG101", "leaf"),
    (
        "RuntimeError: disagreement between rank0 and rank3: rank0: [1], rank3: [2]",
        [("deepspeed/utils.py", "f")],
        "LG101",
        "all ranks",
    ),
    ("AssertionError: {'id': 4, 'status': 'NOT_AVAILABLE', 'numel': 0}", [(COORDINATOR, "fetch")], "LG102", "Gathered"),
    ("AssertionError: backward pass is invalid for module in evaluation mode", [], "LG102", "0.15.4"),
    ("RuntimeError: Inference tensors cannot be saved for backward. To work", [("a.py", "f")], "LG219", "no_grad"),
    (
        "AssertionError: no_sync context manager is incompatible with gradient partitioning",
        [(ENGINE, "no_sync")],
        "LG115",
        "accumulation",
    ),
    ("AssertionError: The parameter 447 has already been reduced.  Gradient", [], "LG104", "use_reentrant"),
    ("AttributeError: 'NoneType' object has no attribute 'numel'", [(ZERO_2, "reduce_ipg_grads")], "LG105", "0.17.6"),
    (
        "AttributeError: 'DeepSpeedZeroOptimizer' object has no attribute 'ipg_index'",
        [(ZERO_2, "f")],
        "LG116",
        "engine",
    ),
    ("IndexError: list index out of range", [(ENGINE, "f"), (ZERO_2, "__init__")], "LG147", "group"),
    ("ValueError: optimizer got an empty parameter list", [(ENGINE, "f"), ("torch/x.py", "f")], "LG147", "adapters"),
    ("ValueError: max() arg is an empty sequence", [(ZERO_3, "initialize_optimizer_states")], "LG147", "trainable"),
    ("AssertionError", [(ENGINE, "_load_checkpoint"), (FACTORY, "check_ckpt_list")], "LG034", "resume"),
    ("FileExistsError: [Errno 17] File exists: 'out/m/offloaded_tensors'", [(ENGINE, "f")], "LG112", "0.18.0"),
    ("RuntimeError: narrow() cannot be applied to a 0-dim tensor.", [("x/zenflow/a.py", "f")], "LG113", "NVMe"),
    ("RuntimeError: tensor does not have a device", [("x/cpu_adam.py", "step")], "LG105", "freeze"),
    (
        "TypeError: output tensor must have the same type as input tensor",
        [(ZERO_3, "f")],
        "LG081",
        "autocast_adapter_dtype",
    ),
    ("RuntimeError: The expanded size of the tensor (8) must match the existing size (0) at", [], "LG083", "ZeRO-3"),
    ("RuntimeError: grad can be implicitly created only for scalar outputs", [], "LG116", "mean"),
]


def write_log(message: str, frames: list[tuple[str, str]]) -> str:
    lines = ["Traceback (most recent call last):", '  File "/job/train.py", line 31, in main', "    train()"]
    for file, function in frames:
        lines += [f'  File "/opt/env/lib/python3.11/site-packages/{file}", line 9, in {function}', "    code"]
    return "".join(f"[rank0]: {line}\n" for line in [*lines, *message.split("\n")])


def answer(diagnosis: Diagnosis) -> str:
    return f"{diagnosis.title} {diagnosis.change}"


@pytest.mark.parametrize(("message", "frames", "cause", "word"), CASES, ids=[case[0][:50] for case in CASES])
def test_the_cause_and_its_change(message: str, frames: list[tuple[str, str]], cause: str, word: str) -> None:
    diagnosis = diagnose_text(write_log(message, frames))
    assert (diagnosis.cause, diagnosis.rank) == (cause, 0)
    assert re.search(re.escape(word), answer(diagnosis)), answer(diagnosis)


LOADED_INTO_SHARDS = """RuntimeError: Error(s) in loading state_dict for CLIP:
\tsize mismatch for visual.stem.0.weight: copying a param with shape torch.Size([192, 3, 4, 4]) from checkpoint, \
the shape in current model is torch.Size([0])."""
ANOTHER_WIDTH = LOADED_INTO_SHARDS.replace("torch.Size([0])", "torch.Size([96, 3, 4, 4])")
FRACTION = """pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig
stage3_prefetch_bucket_size
  Input should be a valid integer, got a number with a fractional part [type=int_from_float, input_value=15099494.4, \
input_type=float]"""
AUTO = FRACTION.replace("int_from_float, input_value=15099494.4", "int_parsing, input_value='auto'")
AUTO_AFTER_ANOTHER = """pydantic_core._pydantic_core.ValidationError: 2 validation errors for DeepSpeedZeroConfig
stage
  Input should be less than or equal to 3 [type=less_than_equal, input_value=7, input_type=int]
sub_group_size
  Input should be a valid integer [type=int_parsing, input_value='auto', input_type=str]"""
UNPICKLED = """_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two \
options, do those steps only if you trust the source of the checkpoint.
\tWeightsUnpickler error: Unsupported global: GLOBAL {name} was not an allowed global by default."""


@pytest.mark.parametrize(
    ("message", "cause", "word"),
    [
        (LOADED_INTO_SHARDS, "LG083", "GatheredParameters"),
        (ANOTHER_WIDTH, "LG031", "widths"),
        (FRACTION, "SP006", "transformers"),
        (AUTO, "HF003", "auto"),
        (AUTO_AFTER_ANOTHER, "SP007", "auto"),
        (UNPICKLED.format(name="deepspeed.runtime.zero.config.ZeroStageEnum"), "LG035", "0.16.0"),
        (UNPICKLED.format(name="numpy.core.multiarray.scalar"), "LG035", "2.6"),
    ],
    ids=["shards", "width", "fraction", "auto", "auto second", "deepspeed", "pickle"],
)
def test_messages_of_several_lines(message: str, cause: str, word: str) -> None:
    diagnosis = diagnose_text(write_log(message, []))
    assert diagnosis.cause == cause
    assert word in answer(diagnosis)


@pytest.mark.parametrize(
    ("message", "frames"),
    [
        ("AssertionError", []),
        ("AssertionError", [(ENGINE, "forward"), ("transformers/models/llama/modeling_llama.py", "forward")]),
        ("AssertionError: loss is negative", [(ENGINE, "forward"), ("mine/model.py", "forward")]),
        ("ValueError: attention_mask shape torch.Size([4]) does not match", [("vllm/engine.py", "step")]),
        ("ValueError: max_new_tokens must be positive", [("mine/generate.py", "check")]),
        ("NotImplementedError", [(ENGINE, "forward"), ("mine/model.py", "forward")]),
        ("AttributeError: 'Tokenizer' object has no attribute 'pad'", [(ENGINE, "forward"), ("mine/model.py", "f")]),
    ],
    ids=str,
)
def test_an_error_of_the_script_is_none_of_deepspeeds(message: str, frames: list[tuple[str, str]]) -> None:
    assert diagnose_text(write_log(message, frames)).cause in ("", "LG096", "LG291")


def test_a_call_of_backward_accuses_the_pipeline_only_inside_of_one() -> None:
    message = "RuntimeError: Loss scaling is required for this configuration, but backward() was called directly"
    assert diagnose_text(write_log(message, [(ENGINE, "f")])).cause == "LG116"
    assert (
        diagnose_text(write_log(message, [("deepspeed/runtime/pipe/engine.py", "f"), (ENGINE, "f")])).cause == "PP007"
    )
