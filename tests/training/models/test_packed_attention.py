# SPDX-License-Identifier: Apache-2.0
"""Packed rows by every attention: each document has the loss and the gradients that it has alone; wrong borders fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from harness.errors import UserError
from harness.facts.deepspeed_version import parse_version
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.runtime.micro_batch import IGNORE_INDEX, MicroBatch, find_borders
from harness.runtime.models import sdpa_varlen
from harness.runtime.models.packed_attention import (
    PackedAttention,
    check_borders,
    install_packed_attention,
    lengthen_rows,
)
from harness.spec.run_spec import RunSpec
from tests.support.training.flash_attention_stand_in import CALLS, flash_attention_stand_in

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
GROUPED = {"num_key_value_heads": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", GROUPED),
    "mistral, windows of 5": ("mistral", {**GROUPED, "sliding_window": 5}),
    "qwen2, one layer with windows": (
        "qwen2",
        {**GROUPED, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
}
LENGTHS = ((11, 1, 9, 3), (6, 18))
"""Tokens of the documents of each row; the last of the first row stands for its padding."""
BORDERED = ("sdpa_varlen", "flash_attention_2", "flash_attention_3")


@pytest.fixture(autouse=True)
def _restore_functions() -> Iterator[None]:
    before = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
    yield
    ALL_ATTENTION_FUNCTIONS._local_mapping.clear()
    ALL_ATTENTION_FUNCTIONS._local_mapping.update(before)


def make_run(attention: str, **sections: Any) -> ResolvedRun:
    return resolve_run(
        RunSpec.model_validate(
            {"model": {"config": {}, "attn_implementation": attention}, "data": {"packing": True}, **sections}
        )
    )


def make_model(family: str, attention: str, **fields: Any) -> PreTrainedModel:
    name, more = FAMILIES[family]
    sdpa_varlen.register_attention()
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **SIZES, **more, **fields)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, attn_implementation=attention, dtype=torch.float32
    )
    return model.train()


def make_batch() -> MicroBatch:
    ids = torch.randint(0, 64, (2, sum(LENGTHS[0])), generator=torch.Generator().manual_seed(1))
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in LENGTHS])
    labels = torch.where(positions == 0, IGNORE_INDEX, ids)
    return MicroBatch(ids, labels, positions, document_borders=find_borders(positions))


def losses_of(model: PreTrainedModel, ids: torch.Tensor, labels: torch.Tensor, **inputs: Any) -> torch.Tensor:
    """(rows, length); 0 where nothing counts."""
    logits = model(input_ids=ids, use_cache=False, **inputs).logits[:, :-1].transpose(1, 2)
    losses = torch.nn.functional.cross_entropy(logits, labels[:, 1:], reduction="none", ignore_index=IGNORE_INDEX)
    return torch.nn.functional.pad(losses, (1, 0))


def gradients_of(model: PreTrainedModel, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters()), retain_graph=True))


def largest_differences(family: str, attention: str, borders: tuple[int, ...] | None = None) -> tuple[float, float]:
    """Of losses and of gradients, between documents in a packed micro-batch and each by itself in plain `sdpa`."""
    batch = make_batch()
    model, alone = make_model(family, attention), make_model(family, "sdpa")
    packed = install_packed_attention(model, make_run(attention))
    assert (packed is not None) == (attention in BORDERED)
    if packed is not None:
        packed.start_forward(
            batch if borders is None else replace(batch, document_borders=borders), torch.device("cpu")
        )
    losses = losses_of(model, batch.input_ids, batch.labels, position_ids=batch.position_ids).flatten()
    if packed is not None:
        packed.check_layers()
    of_losses, of_gradients = 0.0, 0.0
    for first, last in pairwise(batch.document_borders or ()):
        ids, labels = (tensor.flatten()[None, first:last] for tensor in (batch.input_ids, batch.labels))
        if last - first == 1:
            continue
        own = losses_of(alone, ids, labels).flatten()
        of_losses = max(of_losses, float((losses[first:last] - own).detach().abs().max()))
        pairs = zip(gradients_of(model, losses[first:last].sum()), gradients_of(alone, own.sum()), strict=True)
        of_gradients = max(of_gradients, *(float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in pairs))
    return of_losses, of_gradients


@pytest.mark.parametrize("attention", ["eager", "sdpa", *BORDERED])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_document_has_the_loss_and_gradients_that_it_has_alone(family: str, attention: str) -> None:
    with flash_attention_stand_in() if "flash" in attention else nullcontext():
        of_losses, of_gradients = largest_differences(family, attention)
    assert of_losses < 1e-6
    assert of_gradients < 1e-6


@pytest.mark.parametrize("attention", BORDERED)
@pytest.mark.parametrize(("index", "shift"), [(2, -1), (2, 1), (3, -1), (3, 1)])
def test_a_border_that_is_off_by_one_shows(attention: str, index: int, shift: int) -> None:
    borders = list(make_batch().document_borders or ())
    borders[index] += shift
    with flash_attention_stand_in() if "flash" in attention else nullcontext():
        if not all(first < last for first, last in pairwise(borders)):
            with pytest.raises(ValueError, match="must increase"):
                largest_differences("llama", attention, tuple(borders))
            return
        of_losses, _ = largest_differences("llama", attention, tuple(borders))
    assert of_losses > 1e-3


@pytest.mark.parametrize(
    ("borders", "words"),
    [
        (None, "integers that the host makes"),
        (torch.tensor([0, 4, 8]), "integers that the host makes"),
        ((0, torch.tensor(4), 8), "integers that the host makes"),
        ((0, 4, 7), "from 0 to the 8 positions"),
        ((1, 4, 8), "from 0 to the 8 positions"),
        ((), "from 0 to the 8 positions"),
        ((0, 6, 4, 8), "must increase"),
        ((0, 4, 4, 8), "must increase"),
        ((0, 3, 8), "crosses the end of a row"),
    ],
)
def test_borders_that_are_none_are_refused(borders: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_borders(borders, 2, 4)
    check_borders((0, 3, 4, 8), 2, 4)


def test_the_kernel_that_reads_borders_refuses_wrong_ones() -> None:
    from tests.support.training.flash_attention_stand_in import flash_attn_varlen_func

    q = torch.randn(8, 2, 4)
    for wrong in ([0, 4, 7], [0, 6, 4, 8], [1, 8], [0, 2, 8]):
        borders = torch.tensor(wrong, dtype=torch.int32)
        with pytest.raises(AssertionError):
            flash_attn_varlen_func(q, q, q, borders, borders, 4, 4, causal=True)


def test_rows_are_lengthened_in_their_last_documents() -> None:
    assert lengthen_rows((0, 3, 4, 8), 4, 2) == (0, 3, 6, 12)
    check_borders(lengthen_rows((0, 3, 4, 8), 4, 2), 2, 6)


def test_windows_and_dropout_reach_the_kernel() -> None:
    with flash_attention_stand_in():
        model = make_model("mistral, windows of 5", "flash_attention_2", attention_dropout=0.25)
        packed = install_packed_attention(model, make_run("flash_attention_2"))
        assert packed is not None
        batch = make_batch()
        packed.start_forward(batch, torch.device("cpu"))
        model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False)
    assert CALLS == [{"window_size": (4, 4), "dropout_p": 0.25, "max_seqlen": 18}] * 2


def test_dropout_stays_inside_documents() -> None:
    """A token's output does not change with a document before its own, whatever is dropped."""
    query = torch.randn(1, 4, 12, 8, requires_grad=True)
    key, value = (torch.randn(1, 2, 12, 8, requires_grad=True) for _ in range(2))
    module = torch.nn.Module()
    out, _ = sdpa_varlen.sdpa_varlen_attention(
        module, query, key, value, None, dropout=0.5, document_borders=(0, 5, 12)
    )
    assert out.shape == (1, 12, 4, 8)
    of_key, of_value = torch.autograd.grad(out[:, 5:].sum(), [key, value])
    assert not of_key[:, :, :5].any()
    assert not of_value[:, :, :5].any()
    assert of_value[:, :, 5:].any()
    whole, _ = sdpa_varlen.sdpa_varlen_attention(module, query, key, value, None, document_borders=(0, 5, 12))
    assert not torch.equal(out, whole)


def test_without_borders_a_row_is_a_document() -> None:
    query, key, value = (torch.randn(2, 4, 6, 8) for _ in range(3))
    out, _ = sdpa_varlen.sdpa_varlen_attention(torch.nn.Module(), query, key, value, None)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(out, expected.transpose(1, 2))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"attention_mask": torch.ones(1, 6)}, "takes no attention mask"),
        ({"softcap": 30.0}, "`softcap`"),
        ({"s_aux": torch.ones(4)}, "`s_aux`"),
        ({"is_causal": False}, "is causal attention"),
    ],
)
def test_other_attention_is_refused(arguments: dict[str, Any], words: str) -> None:
    q = torch.randn(1, 4, 6, 8)
    with pytest.raises(ValueError, match=words):
        sdpa_varlen.sdpa_varlen_attention(torch.nn.Module(), q, q, q, **{"attention_mask": None, **arguments})


def test_all_documents_are_one_call_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments of torch's own kernel, which is not on this machine, by a stand-in with its signature."""
    from torch.nn.attention import varlen

    from tests.support.training.flash_attention_stand_in import flash_attn_varlen_func

    calls: list[tuple[Any, ...]] = []

    def varlen_attn(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seq_q: torch.Tensor,
        cu_seq_k: torch.Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        assert window_size[1] == 0
        calls.append((window_size, enable_gqa))
        sizes = (cu_seq_q, cu_seq_k, max_q, max_k)
        return flash_attn_varlen_func(query, key, value, *sizes, 0.0, scale, True, window_size)

    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    monkeypatch.setattr(sdpa_varlen, "is_one_call", lambda *_: True)
    for family in FAMILIES:
        of_losses, of_gradients = largest_differences(family, "sdpa_varlen")
        assert max(of_losses, of_gradients) < 1e-6
    assert {window for window, _ in calls} == {(-1, 0), (4, 0)}
    assert all(is_grouped for _, is_grouped in calls)


@pytest.mark.skipif(parse_version(torch.__version__) < (2, 13), reason="the kernel needs torch 2.13")
def test_torchs_kernel_has_windows_and_grouped_queries() -> None:
    assert sdpa_varlen.has_varlen_kernel()


def test_layers_without_borders_are_found() -> None:
    packed = PackedAttention(lambda *_, **__: (torch.zeros(1), None), make_model("llama", "sdpa"))
    packed.start_forward(make_batch(), torch.device("cpu"))
    with pytest.raises(UserError, match="0 of the model's 2 layers"):
        packed.check_layers()


def test_borders_of_other_rows_are_refused() -> None:
    model = make_model("llama", "sdpa_varlen")
    packed = install_packed_attention(model, make_run("sdpa_varlen"))
    assert packed is not None
    batch = make_batch()
    for started in (False, True):
        if started:
            packed.start_forward(batch, torch.device("cpu"))
        with pytest.raises(ValueError, match="do not match these 7 positions"):
            model(input_ids=batch.input_ids[:1, :7], use_cache=False)


def test_only_packed_rows_of_whole_models_get_borders() -> None:
    model = make_model("llama", "sdpa_varlen")
    for run in (
        make_run("sdpa"),
        make_run("sdpa_varlen", data={"packing": False}),
        make_run("sdpa_varlen", train={"torch_compile": True}),
        make_run("sdpa_varlen", parallel={"pipeline_parallel_size": 2}),
    ):
        assert install_packed_attention(model, run) is None


def test_another_model_of_the_process_is_left_alone() -> None:
    first, second = make_model("llama", "sdpa_varlen"), make_model("llama", "sdpa_varlen")
    packed = install_packed_attention(first, make_run("sdpa_varlen"))
    assert packed is not None
    batch = make_batch()
    packed.start_forward(batch, torch.device("cpu"))
    again = install_packed_attention(second, make_run("sdpa_varlen"))
    assert again is not None
    assert again.core is packed.core
    ids = batch.input_ids[:, :7]
    with torch.no_grad():
        plain = make_model("llama", "sdpa")(input_ids=ids, use_cache=False).logits
        torch.testing.assert_close(first(input_ids=ids, use_cache=False).logits, plain)
