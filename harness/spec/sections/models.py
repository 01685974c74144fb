"""`model`: which causal language model, from which weights."""

from __future__ import annotations

from typing import Any, Literal

from harness.spec.sections.base import Section


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
