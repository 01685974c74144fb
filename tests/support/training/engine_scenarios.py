# SPDX-License-Identifier: Apache-2.0
"""Scenarios of patches that a few steps of an engine show."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.training.patch_sides import Measurement, Side, digest_weights, draw_row, make_model, train_on
from tests.support.training.plain_optimizers import make as make_optimizer

WIDE = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
}
"""DeepSpeed swaps nothing below 1 MiB to NVMe."""
PLAIN = {"max_steps": 3, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "max_grad_norm": 0}


def measure_cpu_offload_grads(side: Side) -> Measurement:
    """Bytes of gradients that wait for the step in fp32, besides those of the partition."""
    found = [_train_offloaded(side, {"device": "cpu"}, bf16=bf16) for bf16 in (True, False)]
    return Measurement(sum(f["master_grads"] for f in found), [f["result"] for f in found], found)


def measure_nvme_grads(side: Side) -> Measurement:
    """Bytes of gradients that the last step left on NVMe."""
    pipelined = {"pipeline_read": True, "pipeline_write": True, "buffer_count": 12}
    ways: list[tuple[dict[str, Any], bool]] = [(pipelined, True), ({"buffer_count": 4}, True), (pipelined, False)]
    found = []
    for number, (way, bf16) in enumerate(ways):
        place = {"device": "nvme", "nvme_path": str(side.folder / f"{number}"), **way}
        found.append(_train_offloaded(side, place, bf16=bf16))
    return Measurement(sum(f["grad_files"] for f in found), [f["result"] for f in found], found)


def _train_offloaded(side: Side, place: dict[str, Any], *, bf16: bool) -> dict[str, Any]:
    from harness.patches.nvme_counters import replace_aio_handle
    from harness.runtime.nvme_io import NVME_COUNTERS, counting_handle_class

    replace_aio_handle(counting_handle_class)
    engine = side.build(
        make_model(**WIDE),
        zero={"stage": 3, "sub_group_size": 600_000, "offload_optimizer": place},
        precision={"bf16": bf16},
        optimizer={"learning_rate": 1e-3},
    )
    losses = train_on(engine, 2)
    norm = float(engine.get_global_grad_norm())
    NVME_COUNTERS.bytes_read = NVME_COUNTERS.bytes_written = 0
    losses += train_on(engine, 1)
    zero = engine.optimizer
    files = Path(place.get("nvme_path", side.folder)).rglob(f"rank{side.distributed.rank}/*_gradient_*")
    found = {
        "result": [losses, norm, digest_weights(engine.module)],
        "grad_files": sum(file.stat().st_size for file in files),
        "master_grads": sum(m.grad.nbytes for m in zero.fp32_partitioned_groups_flat if m.grad is not None),
        "moved": [NVME_COUNTERS.bytes_read, NVME_COUNTERS.bytes_written],
        "shard": sum(p.ds_tensor.numel() for p in engine.module.parameters()),
        "left": _sum_of_old_grads(zero),
    }
    engine.destroy()
    return found


def _sum_of_old_grads(zero: Any) -> float:
    """Of gradients that the next step would find, but for sub-groups too small for the disk they belong on."""
    zero._pre_step()
    sizes = [int(size) for size in zero.fp16_partitioned_groups_flat_numel]
    parts = zero.grad_partitions_flat_buffer.split(sizes)
    small = [zero.swap_optimizer and not zero._swappable_optimizer_subgroup(i) for i in range(len(parts))]
    return sum(float(part.abs().sum()) for part, too_small in zip(parts, small, strict=True) if not too_small)


def measure_walks(side: Side) -> Measurement:
    """Operators of torch that walk over a whole sub-group in a step of CPU Adam, besides the compiled op."""
    found, results = [], []
    for stage in (2, 3):
        zero: dict[str, Any] = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
        zero |= {"stage3_param_persistence_threshold": 0} if stage == 3 else {}
        engine = side.build(make_model(), zero=zero, precision={"bf16": True}, train={**PLAIN, "max_grad_norm": 0.1})
        losses, row = train_on(engine, 2), draw_row(side.distributed.rank)
        engine.backward(engine(input_ids=row, labels=row, use_cache=False).loss)
        with _Walks() as walks:
            engine.step()
        found.append(walks.count)
        results.append([losses, float(engine.get_global_grad_norm()), digest_weights(engine.module)])
        engine.destroy()
    return Measurement(sum(found), results, found)


def measure_late_steps(side: Side) -> Measurement:
    """1 where no sub-group is stepped before the backward pass ends."""
    offload = {"device": "cpu", "overlap_step_gib": 1}
    zero = {"stage": 3, "offload_optimizer": offload, "stage3_param_persistence_threshold": 0, "sub_group_size": 2000}
    engine = side.build(make_model(), zero=zero, precision={"bf16": True}, train={**PLAIN, "max_grad_norm": 0.0})
    losses = train_on(engine, 3)
    overlapped = getattr(engine.optimizer, "overlapped_step", None)
    early = dict(overlapped.early) if overlapped else {}
    return Measurement(int(not early.get("begun")), [losses, digest_weights(engine.module)], early)


class _Walks(TorchDispatchMode):
    """Counts casts, products, copies and zeroing of 1,000 elements and more."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func in _WALKS and args[0].numel() >= 1000 and not _is_same(args):
            self.count += 1
        return func(*args, **(kwargs or {}))


_ATEN = torch.ops.aten
_WALKS = (_ATEN.copy_.default, _ATEN._to_copy.default, _ATEN.mul_.Tensor, _ATEN.zero_.default)


def _is_same(args: Any) -> bool:
    """Is it a copy of a tensor onto itself, which does nothing?"""
    return len(args) > 1 and torch.is_tensor(args[1]) and args[0].data_ptr() == args[1].data_ptr()


def measure_kept_states(side: Side) -> Measurement:
    """Bytes of optimizer states in memory of their own after the first step, with each way of pipelining."""
    kept, results = [], []
    for read, write in ((True, False), (False, True), (True, True)):
        place = {"device": "nvme", "nvme_path": str(side.folder / f"{read}{write}"), "buffer_count": 12}
        place |= {"pipeline_read": read, "pipeline_write": write}
        torch.manual_seed(0)
        engine = side.build(
            torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(4)]),
            zero={
                "stage": 3,
                "sub_group_size": 512 * 512,
                "stage3_param_persistence_threshold": 0,
                "offload_optimizer": place,
            },
            train={"max_steps": 3, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1},
            precision={"bf16": True},
        )
        rows, losses = torch.randn(2, 512).bfloat16(), []
        for step in range(3):
            loss = engine(rows).float().sub(1).square().mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
            if step == 0:
                kept.append(_bytes_of_own_states(engine.optimizer))
        results.append([losses, digest_weights(engine.module), _digest_swap_files(engine.optimizer.optimizer_swapper)])
        engine.destroy()
    assert results[0] == results[1] == results[2]
    return Measurement(sum(kept), results, {"kept": kept, "states": 8 * 4 * 512 * 512})


def _bytes_of_own_states(zero: Any) -> int:
    buffers = {b.untyped_storage().data_ptr() for b in zero.optimizer_swapper.swap_buffer_manager.all_buffers}
    states = [t for state in zero.optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in states if t.numel() > 1}
    return sum(size for place, size in storages.items() if place not in buffers)


def _digest_swap_files(swapper: Any) -> list[str]:
    """Of masters and both states of each sub-group: 12 files."""
    files = [
        (Path(context.swap_path), 4 * info.numel())
        for info in swapper.swap_params_info.values()
        for context in info.tensors
    ]
    assert len(files) == 12
    return [hashlib.sha256(file.read_bytes()[:size]).hexdigest() for file, size in files]


def measure_duplicate_prefetch(side: Side) -> Measurement:
    """Runs that end because a parameter on NVMe is swapped in twice at once: the head, between forward and backward.
    The result is that of parameters on the CPU.
    """
    nvme = {
        "device": "nvme",
        "nvme_path": str(side.folder),
        "buffer_count": 24,
        "buffer_size": 1 << 20,
        "max_in_cpu": 0,
    }
    found = []
    for place in (nvme, {"device": "cpu"}):
        engine = side.build(
            make_model(**{**WIDE, "num_hidden_layers": 2, "tie_word_embeddings": False}),
            zero={"stage": 3, "offload_param": place, "offload_optimizer": {"device": "cpu"}},
            precision={"bf16": True},
        )
        try:
            found.append([train_on(engine), digest_weights(engine.module) if place is not nvme else ""])
        except AssertionError as error:
            if "already assigned swap buffer" in str(error):
                return Measurement(1)
            raise
    assert found[0][0] == found[1][0]
    return Measurement(0, found)


def measure_recorded_gradients(side: Side) -> Measurement:
    """Gradients of other ranks, above the bucket, that are freed although the reduction stream was not recorded on them. The CPU has no
    streams: the accelerator says that it has, and `record_stream` notes the memory.
    """
    from deepspeed.accelerator import get_accelerator

    bucket, freed = 1000, []
    zero = {"stage": 2, "overlap_comm": True, "reduce_scatter": False, "reduce_bucket_size": bucket}
    engine = side.build(make_model(), zero=zero)
    optimizer, accelerator, stream = engine.optimizer, get_accelerator(), Mock()
    clear_gradient, recorded = optimizer.clear_grad_attribute, set[int]()

    def note_stream(tensor: torch.Tensor, _: Any) -> None:
        recorded.add(tensor.untyped_storage().data_ptr())

    def clear_noted_gradient(parameter: torch.nn.Parameter) -> None:
        is_kept = optimizer.is_param_in_current_partition[optimizer.get_param_id(parameter)]
        if parameter.numel() > bucket and not is_kept:
            gradient = optimizer.get_gradient_for_reduction(parameter)
            freed.append(gradient.untyped_storage().data_ptr() in recorded)
        recorded.clear()
        clear_gradient(parameter)

    optimizer.reduction_stream, optimizer.clear_grad_attribute = stream, clear_noted_gradient
    with (
        patch.object(torch.Tensor, "record_stream", note_stream),
        patch.object(accelerator, "resolves_data_dependency", lambda: False),
        patch.object(accelerator, "current_stream", lambda: stream),
        patch.object(accelerator, "stream", lambda _: nullcontext()),
    ):
        losses = train_on(engine)
    assert freed
    return Measurement(freed.count(False), [losses, digest_weights(engine.module)])


def measure_leaf_walks(side: Side) -> Measurement:
    """Walks through the modules below a leaf module, after the first step."""
    from deepspeed.utils.z3_leaf_module import set_z3_leaf_module, z3_leaf_module

    model = make_model()
    for layer in model.model.layers:
        set_z3_leaf_module(layer, True)
    engine = side.build(model, zero={"stage": 3})
    losses = train_on(engine, 1)
    walks: list[Any] = []
    named_parameters = torch.nn.Module.named_parameters

    def count_walk(module: torch.nn.Module, *args: Any, recurse: bool = True, **kwargs: Any) -> Any:
        if recurse and z3_leaf_module(module):
            walks.append(module)
        return named_parameters(module, *args, recurse=recurse, **kwargs)

    torch.nn.Module.named_parameters = count_walk  # type: ignore[method-assign]
    losses += train_on(engine, 2)
    return Measurement(len(walks), [losses, digest_weights(engine.module)])


def measure_gather_order(side: Side) -> Measurement:
    """Steps that the gather stream does not wait for, on a stream that counts: the CPU has none."""

    class CountingStream:
        waits = 0

        def wait_stream(self, _: Any) -> None:
            self.waits += 1

    engine, stream = side.build(make_model(), zero={"stage": 3}), CountingStream()
    engine.optimizer.parameter_offload._DeepSpeedZeRoOffload__allgather_stream = stream
    losses = train_on(engine, 3)
    return Measurement(3 - stream.waits, [losses, digest_weights(engine.module)])


def measure_hidden_step(side: Side) -> Measurement:
    """Is the first step another than that of AdamW in plain torch, with fp32 copies of bf16 weights?"""
    engine = side.build(make_model(), zero={"stage": 0}, precision={"bf16": True}, train=PLAIN)
    train_on(engine, 1)
    model = make_model().bfloat16()
    row = draw_row(0)
    model(input_ids=row, labels=row, use_cache=False).loss.backward()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    for weight, master in zip(model.parameters(), masters, strict=True):
        master.grad = weight.grad.float()
    optimizer = {"learning_rate": 1e-2, "weight_decay": 0.1}
    make_optimizer(optimizer, ((str(n), master) for n, master in enumerate(masters)), set()).step()
    pairs = zip(engine.module.parameters(), masters, strict=True)
    distance = max(float((mine.float() - master.bfloat16().float()).abs().mean()) for mine, master in pairs)
    return Measurement(distance > 5e-4)  # one weight that rounds to another 16-bit number is 1e-4


def measure_nonfinite_step(side: Side) -> Measurement:
    """Weights that are not finite after a step whose loss is not. The result is that of the other steps alone."""
    results = []
    for spoiled in (True, False):
        engine = side.build(make_model(), zero={"stage": 0}, train={"max_steps": 3})
        losses = train_on(engine, 1)
        row = torch.zeros(1, 32, dtype=torch.int64)
        for _ in range(engine.gradient_accumulation_steps() * spoiled):
            engine.backward(engine(input_ids=row, labels=row, use_cache=False).loss * float("nan"))
            engine.step()
        broken = sum(not bool(torch.isfinite(p).all()) for p in engine.module.parameters())
        if broken:
            return Measurement(broken)
        results.append([*losses, *train_on(engine, 1), digest_weights(engine.module)])
        assert engine.skipped_steps == spoiled
    assert results[0] == results[1]
    return Measurement(0, results)


def measure_muon_embeddings(side: Side) -> Measurement:
    """Matrices of a vocabulary or of positions that are not stepped by AdamW. With the patch, all weights are those of
    Muon and AdamW written out.
    """
    body = {"type": "muon", "learning_rate": 1e-2, "weight_decay": 0.1, "betas": [0.9, 0.95], "momentum": 0.95}
    fields = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64, "vocab_size": 320}
    fields |= dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    torch.compile = lambda function: function  # type: ignore[assignment]  # minutes, for the same numbers
    engine = side.build(make_model("gpt2", **fields), zero={"stage": 1}, optimizer=body, train=PLAIN)
    train_on(engine, 1)
    model, row = make_model("gpt2", **fields), draw_row(0)
    model(input_ids=row, labels=row, use_cache=False).loss.backward()
    tables = {"transformer.wte.weight", "transformer.wpe.weight"}
    make_optimizer(body, model.named_parameters(), tables).step()
    mine = dict(engine.module.named_parameters())
    # Muon iterates in bf16, whose rounding differs between processors: a fiftieth of the learning rate on some.
    far = {name for name, p in model.named_parameters() if float((p - mine[name]).abs().max()) > 1e-3}
    assert far <= tables
    return Measurement(len(far))


Measure = Callable[[Side], Measurement]
