# SPDX-License-Identifier: Apache-2.0
"""Preference training of other programs: converted with each key, or refused by name."""

from __future__ import annotations

import json

import pytest

from harness.convert.conversion import convert_file
from harness.errors import UserError
from tests.convert.test_conversion import AXOLOTL_BASE, FACTORY_BASE
from tests.convert.test_shell_command import TARGET

TRL_BASE = "model_name_or_path: a/b\ndataset_name: c/d\nper_device_train_batch_size: 2\n"


def spec_of(file, text, write):
    return convert_file(write(file, text), TARGET).draft.spec


@pytest.mark.parametrize(
    ("file", "text", "objective", "settings"),
    [
        ("a.yaml", FACTORY_BASE + "stage: dpo\nfinetuning_type: full\npref_beta: 0.2\npref_loss: ipo\n", "dpo", {"beta": 0.2, "loss_type": "ipo"}),
        ("a.yaml", FACTORY_BASE + "stage: dpo\nfinetuning_type: full\npref_ftx: 0.3\ndpo_label_smoothing: 0.1\n", "dpo", {"rpo_alpha": 0.3, "label_smoothing": 0.1}),
        ("a.yaml", FACTORY_BASE + "stage: kto\nfinetuning_type: full\nkto_chosen_weight: 1.5\n", "kto", {"desirable_weight": 1.5}),
        ("a.yaml", FACTORY_BASE + "stage: dpo\nfinetuning_type: full\nref_model: some/model\n", "dpo", None),
        ("a.yaml", AXOLOTL_BASE + "rl: ipo\nrl_beta: 0.2\n", "dpo", {"loss_type": "ipo", "beta": 0.2}),
        ("a.yaml", AXOLOTL_BASE + "rl: kto\nkto_undesirable_weight: 0.2\n", "kto", {"undesirable_weight": 0.2}),
        ("a.yaml", AXOLOTL_BASE + "rl: dpo\ndpo_loss_type: [sigmoid, sft]\ndpo_loss_weights: [1.0, 0.4]\n", "dpo", {"loss_type": "sigmoid", "rpo_alpha": 0.4}),
        ("a.yaml", TRL_BASE + "beta: 0.05\nloss_type: apo_zero\n", "dpo", {"beta": 0.05, "loss_type": "apo_zero"}),
        ("a.yaml", TRL_BASE + "beta: 0.05\noutput_dir: zephyr-dpo\n", "dpo", {"beta": 0.05}),
        ("a.yaml", TRL_BASE + "beta: 0.05\ndesirable_weight: 1.2\n", "kto", {"beta": 0.05, "desirable_weight": 1.2}),
        ("a.sh", "trl dpo --model_name_or_path a/b --dataset_name c/d --beta 0.3\n", "dpo", {"beta": 0.3}),
        ("a.sh", "accelerate launch trl/scripts/kto.py --model_name_or_path a/b --dataset_name c/d\n", "kto", None),
        ("a.yaml", FACTORY_BASE + "stage: rm\nfinetuning_type: full\n", "reward", None),
        ("a.yaml", AXOLOTL_BASE + "reward_model: true\nnum_labels: 1\nmodel_type: AutoModelForSequenceClassification\ncenter_rewards_coefficient: 0.01\n", "reward", {"center_rewards_coefficient": 0.01}),
        ("a.yaml", TRL_BASE + "center_rewards_coefficient: 0.02\n", "reward", {"center_rewards_coefficient": 0.02}),
        ("a.sh", "trl reward --model_name_or_path a/b --dataset_name c/d --center_rewards_coefficient 0.01\n", "reward", {"center_rewards_coefficient": 0.01}),
        ("a.sh", "swift rlhf --rlhf_type rm --model a/b --dataset d --center_rewards_coefficient 0.01\n", "reward", {"center_rewards_coefficient": 0.01}),
        ("a.sh", "swift rlhf --model a/b --dataset d --rpo_alpha 0.1\n", "dpo", {"rpo_alpha": 0.1}),
        ("a.sh", "swift rlhf --rlhf_type kto --model a/b --dataset d --beta 0.2\n", "kto", {"beta": 0.2}),
    ],
)  # fmt: skip
def test_a_file_becomes_its_objective(file, text, objective, settings, write):
    spec = spec_of(file, text, write)
    assert (spec["objective"], spec.get(objective)) == (objective, settings)
    assert "assistant_only_loss" not in spec["data"]


@pytest.mark.parametrize(
    ("text", "release", "smoothing"),
    [
        (TRL_BASE + "beta: 0.1\nloss_type: sigmoid\nlabel_smoothing: 0.2\n", None, None),
        (TRL_BASE + "beta: 0.1\nloss_type: sigmoid\nlabel_smoothing: 0.2\n", "0.28.0", 0.2),
        (TRL_BASE + "beta: 0.1\nloss_type: robust\nlabel_smoothing: 0.2\n", None, 0.2),
        (TRL_BASE + "beta: 0.1\nloss_type: ipo\nlabel_smoothing: 0.2\n", "0.28.0", None),
        (AXOLOTL_BASE + "rl: dpo\ndpo_label_smoothing: 0.2\n", None, None),
        (AXOLOTL_BASE + "rl: dpo\ndpo_label_smoothing: 0.2\n", "0.14.0", 0.2),
        (FACTORY_BASE + "stage: dpo\nfinetuning_type: full\ndpo_label_smoothing: 0.2\n", None, 0.2),
    ],
)
def test_smoothing_that_the_program_does_not_read_is_left_out_and_told(text, release, smoothing, write):
    adopted = convert_file(write("a.yaml", text), TARGET, release=release)
    assert (adopted.draft.get("dpo.label_smoothing"), adopted.draft.has("dpo.label_smoothing")) == (
        smoothing,
        bool(smoothing),
    )
    told = [note for note in adopted.notes_of("lossy") if "label_smoothing" in note.message]
    assert len(told) == (0 if smoothing else 1)


@pytest.mark.parametrize(
    ("file", "text", "key"),
    [
        *(("a.yaml", FACTORY_BASE + f"stage: dpo\nfinetuning_type: full\npref_loss: {loss}\n", "pref_loss") for loss in ("orpo", "simpo", "kto_pair")),
        ("a.yaml", FACTORY_BASE + "stage: dpo\nfinetuning_type: full\nref_model: another/model\n", "ref_model"),
        ("a.yaml", FACTORY_BASE + "stage: ppo\nfinetuning_type: full\n", "stage"),
        ("a.yaml", AXOLOTL_BASE + "process_reward_model: true\n", "process_reward_model"),
        ("a.yaml", AXOLOTL_BASE + "reward_model: true\nnum_labels: 3\n", "num_labels"),
        ("a.yaml", AXOLOTL_BASE + "rl: dpo\ndpo_use_weighting: true\n", "dpo_use_weighting"),
        ("a.yaml", AXOLOTL_BASE + "rl: simpo\n", "rl"),
        ("a.yaml", AXOLOTL_BASE + "rl: dpo\nuse_onebitllms: true\n", "use_onebitllms"),
        ("a.yaml", TRL_BASE + "beta: 0.05\nloss_type: [sigmoid, bco_pair, sft]\n", "loss_type"),
        ("a.yaml", TRL_BASE + "beta: 0.05\noutput_dir: orpo-out\n", "beta"),
        ("a.yaml", TRL_BASE + "beta: 0.05\noutput_dir: out\n", "beta"),
        ("a.sh", "trl orpo --model_name_or_path a/b --dataset_name c/d --beta 0.3\n", ""),
        ("a.sh", "trl dpo --model_name_or_path a/b --dataset_name c/d --loss_type discopop\n", "loss_type"),
        ("a.sh", "swift rlhf --rlhf_type dpo --model a/b --dataset d --ref_model e/f\n", "ref_model"),
        ("a.sh", "swift rlhf --rlhf_type grpo --model a/b --dataset d\n", "rlhf_type"),
    ],
)  # fmt: skip
def test_other_losses_are_refused_by_name(file, text, key, write):
    with pytest.raises(UserError) as refused:
        spec_of(file, text, write)
    assert [(f.gate, f.key) for f in refused.value.findings] == [("SP040", key)]


@pytest.mark.parametrize("name", ["ORPO", "PPO", "GRPO"])
def test_a_yaml_of_another_method_is_refused_under_its_name(name, write):
    for text in (f"beta: 0.05\noutput_dir: {name.lower()}-out\n", f"# {name}\nnum_generations: 4\n"):
        with pytest.raises(UserError) as refused:
            spec_of("a.yaml", TRL_BASE + text, write)
        (finding,) = refused.value.findings
        assert f"is of {name}, by the words of this file" in finding.message
        assert not finding.message[160:]


MIXTURE = "dataset_mixture:\n  datasets:\n  - {id: a/b, config: en, split: train, columns: [messages], weight: %s}\n  - {id: c/d}\n  seed: 1\n  test_split_size: 0.1\n"
FRACTIONS = "datasets:\n- {path: a/b, fraction: 0.75}\n- {path: c/d, split: test, fraction: 0.25}\n"


@pytest.mark.parametrize(
    ("text", "train", "told"),
    [
        (MIXTURE % "1.0", [{"path": "a/b", "name": "en", "split": "train"}, {"path": "c/d"}], ""),
        (MIXTURE % "0.3", [{"path": "a/b", "name": "en", "split": "train"}, {"path": "c/d"}], "trains on a part of each dataset"),
        (FRACTIONS, [{"path": "a/b", "weight": 0.75}, {"path": "c/d", "split": "test", "weight": 0.25}], "shares are of rows"),
    ],
)  # fmt: skip
def test_a_mixture_of_datasets_is_a_list_of_sources(text, train, told, write):
    base = TRL_BASE.replace("dataset_name: c/d\n", "")
    adopted = convert_file(write("a.yaml", base + "# dpo\nbeta: 0.05\n" + text), TARGET)
    assert adopted.draft.get("data.train") == train
    assert not [note for note in adopted.notes_of("manual") if note.key.startswith("dataset")]
    assert any(told in note.message for note in adopted.notes_of("lossy"))
    assert adopted.draft.get("data.eval_fraction") == (0.1 if text.startswith("dataset_mixture") else 0.0)


@pytest.mark.parametrize("text", [MIXTURE.replace("0.1", "100") % "1.0", FRACTIONS + "test_split_size: 100\n"])
def test_a_number_of_records_that_are_held_out_is_to_be_set_by_hand(text, write):
    base = TRL_BASE.replace("dataset_name: c/d\n", "")
    adopted = convert_file(write("a.yaml", base + "# dpo\nbeta: 0.05\n" + text), TARGET)
    assert adopted.draft.get("data.eval_fraction") == 0.0
    (note,) = [note for note in adopted.notes_of("manual") if note.key.endswith(("mixture", "datasets"))]
    assert "`test_split_size: 100` is a number of records" in note.message


def test_pairs_of_axolotl_are_no_plain_text_that_a_run_spec_packs(write):
    text = "base_model: x/y\nsequence_len: 64\nmicro_batch_size: 1\nnum_epochs: 1\nlearning_rate: 0.0001\n"
    text += "rl: dpo\ndatasets: [{path: a/b, type: chat_template.default}]\nsample_packing: false\n"
    adopted = convert_file(write("a.yaml", text), TARGET)
    assert adopted.draft.get("data.train") == ["a/b"]
    assert not [note for kind in ("lossy", "manual") for note in adopted.notes_of(kind) if note.key == "sample_packing"]


@pytest.mark.parametrize("entry", ["{path: a/b, data_dir: x}", "{name: en}", "a/b", "{path: a/b, fraction: many}"])
def test_a_mixture_that_a_run_spec_cannot_say_is_to_be_set_by_hand(entry, write):
    adopted = convert_file(
        write(
            "a.yaml",
            TRL_BASE.replace("dataset_name: c/d\n", "") + f"# dpo\nbeta: 0.05\nuse_peft: false\ndatasets:\n- {entry}\n",
        ),
        TARGET,
    )
    assert any(note.key == "datasets" for note in adopted.notes_of("manual"))


def test_datasets_of_pairs_and_labels_keep_their_columns(write, tmp_path):
    info = {
        "pairs": {
            "file_name": "p.json",
            "ranking": True,
            "columns": {"prompt": "q", "chosen": "good", "rejected": "bad"},
        },
        "labels": {"file_name": "l.json", "formatting": "sharegpt", "columns": {"messages": "talk", "kto_tag": "ok"}},
    }
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps(info))
    stage = "stage: {}\nfinetuning_type: full\ndataset: {}\n".format
    data = spec_of("a.yaml", FACTORY_BASE + stage("dpo", "pairs"), write)["data"]
    assert (data["prompt_column"], data["chosen_column"], data["rejected_column"]) == ("q", "good", "bad")
    assert "format" not in data["train"][0]
    data = spec_of("b.yaml", FACTORY_BASE + stage("kto", "labels"), write)["data"]
    assert (data["completion_column"], data["label_column"]) == ("talk", "ok")
