# SPDX-License-Identifier: Apache-2.0
"""The allocation at which a job ran out of memory or space. Needs nothing; a second."""

from __future__ import annotations

import pytest

from harness.diagnosis.evidence.allocation import compare_numbers
from harness.diagnosis.evidence.missing_ranks import describe_wait
from tests.support.tracebacks import diagnose_text, traceback_text

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
ENGINE, STAGE3 = "deepspeed/runtime/engine.py", "deepspeed/runtime/zero/stage3.py"
MODEL = ("transformers/models/llama/modeling_llama.py", "forward")
GPU = [
    ("logits", [(*MODEL, "logits = logits.float()")], "train.loss_chunk_size"),
    ("logits", [("trl/trainer/utils.py", "selective_log_softmax", "x")], "loss_chunk_size"),
    ("optimizer-states", [(ENGINE, "__init__", "x"), (STAGE3, "initialize_optimizer_states", "x")],
     "offload_optimizer"),
    ("optimizer-states", [(ENGINE, "__init__", "x"), ("deepspeed/runtime/zero/stage_1_and_2.py", "__init__", "x")],
     "offload_optimizer"),
    ("optimizer-step", [(ENGINE, "step", "x"), ("torch/optim/adamw.py", "step", "x")], "offload_optimizer"),
    ("gather", [("deepspeed/runtime/zero/partitioned_param_coordinator.py", "fetch_sub_module", "x"),
                ("deepspeed/runtime/zero/partition_parameters.py", "all_gather_coalesced", "x")],
     "stage3_max_live_parameters"),
    ("gradient-buckets", [(ENGINE, "backward", "x"), (STAGE3, "reduce_independent_p_g_buckets_and_remove_grads", "x")],
     "reduce_bucket_size"),
    ("whole-model", [(ENGINE, "_configure_distributed_model", "self.module.to(self.device)"),
                     ("torch/nn/modules/module.py", "convert", "return t.to(")], "from_pretrained"),
    ("layer-under-construction", [("transformers/modeling_utils.py", "from_pretrained", "x"),
                                  ("deepspeed/runtime/zero/partition_parameters.py", "wrapped_fn", "x")],
                                   "remote_device"),
    ("attention-scores", [(*MODEL, "x"), ("transformers/models/llama/modeling_llama.py", "eager_attention_forward", "x")],
     "attn_implementation"),
    ("recomputed-activations", [("torch/autograd/__init__.py", "backward", "x"), ("torch/utils/checkpoint.py",
     "backward", "x")],
     "sequence_parallel_size"),
    ("backward", [(ENGINE, "backward", "x"), ("torch/autograd/__init__.py", "backward", "x")],
     "gradient_checkpointing"),
    ("activations", [(*MODEL, "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)))")], "gradient_checkpointing"),
    ("evaluation-logits", [("transformers/trainer.py", "evaluation_loop", "x"),
                           ("transformers/trainer_pt_utils.py", "nested_concat", "x")], "eval_accumulation_steps"),
    ("key-value-cache", [("transformers/generation/utils.py", "generate", "x"), ("transformers/cache_utils.py", "update", "x")],
     "max_new_tokens"),
    ("consolidated-model", [(ENGINE, "save_16bit_model", "x"), (ENGINE, "_zero3_consolidated_16bit_state_dict", "x")],
     "stage3_gather_16bit_weights_on_model_save"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "frames", "advice"), GPU, ids=[f"{i}-{row[0]}" for i, row in enumerate(GPU)])
@pytest.mark.parametrize("rank", [None, 0])
def test_what_a_gpu_was_allocating(name, frames, advice, rank):
    diagnosis = diagnose_text(traceback_text([("/x/train.py", "main", "go()"), *frames], OUT_OF_MEMORY, rank))
    assert diagnosis.cause == "LG001"
    assert diagnosis.allocation is not None
    assert diagnosis.allocation.name == name
    assert advice in diagnosis.change == diagnosis.allocation.change


def test_without_frames_nothing_is_said():
    assert diagnose_text(f"{OUT_OF_MEMORY}\n").allocation is None


NEW = (
    "CUDA out of memory. Tried to allocate {wanted}. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is "
    "free. {other}Including non-PyTorch memory, this process has {own} memory in use. Of the allocated memory "
    "{allocated} is allocated by PyTorch, and {unallocated} is reserved by PyTorch but unallocated."
)
OLD = (
    "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.69 GiB total capacity; {allocated} already allocated; "
    "1.00 GiB free; {reserved} reserved in total by PyTorch) If reserved memory is >> allocated memory try setting"
)


def numbers(wanted="2.00 GiB", other="", own="78.00 GiB", allocated="76.50 GiB", unallocated="1.00 GiB"):
    return NEW.format(wanted=wanted, other=other, own=own, allocated=allocated, unallocated=unallocated)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (numbers(), []),
        (numbers(allocated="60.00 GiB", unallocated="17.00 GiB"), ["fragmentation"]),
        (numbers(allocated="70.00 GiB"), ["outside torch: the CUDA context"]),
        (numbers(other="Process 77 has 40.00 GiB memory in use. ", own="38.00 GiB", allocated="36.50 GiB"), ["40.00 "
         "GiB of this GPU"]),
        (numbers(wanted="128.00 GiB"), ["larger than the GPU"]),
        (OLD.format(allocated="21.00 GiB", reserved="22.00 GiB"), []),
        (OLD.format(allocated="16.00 GiB", reserved="22.00 GiB"), ["fragmentation"]),
        (OLD.format(allocated="9.00 GiB", reserved="10.00 GiB"), ["12.69 GiB of this GPU"]),
        ("CUDA out of memory. Tried to allocate " + "9" * 5000 + " GiB", []),
        ("RuntimeError: CUDA error: out of memory", []),
    ],
)  # fmt: skip
def test_what_torchs_numbers_say(text, words):
    notes = compare_numbers(text)
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))


KILLED = "[ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = -9\n"


@pytest.mark.parametrize(
    ("line", "name", "words"),
    [
        ("Loading checkpoint shards:  40%|####   | 6/15 [00:50<01:14]", "whole-model-per-rank", "before "
         "`from_pretrained`"),
        ("Time to load cpu_adam op: 2.5 seconds", "host-optimizer", "pin_memory"),
        ("[INFO] Before initializing optimizer states", "host-optimizer", "nvme"),
        ("Saving model checkpoint to out/checkpoint-100", "consolidated-model", "gather_16bit_weights"),
        ("***** Running Evaluation *****", "evaluation-logits", "prediction_loss_only"),
        ("Map (num_proc=64):  12%|#2   | 120/1000 [00:01<00:09]", "dataset", "num_proc"),
        ("{'loss': 1.5, 'epoch': 0.1}", None, "dmesg"),
    ],
)  # fmt: skip
def test_what_a_killed_rank_probably_filled(line, name, words):
    diagnosis = diagnose_text(f"{line}\n{KILLED}")
    assert (diagnosis.cause, diagnosis.confidence) == ("LG003", "likely")
    assert words in diagnosis.change
    assert (diagnosis.allocation.name if diagnosis.allocation else None) == name
    assert diagnosis.allocation is None or diagnosis.allocation.text.startswith("probably ")


def test_the_bytes_of_a_host_optimizer():
    size = "finished initializing model - num_params = 291, num_elems = 6.74B\n"
    allocation = diagnose_text(f"{size}Time to load cpu_adam op: 2.5 seconds\n{KILLED}").allocation
    assert allocation is not None
    assert "6.74 billion parameters need 75.33 GiB to 100.43 GiB" in allocation.text


def test_pinned_memory():
    frames = [(ENGINE, "__init__", "x"), (STAGE3, "_create_fp32_partitions", "t = t.pin_memory()")]
    diagnosis = diagnose_text(traceback_text(frames, "RuntimeError: cudaHostAlloc failed", 1))
    assert diagnosis.cause == "LG004"
    assert diagnosis.allocation is not None
    assert diagnosis.allocation.name == "pinned-memory"
    assert "ulimit -l" in diagnosis.change


@pytest.mark.parametrize(
    ("frames", "name"),
    [
        ([(ENGINE, "save_checkpoint", "x"), ("torch/serialization.py", "save", "x")], "checkpoint"),
        ([("deepspeed/runtime/swap_tensor/utils.py", "swap_out_tensors", "x")], "swap-files"),
        ([("torch/utils/cpp_extension.py", "_write_ninja_file", "x")], "compiled-ops"),
        ([("datasets/arrow_writer.py", "write_batch", "x")], "dataset-cache"),
        ([("huggingface_hub/file_download.py", "hf_hub_download", "x")], "downloaded-model"),
    ],
)
def test_what_filled_a_disk(frames, name):
    diagnosis = diagnose_text(traceback_text(frames, "OSError: [Errno 28] No space left on device", 0))
    assert diagnosis.cause == "LG050"
    assert diagnosis.allocation is not None
    assert diagnosis.allocation.name == name


TIMED_OUT = (
    "[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
    "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Saving model checkpoint to out/checkpoint-100", "all must call it"),
        ("***** Running Evaluation *****", "synced_gpus"),
        ("Map (num_proc=64):  12%|#2   | 120/1000 [00:01<00:09]", "ddp_timeout"),
        ("Loading checkpoint shards:  40%|####   | 6/15 [00:50<01:14]", "slow disk"),
        ("{'loss': 1.5, 'epoch': 0.1}", "had no batch left"),
    ],
)  # fmt: skip
def test_what_the_missing_rank_probably_did(line, words):
    diagnosis = diagnose_text(f"{line}\n{TIMED_OUT}")
    assert diagnosis.cause == "LG070"
    assert diagnosis.confidence != "certain"
    (note,) = [note for note in diagnosis.notes if note.startswith("likely, by the phase: ")]
    assert words in note


def test_a_wait_in_no_known_phase():
    assert describe_wait("") == ""


def test_a_wait_in_a_step():
    assert describe_wait("backward").endswith("ran another part of the model (experts, a branch by modality), or died")
