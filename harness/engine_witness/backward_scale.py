# SPDX-License-Identifier: Apache-2.0
"""The factor between the gradient of a loss that the caller computed and that of the parameters.

`engine.backward(loss)` divides by the accumulation steps and multiplies by the loss scale; with `scale_wrt_gas=False`
the caller has divided already. From 0.18.3 on DeepSpeed also changes gradients at the outputs of the model. Both are
measured by hooks, on the loss and on the outputs, before and behind those of DeepSpeed: a hook of a tensor runs in the
order in which it was registered, a hook of the node that made it runs after all of them.

Everything stays on the device until the step is over: nothing waits for it.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.engine_witness.number_formats import roundoff_of

_MAX_NODES = 20_000
_FACTOR_TOLERANCE = 1e-3
_POSITION_OF_SCALE = 2
"""Of `scale_wrt_gas` among the arguments of `engine.backward`, in 0.16.9 to 0.19.8."""


@dataclass(eq=False)
class _Output:
    """An output of a forward, and its gradient's norm before and behind DeepSpeed's hooks."""

    node: Any
    number: int
    """Which output of the node that made it."""
    roundoff: float
    before: torch.Tensor | None = None
    behind: torch.Tensor | None = None


@dataclass(eq=False)
class BackwardPass:
    """One backward. `expected`: the factor by which the gradient of the loss has to be multiplied, in the end."""

    expected: float | None
    """None where the caller's rule is not known: the measured factor is taken as it is, without the loss scale."""
    loss_scale: float = 1.0
    loss_roundoff: float = 0.0
    """Unit roundoff of the loss, in whose format the factor is rounded."""
    loss_gradient: torch.Tensor | None = None
    outputs: list[_Output] = field(default_factory=list)
    """Those whose gradient was computed so far, the loss left out."""
    is_chain: bool = True
    """Is each output computed from the ones after it?"""

    known: tuple[int, torch.Tensor | float] = (-1, 1.0)
    """(outputs, the correction that follows from them)"""

    def correction(self) -> torch.Tensor | float:
        """`expected` over the measured factor: what a parameter's gradient is to be multiplied with."""
        if self.expected is None:
            return 1.0 / self.loss_scale
        if self.known[0] != len(self.outputs):
            self.known = len(self.outputs), self.expected / self.compute_factor()
        return self.known[1]

    def compute_factor(self) -> torch.Tensor | float:
        """The measured factor, with the loss scale."""
        ratios = [o.behind / o.before for o in self.outputs if o.before is not None and o.behind is not None]
        ratios = [torch.where(torch.isfinite(ratio), ratio, torch.ones_like(ratio)) for ratio in ratios]
        factor: torch.Tensor | float = 1.0 if self.loss_gradient is None else self.loss_gradient
        if ratios and not self.is_chain:
            factor = factor * (sum(ratios) / len(ratios))
        else:
            for ratio in ratios:
                factor = factor * ratio.to(factor.device) if isinstance(factor, torch.Tensor) else ratio
        return factor

    def wrong_factor(self) -> tuple[float, float] | None:
        """(expected, measured) where they differ, both with the loss scale. Waits for the device."""
        if self.expected is None or (self.loss_gradient is None and not self.outputs):
            return None
        expected, measured = self.expected * self.loss_scale, float(self.compute_factor())
        is_right = abs(measured - expected) <= (_FACTOR_TOLERANCE + 2 * self.roundoff()) * abs(expected)
        return None if is_right or not math.isfinite(measured) else (expected, measured)

    def roundoff(self) -> float:
        """Relative error that the measured factor may have. Waits for the device."""
        changed = [
            o.roundoff
            for o in self.outputs
            if o.before is not None and o.behind is not None and not torch.equal(o.before, o.behind)
        ]
        return self.loss_roundoff + sum(changed)


class BackwardScale:
    """Follows the backward passes of an engine, while it is armed."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.on_pass: Callable[[], None] = lambda: None
        """Called when a pass begins."""
        self._handle: Any = None
        self._forwards: list[list[_Output]] = []
        self._with_node: list[_Output] = []
        self.current: BackwardPass | None = None
        self.passes: list[BackwardPass] = []
        """Since `arm`."""
        self._in_engine = False

    def arm(self, module: torch.nn.Module | None) -> None:
        """Look at the outputs of `module` from its next forward on. None: the factor is taken as it is."""
        if self._handle is None and module is not None:
            self._handle = module.register_forward_hook(self._on_forward)
        self.current, self.passes = None, []

    def correction(self) -> torch.Tensor | float:
        """Of a gradient that a hook sees now: without a known pass, that it is without the loss scale."""
        return self.current.correction() if self.current is not None else 1.0 / loss_scale_of(self._engine)

    def disarm(self) -> None:
        """Remove the hook of the module. Those of tensors go with their graph."""
        if self._handle is not None:
            self._handle.remove()
        self._release_graphs()
        self._handle, self.current, self._forwards, self.passes = None, None, [], []

    def start(self, loss: Any, arguments: Mapping[str, Any]) -> None:
        """`engine.backward(loss, ...)` begins."""
        engine = self._engine
        scale = arguments.get("scale_wrt_gas", True)
        scale = vars(engine).get("scale_wrt_gas") if vars(engine).get("scale_wrt_gas") is not None else scale
        expected = 1.0 / engine.gradient_accumulation_steps() if scale else 1.0
        is_known = isinstance(loss, torch.Tensor) and loss.grad_fn is not None
        no_rule = vars(engine).get("inside_no_sync_ctxt") or not is_known
        self._begin(BackwardPass(None if no_rule else expected))
        self._in_engine = True
        if is_known:
            current, output_number = self.passes[-1], loss.output_nr
            current.loss_roundoff = roundoff_of(loss.dtype)
            for outputs in self._forwards:
                outputs[:] = [o for o in outputs if o.node is not loss.grad_fn or o.number != output_number]

            def keep(gradients: tuple[torch.Tensor | None, ...]) -> None:
                gradient = gradients[output_number]
                if gradient is not None and current.loss_gradient is None:
                    current.loss_gradient = gradient.detach().float() if gradient.numel() == 1 else None

            loss.grad_fn.register_prehook(keep)

    def end(self) -> None:
        """`engine.backward` has returned or raised."""
        self._release_graphs()
        self._in_engine, self.current, self._forwards = False, None, []

    def _release_graphs(self) -> None:
        """Forget the nodes: they hold our hooks, which hold the outputs. With their nodes, whole graphs would stay."""
        for output in self._with_node:
            output.node = None
        self._with_node = []

    def _begin(self, backward: BackwardPass) -> BackwardPass:
        backward.loss_scale = loss_scale_of(self._engine)
        self.current = backward
        self.passes.append(backward)
        self.on_pass()
        return backward

    def _on_forward(self, _module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        outputs: list[_Output] = []
        self._forwards.append(outputs)
        for tensor in _tensors_of(output):
            if tensor.grad_fn is not None:
                self._follow(tensor, tensor.grad_fn, outputs)

    def _follow(self, tensor: torch.Tensor, node: Any, outputs: list[_Output]) -> None:
        entry, output_number = _Output(node, tensor.output_nr, roundoff_of(tensor.dtype)), tensor.output_nr
        outputs.append(entry)
        self._with_node.append(entry)

        def measure_before(gradient: torch.Tensor) -> None:
            if entry not in outputs:
                return
            if self.current is None and not self._in_engine:  # backward of torch, without the engine
                current = self._begin(BackwardPass(1.0 / self._engine.gradient_accumulation_steps()))
                current.loss_gradient = torch.full((), current.loss_scale, device=gradient.device)
            entry.before = _norm_of(gradient)

        def measure_behind(gradients: tuple[torch.Tensor | None, ...]) -> None:
            gradient, current = gradients[output_number], self.current
            if entry not in outputs or gradient is None or current is None or entry.before is None:
                return
            entry.behind = _norm_of(gradient)
            if current.outputs and current.is_chain:
                current.is_chain = _is_reachable(current.outputs[-1].node, entry.node)
            current.outputs.append(entry)

        tensor.register_hook(measure_before)
        node.register_prehook(measure_behind)


def loss_scale_of(engine: Any) -> float:
    """The loss scale of fp16; 1 without one."""
    optimizer = vars(engine).get("optimizer")
    for name in ("cur_scale", "loss_scale"):
        value = getattr(optimizer, name, None)
        if isinstance(value, (int, float)) and value > 0:
            return float(value)
    for holder in (optimizer, engine):
        for name in ("torch_autocast_gradscaler", "torch_autocast_z0_gradscaler"):
            scaler = vars(holder).get(name) if hasattr(holder, "__dict__") else None
            if scaler is not None:
                return float(scaler.get_scale())
    return 1.0


def bind_arguments(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by name, with defaults; {} where the signature does not fit."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {}
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    # DeepSpeed's decorator hides the signature: `scale_wrt_gas` is then one of `**kwargs`.
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= arguments.pop(name)
    if len(args) > _POSITION_OF_SCALE:
        arguments["scale_wrt_gas"] = args[_POSITION_OF_SCALE]
    return arguments


def _norm_of(gradient: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32)
    return norm


def _tensors_of(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors_of(value)
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from _tensors_of(value)


def _is_reachable(root: Any, node: Any) -> bool:
    """Does backward from `root` come through `node`?"""
    queue, visited = deque([root]), {root}
    while queue and len(visited) < _MAX_NODES:
        for following, _ in queue.popleft().next_functions:
            if following is node:
                return True
            if following is not None and following not in visited:
                visited.add(following)
                queue.append(following)
    return False
