# SPDX-License-Identifier: Apache-2.0
"""Each key of a training program's file is in the spec or in one of three lists, with words that are true."""

from __future__ import annotations

import json

import pytest

from harness.convert.conversion import convert_file
from harness.errors import UserError
from harness.facts.deepspeed_version import DeepSpeedTarget

TARGET = DeepSpeedTarget("0.19.8", "asked for")
FACTORY = "model_name_or_path: a/b\nstage: sft\nfinetuning_type: full\nbf16: true\nlearning_rate: 0.001\n"
AXOLOTL = "base_model: a/b\ndatasets: [{path: d.jsonl, type: chat_template}]\nlearning_rate: 0.001\nsave_steps: 5\n"


def convert(write, text, name="t.yaml"):
    return convert_file(write(name, text), TARGET)


@pytest.mark.parametrize(
    "line",
    ["do_train: true", "overwrite_output_dir: true", "plot_loss: true", "preprocessing_num_workers: 4", "report_to: none", "save_only_model: true", "ddp_timeout: 1800", "enable_liger_kernel: true"],
)  # fmt: skip
def test_what_decides_nothing_is_not_among_the_rest(line, write):
    result = convert(write, FACTORY + line + "\n")
    plain = convert(write, FACTORY, "plain.yaml")
    for kind in ("manual", "lossy"):
        assert [note.message for note in result.notes_of(kind)] == [note.message for note in plain.notes_of(kind)]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("neftune_noise_alpha: 5", "adds noise"),
        ("max_samples: 1000", "takes this many records"),
        ("mask_history: true", "the last turn"),
        ("resize_vocab: true", "adds rows"),
        ("packing: true", "attend to earlier ones"),
        ("optim: adamw_8bit", "states of 8 bit"),
        ("optim: adafactor", "adamw"),
        ("lr_scheduler_type: reduce_lr_on_plateau", "cosine"),
        ("pure_bf16: true", "fp32 master weights"),
        ("foo_bar: 3", "not a key of LLaMA-Factory"),
    ],
)
def test_what_is_trained_otherwise_says_how(line, word, write):
    name = line.split(":")[0]
    notes = [note for note in convert(write, FACTORY + line + "\n").notes_of("lossy") if note.key == name]
    assert len(notes) == 1
    assert word in notes[0].message
    assert notes[0].place.line == 6


@pytest.mark.parametrize(
    ("base", "line", "spec_key"),
    [
        (FACTORY, "template: llama3", "data.chat_template"),
        (FACTORY, "save_strategy: epoch", "checkpoint.save_steps"),
        (FACTORY, "dataset: mychat", "data.train"),
        (FACTORY, "val_size: 100", "data.eval_fraction"),
        (FACTORY, "tensor_model_parallel_size: 2", "parallel.tensor_parallel_size"),
        (AXOLOTL, "saves_per_epoch: 2", "checkpoint.save_steps"),
        (AXOLOTL, "val_set_size: 0.1\nevals_per_epoch: 4", "eval.eval_steps"),
        (AXOLOTL, "chat_template: llama3", "data.chat_template"),
        (AXOLOTL, "fsdp: [full_shard]", "zero.stage"),
    ],
)
def test_what_is_set_by_hand_names_the_key(base, line, spec_key, write):
    notes = convert(write, base + line + "\n").notes_of("manual")
    assert any(f"set `{spec_key}`" in note.message for note in notes), notes


@pytest.mark.parametrize(
    ("base", "line", "key", "value"),
    [
        (FACTORY, "neat_packing: true", "data.packing", True),
        (FACTORY, "val_size: 0.1\neval_strategy: steps\neval_steps: 50", "eval.eval_steps", 50),
        (FACTORY, "val_size: 0.1\neval_strategy: steps\nlogging_steps: 7", "eval.eval_steps", 7),
        (FACTORY, "train_on_prompt: true", "data.assistant_only_loss", False),
        (FACTORY, "report_to: [wandb, tensorboard]", "telemetry.trackers", ["wandb", "tensorboard"]),
        (FACTORY, "lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 0.0001}", "scheduler.min_lr_ratio", 0.1),
        (FACTORY, "warmup_steps: 0.1", "scheduler.warmup_ratio", 0.1),
        (FACTORY, "val_size: 0.1\nsave_total_limit: 2\nload_best_model_at_end: true", "checkpoint.keep_best", True),
        (AXOLOTL, "sample_packing: true", "data.packing", True),
        (AXOLOTL, "chat_template: chatml", "data.chat_template", "chatml"),
        (AXOLOTL, "max_steps: 400\nnum_epochs: 2\nval_set_size: 0.1\nevals_per_epoch: 4", "eval.eval_steps", 50),
        (AXOLOTL, "use_wandb: true\nwandb_project: p", "telemetry.project", "p"),
        (AXOLOTL, "optimizer: lion_8bit", "optimizer.type", "lion"),
        (AXOLOTL, "fsdp_config: {activation_checkpointing: true}", "train.gradient_checkpointing", True),
    ],
)  # fmt: skip
def test_what_a_spec_has_is_mapped(base, line, key, value, write):
    assert convert(write, base + line + "\n").draft.get(key) == value


def test_the_best_checkpoint_is_kept_where_others_are_removed(write):
    result = convert(write, FACTORY + "val_size: 0.1\nload_best_model_at_end: true\n")
    assert result.draft.get("checkpoint.keep_best") is None
    (note,) = [note for note in result.notes_of("manual") if note.key == "load_best_model_at_end"]
    assert "every checkpoint is kept, the best too; to export it, add `--best` to `harness export" in note.message
    without_data = convert(write, FACTORY + "save_total_limit: 2\nload_best_model_at_end: true\n", "b.yaml")
    assert without_data.draft.get("checkpoint.keep_best") is None
    assert "load_best_model_at_end" in {note.key for note in without_data.notes_of("harmless")}


def test_another_metric_than_the_loss_is_named(write):
    text = FACTORY + "val_size: 0.1\nload_best_model_at_end: true\nmetric_for_best_model: "
    assert [n.key for n in convert(write, text + "accuracy\n").notes_of("lossy")] == ["metric_for_best_model"]
    assert not convert(write, text + "eval_loss\n", "loss.yaml").notes_of("lossy")


@pytest.mark.parametrize(
    ("base", "lines", "steps"),
    [
        (AXOLOTL, "val_set_size: 0.1\nevals_per_epoch: 4\nearly_stopping_patience: 3", "the steps of an epoch / 4"),
        (AXOLOTL, "val_set_size: 0.1\neval_steps: 0.2\nearly_stopping_patience: 3", "0.2 x the steps of the run"),
        (FACTORY, "val_size: 0.1\neval_strategy: epoch\nearly_stopping_steps: 3", "the steps of an epoch"),
        (FACTORY, "val_size: 0.1\neval_steps: 50\nearly_stopping_steps: 3", None),
    ],
)
def test_early_stopping_names_the_evaluations_that_it_needs(base, lines, steps, write):
    result = convert(write, f"{base}{lines}\n")
    assert result.draft.get("eval.early_stopping_patience") == 3
    notes = [note.message for note in result.notes_of("manual") if note.key.startswith("early_stopping")]
    assert [note.split("set `eval.eval_steps` to ")[1] for note in notes] == ([steps] if steps else [])


def test_code_of_a_model_is_pinned_and_named(write):
    result = convert(write, FACTORY + "trust_remote_code: true\n")
    assert result.draft.get("model.trust_remote_code") is True
    (note,) = [note for note in result.notes_of("manual") if note.key == "trust_remote_code"]
    assert "set `model.revision`" in note.message
    assert "`--allow-local-code`" in note.message
    pinned = convert(write, FACTORY + f"trust_remote_code: true\nmodel_revision: {'0a' * 20}\n", "pinned.yaml")
    (note,) = [note for note in pinned.notes_of("manual") if note.key == "trust_remote_code"]
    assert "model.revision" not in note.message
    assert "`launch` and `export` run that code only with `--allow-local-code`" in note.message


def test_a_folder_without_code_does_not_need_it_allowed(write, tmp_path):
    (tmp_path / "m").mkdir()
    factory = FACTORY.replace("a/b", str(tmp_path / "m")) + "trust_remote_code: true\n"
    result = convert(write, factory)
    assert result.draft.get("model.trust_remote_code") is None
    (note,) = [note for note in result.notes_of("harmless") if note.key == "trust_remote_code"]
    assert note.message.endswith("has no Python files")
    (tmp_path / "m/modeling.py").write_text("")
    result = convert(write, factory, "code.yaml")
    assert result.draft.get("model.trust_remote_code") is True
    assert any(note.key == "trust_remote_code" for note in result.notes_of("manual"))


def test_without_evaluation_data_nothing_is_evaluated(write):
    result = convert(write, FACTORY + "eval_strategy: steps\neval_steps: 5\nper_device_eval_batch_size: 1\n")
    assert result.draft.get("eval") is None
    assert {note.key for note in result.notes_of("harmless")} >= {"eval_steps", "per_device_eval_batch_size"}


def test_loss_scaling_is_no_advice_for_bf16(write):
    scaling = {"enabled": "auto", "initial_scale_power": 32}
    config = {"train_batch_size": "auto", "fp16": scaling, "bf16": {"enabled": "auto"}, "gradient_clipping": "auto"}
    write("ds.json", json.dumps(config))
    result = convert(write, FACTORY + "deepspeed: ds.json\n")
    assert "fp16" not in result.text
    assert result.draft.get("precision.bf16") is True
    by_fp16 = convert(write, FACTORY.replace("bf16: true", "fp16: true") + "deepspeed: ds.json\n", "fp16.yaml")
    assert by_fp16.draft.get("precision.initial_scale_power") == 32


def test_keys_that_deepspeed_ignores_are_no_reason_to_refuse(write):
    config = {"train_batch_size": 1, "comms_config": {"enabled": True}, "monitor_config": {}, "learning_rate": 0.1}
    result = convert(write, json.dumps(config), "ds.json")
    assert {note.key for note in result.notes_of("harmless")} == {"comms_config", "monitor_config", "learning_rate"}
    assert "comms_config" not in result.text.split("\nmodel:")[1]


def test_bucket_sizes_are_chosen_by_the_harness(write):
    names = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    zero = {"stage": 3, **dict.fromkeys(names, "auto")}
    result = convert(write, json.dumps({"train_batch_size": 1, "zero_optimization": zero}), "ds.json")
    (message,) = [note.message for note in result.notes_of("harmless")]
    assert "`zero_optimization.reduce_bucket_size` and 2 more" in message
    assert "the harness chooses them by the model's layers" in message
    assert "DeepSpeed's default" not in result.text


def test_a_schedule_of_the_json_is_the_one_that_trains(write):
    params = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"), "auto")
    write("ds.json", json.dumps({"train_batch_size": "auto", "scheduler": {"type": "WarmupDecayLR", "params": params}}))
    text = FACTORY + "deepspeed: ds.json\nlr_scheduler_type: cosine\nwarmup_ratio: 0.1\n"
    result = convert(write, text)
    assert result.draft.get("scheduler") == {"type": "linear", "warmup_ratio": 0.1}
    assert any("not the file's own `cosine`" in note.message for note in result.notes_of("lossy"))
    counted = convert(write, text + "max_steps: 100\n", "steps.yaml")
    assert counted.draft.get("deepspeed.scheduler.params") == {
        "warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 10, "total_num_steps": 100,
    }  # fmt: skip


def test_a_json_without_clipping_clips_at_its_own(write):
    write("ds.json", json.dumps({"train_batch_size": "auto", "zero_optimization": {"stage": 2}}))
    result = convert(write, FACTORY + "deepspeed: ds.json\nmax_grad_norm: 0.3\n")
    assert result.draft.get("train.max_grad_norm") == 1.0
    assert any("no `gradient_clipping`" in note.message for note in result.notes)


def test_a_pair_that_the_trainer_refuses_is_named(write):
    write("ds.json", json.dumps({"train_batch_size": "auto", "gradient_accumulation_steps": 4}))
    result = convert(write, FACTORY + "deepspeed: ds.json\ngradient_accumulation_steps: 2\n")
    assert result.draft.get("train.gradient_accumulation_steps") == 4
    assert any("the Trainer refuses the pair" in note.message for note in result.notes_of("manual"))


def test_a_model_that_is_quantised_by_its_name(write):
    result = convert(write, FACTORY.replace("a/b", "a/llama-3-8b-bnb-4bit"))
    assert any("quantised weights by its name" in note.message for note in result.notes_of("lossy"))
    for name in ("a/Llama-3-8B-GPTQ", "a/Meta-Llama-3-8B-Instruct-AQLM-2Bit-1x16"):
        with pytest.raises(UserError, match="has quantised weights by its name"):
            convert(write, FACTORY.replace("a/b", name), "other.yaml")
    assert not convert(write, FACTORY.replace("a/b", "a/Sawqer-8B"), "plain.yaml").notes_of("lossy")


def test_arctic_training_overwrites_sizes_and_keeps_the_stage(write):
    text = "model: {name_or_path: a/b}\ndata: {sources: [a/c], max_length: 9}\nmicro_batch_size: 2\n"
    text += "deepspeed: {zero_optimization: {stage: 3}, train_micro_batch_size_per_gpu: 7}\n"
    result = convert(write, text)
    assert result.draft.get("zero.stage") == 3
    assert result.draft.get("train.per_device_train_batch_size") == 2
    assert not result.notes_of("manual")


def test_packed_rows_stay_together(write):
    more = "sample_packing: true\nflash_attention: true\nmicro_batch_size: 4\ngradient_accumulation_steps: 2\n"
    result = convert(write, AXOLOTL + more)
    assert result.draft.get("train.per_device_train_batch_size") == 4
    assert result.draft.get("train.gradient_accumulation_steps") == 2


def test_steps_win_over_epochs(write):
    result = convert(write, FACTORY + "max_steps: 10\nnum_train_epochs: 3\n")
    assert result.draft.get("train.num_train_epochs") is None
    assert any(note.key == "num_train_epochs" for note in result.notes_of("harmless"))


ARCTIC = "model: {name_or_path: a/b}\ndata: {sources: [a/c], max_length: 9}\n"


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ("exit_iteration: 20\nepochs: 3\n", "spans all epochs"),
        ("exit_iteration: 20\ntrain_iters: 50\n", "before its schedule"),
        ("exit_iteration: 20\nscheduler: {name: constant}\n", ""),
    ],
)
def test_a_run_that_stops_before_its_schedule_is_named(more, word, write):
    notes = [note.message for note in convert(write, ARCTIC + more).notes_of("lossy")]
    assert any(word in note for note in notes) if word else not notes


def test_no_key_of_the_file_disappears(write):
    result = convert(write, "model_name_or_path: a/b\ntrain_file: a.txt\ndo_train: true\nmodel: other\n")
    assert "model" in {note.key for note in result.notes}


@pytest.mark.parametrize("line", ["val_set_size: 0.1\nevals_per_epoch: .nan", "warmup_ratio: .inf"])
def test_what_is_no_number_is_left_to_the_user(line, write):
    messages = [note.message for note in convert(write, AXOLOTL + "max_steps: 9\n" + line + "\n").notes_of("manual")]
    assert any("it is no number" in message for message in messages)


def test_the_limit_of_axolotls_warmup_is_named(write):
    messages = [note.message for note in convert(write, AXOLOTL).notes_of("manual")]
    assert any("scheduler.warmup_steps: 100" in message for message in messages)
    assert not convert(write, AXOLOTL + "warmup_ratio: 0.1\n", "ratio.yaml").notes_of("manual")
