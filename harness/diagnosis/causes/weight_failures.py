# SPDX-License-Identifier: Apache-2.0
"""Weights that were not loaded, or could not be saved. `messages` has what transformers and safetensors say."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause

CAUSES = (
    FailureCause(
        "LG204",
        "weights-not-loaded",
        "layers of the model were not found in the checkpoint: their weights are random (newly initialized)",
        "stop the job; compare the names of the keys in the checkpoint with those of the model: load it with the "
        "class of its configuration, with the transformers that saved it or a newer one, and under ZeRO-3 save with"
        " gathering (`stage3_gather_16bit_weights_on_model_save`)",
        (),
        page="`from_pretrained` only warns where weights are missing, and training starts from random weights: "
        "the first"
        " loss is about ln(vocabulary). A new head alone (`score`, `classifier`, `lm_head`) is normal.",
    ),
    FailureCause(
        "LG205",
        "weights-saved-empty",
        "the checkpoint has empty weights (shape [0]): a model that ZeRO-3 had partitioned was saved without gathering",
        "get the weights from the ZeRO checkpoint with `zero_to_fp32.py`, and save with "
        "`stage3_gather_16bit_weights_on_model_save: true` and `accelerator.get_state_dict(model)` on all ranks",
        (),
    ),
    FailureCause(
        "LG206",
        "shared-weights-refused",
        "two tensors of the state dict share memory, as tied embeddings do, and safetensors refuses to save them",
        "save through `model.save_pretrained` of the unwrapped model, which knows tied weights, "
        "`safetensors.torch.save_model`, or `safe_serialization=False`; after resizing call `model.tie_weights()`",
        (),
    ),
    FailureCause(
        "LG207",
        "weights-on-the-meta-device",
        "some weights are on the meta device without data, because they were never loaded or initialized",
        "load the whole model with `from_pretrained` without `low_cpu_mem_usage` and `device_map`; under ZeRO-3 "
        "create `HfDeepSpeedConfig` (or TrainingArguments) before it, or use ZeRO stage 2",
        (),
    ),
    FailureCause(
        "LG208",
        "pickled-weights-refused",
        "transformers refuses weights in pickle files (`.bin`) with a torch before 2.6",
        "use the `.safetensors` files of the model (`use_safetensors=True`), or install torch 2.6 or later",
        (),
    ),
    FailureCause(
        "LG209",
        "weights-loaded-into-partitions",
        "full weights were loaded into parameters that ZeRO-3 has partitioned (shape [0])",
        "load with `from_pretrained` while the `HfDeepSpeedConfig` or TrainingArguments object is alive, or inside "
        "`deepspeed.zero.GatheredParameters(params, modifier_rank=0)`; `load_state_dict` alone does not gather",
        (),
    ),
)
