# SPDX-License-Identifier: Apache-2.0
"""Answers to exceptions that no row knows, or only a generic pattern. Needs nothing; a second."""

from __future__ import annotations

import io

import pytest

from harness.diagnosis import diagnose
from harness.diagnosis.evidence.unknown_cause import describe_next_step
from harness.diagnosis.gate_fix import describe_fix
from harness.findings import Fix
from tests.support.tracebacks import diagnose_text, traceback_text

ODD = "RuntimeError: nobody knows this one, at 0x7f00 of /data/x/y in step 1234"


@pytest.mark.parametrize(
    ("file", "area", "step"),
    [
        (
            "deepspeed/runtime/zero/partitioned_param_coordinator.py",
            "DeepSpeed's ZeRO-3 parameter coordinator",
            "stage 2",
        ),
        ("deepspeed/runtime/pipe/engine.py", "DeepSpeed's pipeline engine", "one pipeline stage"),
        ("deepspeed/runtime/swap_tensor/utils.py", "DeepSpeed's NVMe swapping", "`device: cpu`"),
        ("transformers/integrations/deepspeed.py", "the DeepSpeed integration", "`harness validate-config FILE`"),
        ("peft/tuners/lora/layer.py", "PEFT", "without the adapter"),
        ("torch/utils/data/dataloader.py", "the data loader", "num_workers=0"),
        ("strange_pkg/core.py", "the package `strange_pkg`", "pip show strange_pkg"),
        ("/home/u/train.py", "the script's own code", "read that line"),
    ],
)
def test_the_area_and_the_next_step(file, area, step):
    diagnosis = diagnose_text(
        "deepspeed==0.16.4\n" + traceback_text([("/x/train.py", "main", "go()"), (file, "f", "x")], ODD)
    )
    assert (diagnosis.state, diagnosis.cause, diagnosis.confidence) == ("failed", "", "unknown")
    assert f"raised in {area}" in diagnosis.title
    assert step in diagnosis.change
    query = "search the issues of that project for `RuntimeError: nobody knows this one, at of in step`"
    assert (query in diagnosis.change) is not file.startswith("/home/")
    assert "deepspeed 0.16.4" in diagnosis.change


@pytest.mark.parametrize(
    ("file", "error", "cause"),
    [
        ("/home/u/train.py", "TypeError: f() got an unexpected keyword argument 'x'", "LG096"),
        ("strange_pkg/core.py", "TypeError: f() got an unexpected keyword argument 'x'", "LG227"),
        (
            "deepspeed/runtime/zero/parameter_offload.py",
            "AttributeError: 'Linear' object has no attribute 'ds_odd'",
            "",
        ),
    ],
)
def test_a_generic_pattern_blames_no_script_for_an_error_inside_a_package(file, error, cause):
    diagnosis = diagnose_text(traceback_text([("/x/train.py", "main", "go()"), (file, "f", "x")], error, 0))
    assert diagnosis.cause == cause
    assert diagnosis.confidence == ("likely" if cause else "unknown")
    numbers = [number for number, _ in diagnosis.lines if number]
    assert len(numbers) == len(set(numbers))


def test_the_setting_of_a_gate_in_the_words_of_the_json():
    diagnosis = diagnose_text("[rank0]: AssertionError: You are using an untested ZeRO Optimizer\n")
    assert diagnosis.cause == "OP011"
    assert diagnosis.change.startswith(
        'write `"zero_allow_untested_optimizer": true` in the DeepSpeed JSON; `harness explain OP011`'
    )


@pytest.mark.parametrize(
    ("sets", "text"),
    [
        ({"zero.reduce_scatter": False}, 'write `"zero_optimization": {"reduce_scatter": false}` in the DeepSpeed JSON'),
        ({"train.global_batch_size": 8}, 'write `"train_batch_size": ...` in the DeepSpeed JSON'),
        ({"deepspeed.aio.use_gds": None}, "remove `aio.use_gds` from the DeepSpeed JSON"),
        (
            {"deepspeed.optimizer.params.max_grad_norm": None, "train.max_grad_norm": 0.5},
            'remove `optimizer.params.max_grad_norm` from the DeepSpeed JSON and write `"gradient_clipping": ...`',
        ),
        (
            {"deepspeed.a.b": True, "deepspeed.a.c": True},
            'write `"a": {"b": true, "c": true}` in the DeepSpeed JSON',
        ),
        ({"model.attn_implementation": "sdpa"}, "the title"),
        ({}, "the title"),
    ],
)  # fmt: skip
def test_fixes_as_keys_of_the_json(sets, text):
    assert describe_fix(Fix("the title", sets)) == text


IMPORT = """\
Traceback (most recent call last):
  File "train.py", line 1, in <module>
    import {name}
  File "/env/lib/python3.11/site-packages/{name}/__init__.py", line 41, in <module>
    {code}
  File "/env/lib/python3.11/site-packages/{other}/core.py", line 9, in parse
    return f(x)
{error}
"""


@pytest.mark.parametrize(
    ("name", "other", "code", "error"),
    [
        ("deepspeed", "deepspeed", "parse(v)", "AttributeError: 'Version' object has no attribute 'major'"),
        ("peft", "torchao", "from torchao import core", "ValueError: wrong layout of a table"),
        ("trl", "pydantic", "x = parse()", "TypeError: Fieldish() takes no argument"),
        ("colossal", "triton_extras", "x = parse()", "KeyError: 'sm_120'"),
    ],
)
def test_a_package_that_cannot_be_imported_does_not_fit_the_others(name, other, code, error):
    diagnosis = diagnose([io.BytesIO(IMPORT.format(name=name, other=other, code=code, error=error).encode())])
    assert (diagnosis.cause, diagnosis.confidence) == ("LG089", "likely")
    assert f"`{name}` cannot be imported" in diagnosis.title
    assert f"`{other}`" in diagnosis.change


def test_a_program_below_site_packages_that_runs_is_not_imported():
    log = IMPORT.format(name="prog", other="prog", code="main()", error="RuntimeError: nobody knows this one")
    diagnosis = diagnose([io.BytesIO(log.replace("import prog\n", "main()\n").encode())])
    assert diagnosis.confidence == "unknown"


def test_the_words_to_search_for_keep_names_and_drop_long_values():
    step = describe_next_step("AttributeError: 'Zed' object has no attribute 'ran'", [], {})
    assert "`AttributeError: 'Zed' object has no attribute 'ran'`" in step
    step = describe_next_step("KeyError: 'a value that differs from one job to another' is not a name", [], {})
    assert "`KeyError: is not a name`" in step
