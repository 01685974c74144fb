# SPDX-License-Identifier: Apache-2.0
"""Each change to torch, transformers and DeepSpeed that the simulated device needs, with its reason and its target.

`install_shims` makes them all, in a process that only simulates. A target that is not there raises
SimulationUnavailableError.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from harness.facts.tested_releases import TESTED_RELEASES
from harness.patches.targets import compute_digest
from harness.runtime.simulation.collectives import find_number
from harness.runtime.simulation.compiled_ops import IS_PINNED, MARK_PINNED
from harness.runtime.simulation.deepspeed_shims import (
    answer_for_rank0,
    assume_even_vocabulary,
    broadcast_sizes,
    build_mesh_with_values,
    replace_builders,
)
from harness.runtime.simulation.fake_attention import count_varlen_attention, fake_attention
from harness.runtime.simulation.memory_tracker import MemoryTracker
from harness.runtime.simulation.native_library import SimulationUnavailableError
from harness.runtime.simulation.simulated_accelerator import CAPABILITY, synchronize_device
from harness.runtime.simulation.step_thread import replace_step_thread
from harness.runtime.simulation.streams import DEFAULT, OBSERVERS, SimulatedEvent, SimulatedStream, current_stream

# Replaced below, where a type checker would object.
_torch: Any = torch
_tensor_class: Any = FakeTensor
_storage_class: Any = torch.UntypedStorage
_module_class: Any = torch.nn.Module


class Shim(NamedTuple):
    """One change: `reason` says what happens without it; `targets` are the definitions that it replaces or relies on,
    each `module:qualified.name`.
    """

    name: str
    reason: str
    targets: tuple[str, ...]
    install: Callable[[MemoryTracker], None]


def install_shims(tracker: MemoryTracker) -> None:
    """Make every change of `SHIMS`. Raises SimulationUnavailableError for a target that does not exist."""
    for shim in SHIMS:
        missing = [target for target in shim.targets if compute_digest(target) is None]
        if missing:
            raise SimulationUnavailableError(
                f"`{missing[0]}`, which the shim `{shim.name}` replaces, is not in the installed packages",
                "install a release that it was tested with: "
                + ", ".join(f"{name} {' or '.join(TESTED_RELEASES[name])}" for name in ("deepspeed", "torch")),
            )
        shim.install(tracker)


def _set_tensor_data(_: MemoryTracker) -> None:
    base: Any = torch._C.TensorBase.data

    def set_data(self: FakeTensor, new: torch.Tensor) -> None:
        base.__set__(self, new)
        if isinstance(new, FakeTensor):
            self.fake_device = new.fake_device

    _tensor_class.data = property(base.__get__, set_data)


def _apply_by_data(_: MemoryTracker) -> None:
    def apply(
        self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> torch.nn.Module:
        for child in self.children() if recurse else ():
            child._apply(fn)
        for parameter in self._parameters.values():
            if parameter is None:
                continue
            with torch.no_grad():
                parameter.data = fn(parameter)
            if parameter.grad is not None:
                parameter.grad.data = fn(parameter.grad)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    _module_class._apply = apply


def _pin_memory(tracker: MemoryTracker) -> None:
    def is_pinned(tensor: torch.Tensor, _: Any = None) -> bool:
        return tensor.untyped_storage() in tracker.pinned

    def pin(tensor: torch.Tensor, _: Any = None) -> torch.Tensor:
        if tensor.device.type != "cpu":
            raise RuntimeError(f"cannot pin a tensor on {tensor.device}: only dense CPU tensors can be pinned")
        if is_pinned(tensor):
            return tensor
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        copy.copy_(tensor)
        return copy

    _tensor_class.is_pinned = is_pinned
    _tensor_class.pin_memory = pin
    IS_PINNED[0] = is_pinned
    MARK_PINNED[0] = lambda tensor: tracker.pinned.add(tensor.untyped_storage())


def _record_stream(_: MemoryTracker) -> None:
    def record_stream(tensor: torch.Tensor, stream: SimulatedStream) -> None:
        for observer in OBSERVERS:
            observer.on_record_stream(tensor, stream.name)

    _tensor_class.record_stream = record_stream


def _data_ptr(_: MemoryTracker) -> None:
    addresses: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
    next_address = [1 << 32]

    def address(storage: torch.UntypedStorage) -> int:
        entry = addresses.get(storage._cdata)
        if entry is None or entry[0]() is not storage:
            entry = addresses[storage._cdata] = (weakref.ref(storage), next_address[0])
            next_address[0] += (storage.nbytes() + (1 << 21) - 1 >> 20 << 20) + (1 << 20)
        return entry[1]

    def data_ptr(tensor: torch.Tensor) -> int:
        return address(tensor.untyped_storage()) + int(tensor.storage_offset()) * tensor.element_size()

    _tensor_class.data_ptr = data_ptr
    _storage_class.data_ptr = address


def _resize_storage(tracker: MemoryTracker) -> None:
    original = _storage_class.resize_

    @wraps(original)
    def resize(self: torch.UntypedStorage, size: int) -> Any:
        result = original(self, size)
        tracker.resize(self)
        return result

    _storage_class.resize_ = resize


def _mapped_files(tracker: MemoryTracker) -> None:
    def from_file(path: str, *, size: int, dtype: torch.dtype, **_: Any) -> torch.Tensor:
        del path
        with tracker.mapping_files():
            return torch.empty(size, dtype=dtype, device="cpu")

    _torch.from_file = from_file


def _attention(_: MemoryTracker) -> None:
    torch.nn.functional.scaled_dot_product_attention = fake_attention
    from torch.nn.attention import varlen

    module: Any = varlen
    module.varlen_attn = count_varlen_attention(varlen.varlen_attn)


def _is_finite(_: MemoryTracker) -> None:
    original = torch.isfinite

    def is_finite(tensor: torch.Tensor) -> torch.Tensor:
        flag = original(tensor)
        flag.is_simulated_true = True  # type: ignore[attr-defined]
        return flag

    _torch.isfinite = is_finite


def _torch_cuda(tracker: MemoryTracker) -> None:
    # Without a device `torch.tensor(..., device="cuda")` makes a fake tensor (`FakeTensorMode.avoid_device_init`). A
    # build for CUDA would count the one of `device_count` below.
    replacements: dict[str, Any] = {
        "is_available": lambda: False,
        "get_device_capability": lambda *_: CAPABILITY,
        "current_device": lambda: 0,
        "device": lambda _: contextlib.nullcontext(),
        "device_count": lambda: 1,
        "set_device": lambda _: None,
        "synchronize": synchronize_device,
        "current_stream": lambda *_: current_stream(),
        "default_stream": lambda *_: DEFAULT,
        "stream": lambda stream: stream if stream is not None else contextlib.nullcontext(),
        "Stream": SimulatedStream,
        "Event": SimulatedEvent,
        "empty_cache": lambda: None,
        "memory_allocated": lambda *_: tracker.bytes_now["cuda"],
        "is_bf16_supported": lambda *_: True,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda *_: None,
    }
    for name, value in replacements.items():
        setattr(torch.cuda, name, value)


def _work_wait(_: MemoryTracker) -> None:
    work = torch._C._distributed_c10d.Work

    def wait(handle: Any, *_: Any, **__: Any) -> bool:
        for observer in OBSERVERS:
            observer.on_collective_wait(current_stream().name, find_number(handle))
        return True

    kinds: list[Any] = [
        kind for kind in vars(torch._C._distributed_c10d).values() if isinstance(kind, type) and issubclass(kind, work)
    ]
    for kind in kinds:
        if "wait" in vars(kind):
            kind.wait = wait


def _no_tracing(_: MemoryTracker) -> None:
    from transformers import masking_utils

    module: Any = masking_utils
    module.is_tracing = lambda *_: False


_FAKE = "torch._subclasses.fake_tensor:FakeTensor"
_DIST = "deepspeed.runtime.zero"
SHIMS: tuple[Shim, ...] = (
    Shim(
        "tensor-data",
        "`parameter.data = x` leaves a fake tensor on its old device",
        (_FAKE,),
        _set_tensor_data,
    ),
    Shim(
        "module-apply",
        "`Module.to` swaps fake tensors, which fails for those with weak references",
        ("torch.nn.modules.module:Module._apply",),
        _apply_by_data,
    ),
    Shim("pin-memory", "fake tensors know no page-locked memory", (_FAKE,), _pin_memory),
    Shim("record-stream", "it needs a CUDA stream of torch", (_FAKE,), _record_stream),
    Shim(
        "data-ptr", "every fake tensor is at address 0, and DeepSpeed tells storages apart by it", (_FAKE,), _data_ptr
    ),
    Shim(
        "storage-resize",
        "a storage that is resized in place passes no dispatcher, and its bytes would not change",
        ("torch.storage:UntypedStorage",),
        _resize_storage,
    ),
    Shim(
        "mapped-files",
        "there is no fake tensor of a file: a save of states on NVMe reads the swap files, which are the page cache's",
        (),
        _mapped_files,
    ),
    Shim(
        "attention",
        "without CUDA torch takes the kernel that keeps all scores",
        ("torch.nn.functional:scaled_dot_product_attention", "torch.nn.attention.varlen:varlen_attn"),
        _attention,
    ),
    Shim(
        "is-finite",
        "a flag of a fake tensor is False, and a step whose gradients are not finite is skipped (stage 0)",
        (),
        _is_finite,
    ),
    Shim(
        "torch-cuda",
        "a torch without CUDA raises when it is asked for streams, memory or the device",
        ("torch.cuda:current_stream", "torch.cuda:Stream", "torch.cuda:get_device_capability"),
        _torch_cuda,
    ),
    Shim(
        "backward-kernels",
        "a torch without CUDA composes `silu_backward` of operators whose outputs no GPU allocates",
        (),
        lambda _: register_backward_kernels(),
    ),
    Shim("work-wait", "waiting for a collective orders streams; the fake group does nothing", (), _work_wait),
    Shim(
        "op-builders",
        "DeepSpeed's ops would be compiled, and would read and write memory that is not there",
        ("deepspeed.ops.op_builder.builder:OpBuilder.jit_load", "deepspeed.ops.op_builder.builder:OpBuilder.load"),
        replace_builders,
    ),
    Shim(
        "step-thread",
        "fake tensors belong to one thread: the one that steps beside the backward pass is a stream",
        ("harness.patches.overlapped_step:StepThread",),
        replace_step_thread,
    ),
    Shim(
        "same-on-all-ranks",
        "DeepSpeed compares values with those of rank 0, which is not there: its messages are sent, and bring the same",
        (f"{_DIST}.utils:get_lst_from_rank0", f"{_DIST}.utils:assert_lst_len_same_as_other_ranks"),
        answer_for_rank0,
    ),
    Shim(
        "device-mesh",
        "the ranks of its groups are values of tensors (AutoTP)",
        ("deepspeed.comm.torch:TorchBackend.init_device_mesh",),
        build_mesh_with_values,
    ),
    Shim(
        "broadcast-objects",
        "fake tensors cannot be pickled; DeepSpeed sends the first inputs to their tensor group, which has the same",
        (
            "deepspeed.comm.torch:TorchBackend.broadcast_object_list",
            "deepspeed.runtime.engine:compare_tensors_in_structures",
        ),
        broadcast_sizes,
    ),
    Shim(
        "vocabulary-shards",
        "DeepSpeed gathers and compares the bounds of each rank's vocabulary (AutoTP): they are gathered, and those of"
        " others are taken to be as long as this rank's",
        ("deepspeed.sequence.cross_entropy:_validate_vocab_shard_bounds",),
        assume_even_vocabulary,
    ),
    Shim(
        "no-tracing",
        "transformers takes every fake tensor for torch.compile, and then always makes a mask",
        ("transformers.masking_utils:is_tracing",),
        _no_tracing,
    ),
)


COMPOSED = ("silu_backward", "mish_backward")
"""Those of torch 2.13 that have a kernel for CPU and CUDA and a composition for all other devices, and a backward pass:
the composition of `silu_backward` allocates its output five times.
"""
_LIBRARY: Any = torch.library.Library("aten", "IMPL")


def register_backward_kernels() -> None:
    """Name a kernel for CUDA, which is never called: fake tensors answer before it."""
    for name in COMPOSED:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
            _LIBRARY.impl(name, _never_called, "CUDA")


def _never_called(*_: Any) -> Any:
    raise AssertionError("a kernel of the simulated device was called")
