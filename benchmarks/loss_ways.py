# SPDX-License-Identifier: Apache-2.0
"""Head and loss at 128,256 words and 4,096 tokens, all at once and in chunks. No benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from counting import watch_the_wire

WORDS, WIDE, TOKENS = 128_256, 64, 4096


def alone(bf16: bool) -> dict[str, Callable[[Any], Any]]:
    """Head and loss by themselves, with their gradients: transformers' own, and in chunks as the harness chooses."""
    import torch
    from transformers.loss.loss_utils import ForCausalLMLoss

    from harness.plan.tuned_defaults.model_defaults import chunk_size_for
    from harness.runtime.chunked_cross_entropy import chunked_cross_entropy

    torch.manual_seed(0)
    kind = torch.bfloat16 if bf16 else torch.float32
    head = torch.nn.Linear(WIDE, WORDS, bias=False, dtype=kind)
    hidden = torch.randn(1, TOKENS, WIDE, dtype=kind, requires_grad=True)
    labels = torch.randint(0, WORDS, (1, TOKENS))
    targets = torch.nn.functional.pad(labels, (0, 1), value=-100)[0, 1:]
    chunk = chunk_size_for(WORDS)

    def whole(_: Any) -> Any:
        head.zero_grad()
        loss = ForCausalLMLoss(head(hidden), labels, WORDS, num_items_in_batch=float(TOKENS))
        loss.backward()
        return loss.detach()

    def in_chunks(_: Any) -> Any:
        head.zero_grad()
        loss = chunked_cross_entropy(hidden.flatten(0, 1), head.weight, targets, float(TOKENS), chunk)
        loss.backward()
        return loss.detach()

    return {"all at once": whole, f"in chunks of {chunk} tokens": in_chunks}


def cut_over_ranks(bf16: bool) -> dict[str, Callable[[Any], Any]]:
    """A step of a one-layer Llama whose head AutoTP has cut: its logits gathered, as AutoTP does, and in chunks."""
    import deepspeed
    import torch
    import torch.distributed as dist
    from transformers import AutoConfig, AutoModelForCausalLM

    from harness.patches.chunked_loss import ChunkedHead, install_chunked_loss
    from harness.plan.tuned_defaults.model_defaults import chunk_size_for
    from harness.render import render_ds_config
    from harness.run.resolved_run import resolve_run
    from harness.runtime.chunked_cross_entropy import chunked_cross_entropy
    from harness.spec.run_spec import RunSpec

    watch_the_wire()
    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.init_distributed()
    ranks = dist.get_world_size()
    shape = {
        "model_type": "llama",
        "vocab_size": WORDS,
        "hidden_size": WIDE,
        "intermediate_size": 2 * WIDE,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": TOKENS,
    }
    raw = {
        "model": {"config": shape},
        "data": {"max_length": TOKENS},
        "parallel": {"tensor_parallel_size": ranks},
        "train": {"per_device_train_batch_size": 1},
        "optimizer": {"learning_rate": 1e-3},
        "precision": {"bf16": bf16},
        "zero": {"stage": 1},
    }
    config = render_ds_config(resolve_run(RunSpec.model_validate(raw), world_size=ranks)).config
    ids = torch.randint(0, WORDS, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    chunk = chunk_size_for(-(-WORDS // ranks))

    def step_of(chunk: int) -> Callable[[Any], Any]:
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape))
        model = model.bfloat16() if bf16 else model.float()
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=dict(config))
        head = install_chunked_loss(engine, chunk, chunked_cross_entropy) if chunk else None
        if isinstance(head, str):
            raise SystemExit(f"the head cannot be cut into chunks: {head}")

        def step(_: Any) -> Any:
            if isinstance(head, ChunkedHead):
                head.set_labels(ids, None)
            loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
            engine.backward(loss)
            engine.step()
            return loss.detach()

        return step

    return {"logits gathered": step_of(0), f"in chunks of {chunk} tokens": step_of(chunk)}
