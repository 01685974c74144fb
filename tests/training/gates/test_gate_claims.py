# SPDX-License-Identifier: Apache-2.0
"""Claims of the gates about DeepSpeed, run on the installed DeepSpeed: two forked gloo ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.gates.rules.data_efficiency import REQUIRED_LTD_KEYS
from harness.gates.rules.torch_autocast import TORCH_NN_MODULES
from tests.support.training.forked_ranks import ForkedRanks

JOB = Path(__file__).parents[1] / "jobs" / "gate_claims.py"


@pytest.fixture(scope="module")
def seen(forked: ForkedRanks, tmp_path_factory):
    """The notes of `gate_claims.py`."""
    out = tmp_path_factory.mktemp("claims") / "notes.json"
    answer = forked.run(JOB, str(out), timeout=900, check=False)
    assert out.exists(), answer["output"][answer["first"]][-4000:]
    return json.loads(out.read_text())


def message(seen, name):
    answer = seen["claims"][name]
    assert "error" in answer, f"DeepSpeed accepted it: {answer}"
    return answer["message"]


def test_pp001_a_pipeline_refuses_stage_2_and_takes_stage_1(seen):
    assert "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism" in message(seen, "PP001-2")
    assert seen["claims"]["PP001-1"] == {"ok": "built"}


def test_of001_parameter_offload_below_stage_3_does_nothing(seen):
    assert seen["claims"]["OF001"] == {"ok": {"stage": 2, "folder": False}}


def test_of002_nvme_without_a_path_fails_without_naming_the_key(seen):
    assert "nvme_path" not in message(seen, "OF002")


def test_of003_an_nvme_optimizer_below_stage_3_stays_in_memory(seen):
    assert seen["claims"]["OF003"] == {"ok": {"cpu_offload": True, "folder": False}}


def test_of004_without_zero_only_the_class_changes(seen):
    assert seen["claims"]["OF004"] == {"ok": "DeepSpeedCPUAdam"}


def test_of005_a_ratio_below_stage_3_is_refused(seen):
    assert "Partial offloading only supported for ZeRO Stage 3." in message(seen, "OF005")


def test_pr001_two_formats_are_asserted(seen):
    assert seen["claims"]["PR001"]["error"] == "AssertionError"
    assert "cannot be simultaneously enabled" in message(seen, "PR001")


def test_pr002_fp16_without_zero_trains_next_to_nothing(seen):
    assert seen["claims"]["PR002-0"]["ok"] < seen["claims"]["PR002-1"]["ok"] / 100


def test_pr003_16_bit_without_zero_is_one_step_ahead(seen):
    assert seen["claims"]["PR003-0"]["ok"] == seen["claims"]["PR003-1"]["ok"] + 1
    assert seen["claims"]["PR003-fp16"]["ok"] == seen["claims"]["PR003-0"]["ok"]


def test_pr026_gradients_in_int8_fail_at_stage_1(seen):
    assert "can't be cast to the desired output type Char" in message(seen, "PR026")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_op041_adagrad_follows_deepspeeds_own_schedule_alone_and_has_one_group(seen, stage):
    assert seen["claims"][f"OP041-{stage}"] == {"ok": {"rates": [0.01] * 3}}
    assert (
        seen["claims"][f"OP041-{stage}-own"]["ok"]["rates"][-1] > seen["claims"][f"OP041-{stage}-own"]["ok"]["rates"][0]
    )
    assert "list index out of range" in message(seen, f"OP041-{stage}-decay")


def test_bt001_and_bt002_are_refused(seen):
    assert "train_batch_size is not equal" in message(seen, "BT001")
    assert "needs to be provided" in message(seen, "BT002")


def test_tp001_this_release_trains_autotp_at_stage_3(seen):
    assert seen["claims"]["TP001"] == {"ok": 3}


def test_sp005_an_unknown_key_is_ignored_at_the_top_and_refused_inside(seen):
    assert seen["claims"]["unknown-top"] == {"ok": 0}
    assert "stagee" in message(seen, "unknown-zero")


@pytest.mark.parametrize(("name", "text"), [("fp32", "Half and Float"), ("bf16", "Half and BFloat16")])
def test_pr037_positional_inputs_are_cast_to_half_although_fp16_is_off(seen, name, text):
    assert text in message(seen, f"PR037-{name}")
    assert seen["claims"]["PR037-keyword"] == {"ok": "torch.float32"}


@pytest.mark.parametrize("name", ["UT019", "UT019-empty"])
def test_ut019_a_comms_logger_block_logs_whatever_its_switch_says(seen, name):
    assert "all_reduce" in seen["claims"][name]["ok"]


def test_ut020_a_curriculum_without_its_own_switch_is_off(seen):
    assert (seen["claims"]["UT020"], seen["claims"]["UT020-on"]) == ({"ok": "False"}, {"ok": "True"})


def test_ut021_only_the_operations_that_exist_are_logged(seen):
    assert seen["claims"]["UT021"] == {"ok": ["all_reduce"]}


def test_ut022_each_key_of_token_dropping_is_needed(seen):
    answers = {name: answer for name, answer in seen["claims"].items() if name.startswith("UT022-")}
    assert answers.pop("UT022-") == {"ok": "ran"}
    named = {name.removeprefix("UT022-") for name in answers}
    assert named == set(REQUIRED_LTD_KEYS)
    for name, answer in answers.items():
        assert (answer["error"], answer["message"]) == (
            "KeyError",
            repr(name.rpartition(".")[2].removeprefix("UT022-")),
        )


def test_pr038_a_class_that_torch_lacks_is_refused(seen):
    assert "Failed to import lower precision safe module torch.nn.Linearr" in message(seen, "PR038")
    assert "ok" in seen["claims"]["PR038-right"]


def test_pr038_the_classes_of_torch_are_those_of_the_table():
    from torch import nn

    classes = {name for name, value in vars(nn).items() if isinstance(value, type) and issubclass(value, nn.Module)}
    assert classes == TORCH_NN_MODULES


def test_sq012_a_mesh_overwrites_the_shards_of_a_tensor_group(seen):
    """(own shard, shard of rank 0) of each rank."""
    assert seen["claims"]["SQ012-without"] == {"ok": [[True, True], [True, False]]}
    assert seen["claims"]["SQ012"] == {"ok": [[True, True], [False, True]]}
