# SPDX-License-Identifier: Apache-2.0
"""`model`: which causal language model, from which weights, and which of them are trained."""

from typing import Annotated, Any, Literal

from pydantic import Field

from harness.spec.sections.section import Count, Fraction, Positive, Section, Strings

Counts = Annotated[tuple[Count, ...], Field(strict=False)]


class LoraSpec(Section):
    """Low-rank adapters beside frozen weights, in `peft`'s own words (`LoraConfig`)."""

    r: Positive = 8
    """Rank of the adapters."""
    lora_alpha: Annotated[float, Field(gt=0)] = 8.0
    """An adapter is scaled by this over `r`."""
    lora_dropout: Fraction = 0.0
    """Dropout on what goes into an adapter."""
    target_modules: Strings | str | None = None
    """Modules that get one: ends of names, a regular expression over whole names, or `all-linear`. Default: what `peft`
    knows to be usual for the model's type.
    """
    exclude_modules: Strings | None = None
    """Modules that get none although they are targets."""
    modules_to_save: Strings | None = None
    """Modules that are trained whole beside the adapters, such as `[embed_tokens, lm_head]`."""
    bias: Literal["none", "all", "lora_only"] = "none"
    """Which biases are trained."""
    use_rslora: bool = False
    """Scale by `lora_alpha` over the square root of `r`."""
    init_lora_weights: bool | Literal["gaussian"] = True
    """How A starts (B is zero): uniform as in `peft`, or `gaussian`."""
    rank_pattern: dict[str, Positive] = Field(default_factory=dict)
    """Another `r` by end of a module's name."""
    alpha_pattern: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Another `lora_alpha` by end of a module's name."""
    layers_to_transform: Counts | None = None
    """Only the layers with these numbers."""


class ModelSpec(Section):
    """Which causal language model is trained, and from which weights."""

    name_or_path: str | None = None
    """A folder or a Hub name with a Hugging Face model. Its weights are the start, unless `random_init` is set."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""
    config: dict[str, Any] | None = None
    """A `transformers` configuration written out (`model_type` and its fields), for a model that starts from random
    weights.
    """
    random_init: bool = False
    """Take only the architecture from `name_or_path` and initialise the weights anew."""
    tokenizer: str | None = None
    """A folder or Hub name, or `bytes` for the 256-byte tokenizer that needs no file. Default: `name_or_path`."""
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2"] | None = None
    """The attention kernel, as `transformers` names it. Default: what `transformers` picks."""
    trust_remote_code: bool = False
    """Let `transformers` run code that a Hub repository brings."""
    freeze: Strings = ()
    """Parameters that are not trained: globs over their names, such as `model.embed_tokens.*`; `*` goes over dots."""
    train_only: Strings = ()
    """The only parameters that are trained, as globs over their names."""
    lora: LoraSpec | None = None
    """Train low-rank adapters instead of the weights. Needs `pip install 'deepspeed-harness[lora]'`."""
