# SPDX-License-Identifier: Apache-2.0
"""The texts of `eval.samples`: what the model in training makes of a few fixed prompts.

Each token is the likeliest one, a forward of the engine for all prompts at once, so that ZeRO-3 gathers as in an
evaluation; nothing is kept between forwards. The run trains on as if nothing had been generated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from transformers import PreTrainedTokenizerBase

from harness.runtime.checkpoint.rng_state import get_rng_state, set_rng_state
from harness.runtime.dataset.tokenization import tokenize_prompts
from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import Engine
from harness.runtime.models.packed_attention import whole_rows
from harness.spec.run_spec import RunSpec


def generate_samples(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    spec: RunSpec,
    distributed: Distributed,
    heartbeat: Callable[[], None] = lambda: None,
) -> list[str]:
    """What follows each prompt, up to the end of text, `eval.sample_tokens` or `data.max_length` with its prompt, or
    that nothing can; the same on every rank. A collective. Raises UserError (MD127) for chats without a template.
    """
    rows = tokenize_prompts(tokenizer, spec)
    starts = [len(row) for row in rows]
    random_states = get_rng_state()
    engine.eval()
    with torch.no_grad():
        for _ in range(spec.eval.sample_tokens):
            open_rows = [i for i, row in enumerate(rows) if _is_open(row, starts[i], tokenizer, spec)]
            if not open_rows:
                break
            tokens = _next_tokens(engine, [rows[i] for i in open_rows], tokenizer, distributed)
            for i, token in zip(open_rows, tokens, strict=True):
                rows[i].append(token)
            heartbeat()
    engine.train()
    set_rng_state(random_states)
    limit = spec.data.max_length
    return [
        str(tokenizer.decode(row[start:], skip_special_tokens=True))
        if not limit or start < limit
        else f"(no room: the prompt has {start} tokens, `data.max_length` is {limit})"
        for row, start in zip(rows, starts, strict=True)
    ]


def _is_open(row: list[int], start: int, tokenizer: PreTrainedTokenizerBase, spec: RunSpec) -> bool:
    is_ended = len(row) > start and row[-1] == tokenizer.eos_token_id
    return not is_ended and len(row) < (spec.data.max_length or len(row) + 1)


def _next_tokens(
    engine: Engine, rows: list[list[int]], tokenizer: PreTrainedTokenizerBase, distributed: Distributed
) -> list[int]:
    """The likeliest token after each row. Rows are filled at their ends, which no earlier position sees. The tokens are
    the main process's: ranks that stopped at other lengths would wait for each other for ever.
    """
    length, padding = max(map(len, rows)), int(tokenizer.pad_token_id or tokenizer.eos_token_id or 0)
    filled = [[*row, *([padding] * (length - len(row)))] for row in rows]
    ids = torch.tensor(filled, device=distributed.device)
    last = torch.tensor([len(row) - 1 for row in rows], device=distributed.device)
    takes_kept = "logits_to_keep" in inspect.signature(engine.module.forward).parameters
    kept = torch.unique(last) if takes_kept else torch.arange(length, device=distributed.device)
    options = {"logits_to_keep": kept} if takes_kept else {}
    with whole_rows(engine.module, ids):
        logits = engine(input_ids=ids, use_cache=False, **options).logits
    tokens = logits[torch.arange(len(rows)), torch.searchsorted(kept, last)].argmax(dim=-1).tolist()
    own = tokens if distributed.is_main_process else [0] * len(tokens)
    return [int(token) for token in distributed.all_reduce_sum(*own)]
