"""Head and loss in chunks of tokens, so that logits of a whole micro-batch never exist."""

from __future__ import annotations

from harness.plan.choices.choice import Choice
from harness.plan.choices.facts import Facts
from harness.plan.shards import head_words

KEY = "train.loss_chunk_size"
_LOGITS = 1 << 28
"""Bytes of a chunk's logits in fp32."""
_STEP = 128
_OTHERWISE = ("gemma2", "gemma3", "gemma3_text", "phi")
"""Families with a soft cap of their logits or a bias of their head, which stay with the plain loss."""


def choose(facts: Facts) -> Choice | None:
    """Chunks of 256 MiB of logits are large enough for the products to run at full speed. fp16 scales the loss before
    gradients are rounded; compiled models and those of a pipeline have a head of their own. Where AutoTP cuts the head,
    a rank has the logits of its own words.
    """
    spec, model, settings = facts.run.spec, facts.model, facts.settings
    if model is None or settings is None or settings.pipeline > 1 or spec.train.loss_chunk_size is not None:
        return None
    if (
        spec.precision.fp16
        or spec.train.torch_compile
        or model.family in _OTHERWISE
        or "torch_autocast" in spec.deepspeed
    ):
        return None
    words = head_words(model, settings)
    value = tokens_of_chunk(words)
    if settings.tokens_per_micro_batch <= value:
        return None
    reason = f"logits of {value} tokens exist at once, of {words:,} words each"
    return Choice("loss in chunks", KEY, value, 0, reason, ours=True)


def tokens_of_chunk(words: int) -> int:
    """Tokens of a chunk for a vocabulary of so many words."""
    return max(_STEP, _LOGITS // (4 * words) // _STEP * _STEP)
