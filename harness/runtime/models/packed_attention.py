# SPDX-License-Identifier: Apache-2.0
"""Hands the borders of packed documents to the attention of a model, as cumulative lengths that the host has made.

`transformers` finds borders itself only in batches of one row, by reading position ids from the device in every layer.
With `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k` its flash functions take several rows as one,
and wait for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any, cast
from weakref import WeakSet

import torch
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from harness.facts.language_model import TAKES_BORDERS, find_answers
from harness.run.resolved_run import ResolvedRun
from harness.runtime.micro_batch import MicroBatch, copy_to_device
from harness.runtime.user_errors import user_error

AttentionFunction = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


class PackedAttention:
    """An attention function of `transformers` that gets the borders of the current micro-batch with every call.

    A recomputation in the backward pass gets them too, since they stay until the next forward pass.
    """

    def __init__(self, core: AttentionFunction, model: PreTrainedModel) -> None:
        self.core = core
        self._model = model
        self._modules = WeakSet(model.modules())
        self._arguments: dict[str, Any] = {}
        self._num_calls = 0
        self._layers_are_known = False

    def start_forward(self, batch: MicroBatch, device: torch.device, *, extra: int = 0) -> None:
        """Prepare for a forward of this micro-batch. `extra`: positions by which each of its rows is lengthened, as
        part of its last document. Raises ValueError for borders that do not fit its rows.
        """
        rows, length = batch.input_ids.shape
        borders = check_borders(batch.document_borders, rows, length)
        if extra:
            borders = lengthen_rows(borders, length, extra)
        cu_seq_lens = copy_to_device(torch.tensor(borders, dtype=torch.int32), device)
        longest = max(last - first for first, last in pairwise(borders))
        self._num_calls = 0
        self._arguments = {
            "document_borders": borders,
            "cu_seq_lens_q": cu_seq_lens,
            "cu_seq_lens_k": cu_seq_lens,
            "max_length_q": longest,
            "max_length_k": longest,
        }

    def takes(self, module: torch.nn.Module) -> bool:
        """Is this a module of its model?"""
        return module in self._modules

    @contextmanager
    def whole_rows(self, ids: torch.Tensor) -> Iterator[None]:
        """Forwards of these rows, each of which is one document. The borders of before are back afterwards."""
        before = self._arguments, self._num_calls
        rows, length = ids.shape
        borders = tuple(range(0, rows * length + 1, length))
        self.start_forward(MicroBatch(ids, ids, document_borders=borders), ids.device)
        try:
            yield
        finally:
            self._arguments, self._num_calls = before

    def __call__(
        self, module: torch.nn.Module, query: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The attention of a module of this model with its borders; of any other module as it was.

        `query`: (rows, heads, length, head size). Raises ValueError for rows that are not those of the borders.
        """
        if not self.takes(module):
            return self.core(module, query, *args, **kwargs)
        positions = query.shape[0] * query.shape[2]
        if not self._arguments or self._arguments["document_borders"][-1] != positions:
            raise ValueError(f"the boundaries of packed documents do not match these {positions} positions")
        self._num_calls += 1
        return self.core(module, query, *args, **{**kwargs, **self._arguments})

    def check_layers(self) -> None:
        """After the first forward: raises UserError (MD128) for a model with layers that did not get the borders."""
        layers = self._model.config.get_text_config().num_hidden_layers
        if not self._layers_are_known and self._num_calls < layers:
            raise user_error(
                "MD128",
                f"{self._num_calls} of the model's {layers} layers get the boundaries of packed documents",
                key="model.attn_implementation",
                notes=("the others would attend to earlier documents",),
                fix="set `model.attn_implementation: sdpa`",
            )
        self._layers_are_known = True


def whole_rows(model: torch.nn.Module, ids: torch.Tensor) -> AbstractContextManager[None]:
    """Forwards of this model on rows (rows, length) that are a document each, where its attention takes borders."""
    functions = (function for function in ALL_ATTENTION_FUNCTIONS.values() if isinstance(function, PackedAttention))
    packed = next((function for function in functions if function.takes(model)), None)
    return nullcontext() if packed is None else packed.whole_rows(ids)


def check_borders(borders: Any, rows: int, length: int) -> tuple[int, ...]:
    """The borders of a micro-batch. Raises ValueError unless they are integers of the host that rise from 0 to
    rows x length, and every row begins a document.
    """
    if not isinstance(borders, tuple) or not all(type(border) is int for border in borders):
        raise ValueError("the boundaries of packed documents must be integers that the host makes with the micro-batch")
    if not borders or borders[0] != 0 or borders[-1] != rows * length:
        raise ValueError(
            f"the boundaries of packed documents must go from 0 to the {rows * length} positions of a micro-batch"
        )
    if any(first >= last for first, last in pairwise(borders)):
        raise ValueError("the boundaries of packed documents must increase")
    if not set(range(0, rows * length, length)) <= set(borders):
        raise ValueError(f"a packed document crosses the end of a row of {length} positions")
    return borders


def lengthen_rows(borders: tuple[int, ...], length: int, extra: int) -> tuple[int, ...]:
    """Borders of rows with `extra` positions more, as part of their last documents."""
    return tuple(border + border // length * extra for border in borders)


def install_packed_attention(module: torch.nn.Module, run: ResolvedRun) -> PackedAttention | None:
    """Make the attention of an engine's model take borders; None where documents are kept apart otherwise.

    Stages of a pipeline make masks of their own. With `train.torch_compile` borders are not handed over: each new
    length would compile the model again.
    """
    spec, attention = run.spec, run.attn_implementation
    if not spec.data.packing or attention not in TAKES_BORDERS or spec.train.torch_compile:
        return None
    if run.parallel_dims.pipeline > 1:
        return None
    model = cast("PreTrainedModel", module)
    _check_model(model, attention)
    current = ALL_ATTENTION_FUNCTIONS[attention]
    core = current.core if isinstance(current, PackedAttention) else current
    packed = PackedAttention(core, model)
    ALL_ATTENTION_FUNCTIONS[attention] = packed
    return packed


def _check_model(model: PreTrainedModel, attention: str) -> None:
    """Raises UserError (MD128) for a model whose layers need more than borders."""
    config = model.config.get_text_config()
    reason = None
    if getattr(config, "attention_chunk_size", None):
        reason = f"`{attention}` does not attend in chunks (`attention_chunk_size`), as this model does"
    elif attention == "sdpa_varlen" and not find_answers(config.to_dict(), ("borders",)).answer_to("borders").holds:
        reason = f"models of type `{config.model_type}` are not known to keep packed documents apart by `{attention}`"
    if reason:
        raise user_error("MD128", reason, key="model.attn_implementation", fix="set `model.attn_implementation: sdpa`")
