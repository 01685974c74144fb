# SPDX-License-Identifier: Apache-2.0
"""Settings that accelerate, the Trainer and DeepSpeed read in several places. `messages` has what the programs say."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause

CAUSES = (
    FailureCause(
        "LG180",
        "json-contradicts-the-arguments",
        "the DeepSpeed JSON and the arguments of the Trainer or of accelerate have different values for one setting",
        'write `"auto"` for the named keys in the JSON, so that they take the argument\'s value, or set the same '
        "value in both places",
        (),
        page="The Trainer and accelerate compare the JSON with their own arguments before they start DeepSpeed: batch "
        "sizes, accumulation, clipping, learning rate, warm-up and the number of steps.",
    ),
    FailureCause(
        "LG181",
        "micro-batch-unknown",
        "accelerate cannot find the micro-batch size: no data loader with a `batch_size` was prepared",
        "write an integer for `train_micro_batch_size_per_gpu` into the DeepSpeed JSON, or pass the data loader to the "
        "same `accelerator.prepare()` call; a loader with a custom batch sampler needs the integer",
        (),
    ),
    FailureCause(
        "LG182",
        "optimizer-in-two-places",
        "the optimizer or the scheduler is configured both in the DeepSpeed JSON and in the script, or in neither",
        "remove `optimizer` and `scheduler` from the JSON and create them in the script, or keep them in the JSON and "
        "prepare `accelerate.utils.DummyOptim` and `DummyScheduler`",
        (),
    ),
    FailureCause(
        "LG183",
        "device-map-under-zero3",
        "the model was loaded with `device_map` or `low_cpu_mem_usage`, which place the weights differently from "
        "ZeRO or data parallelism",
        "remove `device_map` (and `low_cpu_mem_usage=True`) from `from_pretrained`; DeepSpeed places the weights; a "
        'quantized model takes `device_map={"": local_rank}` and ZeRO stage 2 (4-bit '
        "weights train at stage 3 with `bnb_4bit_quant_storage` of the model's dtype)",
        (),
    ),
    FailureCause(
        "LG184",
        "accelerate-configuration",
        "the configuration of accelerate conflicts with itself or has a key that the installed accelerate does not "
        "know",
        "write a new file with `accelerate config`; with `deepspeed_config_file` keep every DeepSpeed setting in "
        "the JSON only",
        (),
    ),
    FailureCause(
        "LG185",
        "training-arguments-contradict",
        "an argument of the Trainer is not supported, or conflicts with another one",
        "change the arguments that the message names",
        (),
    ),
    FailureCause(
        "LG186",
        "several-models-in-one-accelerator",
        "one Accelerator was given several models, or a model that it did not prepare",
        "prepare a model, its optimizer and data loader in one `prepare()` call, and use a DeepSpeedPlugin and an "
        "Accelerator for each further model (accelerate 1.0 and later: `deepspeed_plugins`)",
        (),
    ),
    FailureCause(
        "LG187",
        "weights-not-gathered-for-saving",
        "the partitioned weights of ZeRO-3 cannot be saved as one file, because the JSON does not enable gathering "
        "them",
        "set `zero_optimization.stage3_gather_16bit_weights_on_model_save: true` (accelerate: "
        "`zero3_save_16bit_model: true`), or save a checkpoint and convert it with `zero_to_fp32.py`",
        (),
    ),
    FailureCause(
        "LG188",
        "batches-that-cannot-be-divided",
        "accelerate cannot split or dispatch the batches over the ranks",
        "set `dispatch_batches=False` (each rank reads its own batches), or `split_batches=True` with a batch size "
        "that the number of ranks divides",
        (),
    ),
    FailureCause(
        "LG189",
        "batch-without-inputs-or-loss",
        "the batches lack the inputs or labels that the model needs to compute a loss",
        "compare the columns of the dataset with the arguments of the model's `forward`: `labels` must be among "
        "them; `remove_unused_columns=False` keeps the others for a collator of your own",
        (),
    ),
    FailureCause(
        "LG190",
        "collective-saving-on-one-rank",
        "a collective function was called on the main process alone, or with tensors that are not on its GPU",
        "call `save_checkpoint`, `save_state`, `get_state_dict` and `gather` on all ranks, outside of "
        "`if accelerator.is_main_process`",
        (),
    ),
    FailureCause(
        "LG191",
        "evaluation-does-not-fit",
        "the evaluation has no dataset, or lacks the metric that the arguments name",
        "give an `eval_dataset`, or set `eval_strategy` to `no`; `metric_for_best_model` must be a key of the metrics",
        (),
    ),
)
