# SPDX-License-Identifier: Apache-2.0
"""Refusals of training programs other than DeepSpeed: degrees, arguments, inputs, objects that are None."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause

CAUSES = (
    FailureCause(
        "LG290",
        "degrees-that-do-not-divide",
        "a number of ranks, layers, heads or samples is not divisible by a degree of parallelism",
        "make the world size a multiple of the product of the tensor, pipeline and sequence degrees, and choose "
        "layers, heads, vocabulary and batch sizes that the degrees divide",
        (),
        page="Megatron-DeepSpeed, GPT-NeoX and trainers with tensor or pipeline parallelism check at the start that "
        "the world size is a multiple of the product of the degrees, that a tensor group divides heads and sizes, "
        "and that the global batch is micro-batch times accumulation times data-parallel ranks.",
    ),
    FailureCause(
        "LG291",
        "program-arguments-refused",
        "the arguments or the configuration of the training program conflict, or one is missing",
        "change the argument that the message names",
        (),
    ),
    FailureCause(
        "LG292",
        "preparation-process-died",
        "a process that prepares the data died, most often for lack of host memory",
        "lower `num_proc` (`preprocessing_num_workers`), `batch_size` and `writer_batch_size` of `map`, and run it "
        "once with `num_proc=1`, which shows the worker's own error; `dmesg` shows whether the kernel killed it",
        (),
    ),
    FailureCause(
        "LG293",
        "object-is-none",
        "a program used an optimizer, scheduler, engine, configuration or output that is None or missing",
        "create that object, or pass it, before it is used",
        (),
    ),
    FailureCause(
        "LG294",
        "batch-does-not-fit-the-model",
        "the batch has inputs that the model's `forward` does not take, or lacks ones that it needs",
        "let the collator return the inputs that `forward` has, and no others",
        (),
    ),
    FailureCause(
        "LG295",
        "number-as-string",
        "a setting is a string where the program needs a number",
        "write it as a number: in YAML `1.0e-5` (`1e-5` is a string there), in JSON without quotation marks",
        (),
    ),
    FailureCause(
        "LG296",
        "labels-do-not-fit-the-loss",
        "the labels have another shape or dtype than the loss needs",
        "compare `logits.shape` with `labels.shape` and its dtype, and set `num_labels` and `problem_type`",
        (),
    ),
    FailureCause(
        "LG297",
        "not-serializable",
        "json cannot serialize an object",
        "save only numbers, strings, lists and dictionaries: convert dtypes, tensors and configurations first "
        "(`str(dtype)`, `tensor.item()`, `config.to_dict()`)",
        (),
    ),
    FailureCause(
        "LG298",
        "tracker-failed",
        "the experiment tracker (Weights & Biases, MLflow, TensorBoard) is missing or failed",
        'set `report_to="none"` (WANDB_MODE=offline or WANDB_DISABLED=true), or install it and log in on every host',
        (),
    ),
    FailureCause(
        "LG299",
        "generation-refused",
        "`generate` refused its inputs or settings",
        "change the argument that the message names",
        (),
    ),
)
