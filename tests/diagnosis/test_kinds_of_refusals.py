# SPDX-License-Identifier: Apache-2.0
"""Refusals of packages: answers have the message's words and the remedy that its grammar states. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from harness.diagnosis.rules.stated_remedy import find_stated_remedy
from tests.support.tracebacks import diagnose_text, traceback_text


def _refuse(error, package="oddlib", function="check", file="core"):
    frame = (f"{package}/{file}.py", function, f"raise {error.partition(':')[0]}(")
    return diagnose_text(traceback_text([("/job/run.py", "main", "fit(args)"), frame], error))


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("Cannot use both `odd_a` and `odd_b`.", "leave the other out: `odd_a`, `odd_b`"),
        ("'odd_a' and 'odd_b' can not be both given at once", "leave the other out: `odd_a`, `odd_b`"),
        ("odd_a option is mutually exclusive with odd_b, odd_c", "leave `odd_a` out, or else `odd_b, odd_c`"),
        ("You set `odd_a` both as an argument and in `odd_kwargs`. Pick one.", "pass `odd_a` in one of the two places"),
        ("When `odd_a` is given, `odd_b` must also be given.", "set `odd_b`, too, or leave `odd_a` out"),
        ("`odd_a=True` requires `odd_b=2`.", "set `odd_b=2`, or leave `odd_a=True` out"),
        ("Writing with odd requires an `odd_dir` to be passed in.", "set `odd_dir`"),
        ("`odd_a` should be one of 'x', 'y', or 'z'. Received w", "set `odd_a` to one of 'x', 'y', or 'z'"),
        ("Unknown odd loss: w. Should be one of ['x', 'y']", "write one of ['x', 'y']"),
        ("Invalid odd_a found: w, it should be 'x' or 'y'.", "write one of 'x' or 'y'"),
        ("odd_a must be a list of strings", "change `odd_a`: it must be a list of strings"),
        ("odd_a (3) must be an even number!", "change `odd_a`: it must be an even number"),
        ("`odd_a` must be an `odd.Config` (e.g. `odd.B`), got str.", "change `odd_a`: it must be an `odd.Config`"),
        ("Odd: expected width to be greater than 0, got -7 instead", "change width: it must be greater than 0, and is -7"),
        ("Number of odd weights (3) must match number of odd parts (2)", "so that this holds: Number of odd weights"),
        ("OddAdam does not support odd_grad=True", "leave out odd_grad=True, which OddAdam does not take"),
        ("Unknown odd_kind: w", "set the odd_kind to another value than w"),
        ("Either odd_a or `odd_b` must be provided.", "set `odd_a` or `odd_b`"),
        ("Only one of odd_a or odd_b should be set", "leave the other out: `odd_a`, `odd_b`"),
        ("`odd_a` is required unless an odd_c is given", "set `odd_a`"),
        ("odd_c is not fine, setting `odd_a` to False will help", "set `odd_a: false`"),
        ("odd_a must be 0, got 12", "change `odd_a`: it must be 0"),
        ("Do not use both the '--odd-a' flag and the '--odd-b' flag", "leave the other out: `--odd-a`, `--odd-b`"),
        ("It is odd. You can first run `.odd_drop()` to go on", "run `.odd_drop()` to go on"),
        ("Are you sure you passed an odd model to prepare()?", "check this: you passed an odd model to prepare()"),
    ],
)  # fmt: skip
def test_a_refusal_of_a_package_is_said_with_its_remedy(message, change):
    for error in (f"ValueError: {message}", f"TypeError: {message}"):
        diagnosis = _refuse(error)
        assert (diagnosis.cause, diagnosis.confidence) == ("LG291", "likely")
        assert message[:16] in diagnosis.title
        assert change in diagnosis.change


def test_only_a_statement_that_makes_the_exception_is_a_refusal():
    frames = [("/job/run.py", "main", "fit(args)"), ("oddlib/core.py", "reraise", "raise error")]
    assert diagnose_text(traceback_text(frames, "TypeError: odd thing of a worker")).cause == ""
    own = [("/job/run.py", "main", "raise TypeError('odd thing of a worker')")]
    assert diagnose_text(traceback_text(own, "TypeError: odd thing of a worker")).cause == ""


@pytest.mark.parametrize(
    ("error", "cause", "confidence", "change"),
    [
        ("continue_final_message and odd_prompt are not compatible.", "LG230", "certain", "leave the other out"),
        ("'generation_batch_size' and 'steps_per_generation' can not be both set", "LG185", "certain", "leave the other"),
        ("Invalid role: 'odder'", "LG230", "certain", "give each record `messages`"),
        ("odd/model contains custom code which must be executed", "LG043", "certain", "trust_remote_code=True"),
    ],
)  # fmt: skip
def test_a_cause_of_many_messages_says_which_it_was(error, cause, confidence, change):
    diagnosis = _refuse(f"ValueError: {error}", "trl", file="trainer/odd_trainer")
    assert (diagnosis.cause, diagnosis.confidence) == (cause, confidence)
    assert change in diagnosis.change
    assert cause == "LG043" or error[:20] in diagnosis.title
    assert decide_action(diagnosis).action == "change and retry"


@pytest.mark.parametrize(
    ("file", "function", "phase"),
    [
        ("transformers/hf_argparser", "parse_args_into_dataclasses", "arguments"),
        ("trl/trainer/odd_config", "__post_init__", "arguments"),
        ("trl/trainer/odd_trainer", "__init__", "trainer"),
        ("accelerate/utils/launch", "prepare_odd_env", "launcher"),
        ("transformers/data/data_collator", "torch_call", "batch"),
    ],
)
def test_the_phase_of_arguments_trainer_and_launcher(file, function, phase):
    package, _, rest = file.partition("/")
    assert _refuse("ValueError: odd_a must be a list", package, function, rest).phase.name == phase


def test_values_that_are_not_words_of_a_remedy():
    assert find_stated_remedy("ValueError: Invalid odd width") == ""
    assert find_stated_remedy("ValueError: the odd method does not support that") == ""
