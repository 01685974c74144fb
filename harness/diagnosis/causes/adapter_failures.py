# SPDX-License-Identifier: Apache-2.0
"""Adapters (LoRA) and quantized models. `messages` has what peft, bitsandbytes and torch say."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause

CAUSES = (
    FailureCause(
        "LG195",
        "no-gradient-reaches-the-loss",
        "the loss does not depend on any trainable parameter: its inputs are frozen, as in a checkpointed block with "
        "LoRA, or were computed without gradients",
        "call `model.enable_input_require_grads()` before training, or give gradient checkpointing "
        '`use_reentrant=False` (`gradient_checkpointing_kwargs={"use_reentrant": False}`); check with '
        "`print_trainable_parameters()` that some parameters are trainable, and look for `detach`, `no_grad` and "
        "`.item()`",
        (),
        page="Reentrant gradient checkpointing computes gradients in a block only if one of its inputs requires a "
        "gradient. With LoRA the embedding is frozen, so no input does. peft calls `enable_input_require_grads` only "
        "when the model's gradient checkpointing is on before the adapter is added.",
    ),
    FailureCause(
        "LG196",
        "adapter-targets-not-found",
        "the model has no modules with the names that the adapter should be added to",
        "give `target_modules` names that `model.named_modules()` prints, or `all-linear`",
        (),
    ),
    FailureCause(
        "LG197",
        "quantized-model-refused",
        "a model that was loaded in 4 or 8 bit cannot be trained this way",
        'load it with `device_map={"": local_rank}` (not `auto`) or without quantization, add adapters (LoRA) before '
        "training, and use ZeRO stage 2 (at stage 3, 4-bit weights need `bnb_4bit_quant_storage` of the model's dtype)",
        (),
    ),
    FailureCause(
        "LG198",
        "quantized-weights-under-zero3",
        "ZeRO-3 partitioned or gathered weights that bitsandbytes had quantized",
        "use ZeRO stage 2 for a quantized model, or LoRA without quantization under stage 3; 4 bit under stage 3 needs "
        "`bnb_4bit_quant_storage` of the same dtype as the other weights, and DeepSpeed 0.12.3 or later",
        (),
        page="ZeRO-3 gathers the parameters of a module together. The packed weights of a quantized model are uint8, "
        "the others bf16, and the quantization state belongs to the whole weight.",
    ),
    FailureCause(
        "LG199",
        "adapter-of-another-model",
        "the loaded adapter does not match the model, or its configuration does not match this peft",
        "load it on the base model and with the `LoraConfig` that it was trained with (rank, targets, "
        "`modules_to_save`, size of the vocabulary), with a peft that is at least as new as the one that saved it",
        (),
    ),
    FailureCause(
        "LG201",
        "adapter-cannot-be-merged",
        "peft cannot merge the adapter into these weights",
        "merge on one process, without DeepSpeed and quantization: load the base model in bf16, "
        "`PeftModel.from_pretrained`, `merge_and_unload()`",
        (),
    ),
    FailureCause(
        "LG202",
        "integer-weights-cannot-be-trained",
        "code set `requires_grad` on integer weights, such as quantized ones",
        "freeze the base model and train adapters on it (`prepare_model_for_kbit_training`, then `get_peft_model`), or "
        "load it without quantization",
        (),
    ),
    FailureCause(
        "LG203",
        "adapter-with-partitioned-weights",
        "the adapter code read or resized weights that ZeRO-3 has partitioned",
        "train adapters under ZeRO stage 2, or leave `modules_to_save`, `embed_tokens` and `lm_head` out of the "
        "adapter",
        (),
    ),
)
