# SPDX-License-Identifier: Apache-2.0
"""Stage 3: DeepSpeed gathers a decoder layer as one, with one set of hooks instead of one for each module in it."""

from __future__ import annotations

from harness.plan.tuned_default import TunedDefault
from harness.plan.tuned_defaults.default_inputs import DefaultInputs

_LAYER_CLASSES = {
    "falcon": "FalconDecoderLayer",
    "gemma": "GemmaDecoderLayer",
    "gemma2": "Gemma2DecoderLayer",
    "gemma3_text": "Gemma3DecoderLayer",
    "gpt2": "GPT2Block",
    "gpt_neox": "GPTNeoXLayer",
    "llama": "LlamaDecoderLayer",
    "mistral": "MistralDecoderLayer",
    "phi": "PhiDecoderLayer",
    "phi3": "Phi3DecoderLayer",
    "qwen2": "Qwen2DecoderLayer",
    "qwen3": "Qwen3DecoderLayer",
}
"""Class of a decoder layer by `model_type`, as `transformers` 5 names it. Mixtures of experts have their own rule."""


def choose_default(inputs: DefaultInputs) -> TunedDefault | None:
    """Dense layers only: a layer uses all its weights each time. On NVMe each gathered weight holds a buffer, and a
    whole layer at once needs more of them.
    """
    spec, model = inputs.run.spec, inputs.model
    if (
        inputs.stage != 3
        or model is None
        or not inputs.has_whole_layers
        or model.family not in _LAYER_CLASSES
        or model.experts
    ):
        return None
    if spec.model.lora is not None or spec.model.freeze or spec.model.train_only or spec.model.trust_remote_code:
        return None  # partly trained layers, or layers of another class: not tested
    offload = spec.zero.offload_param
    if spec.train.torch_compile or (offload is not None and offload.device == "nvme"):
        return None
    if not inputs.is_unset("leaf_module") or not inputs.is_unset("stage3_module_granularity_threshold"):
        return None
    reason = "each layer is gathered as one leaf module, with one set of Python hooks instead of one per module"
    key = "zero_optimization.leaf_module.classes"
    return TunedDefault("layers as one", key, [_LAYER_CLASSES[model.family]], "experts only", reason)
