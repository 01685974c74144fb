# SPDX-License-Identifier: Apache-2.0
"""The prompts of `eval.samples` as tokens."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from harness.runtime.dataset.chat_templates import require_template
from harness.spec.run_spec import RunSpec


def tokenize_prompts(tokenizer: PreTrainedTokenizerBase, spec: RunSpec) -> list[list[int]]:
    """The tokens of each of `eval.samples`. Raises UserError (MD127) for chats without a template."""
    return [_tokenize(tokenizer, prompt, spec) for prompt in spec.eval.samples]


def _tokenize(tokenizer: PreTrainedTokenizerBase, prompt: str, spec: RunSpec) -> list[int]:
    """The prompt as it is, or as a user's turn. One without a token begins with the end of text, as documents do."""
    if spec.eval.sample_format == "chat":
        require_template(tokenizer, "eval.samples")
        turns = [{"role": "user", "content": prompt}]
        prompt = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    ids = list(tokenizer(prompt, add_special_tokens=spec.eval.sample_format == "text")["input_ids"])
    return ids or [int(tokenizer.eos_token_id or 0)]
