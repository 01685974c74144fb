# SPDX-License-Identifier: Apache-2.0
"""Packed rows without masks: `sdpa_varlen` by one call and by a call for each document, and the flash attention of each
package that is installed, against plain attention of each document in fp32.

Time, memory, errors of outputs and gradients, and whether a call waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from benchmarks.gpu_checks.check import SEED, Figures, Scene
from benchmarks.gpu_checks.device import synchronize, time_work, watch_peak

SHAPES = ((2, 32, 8, 4096, 128), (1, 32, 8, 65_536, 128))
TOY_SHAPES = ((2, 4, 2, 64, 16), (1, 4, 2, 256, 16))
"""Rows, heads, heads of keys, length, head size."""
DOCUMENTS = 8
WINDOW_SHARE = 16
"""A window is so small a share of a row, and half of a document."""
LARGEST_ERROR = 0.03
PACKAGES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}


def measure(scene: Scene) -> Figures:
    """Per shape and way: milliseconds, gigabytes, the largest relative error; one call is a GPU's alone."""
    import torch

    from harness.runtime.models import sdpa_varlen

    device = torch.device(scene.pick("cuda", "cpu"))
    shapes: dict[str, Any] = {}
    for shape in scene.pick(SHAPES, TOY_SHAPES):
        rows, heads, groups, length, size = shape
        torch.manual_seed(SEED)
        inputs = [
            torch.randn(rows, count, length, size, device=device, dtype=torch.bfloat16, requires_grad=True)
            for count in (heads, groups, groups)
        ]
        figures: dict[str, Any] = {"length": length}
        for window in (None, length // WINDOW_SHARE):
            plain = [t.detach().float() for t in inputs]
            expected = _run_alone(f"plain, window {window}", lambda *t, w=window: _attend_plainly(*t, w), plain)
            for name, work in _find_ways(device, shape, window).items():
                key = name + (f", window {window}" if window else "")
                found = _run_alone(key, work, inputs)
                errors = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, expected, strict=True)]
                with watch_peak() as held, _refuse_waits():
                    _gradients(work, inputs)
                seconds = time_work(lambda work=work, inputs=inputs: _gradients(work, inputs), scene.pick(3, 1))
                figures[key] = {"ms": 1e3 * seconds, "gb": held["peak"] / 1e9, "error": max(errors)}
        shapes[" x ".join(map(str, shape))] = figures
    return {"shapes": shapes, "device": device.type, "has_varlen_kernel": sdpa_varlen.has_varlen_kernel()}


def make_borders(rows: int, length: int) -> tuple[int, ...]:
    """Documents of uneven lengths, the same in each row."""
    starts = [0, *(length * i // DOCUMENTS + (i % 3) * length // 64 for i in range(1, DOCUMENTS))]
    return (*(row * length + start for row in range(rows) for start in starts), rows * length)


@contextmanager
def _refuse_waits() -> Any:
    """On a GPU torch raises an error where a call waits for it."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")


def _find_ways(device: Any, shape: tuple[int, ...], window: int | None) -> dict[str, Callable[..., Any]]:
    """Name -> function of queries, keys and values (rows, heads, length, size)."""
    import torch

    from harness.runtime.models import sdpa_varlen

    rows, heads, groups, length, _ = shape
    borders = make_borders(rows, length)
    on_device = torch.tensor(borders, dtype=torch.int32, device=device)
    longest = max(last - first for first, last in pairwise(borders))
    module = torch.nn.Module()

    def by_document(q: Any, k: Any, v: Any) -> Any:
        flat = (t.transpose(1, 2).flatten(0, 1) for t in (q, k, v))
        return sdpa_varlen._attend_by_document(*flat, borders, 0.0, None, window).unflatten(0, (rows, length))

    def one_call(q: Any, k: Any, v: Any) -> Any:
        arguments = {"document_borders": borders, "cu_seq_lens_q": on_device, "sliding_window": window}
        return sdpa_varlen.sdpa_varlen_attention(module, q, k, v, None, **arguments)[0]

    ways: dict[str, Callable[..., Any]] = {"by document": by_document}
    if device.type != "cuda" or not sdpa_varlen.has_varlen_kernel():
        return ways
    if not sdpa_varlen.is_one_call(*(torch.empty(1, 1, 1, shape[-1], device=device, dtype=torch.bfloat16),) * 2):
        raise RuntimeError("torch's flash kernel does not take packed rows here")
    ways["one call"] = one_call
    sizes = {"cu_seq_lens_q": on_device, "cu_seq_lens_k": on_device, "max_length_q": longest, "max_length_k": longest}
    for name, package in PACKAGES.items():
        if find_spec(package) is not None:
            ways[name] = _package_way(name, {**sizes, "sliding_window": window}, heads // groups)
    return ways


def _package_way(name: str, arguments: dict[str, Any], groups: int) -> Callable[..., Any]:
    """The function of `transformers` with the arguments that the harness gives it."""
    from transformers.modeling_flash_attention_utils import lazy_import_flash_attention
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    lazy_import_flash_attention(name)
    config = SimpleNamespace(_attn_implementation=name)
    module = SimpleNamespace(config=config, is_causal=True, num_key_value_groups=groups)
    function: Any = ALL_ATTENTION_FUNCTIONS[name]
    return lambda q, k, v: function(module, q, k, v, None, **arguments)[0]


def _attend_plainly(q: Any, k: Any, v: Any, window: int | None) -> Any:
    """Each document by itself, in the number format of the queries, with a mask of its own where it has a window."""
    import torch

    heads, length = q.shape[1:3]
    borders = make_borders(1, length)
    k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
    outs = []
    for first, last in pairwise(borders):
        parts = [t[:, :, first:last] for t in (q, k, v)]
        mask = None
        if window:
            mask = torch.ones(last - first, last - first, dtype=torch.bool, device=q.device).tril_().triu_(1 - window)
        attend = torch.nn.functional.scaled_dot_product_attention
        outs.append(attend(*parts, attn_mask=mask, is_causal=mask is None))
    return torch.cat(outs, dim=2).transpose(1, 2)


def _gradients(attend: Callable[..., Any], inputs: list[Any]) -> list[Any]:
    """Outputs and gradients of queries, keys and values, for a sum with fixed weights."""
    import torch

    leaves = [t.detach().requires_grad_() for t in inputs]
    out = attend(*leaves)
    weights = torch.linspace(-1, 1, out.shape[-1], device=out.device, dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)]


def _run_alone(way: str, attend: Callable[..., Any], inputs: list[Any]) -> list[Any]:
    """The gradients of a way. A kernel that fails is reported with it, not at a later call."""
    try:
        found = _gradients(attend, inputs)
        synchronize()
    except RuntimeError as error:
        raise RuntimeError(f"{way}: {error}") from error
    return found


def judge(figures: Figures, rehearse: bool) -> list[str]:
    """Every way has the outputs and gradients of each document by itself, and no tensor of length x length. Only where
    torch has the kernel (2.13) one call must be among them.
    """
    reasons = []
    for shape, found in figures["shapes"].items():
        ways = {name: way for name, way in found.items() if isinstance(way, dict)}
        for name, way in ways.items():
            if not way["error"] <= LARGEST_ERROR:
                reasons.append(f"{shape}, {name}: {way['error']:.2g} off attention of each document")
            if found["length"] > 10_000 and way["gb"] * 1e9 >= found["length"] ** 2:
                reasons.append(f"{shape}, {name}: {way['gb']:.1f} GB, as much as a mask")
        if not rehearse and figures["has_varlen_kernel"] and "one call" not in ways:
            reasons.append(f"{shape}: torch's own kernel was not run")
    return reasons or ([] if figures["shapes"] else ["no shape was measured"])
