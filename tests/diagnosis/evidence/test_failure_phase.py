# SPDX-License-Identifier: Apache-2.0
"""The phase in which a job failed, from frames and from the last lines. Needs nothing; a second."""

from __future__ import annotations

import pytest

from harness.diagnosis.diagnosis_types import NO_PHASE, PhaseMark
from harness.diagnosis.evidence.failure_phase import find_phase, phase_of_frames
from harness.diagnosis.reader.phase_markers import name_phase
from tests.support.tracebacks import diagnose_text, traceback_text

TRAINER = ("transformers/trainer.py", "_inner_training_loop", "self._run_epoch()")
ENGINE = "deepspeed/runtime/engine.py"
ERROR = "RuntimeError: nobody knows this one"
FRAMES = [
    ("launcher", [("deepspeed/launcher/runner.py", "main", "raise RuntimeError(")]),
    ("rendezvous", [("torch/distributed/distributed_c10d.py", "init_process_group", "store = x")]),
    ("data", [("/x/train.py", "main", "d = load()"), ("datasets/load.py", "load_dataset", "x")]),
    ("model", [("transformers/models/auto/auto_factory.py", "from_pretrained", "x")]),
    ("weights", [("transformers/modeling_utils.py", "_load_pretrained_model", "x")]),
    ("op", [(ENGINE, "_configure_basic_optimizer", "x"), ("deepspeed/ops/op_builder/builder.py", "jit_load", "x")]),
    ("engine", [("deepspeed/__init__.py", "initialize", "x"), (ENGINE, "__init__", "x")]),
    ("optimizer states", [(ENGINE, "__init__", "x"), ("deepspeed/runtime/zero/stage3.py",
     "initialize_optimizer_states", "x")]),
    ("forward", [TRAINER, (ENGINE, "forward", "x"), ("torch/nn/modules/module.py", "_call_impl", "x")]),
    ("backward", [TRAINER, (ENGINE, "backward", "x"), ("torch/autograd/__init__.py", "backward", "x")]),
    ("optimizer step", [TRAINER, (ENGINE, "step", "x"), (ENGINE, "_take_model_step", "x")]),
    ("batch", [TRAINER, ("torch/utils/data/dataloader.py", "__next__", "x")]),
    ("evaluation", [TRAINER, ("transformers/trainer.py", "evaluation_loop", "x"), ("torch/nn/modules/module.py", "_call_impl", "x")]),
    ("saving", [TRAINER, ("transformers/trainer.py", "_save_checkpoint", "x"), (ENGINE, "save_checkpoint", "x")]),
    ("resuming", [("transformers/integrations/deepspeed.py", "deepspeed_load_checkpoint", "x"), (ENGINE,
     "load_checkpoint", "x")]),
    ("best model", [TRAINER, ("transformers/trainer.py", "_load_best_model", "x"), (ENGINE, "load_checkpoint", "x")]),
    ("exporting", [("/ckpt/zero_to_fp32.py", "_get_fp32_state_dict", "x")]),
    ("generation", [("transformers/generation/utils.py", "generate", "x"), ("torch/nn/modules/module.py", "_call_impl", "x")]),
]  # fmt: skip
LINES = [
    ("Loading checkpoint shards:  40%|####      | 6/15 [00:50<01:14,  8.3s/it]", "weights"),
    ("[INFO] [logging.py:96:log_dist] [Rank 0] Creating fp16 ZeRO stage 3 optimizer", "engine"),
    ("[INFO] [logging.py:128:log_dist] [Rank 0] DeepSpeed info: version=0.16.4, git-hash=unknown", "engine"),
    ("Loading extension module cpu_adam...", "op"),
    ("Time to load cpu_adam op: 2.5 seconds", "op"),
    ("[INFO] [torch_checkpoint_engine.py:27] [Torch] Checkpoint global_step100 is about to be saved!", "saving"),
    ("Saving model checkpoint to out/checkpoint-100", "saving"),
    ("[INFO] [torch_checkpoint_engine.py:36] [Torch] Begin Load checkpoint from x...", "resuming"),
    ("***** Running training *****", "training"),
    ("***** Running Evaluation *****", "evaluation"),
    ("[INFO] [comm.py:637:init_distributed] cdb=None", "rendezvous"),
    ("[INFO] [real_accelerator.py:161:get_accelerator] Setting ds_accelerator to cuda (auto detect)", "import"),
    ("Map (num_proc=8):  12%|#2        | 120/1000 [00:01<00:09]", "data"),
    ("Training completed. Do not forget to share your model on huggingface.co/models =)", "ending"),
    ("the weather is fine", ""),
]  # fmt: skip


@pytest.mark.parametrize(("phase", "frames"), FRAMES, ids=[row[0] for row in FRAMES])
@pytest.mark.parametrize("rank", [None, 3])
def test_the_phase_of_a_traceback(phase, frames, rank):
    diagnosis = diagnose_text(traceback_text([("/x/train.py", "<module>", "main()"), *frames], ERROR, rank))
    assert diagnosis.phase is not None
    assert (diagnosis.phase.name, diagnosis.phase.source) == (phase, "traceback")
    assert diagnosis.phase.text


@pytest.mark.parametrize(("line", "phase"), LINES, ids=[row[0][:40] for row in LINES])
def test_the_lines_that_begin_a_phase(line, phase):
    assert name_phase(line) == phase


def test_frames_of_the_script_alone_say_nothing():
    assert phase_of_frames(()) == ""
    assert diagnose_text(traceback_text([("/x/train.py", "<module>", "main()")], ERROR)).phase is None


STEPS = "".join(
    f"{{'loss': {1 / step:.3f}, 'epoch': 0.1}}\n  {step}%|#| {step}/3000 [00:01<09:00,  1.1it/s]\n" for step in (1, 99)
)


def test_a_step_is_the_first_one_only_where_the_log_shows_the_start():
    frames = [TRAINER, (ENGINE, "backward", "x")]
    bare = diagnose_text(traceback_text(frames, ERROR)).phase
    first = diagnose_text("***** Running training *****\n" + traceback_text(frames, ERROR)).phase
    later = diagnose_text("***** Running training *****\n" + STEPS + traceback_text(frames, ERROR)).phase
    assert bare is not None
    assert bare.text == "in the backward pass"
    assert first is not None
    assert first.text == "in the first step, in the backward pass"
    assert later is not None
    assert (later.text, later.step) == ("in the backward pass, after step 99", 99)


def test_a_save_after_a_step():
    log = "***** Running training *****\n" + STEPS + "[Torch] Checkpoint global_step1200 is about to be saved!\n"
    phase = diagnose_text(log + "OSError: [Errno 28] No space left on device\n").phase
    assert phase is not None
    assert (phase.name, phase.step, phase.source) == ("saving", 1200, "lines")
    assert phase.text == "while saving a checkpoint or the model, after step 1200"


def test_a_bar_of_an_evaluation_is_not_one_of_training():
    bar = " 10%|# | 10/99 [00:01<00:09, 9.1it/s]\n"
    log = f"***** Running training *****\n{STEPS}***** Running Evaluation *****\n{bar}"
    phase = diagnose_text(log + "[launch.py:325:sigkill_handler] ['python'] exits with return code = -9\n").phase
    assert phase is not None
    assert phase.name == "evaluation"


def test_the_phase_is_that_of_the_rank_that_failed():
    log = "[rank3]: Saving model checkpoint to x\n[rank0]: ***** Running Evaluation *****\n[rank3]: RuntimeError: odd\n"
    phase = diagnose_text(log).phase
    assert phase is not None
    assert phase.name == "saving"


def test_the_last_lines_of_a_log_without_a_failure():
    diagnosis = diagnose_text(
        "Setting ds_accelerator to cuda\nLoading checkpoint shards:  40%|####  | 6/15 [00:50<01:14]\n"
    )
    assert diagnosis.state == "no failure seen"
    assert diagnosis.phase is not None
    assert diagnosis.phase.text == "the last lines are from loading the weights of the model"


def test_a_long_log_keeps_its_last_mark():
    noise = "".join(f"line {n} of something else entirely\n" for n in range(20_000))
    log = "***** Running training *****\n" + noise + "Saving model checkpoint to out/checkpoint-7\n" + noise * 4
    phase = diagnose_text(log + "[launch.py:325:sigkill_handler] ['python'] exits with return code = -9\n").phase
    assert phase is not None
    assert (phase.name, phase.step) == ("saving", 7)


def test_marks_without_a_name():
    assert find_phase((), NO_PHASE) is None
    phase = find_phase((), PhaseMark("weights"))
    assert phase is not None
    assert phase.text == "while loading the weights of the model"
