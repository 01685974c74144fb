# SPDX-License-Identifier: Apache-2.0
"""`model`: the causal language model, its initial weights, and the trained parameters."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from harness.spec.sections.section import Count, Fraction, Positive, Section, Strings

AttentionKernel = Literal["eager", "sdpa", "sdpa_varlen", "flash_attention_2", "flash_attention_3", "auto"]
Counts = Annotated[tuple[Count, ...], Field(strict=False)]


class LoraSpec(Section):
    """Low-rank adapters next to frozen weights, with the names of `peft` (`LoraConfig`)."""

    r: Positive = 8
    """Rank of the adapters."""
    lora_alpha: Annotated[float, Field(gt=0)] = 8.0
    """Scale of an adapter: `lora_alpha / r`."""
    lora_dropout: Fraction = 0.0
    """Dropout on the input of an adapter."""
    target_modules: Strings | str | None = None
    """Modules with an adapter: ends of names, a regular expression over whole names, or `all-linear`. Default: those
    of `peft` for the model's type.
    """
    exclude_modules: Strings | None = None
    """Targets without an adapter."""
    modules_to_save: Strings | None = None
    """Modules that are fully trained in addition to the adapters, such as `[embed_tokens, lm_head]`."""
    bias: Literal["none", "all", "lora_only"] = "none"
    """The trained biases."""
    use_rslora: bool = False
    """Scale by `lora_alpha` over the square root of `r`."""
    init_lora_weights: bool | Literal["gaussian"] = True
    """Initialisation of A (B is zero): uniform as in `peft`, or `gaussian`."""
    rank_pattern: dict[str, Positive] = Field(default_factory=dict)
    """Another `r` by end of a module's name."""
    alpha_pattern: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Another `lora_alpha` by end of a module's name."""
    layers_to_transform: Counts | None = None
    """Only the layers with these numbers."""


def _require_true(value: Any) -> Any:
    if value is not True:  # 1 equals True for a `Literal`
        raise ValueError("must be `true`: leave `model.quantization` out for weights in 16 or 32 bit")
    return value


class QuantizationSpec(Section):
    """Frozen weights in 4 bits under the adapters of `model.lora` (QLoRA), with the names of `transformers`
    (`BitsAndBytesConfig`). They are quantized as they are loaded, in blocks of 64, and computed with in the format of
    `precision`.
    """

    load_in_4bit: Annotated[Literal[True], BeforeValidator(_require_true)] = True
    """Quantize the linear layers; embeddings, head, norms and biases keep the training format."""
    bnb_4bit_quant_type: Literal["nf4", "fp4"] = "nf4"
    """The 16 values of a weight: `nf4`, quantiles of a normal distribution, or `fp4`."""
    bnb_4bit_use_double_quant: bool = True
    """Quantize the scales of the blocks too: 0.52 instead of 0.56 bytes a weight."""


class ModelSpec(Section):
    """The causal language model and its initial weights."""

    name_or_path: str | None = None
    """A folder or a Hub name with a Hugging Face model. Training starts from its weights, unless `random_init` is
    set. A relative path starts at the spec's folder, else at the current one."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""
    config: dict[str, Any] | None = None
    """A `transformers` configuration written out (`model_type` and its fields), for a model with random weights.
    """
    random_init: bool = False
    """Take only the architecture from `name_or_path` and initialise new weights."""
    tokenizer: str | None = None
    """A folder or Hub name, or `bytes` for the 256-byte tokenizer that needs no file. A relative path is as that of
    `name_or_path`, which is the default."""
    attn_implementation: AttentionKernel | None = None
    """The attention kernel, as `transformers` names it. `sdpa_varlen`: torch's fused kernels for each document of
    packed rows, without a mask and without a package. `auto`: by device, number format, head size, packing and what is
    installed; `harness plan` shows which, and why. Default: that of `transformers`."""
    trust_remote_code: bool = False
    """Let `transformers` run the Python files of the model. A launch needs `--allow-local-code` for it."""
    freeze: Strings = ()
    """Parameters that are not trained: globs over their names, such as `model.embed_tokens.*`; `*` matches dots too."""
    train_only: Strings = ()
    """The only parameters that are trained, as globs over their names."""
    lora: LoraSpec | None = None
    """Train low-rank adapters instead of the weights. Needs `pip install '.[lora]'` in a clone."""
    quantization: QuantizationSpec | None = None
    """The frozen weights in 4 bits (QLoRA) under `model.lora`, at ZeRO 0 to 2. Needs `pip install '.[qlora]'` in a
    clone.
    """
