# SPDX-License-Identifier: Apache-2.0
"""Ulysses sequence parallelism: each rank of a sequence group has a part of every row, and of every attention's heads.

The exchange between the two is DeepSpeed's `UlyssesSPAttentionHF`, in place of the model's attention function. Its
caller provides the rest: groups, positions, masks (it drops them all) and shards of the batch; the loss is in
`sequence_stepper.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

import torch
from deepspeed import comm as dist
from torch.nn.functional import pad

from harness.runtime.micro_batch import IGNORE_INDEX, MicroBatch
from harness.runtime.user_errors import user_error

if TYPE_CHECKING:
    from harness.run.resolved_run import ParallelDims
    from harness.runtime.topology import Topology

AttentionFunction = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]
SUPPORTED_ATTENTION = ("sdpa", "sdpa_varlen", "flash_attention_2", "flash_attention_3")


def init_sequence_groups(dims: ParallelDims) -> Any:
    """The `mpu` for `deepspeed.initialize`: gradients are then reduced over sequence and data ranks.

    A collective. None without sequence ranks, and with tensor ranks: AutoTP ignores it, and the data group that it
    makes has the sequence ranks in it. The keys `sequence_parallel_size` and `data_parallel_size` of the JSON would
    make groups too, but ZeRO 0 to 2 would reduce over the data ranks alone: the weights of a sequence group drift
    apart.
    """
    if dims.sequence == 1 or dims.autotp > 1:
        return None
    from deepspeed.runtime.sequence_parallel import parallel_state_sp

    if parallel_state_sp._SEQUENCE_PARALLEL_GROUP is None:
        parallel_state_sp.initialize_sequence_parallel(dims.sequence)
    return parallel_state_sp


def new_sequence_group(topology: Topology) -> torch.distributed.ProcessGroup:
    """The sequence group of this rank, with neighbouring ranks as the tensor group. A collective of all ranks."""
    tensor, sequence = topology.tensor_parallel_size, topology.sequence_parallel_size
    own_group: Any = None
    for first in range(0, topology.world_size, tensor * sequence):
        for tensor_rank in range(tensor):
            ranks = range(first + tensor_rank, first + tensor * sequence, tensor)
            group = dist.new_group(list(ranks))
            if topology.rank in ranks:
                own_group = group
    return cast("torch.distributed.ProcessGroup", own_group)


class UlyssesAttention:
    """An attention function of `transformers` that sees whole sequences and this rank's share of the heads."""

    def __init__(
        self, core: AttentionFunction, name: str, group: torch.distributed.ProcessGroup | None, model: torch.nn.Module
    ) -> None:
        self.core, self._group = core, group
        self._attend = self._attend_with_mask if name == "sdpa" else core
        self._modules = WeakSet(model.modules())
        self._exchanges: dict[tuple[int, ...], Any] = {}
        self._masks: dict[int | None, torch.Tensor | None] = {}
        self._positions: torch.Tensor | None = None
        self._packed = False
        self.num_calls = 0

    def start_forward(self, positions: torch.Tensor, *, packed: bool) -> None:
        """Prepare for a forward of a shard with these positions, (rows, length of the shard). `packed`: a row of the
        batch has several documents, which the host knows and the device would have to be waited for.
        """
        self._positions, self._packed, self.num_calls = positions, packed, 0
        self._masks.clear()

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(rows, heads, length, head size) of the shard -> (rows, length, heads, head size) of the shard."""
        if module not in self._modules:
            return self.core(module, query, key, value, *args, **kwargs)
        self.num_calls += 1
        for name in ("position_bias", "s_aux"):
            if kwargs.get(name) is not None:
                raise user_error(
                    "SQ101",
                    f"this model's attention takes `{name}`, which sequence parallelism does not split",
                    key="parallel.sequence_parallel_size",
                    fix="set `parallel.sequence_parallel_size: 1`",
                )
        kwargs["position_ids"] = self._positions
        rest = args[1:]  # the first is a mask of the shard
        kwargs.pop("attention_mask", None)
        out, weights = self._get_exchange(query, key)(module, query, key, value, None, *rest, **kwargs)
        return out.unflatten(-1, (query.shape[1], value.shape[3])), weights

    def _get_exchange(self, query: torch.Tensor, key: torch.Tensor) -> Any:
        """DeepSpeed's `UlyssesSPAttentionHF`, one for each shape."""
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

        shape = (query.shape[0], query.shape[1], query.shape[3], key.shape[1])
        if shape not in self._exchanges:
            rows, heads, size, kv_heads = shape
            self._exchanges[shape] = UlyssesSPAttentionHF(
                attn=self._attend,
                batch_size=rows,
                attn_head_count=heads,
                attn_head_size=size,
                kv_head_count=kv_heads,
                num_hidden_layers=1,
                process_group=self._group,
                seq_length_is_variable=True,
            )
        return self._exchanges[shape]

    def _attend_with_mask(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: None,  # noqa: ARG002
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The model's own attention on whole sequences, with the mask of their positions and its window."""
        window = kwargs.get("sliding_window")
        if window not in self._masks:
            needed = bool(window) or self._packed  # else each position sees all before it, without a mask
            self._masks[window] = causal_mask(kwargs["position_ids"], window) if needed else None
        return self.core(module, query, key, value, self._masks[window], *args, **kwargs)


def causal_mask(positions: torch.Tensor, window: int | None) -> torch.Tensor:
    """(rows, 1, length, length), True where a position may look. Waits for no device.

    A document begins where a position is not the previous one plus 1, as in `transformers`. The mask is the only tensor
    of this size, a byte a pair of positions: 4.3 GB a row of 65,536 tokens.
    """
    documents = (torch.diff(positions, dim=1, prepend=positions[:, :1] - 1) != 1).cumsum(1)
    mask = (documents[:, :, None] == documents[:, None, :]).tril_()
    if window:
        mask.triu_(1 - window)
    return mask[:, None]


def install_ulysses_attention(model: torch.nn.Module, group: torch.distributed.ProcessGroup | None) -> UlyssesAttention:
    """Replace this model's attention function by `UlyssesAttention`.

    Raises UserError (SQ101) for a model whose attention cannot be split.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    config: Any = model.config
    name = str(config.get_text_config()._attn_implementation)
    reason = None
    if name not in SUPPORTED_ATTENTION:
        allowed = ", ".join(SUPPORTED_ATTENTION)
        reason = f"`{name}` attention cannot be split over a sequence group, should be one of {allowed}"
    elif "position_ids" not in inspect.signature(model.forward).parameters:
        reason = f"`{type(model).__name__}` takes no `position_ids`, by which a rank places its part of a row"
    elif getattr(config.get_text_config(), "attention_chunk_size", None):
        reason = "attention in chunks (`attention_chunk_size`) is not split over a sequence group"
    elif getattr(config.get_text_config(), "index_topk", None):
        reason = "its layers choose among the tokens of whole rows (`index_topk`), of which a rank has only a part"
    elif getattr(config.get_text_config(), "output_router_logits", False):
        reason = "`output_router_logits` adds a loss over whole rows, and a sequence rank has only a part of a row"
    if reason:
        raise user_error(
            "SQ101", reason, key="parallel.sequence_parallel_size", fix="set `parallel.sequence_parallel_size: 1`"
        )
    core = ALL_ATTENTION_FUNCTIONS[name]
    attention = UlyssesAttention(core.core if isinstance(core, UlyssesAttention) else core, name, group, model)
    ALL_ATTENTION_FUNCTIONS[name] = attention
    return attention


def is_packed(batch: MicroBatch) -> bool:
    """Does a row hold several documents, so that positions restart in it?"""
    return batch.position_ids is not None and bool((batch.position_ids.diff(dim=1) != 1).any())


def split_sequence(batch: MicroBatch, size: int, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Part `index` of `size` of (input_ids, position_ids, shifted labels), each (rows, padded length / size).

    Rows are lengthened to a multiple of `size` by positions that count for nothing. Padding must be on the right, where
    no token looks at it.
    """
    rows, length = batch.input_ids.shape
    mask = batch.attention_mask
    if mask is not None and bool((mask.diff(dim=1) > 0).any()):
        raise ValueError("rows are padded on the left")
    positions = batch.position_ids if batch.position_ids is not None else torch.arange(length).expand(rows, length)
    extra = -length % size
    ids, labels = pad(batch.input_ids, (0, extra)), pad(batch.labels, (0, extra + 1), value=IGNORE_INDEX)[:, 1:]
    extra_positions = positions[:, -1:] + torch.arange(1, extra + 1)
    positions = torch.cat([positions, extra_positions], dim=1)
    part = slice(index * (length + extra) // size, (index + 1) * (length + extra) // size)
    return ids[:, part], positions[:, part], labels[:, part].contiguous()
