# SPDX-License-Identifier: Apache-2.0
"""The decision by a cause: what to do next with a failed job. Needs nothing; a second."""

from __future__ import annotations

import io

import pytest

from harness.diagnosis import Diagnosis, diagnose
from harness.diagnosis.catalogue import all_causes, all_rows, causes_by_id
from harness.diagnosis.decision import decide_action, find_changes
from harness.diagnosis.explanation import describe_cause

TRANSIENT = ("LG040", "LG068", "LG072", "LG232")
SICK = ("LG012", "LG016", "LG077", "LG242", "LG249", "LG254")


def decide(cause, change=None, confidence="certain", host="node2"):
    change = describe_cause(cause)[1] if change is None else change
    return decide_action(Diagnosis("failed", confidence, cause, change=change, host=host))


def test_every_first_cause_has_a_decision():
    assert decide("LG074") is None  # the first failure is in another log
    for cause in ({row.cause for row in all_rows()} | set(causes_by_id())) - {"LG074"}:
        decision = decide(cause)
        assert decision is not None, cause
        assert decision.reason, cause
    later = [cause.id for cause in all_causes() if cause.level in ("echo", "end")]
    of_a_start = {"LG003", "LG018", "LG159", "LG192", "LG247", "LG302"}  # no step: memory, native code, set-up, builds
    assert {decide(cause).action for cause in {*later} - {"LG074"} - of_a_start} == {"retry"}
    assert {decide(cause).action for cause in of_a_start} == {"change and retry"}


def test_no_decision_without_a_cause_or_without_a_failure():
    assert decide_action(Diagnosis("failed", "unknown", change="set `a.b: 1`")) is None
    assert decide_action(Diagnosis("completed", "certain")) is None


@pytest.mark.parametrize("cause", TRANSIENT)
def test_what_passes_is_retried(cause):
    assert decide(cause).action == "retry"
    assert decide(cause).hosts == ()


@pytest.mark.parametrize("cause", SICK)
def test_a_sick_host_is_named(cause):
    decision = decide(cause)
    assert (decision.action, decision.hosts) == ("retry elsewhere", ("node2",))
    assert "node2" in decision.reason


def test_settings_are_changed_and_scripts_are_stopped():
    gate = decide("OP011")
    assert (gate.action, dict(gate.changes)) == ("change and retry", {"zero_allow_untested_optimizer": True})
    assert decide("LG096").action == decide("LG095").action == "stop"
    assert decide("LG050").needs_space
    assert decide("LG001").may_pass


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ("set `zero.stage3_prefetch_bucket_size: 0`", {"zero.stage3_prefetch_bucket_size": 0}),
        ('write `"zero_optimization": {"stage": 2, "reduce_scatter": true}` in the DeepSpeed JSON', None),
        ("set `fp16.loss_scale` to 0 or 1", {"fp16.loss_scale": 0}),
        ("set `expert_parallel.comm_backend` to `comm`", {"expert_parallel.comm_backend": "comm"}),
        ("remove `scheduler` from the DeepSpeed JSON", {"scheduler": None}),
        ('write `"train_batch_size": ...`; `harness explain BT001` has an example', {"train_batch_size": "..."}),
        ("pass `weights_only=False`, or use the torch that saved it", {}),
        ("update DeepSpeed, or set `a.b: 1`; until then, set `c.d: 2`", {"a.b": 1}),
        ("call `engine.backward(loss)` instead of `loss.backward()`", {}),
        ("pass `torch_dtype` to `from_pretrained`", {}),
        ("write one `NAME=VALUE` per line", {}),
        ("set `expert_parallel.preset_model` to the preset of this model", {}),
        ("remove `a(b)` and `", {}),
        ("weights alone (`save_only_model: true`) cannot be resumed from", {}),
        ("a smaller volume (`medium: Memory` counts as memory)", {}),
        ("`--include` takes `HOST:0,1@HOST`", {}),
        ("set `tokenizer.pad_token = tokenizer.eos_token`", {}),
        ("if you trust it, set `TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1`", {}),
        ("remove `torch.autocast` from the script", {}),
        ('load the model without `device_map="auto"`, and move it', {"device_map": None}),
        ("leave out `create_graph=True`, or set `a.b: 1`", {"create_graph": None}),
        ("use `sparse=False` and no `sparse_gradients: true`", {"sparse": False, "sparse_gradients": None}),
        ("a JSON of its own without `optimizer`", {}),
        ("remove `engine.half` and set `model.config.use_cache: false`", {}),
    ],
)
def test_the_keys_of_a_change(change, keys):
    expected = {"zero_optimization.stage": 2, "zero_optimization.reduce_scatter": True} if keys is None else keys
    assert find_changes(change) == expected


def test_the_decision_of_a_log():
    log = (
        b'Traceback (most recent call last):\n  File "/x/deepspeed/runtime/engine.py", line 3, in _configure_optimizer\n'
        b"AssertionError: You are using an untested ZeRO Optimizer\n"
    )
    decision = decide_action(diagnose([io.BytesIO(log)]))
    assert decision is not None
    assert (decision.action, decision.is_certain) == ("change and retry", True)


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ('ValueError: nnodes=2-4 is not in "MIN:MAX" format', "stop"),
        ("ValueError: Tried to launch on distributed with multinode, but `MASTER_ADDR` env was not set", "stop"),
        ("ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, "
         "but not set", "stop"),
        ("NCCL WARN Bootstrap : no socket interface found", "stop"),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination", "stop"),
        ("srun: error: Unable to allocate resources: Requested nodes are busy", "retry"),
        ("RuntimeError: One of the subprocesses has abruptly died during map operation.", "change and retry"),
        ("ssh: connect to host gpu07 port 22: Connection timed out", "retry elsewhere"),
        ("ssh: connect to host gpu07 port 22: Connection refused", "stop"),
        ("wandb.errors.CommError: The read operation timed out", "retry"),
        ("wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])", "stop"),
    ],
)  # fmt: skip
def test_what_fails_again_is_not_retried_and_what_passes_is(line, action):
    diagnosis = diagnose([io.BytesIO(line.encode() + b"\n")])
    decision = decide_action(diagnosis)
    assert decision is not None
    if action == "stop":
        assert decision.action in ("stop", "change and retry")
    else:
        assert decision.action == action
    assert decision.hosts == (("gpu07",) if action == "retry elsewhere" else ())


@pytest.mark.parametrize(
    ("error", "action"),
    [
        ("TypeError: f() takes 2 positional arguments but 3 were given", "stop"),
        ("ZeroDivisionError: division by zero", "stop"),
        ("mylib.errors.ValidationError: rows: too short", "stop"),
        ("RuntimeError: a tensor of the wrong sort", None),
        ("ValueError: the remote queue is temporarily unavailable", None),
        ("mylib.CustomError: something", None),
    ],
)
def test_an_unknown_exception_of_code_or_values_is_not_retried(error, action):
    text = f'Traceback (most recent call last):\n  File "/job/train.py", line 3, in work\n    go()\n{error}\n'
    diagnosis = diagnose([io.BytesIO(text.encode())])
    decision = decide_action(diagnosis)
    assert diagnosis.confidence == "unknown"
    assert (decision.action if decision else None) == action
    assert decision is None or not decision.is_certain


def test_an_unknown_error_before_the_first_step_is_not_retried():
    start = "Loading checkpoint shards: 100%|##########| 5/5 [00:01<00:02]\n"
    frame = 'Traceback (most recent call last):\n  File "/job/train.py", line 3, in work\n    go()\n'
    trained = "{'loss': 2.0, 'epoch': 0.1}\n" * 9
    error = "RuntimeError: a tensor of the wrong sort\n"
    assert decide_action(diagnose([io.BytesIO((start + frame + error).encode())])).action == "stop"
    assert decide_action(diagnose([io.BytesIO((start + trained + frame + error).encode())])) is None


@pytest.mark.parametrize(
    ("change", "action"),
    [
        ("check the path and the tag of the checkpoint", "change and retry"),
        ("check that the file of the template is there", "change and retry"),
        ("give `target_parts` names that the model has", "change and retry"),
        ("check the frame named", "stop"),
        ("give every layer one tensor", "stop"),
    ],
)
def test_a_path_or_a_setting_is_changed_and_code_is_looked_at(change, action):
    assert decide("LG143", change=change).action == action
