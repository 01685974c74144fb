# SPDX-License-Identifier: Apache-2.0
"""A short text from an exported model, with plain `transformers`, as any user of the export would get it.

No DeepSpeed here.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer

from harness.runtime.text_part import load_whole


def generate_sample(
    folder: Path, prompt: str, max_new_tokens: int, *, seed: int | None = None, trust_remote_code: bool = False
) -> str:
    """Continue `prompt` by at most `max_new_tokens` tokens: greedily, or sampled with `seed` at temperature 0.8.
    `trust_remote_code`: run the code in the folder.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    model = load_whole(folder, trust_remote_code=trust_remote_code).eval()
    inputs = tokenizer(prompt or tokenizer.eos_token or "\n", return_tensors="pt", return_token_type_ids=False)
    options = {"do_sample": False} if seed is None else {"do_sample": True, "temperature": 0.8, "top_k": 0}
    if seed is not None:
        torch.manual_seed(seed)
    with torch.inference_mode():
        out = model.generate(
            **inputs,
            max_new_tokens=max_new_tokens,
            pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id,
            **options,
        )
    return str(tokenizer.decode(out[0], skip_special_tokens=True))
