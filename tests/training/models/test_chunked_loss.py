# SPDX-License-Identifier: Apache-2.0
"""Head and loss in chunks, in one process: equal to transformers' own, or left alone with a reason; less memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.loss.loss_utils import ForCausalLMLoss

from harness.patches import patch_registry
from harness.patches.chunked_loss import PATCH, ChunkedHead, install_chunked_loss
from harness.patches.patch_registry import PatchStates, Target, all_patches
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.runtime.chunked_cross_entropy import chunked_cross_entropy
from harness.runtime.engine import install_loss
from harness.runtime.micro_batch import MicroBatch
from harness.runtime.objectives.causal_lm import CausalLM
from harness.runtime.patch_selection import resolve_patches
from harness.runtime.step_timer import StepTimer
from harness.runtime.topology import Topology
from harness.spec.run_spec import RunSpec
from tests.support.training.allocations import peak_of

SMALL = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
GATED = {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {**GATED, "tie_word_embeddings": True},
    "mistral": GATED,
    "qwen3": {**GATED, "head_dim": 16},
    "phi3": {**GATED, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "gpt_neox": {**SMALL, "intermediate_size": 48},
    "gpt2": {"vocab_size": 300, "n_embd": 32, "n_layer": 1, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2},
    "mixtral": {**GATED, "num_local_experts": 2},
}
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "gemma2": ({**GATED, "head_dim": 16}, "changes its logits"),
    "granite": (GATED, "changes its logits"),
    "phi": (GATED, "not a plain matrix"),
}


def engine_of(model: Any, *, autocast: bool = False, fp16: bool = False) -> Any:
    return SimpleNamespace(module=model, torch_autocast_enabled=lambda: autocast, fp16_enabled=lambda: fp16)


def model_of(family: str, fields: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **fields)).eval()


def loss_and_gradients(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = model(input_ids=ids, labels=labels, use_cache=False, num_items_in_batch=70.0).loss
    (loss * 0.5).backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", MODELS)
def test_loss_and_gradients_are_those_of_transformers(family: str) -> None:
    """fp32, 1e-6 relative; in chunks that do not divide the tokens, some of which count for nothing."""
    model = model_of(family, MODELS[family])
    ids = torch.randint(3, 300, (2, 41))
    labels = ids.masked_fill(torch.arange(41) < 9, -100)
    loss, gradients = loss_and_gradients(model, ids, labels)
    head = install_chunked_loss(engine_of(model), 17, chunked_cross_entropy)
    assert isinstance(head, ChunkedHead)
    head.set_labels(labels, 70.0)
    cut, cut_gradients = loss_and_gradients(model, ids, labels)
    assert cut == pytest.approx(loss, rel=1e-6)
    assert cut_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert (cut_gradients[name] - gradient).norm() <= 1e-6 * gradient.norm() + 1e-9, name
    plain = model(input_ids=ids, labels=labels, use_cache=False)  # not armed: logits as ever
    assert plain.logits.shape == (2, 41, 300)
    with torch.no_grad():
        head.set_labels(labels, None)
        assert model(input_ids=ids, labels=labels, use_cache=False).loss.item() == pytest.approx(
            plain.loss.item(), rel=1e-6
        )


def test_in_bf16_the_loss_is_equal_within_its_rounding() -> None:
    model = model_of("llama", {**GATED}).to(torch.bfloat16)
    ids = torch.randint(3, 300, (2, 41))
    loss, gradients = loss_and_gradients(model, ids, ids)
    head = install_chunked_loss(engine_of(model), 17, chunked_cross_entropy)
    assert isinstance(head, ChunkedHead)
    head.set_labels(ids, 70.0)
    cut, cut_gradients = loss_and_gradients(model, ids, ids)
    assert cut == pytest.approx(loss, rel=1e-6)
    for name, gradient in gradients.items():
        assert (cut_gradients[name] - gradient).float().norm() <= 2**-7 * gradient.float().norm(), name


@pytest.mark.parametrize("family", OTHERS)
def test_other_heads_are_left_alone(family: str) -> None:
    fields, why = OTHERS[family]
    found = install_chunked_loss(engine_of(model_of(family, fields)), 17, chunked_cross_entropy)
    assert isinstance(found, str)
    assert why in found


@pytest.mark.parametrize(("mode", "why"), [("autocast", "torch_autocast"), ("fp16", "fp16")])
def test_number_formats_that_need_the_whole_loss(mode: str, why: str) -> None:
    found = install_chunked_loss(engine_of(model_of("llama", GATED), **{mode: True}), 17, chunked_cross_entropy)
    assert isinstance(found, str)
    assert why in found


def test_a_frozen_head_gets_no_gradient() -> None:
    weight, hidden = torch.randn(50, 8), torch.randn(12, 8, requires_grad=True)
    chunked_cross_entropy(hidden, weight, torch.randint(0, 50, (12,)), 12.0, 5).backward()
    assert weight.grad is None
    assert hidden.grad is not None


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_the_peak_is_less_than_half(kind: torch.dtype) -> None:
    """With the shares of 4,096 tokens and 128,256 words in chunks of 512, at a thirty-second of both. At least 60 %."""
    words, tokens, wide = 4096, 128, 8
    head = torch.nn.Linear(wide, words, bias=False, dtype=kind)
    hidden = torch.randn(1, tokens, wide, dtype=kind, requires_grad=True)
    labels = torch.randint(0, words, (1, tokens))

    def whole() -> None:
        ForCausalLMLoss(head(hidden), labels, words, num_items_in_batch=128.0).backward()

    def cut() -> None:
        chunked_cross_entropy(hidden.flatten(0, 1), head.weight, labels.flatten(), 128.0, 16).backward()

    at_once = peak_of(whole)
    head.weight.grad = hidden.grad = None
    assert at_once > 12 * words * tokens
    assert peak_of(cut) < 0.4 * at_once


def test_the_stepper_trains_and_evaluates_in_chunks() -> None:
    """The same loss and gradients as without, over two micro-batches; logits for whoever watches an evaluation."""
    ids = torch.randint(3, 300, (2, 41))
    batches = [MicroBatch(ids, ids.masked_fill(torch.arange(41) < k, -100)) for k in (5, 20)]
    predicted = sum(batch.num_targets for batch in batches)
    ranks: Any = SimpleNamespace(device=torch.device("cpu"))
    place = Topology.from_dims(run_in_chunks().parallel_dims, 1, 0)
    found = []
    for chunk in (0, 17):
        model = model_of("llama", GATED)
        engine = engine_of(model)
        engine.backward, engine.step = torch.Tensor.backward, lambda: None
        head = install_chunked_loss(engine, chunk, chunked_cross_entropy) if chunk else None
        assert not isinstance(head, str)
        objective = CausalLM(run_in_chunks())
        objective._head = head
        stepper = objective.make_stepper(OneProcess(engine), ranks, place)
        loss = stepper.train_step(batches, predicted, StepTimer())
        evaluated, _ = stepper.eval_step(batches[0])
        objective._eval_head = None
        assert float(stepper.eval_step(batches[0])[0]) == pytest.approx(float(evaluated), rel=1e-6)
        found.append((float(loss), float(evaluated), float(model.lm_head.weight.grad.norm())))
    assert found[1] == pytest.approx(found[0], rel=1e-6)


def run_in_chunks(**launch: Any) -> ResolvedRun:
    body = {"train": {"loss_chunk_size": 17, "per_device_train_batch_size": 1}, "launch": launch}
    return resolve_run(RunSpec.model_validate(body), world_size=1)


def patches_of(run: ResolvedRun) -> PatchStates:
    return resolve_patches(run, {"optimizer": {"type": "AdamW"}}, is_main_process=True)


def install(run: ResolvedRun, model: Any) -> tuple[ChunkedHead | None, str]:
    """The head that was installed, and the state of the patch afterwards."""
    head, patches = install_loss(engine_of(model), run, patches_of(run), is_main_process=True)
    return head, patches.to_json()["chunked-loss"]


def test_it_is_a_patch_that_is_applied_once_where_chunks_are_set(capsys: pytest.CaptureFixture[str]) -> None:
    head, state = install(run_in_chunks(), model_of("llama", GATED))
    assert (type(head), state, capsys.readouterr().err) == (ChunkedHead, "applied", "")
    plain = resolve_run(RunSpec.model_validate({"train": {"loss_chunk_size": 0}}), world_size=1)
    assert install(plain, model_of("llama", GATED)) == (None, "not needed")


def test_the_switch_leaves_the_model_alone() -> None:
    for switches in ("off", {"chunked-loss": "off"}):
        model = model_of("llama", GATED)
        assert install(run_in_chunks(patches=switches), model) == (None, "switched off")
        assert "forward" not in vars(model.lm_head)


def test_another_release_of_transformers_skips_it_with_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "transformers.loss.loss_utils:ForCausalLMLoss"
    changed = PATCH._replace(targets=(Target(name, "another"), *PATCH.targets[1:]))
    monkeypatch.setattr(
        patch_registry, "all_patches", lambda: tuple(changed if p == PATCH else p for p in all_patches())
    )
    model = model_of("llama", GATED)
    assert install(run_in_chunks(), model) == (None, f"skipped: `{name}` is changed")
    assert capsys.readouterr().err == f"patch chunked-loss: skipped, `{name}` is changed\n"
    assert "forward" not in vars(model.lm_head)


def test_a_release_of_transformers_with_another_loss_skips_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.loss import loss_utils

    usual = loss_utils.ForCausalLMLoss
    model = model_of("llama", GATED)
    for other in (
        lambda logits, labels, vocab_size, **_: usual(logits, labels, vocab_size),
        lambda *args, **kwargs: usual(*args, **kwargs, label_smoothing=0.1) * 1.001,
    ):
        monkeypatch.setattr(loss_utils, "ForCausalLMLoss", other)
        monkeypatch.setattr(model, "_loss_function", other, raising=False)
        monkeypatch.setattr(type(model), "loss_function", other, raising=False)
        reason = "its loss is not the usual one of causal language models"
        assert install(run_in_chunks(), model) == (None, f"skipped: {reason}")


def test_a_model_that_it_does_not_fit_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "its head is not a plain matrix, whole or sharded by AutoTP over the vocabulary"
    assert install(run_in_chunks(), model_of("phi", GATED)) == (None, f"skipped: {reason}")
    assert capsys.readouterr().err == f"loss: computed at once, not in chunks of 17 tokens: {reason}\n"


def test_a_stepper_changes_nothing_in_the_model() -> None:
    model = model_of("llama", GATED)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    ranks: Any = SimpleNamespace(device=torch.device("cpu"))
    run = run_in_chunks()
    CausalLM(run).make_stepper(engine_of(model), ranks, Topology.from_dims(run.parallel_dims, 1, 0))
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before


class OneProcess:
    """An engine of one process: calls go to its module."""

    def __init__(self, engine: Any) -> None:
        self.module, self.backward, self.step = engine.module, engine.backward, engine.step

    def __call__(self, **named: Any) -> Any:
        return self.module(**named)
