# SPDX-License-Identifier: Apache-2.0
"""Logs as people cut and paste them: the exception first, without indentation, ending above it. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import SITE, diagnose_text, traceback_text


def frame(file, function, code, indent="  "):
    return f'{indent}File "{file}", line 7, in {function}\n{indent}  {code}\n'


ENGINE = frame(f"{SITE}/accelerate/accelerator.py", "{name}", "self.deepspeed_engine_wrapped.{name}(x)")
ERROR = "AttributeError: 'NoneType' object has no attribute '{name}'\n"


@pytest.mark.parametrize("name", ["backward", "step", "save_checkpoint", "clip"])
def test_an_exception_above_its_frames_has_them(name):
    quote = (ERROR + ENGINE).format(name=name)
    diagnosis = diagnose_text(quote)
    assert (diagnosis.cause, diagnosis.confidence, diagnosis.line) == ("LG120", "likely", 1)
    assert f"no engine for `{name}`" in diagnosis.title
    assert decide_action(diagnosis).action == "change and retry"
    far = diagnose_text((ERROR + "step\n" * 9 + ENGINE).format(name=name))
    assert "no engine for" not in far.title


@pytest.mark.parametrize(
    ("frames", "cause"),
    [
        ([("deepspeed/runtime/engine.py", "_load_checkpoint", "x"),
          ("deepspeed/runtime/state_dict_factory.py", "get_sd_loader", "return OddLoader(ck")], "LG034"),
        ([("deepspeed/ops/op_builder/builder.py", "jit_load", "op_module = load(name=self.n")], "LG024"),
        ([("torch/utils/cpp_extension.py", "_run_ninja_build", "subprocess.run(")], "LG024"),
        ([("torch/distributed/rendezvous.py", "_create_c10d_store", "return TCPStore(")], "LG067"),
        ([("huggingface_hub/file_download.py", "_request", "response = http_")], "LG040"),
        ([("oddlib/core.py", "go", "x = y")], ""),
    ],
)  # fmt: skip
def test_the_last_frame_of_a_cut_traceback_tells_what_was_going_on(frames, cause):
    log = traceback_text(frames, "").rstrip("\n")
    diagnosis = diagnose_text(log)
    assert (diagnosis.cause, diagnosis.confidence) == (cause, "likely" if cause else "unknown")
    whole = diagnose_text(f"{log}\nValueError: bad\n")
    assert not whole.title.startswith("the log ends")


@pytest.mark.parametrize("prefix", ["(OddActor pid=71) ", "[rank2]: ", ""])
def test_a_quote_without_indentation_keeps_its_frames(prefix):
    lines = [
        'File "/x/site-packages/oddtrain/run.py", line 3, in fit', "return self.llm.call(", "^^^^^^^^",
        'File "/x/site-packages/oddserve/llm.py", line 9, in call', "return self.core.worker", "^^^^^^",
        "AttributeError: 'OddCore' object has no attribute 'worker'",
    ]  # fmt: skip
    diagnosis = diagnose_text("".join(f"{prefix}{line}\n" for line in lines))
    assert (diagnosis.cause, diagnosis.where) == ("LG227", "/x/site-packages/oddserve/llm.py:9 in call")
    assert "`oddserve`, called by `oddtrain`" in diagnosis.title
    assert decide_action(diagnosis).action == "change and retry"


@pytest.mark.parametrize("indent", ["", "    "])
def test_a_line_of_source_among_those_of_another_rank_does_not_end_a_traceback(indent):
    deep = frame("/w/save.py", "save", "x", "      ").splitlines()[0]
    diagnosis = diagnose_text(f"Traceback (most recent call last):\n{deep}\n{indent}f(x)\nValueError: bad thing 5\n")
    assert (diagnosis.where == "/w/save.py:7 in save") is bool(indent)


@pytest.mark.parametrize("message", ["two parts overlap: {'a', 'b'}", "no file ends so", "Some tensors share memory"])
def test_a_message_may_begin_below_its_exception(message):
    diagnosis = diagnose_text(f"RuntimeError:\n    {message}\n    and more of it\n")
    assert diagnosis.message == f"RuntimeError: | {message} | and more of it"
    assert not diagnosis.notes


@pytest.mark.parametrize("name", ["optimizer", "is_odd", "gather_all"])
def test_a_message_that_was_printed_before_has_the_frames_of_its_exception(name):
    text = f"'OddRunner' object has no attribute '{name}'"
    log = f"{text}\n" + traceback_text(
        [("/w/prog/trainer.py", "prepare", f"self.{name}.go()")], f"AttributeError: {text}"
    )
    for lines in (log, log.removeprefix(f"{text}\n")):
        diagnosis = diagnose_text(lines)
        assert (diagnosis.cause, diagnosis.where) == ("LG096", "/w/prog/trainer.py:1 in prepare")
        assert f"reads its own `{name}`" in diagnosis.title
        assert decide_action(diagnosis).action == "change and retry"
    other = traceback_text([("oddlib/trainer.py", "prepare", f"self.{name}.go()")], f"AttributeError: {text}")
    assert "its own" not in diagnose_text(other).title


def test_every_key_that_pydantic_refuses_is_told():
    keys = ["aa", "bb", "cc", "dd", "ee", "ff", "gg"]
    row = "  Extra inputs are not permitted [type=extra_forbidden, input_value=1, input_type=int]\n"
    row += "    For further information visit https://errors.pydantic.dev/2.11/v/extra_forbidden\n"
    head = f"pydantic_core._pydantic_core.ValidationError: {len(keys)} validation errors for DeepSpeedBF16Config\n"
    decision = decide_action(diagnose_text(head + "".join(f"{key}\n{row}" for key in keys)))
    assert list(decision.changes) == [f"bf16.{key}" for key in keys]


@pytest.mark.parametrize(
    ("file", "function", "code", "cause"),
    [
        ("deepspeed/runtime/zero/stage3.py", "defragment", "assert len(set(t.dtype for t in tensors)) == 1", "LG301"),
        ("deepspeed/ops/op_builder/builder.py", "find", 'assert home is not None, "CUDA_HOME does not exist, unable to compile CUDA op',
         "LG021"),
        ("deepspeed/runtime/zero/odd.py", "reset", 'raise RuntimeError(f"still have inflight params {names}', "LG100"),
        ("/w/fit.py", "save", "raise OSError(28, 'No space left on device')", "LG050"),
        ("oddlib/core.py", "go", "raise ValueError(text)", ""),
        ("oddlib/core.py", "go", "x = 'No space left on device'", ""),
    ],
)  # fmt: skip
def test_the_last_line_of_a_cut_traceback_may_tell_what_it_raises(file, function, code, cause):
    log = traceback_text([(file, function, code)], "").rstrip("\n")
    diagnosis = diagnose_text(log)
    assert (diagnosis.cause, diagnosis.confidence) == (cause, "likely" if cause else "unknown")
    assert (diagnosis.message == code) is bool(cause)


@pytest.mark.parametrize(
    "code",
    ["except subprocess.CalledProcessError as e:", "except (OSError, MemoryError):", "except torch.OutOfMemoryError:"],
)
@pytest.mark.parametrize("number", ["", "   1674     ", "-> 1674     "])
def test_a_line_of_source_that_catches_an_error_is_no_error(number, code):
    assert diagnose_text(f"{number}{code}\n").state == "no failure seen"


def test_a_cut_traceback_is_no_words_to_search_for():
    log = traceback_text([("oddlib/core.py", "go", "x = y")], "").rstrip("\n")
    assert "search" not in diagnose_text(log).change
    assert "search" in diagnose_text(f"{log}\nTypeError: the odd thing is too odd\n").change
