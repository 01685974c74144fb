# SPDX-License-Identifier: Apache-2.0
"""The gradient witness: sampled gradients, summed without DeepSpeed, against those that the optimizer steps with.

At a sampled step each rank keeps what its own micro-batches contributed to some elements of the parameters, from hooks
that autograd calls before DeepSpeed's. One small all-reduce sums them. The mean over ranks and micro-batches must be
what the optimizer is stepped with, and the update must be that of the optimizer's formula.

Each way of training was run on 0.19.8, on 2 to 4 CPU ranks (`tests/training/engine_witness`, the healthy runs of
`tests/training/runtime/test_engine_checks.py`, `tests/training/parity`); the update is that of SGD, Adam and AdamW of
torch, FusedAdam and DeepSpeedCPUAdam, and `limits` names what is left out.

| Way | Gradient | Clipping | Update | Weights of the model |
| --- | --- | --- | --- | --- |
| stage 0, fp32 | yes, on every rank | yes | yes | the same tensors |
| stage 0, fp16 and bf16; `BF16_Optimizer` | yes | yes | yes | yes |
| stages 1 and 2, stage 3 | the partition of each rank | yes | yes | yes |
| CPU offload, with a ratio too | on the host | yes | yes | yes |
| NVMe offload of optimizer and parameters | while it is in memory | yes | yes | yes |
| accumulation, `scale_wrt_gas=False`, `loss.backward()` | yes, and the factor of the loss | | | |
| AutoTP | of the shards, over the data-parallel ranks | no: its norm is over tensor ranks | yes | yes |
| Ulysses | over data and sequence ranks | yes | yes | yes |
| pipeline | without shared weights and the loss's factor | no | yes | yes |
| experts | no; the other parameters yes | no | yes | yes |
| Muon, ZenFlow, SuperOffload, DeepCompile, 4-bit gradients | not looked at: `unable` says so | | | |

Experts and the last line were only read, not run.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from harness.engine_witness.backward_scale import BackwardScale, bind_arguments
from harness.engine_witness.engine_layout import (
    EngineLayout,
    NotObservable,
    compared_parameters,
    data_parallel_group,
    read_layout,
)
from harness.engine_witness.gradient_recorder import GradientRecorder
from harness.engine_witness.number_formats import widest_dtype
from harness.engine_witness.rank_agreement import RankAgreement
from harness.engine_witness.sampled_rows import sample_rows
from harness.engine_witness.step_comparison import StepComparison
from harness.engine_witness.stepped_values import StepRecorder
from harness.engine_witness.witness_result import Difference, WitnessResult

MAX_SKIPPED = 20
"""Steps that fp16 skips in a row while the witness waits for one to compare."""


@dataclass
class _Parts:
    """Everything that an attached witness works with. The layout and `steps` are those of the step that is observed."""

    module: torch.nn.Module
    optimizer: Any
    layout: EngineLayout
    scale: BackwardScale
    recorder: GradientRecorder
    comparison: StepComparison
    steps: StepRecorder


class GradientWitness:
    """Compares gradients and updates of an engine at the steps `steps` and every `every` steps.

    `engine`, `model` and `optimizer` are what `deepspeed.initialize` returned or was given; `model` and `optimizer` may
    be None, then they are the engine's. It observes by hooks on the parameters and by wrapping `backward` of the engine
    and `step` of its optimizers on these instances: the training loop calls nothing.

    Every rank of the engine must create and attach it, before the same step. At a sampled step it starts three small
    all-reduces, after the optimizer's step and before `engine.step` returns. At all other steps it counts, and nothing
    else.

    `on_result` is called on every rank after each sampled step, in `engine.step()`, with the same differences on
    each; what it raises reaches the caller of `engine.step()`. Errors of the witness itself never do: it detaches
    itself, and `fault` says why.
    """

    def __init__(
        self,
        engine: Any,
        model: Any = None,
        optimizer: Any = None,
        *,
        steps: Collection[int] = (1, 2, 3),
        every: int = 200,
        on_result: Callable[[WitnessResult], None] | None = None,
        weight_decay: Callable[[str], float] | None = None,
        time_call: Callable[..., Any] | None = None,
    ) -> None:
        """Nothing is changed in the engine before `attach`. `every`: 0 for never.

        `weight_decay`: the decay of a parameter by its name, as the caller meant it; without it, that of its group.
        `time_call` calls the witness's collectives, for a caller that counts their time: it takes the function and its
        arguments.
        """
        self.engine, self.model, self.optimizer = engine, model, optimizer
        self.steps, self.every, self.on_result, self.weight_decay = frozenset(steps), every, on_result, weight_decay
        self._time_call = time_call
        self.differences: list[Difference] = []
        """All differences so far, the same on every rank."""
        self.results: list[WitnessResult] = []
        """One for each sampled step."""
        self.unable: str = ""
        """Why this engine is not looked at ("ZenFlow ...", ...); "" when it is. Known after `attach`."""
        self.limits: tuple[str, ...] = ()
        """Parts of this engine that are not compared. Known after `attach`."""
        self.fault: str = ""
        """One line about an error of the witness itself, after which it is detached; "" so far."""
        self._wrappers: list[MethodWrapper] = []
        self._count, self._num_skipped, self._armed = 0, 0, False
        self._parts: _Parts | None = None

    def attach(self) -> None:
        """Start to observe with the next micro-batch. Steps count from here. Never raises."""
        if self._wrappers:
            return
        try:
            self._attach()
        except NotObservable as reason:
            self.unable = str(reason)
            self.detach()
        except Exception as error:  # DeepSpeed's insides move
            self._give_up(error)

    def detach(self) -> None:
        """Remove all hooks and wrappers: the engine is as before `attach`. Never raises."""
        self._disarm()
        for wrapper in reversed(self._wrappers):
            wrapper.remove()
        self._wrappers = []

    def _attach(self) -> None:
        engine = self.engine
        own = vars(engine)
        optimizer = own.get("optimizer") or self.optimizer
        module = self.model if self.model is not None and self.model is not engine else engine.module
        layout = read_layout(engine, optimizer)
        self.limits = tuple(layout.limits)
        device = torch.device(getattr(engine, "device", None) or "cpu")
        scale = BackwardScale(engine)
        recorder = GradientRecorder(device, scale)
        group, divisor = data_parallel_group(engine)
        agreement = RankAgreement(group, device, widest_dtype(device), self._time_call)
        comparison = StepComparison(engine, agreement, divisor, recorder, self.weight_decay)
        self._parts = _Parts(module, optimizer, layout, scale, recorder, comparison, StepRecorder(layout, ()))
        if hasattr(type(engine), "backward") and layout.checks_factor:
            self._wrappers.append(MethodWrapper(engine, "backward", self._around_backward))
        self._wrappers.append(MethodWrapper(optimizer, "step", self._around_step))
        for base in layout.bases:
            if base is not optimizer:
                self._wrappers.append(MethodWrapper(base, "step", self._around_base_step_of(base)))
        gas = int(engine.gradient_accumulation_steps())
        if self._is_sampled(1) and int(own.get("micro_steps", 0)) % gas == 0:
            self._arm(self._parts)

    def _is_sampled(self, number: int) -> bool:
        return number in self.steps or bool(self.every and number % self.every == 0)

    def _arm(self, parts: _Parts) -> None:
        """Observe the step that begins."""
        parts.layout = read_layout(self.engine, parts.optimizer)
        number = self._count + 1
        parameters = compared_parameters(parts.module, parts.layout)
        samples = sample_rows(parameters, number, number // self.every if self.every else 0)
        parts.steps = StepRecorder(parts.layout, samples, number)
        parts.steps.sums_norm = parts.layout.checks_norm and float(self.engine.gradient_clipping() or 0) > 0
        parts.recorder.arm(samples)
        parts.scale.arm(parts.module if parts.layout.checks_factor else None)
        self._armed = True

    def _disarm(self) -> None:
        self._armed = False
        if self._parts is not None:
            self._parts.recorder.disarm()
            self._parts.scale.disarm()

    @property
    def is_armed(self) -> bool:
        """Does it observe the step that runs or comes next?"""
        return self._armed

    def _try_to_arm(self, parts: _Parts) -> None:
        if not self._wrappers:
            return
        try:
            self._arm(parts)
        except Exception as error:  # as in attach
            self._give_up(error)

    def _around_backward(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        parts = self._parts
        if not self._armed or parts is None:
            return method(*args, **kwargs)
        try:
            arguments = bind_arguments(method, args, kwargs)
            parts.scale.start(arguments.get("loss", args[0] if args else None), arguments)
        except Exception as error:  # as in attach
            parts.recorder.fail(error)
        try:
            return method(*args, **kwargs)
        finally:
            parts.scale.end()

    def _around_base_step_of(self, base: Any) -> Around:
        def around(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            parts = self._parts
            if not self._armed or parts is None:
                return method(*args, **kwargs)
            return self._observe_step(parts, base, lambda: method(*args, **kwargs))

        return around

    def _observe_step(self, parts: _Parts, base: Any, step: Callable[[], Any]) -> Any:
        try:
            parts.steps.before(base)
        except Exception as error:  # as in attach
            parts.recorder.fail(error)
        result = step()
        try:
            parts.steps.after(base)
        except Exception as error:  # as in attach
            parts.recorder.fail(error)
        return result

    def _around_step(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        parts = self._parts
        if not self._armed or parts is None:
            result = method(*args, **kwargs)
            self._count += 1
            if parts is not None and self._is_sampled(self._count + 1):
                self._try_to_arm(parts)
            return result
        parts.steps.start_step(parts.layout.bases)
        if parts.optimizer in parts.layout.bases:
            result = self._observe_step(parts, parts.optimizer, lambda: method(*args, **kwargs))
            if getattr(parts.optimizer, "overflow", False):  # a guard around `step` left it out
                parts.steps.num_steps = 0
        else:
            result = method(*args, **kwargs)
        self._compare(parts)
        return result

    def _compare(self, parts: _Parts) -> None:
        """A sampled step is over. All ranks come here, whatever happened on them."""
        begin = time.perf_counter()
        self._armed = False
        step = int(vars(self.engine).get("global_steps", self._count)) + 1
        try:
            outcome = parts.comparison.run(parts.steps, parts.layout, parts.scale.passes, step)
        except Exception as error:  # as in attach
            self._give_up(error)
            return
        self._disarm()
        if outcome is None:  # on no rank the optimizer stepped: fp16 skips a step whose gradients overflow
            self._num_skipped += 1
            if self._num_skipped < MAX_SKIPPED:
                self._try_to_arm(parts)
            return
        self._num_skipped = 0
        self._count += 1
        if outcome.fault:
            self._give_up(outcome.fault)
            return
        result = outcome.to_result(step, time.perf_counter() - begin)
        self.results.append(result)
        self.differences.extend(result.differences)
        if self._is_sampled(self._count + 1):
            self._try_to_arm(parts)
        if self.on_result is not None:
            self.on_result(result)

    def _give_up(self, error: Exception | str) -> None:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self.fault = f"the gradient witness cannot observe this engine: {text}".replace("\n", " ")[:400]
        self.detach()


Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""(the method, positional arguments, keyword arguments) -> result"""


class MethodWrapper:
    """Calls `around` instead of `owner.name`.

    The method is looked up at each call, so that it may be replaced in the class later. It is a bound method, as a
    scheduler of torch expects of an optimizer's `step`.
    """

    def __init__(self, owner: Any, name: str, around: Around) -> None:
        self._owner, self._name = owner, name
        self._earlier: Any = vars(owner).get(name)
        self._is_active = True

        def call(_: Any, *args: Any, **kwargs: Any) -> Any:
            method = self._method()
            return around(method, args, kwargs) if self._is_active else method(*args, **kwargs)

        self._bound = types.MethodType(call, owner)
        setattr(owner, name, self._bound)

    def _method(self) -> Any:
        if self._earlier is not None:
            return self._earlier
        return getattr(type(self._owner), self._name).__get__(self._owner)

    def remove(self) -> None:
        """Restore the method. Under a later wrapper of somebody else ours stays, and does nothing."""
        self._is_active = False
        if vars(self._owner).get(self._name) is not self._bound:
            return
        if self._earlier is not None:
            setattr(self._owner, self._name, self._earlier)
        else:
            delattr(self._owner, self._name)
