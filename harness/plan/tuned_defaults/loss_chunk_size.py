# SPDX-License-Identifier: Apache-2.0
"""Head and loss in chunks of tokens, so that logits of a whole micro-batch never exist."""

from __future__ import annotations

from harness.patches.patch_registry import PatchFacts, is_planned
from harness.plan.memory.zero_partitions import local_vocab_size
from harness.plan.tuned_defaults.default_inputs import DefaultInputs
from harness.run.tuned_default import TunedDefault

KEY = "train.loss_chunk_size"
_CHUNK_LOGITS_BYTES = 1 << 28
"""Bytes of a chunk's logits in fp32."""
_CHUNK_MULTIPLE = 128
_UNSUPPORTED_FAMILIES = ("gemma2", "gemma3", "gemma3_text", "phi")
"""Families with a soft cap of their logits or a bias of their head, which stay with the plain loss."""


def choose_default(inputs: DefaultInputs) -> TunedDefault | None:
    """Chunks of 256 MiB of logits are large enough for the products to run at full speed. fp16 scales the loss before
    gradients are rounded; compiled models and those of a pipeline have a head of their own. Where AutoTP divides the
    head, a rank has the logits of its vocabulary shard.
    """
    spec, model, settings = inputs.run.spec, inputs.model, inputs.settings
    if (
        model is None
        or settings is None
        or settings.pipeline_parallel_size > 1
        or spec.train.loss_chunk_size is not None
    ):
        return None
    if (
        spec.precision.fp16
        or spec.train.torch_compile
        or model.family in _UNSUPPORTED_FAMILIES
        or "torch_autocast" in spec.deepspeed
    ):
        return None
    vocab_size = local_vocab_size(model, settings)
    value = chunk_size_for(vocab_size)
    is_patched = is_planned("chunked-loss", PatchFacts(loss_chunk_size=value), spec.launch.patches)
    if settings.tokens_per_micro_batch <= value or not is_patched:
        return None
    reason = f"logits of {value} x {vocab_size:,} (tokens x vocab) exist at once"
    return TunedDefault("loss in chunks", KEY, value, 0, reason, ours=True)


def chunk_size_for(vocab_size: int) -> int:
    """Tokens of a chunk for a vocabulary of this size."""
    return max(_CHUNK_MULTIPLE, _CHUNK_LOGITS_BYTES // (4 * vocab_size) // _CHUNK_MULTIPLE * _CHUNK_MULTIPLE)
