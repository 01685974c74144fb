# SPDX-License-Identifier: Apache-2.0
"""The registry of patches: changes that the harness makes inside other packages, and whether each may be made here.

One module below this folder is one patch: its docstring says what the other package does and what the patch makes of
it, `PATCH` is its data. A patch of kind `use` changes nothing: it lists private names that a feature reads, calls or
overrides for a moment, wherever that code is. Nothing of torch, DeepSpeed or another patched package is imported before
a patch is applied: the planner and `harness doctor` ask this registry, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from harness.patches.targets import Target, TargetState, check_target

__all__ = [
    "Kind",
    "Patch",
    "PatchFacts",
    "PatchState",
    "PatchStates",
    "Switches",
    "Target",
    "all_patches",
    "find_patch",
    "is_planned",
    "is_switched_off",
    "select_patch",
    "select_patches",
]

Kind = Literal["correctness", "memory", "performance", "start-up", "measurement", "use"]
"""`use`: private names that a feature is built on. It has targets and no switch."""
State = Literal["applied", "not needed", "switched off", "skipped", "refused"]
Switches = Literal["auto", "off"] | Mapping[str, Literal["off"]]
"""`launch.patches` of a run spec."""


RankAgreement = Callable[[bool], bool]
"""True where it is true on any rank that steps the same parameters."""


class PatchFacts(NamedTuple):
    """The facts of a run that decide which patches it needs."""

    stage: int = 0
    optimizer_type: str = ""
    """In lower case, as DeepSpeed compares it."""
    optimizer_device: str = "none"
    param_device: str = "none"
    is_swapping_pipelined: bool = False
    offload_ratio: float = 1.0
    overlap_step_gib: float = 0.0
    """No key of a DeepSpeed JSON."""
    has_zenflow: bool = False
    has_super_offload: bool = False
    has_deepcompile: bool = False
    has_plugins: bool = False
    loss_chunk_size: int = 0
    """Tokens whose logits exist at once; 0 for all of a micro-batch. No key of a DeepSpeed JSON."""
    on_cpu_accelerator: bool = True
    """False where the ranks compute on another device."""
    has_16bit_weights: bool = True
    has_layer_checkpointing: bool = False
    """`train.gradient_checkpointing`."""
    is_pretrained: bool = False
    overlaps_reduction: bool = False
    """`overlap_comm`, which is off below stage 3 unless it is written."""
    sequence_size: int = 1
    pipeline_size: int = 1
    tensor_size: int = 1
    saves_checkpoints: bool = True
    is_resumed: bool = True
    """False for a run that is known to start from step 0."""

    @staticmethod
    def from_ds_config(ds_config: Mapping[str, Any]) -> PatchFacts:
        """The facts that a DeepSpeed JSON has. Values such as `auto` count as DeepSpeed's defaults."""
        zero = _block(ds_config, "zero_optimization")
        optimizer, param = _block(zero, "offload_optimizer"), _block(zero, "offload_param")
        return PatchFacts(
            stage=int(_number_or(zero.get("stage"), 0)),
            optimizer_type=str(_block(ds_config, "optimizer").get("type", "")).lower(),
            optimizer_device=str(optimizer.get("device", "none")),
            param_device=str(param.get("device", "none")),
            is_swapping_pipelined=bool(optimizer.get("pipeline_read") or optimizer.get("pipeline_write")),
            offload_ratio=_number_or(optimizer.get("ratio"), 1.0),
            has_zenflow=zero.get("zenflow") is not None,
            has_super_offload=bool(optimizer.get("super_offload")),
            has_deepcompile=bool(_block(ds_config, "compile").get("deepcompile")),
            overlaps_reduction=zero.get("overlap_comm") is True,
            has_16bit_weights=any(_block(ds_config, name).get("enabled") is True for name in ("bf16", "fp16")),
        )


def _block(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    block = config.get(name)
    return block if isinstance(block, Mapping) else {}


def _number_or(value: Any, default: float) -> float:
    return value if isinstance(value, int | float) else default


class Patch(NamedTuple):
    """One change inside another package.

    `before_initialize` changes the process for good; `around_initialize` is entered before `deepspeed.initialize` and
    left after it; `on_engine` changes the engine that is built. A patch that takes effect elsewhere sets none of them:
    its caller asks `PatchStates.is_applied`.
    """

    name: str
    kind: Kind
    targets: tuple[Target, ...]
    remove_when: str
    when: str
    """The runs that need it, in words."""
    upstream: str = ""
    """The address of an issue, pull request or commit of the other package; empty where none was found."""
    package: str = "deepspeed"
    """The distribution of `tested`."""
    tested: tuple[str, ...] = ("0.19.8",)
    is_needed: Callable[[PatchFacts], bool] = lambda _: True
    private_names: tuple[str, ...] = ()
    """Private names of other packages, in addition to those of `targets`, which no definition in a source file has."""
    acts_at_import: bool = False
    """Does it act while DeepSpeed is imported, before a rank has read its spec?"""
    refuses_when_used: bool = False
    """Does only the run itself show whether it uses the names? Then it is refused at the use."""
    before_initialize: Callable[[], None] | None = None
    around_initialize: Callable[[], AbstractContextManager[None]] | None = None
    on_engine: Callable[[Any, RankAgreement], None] | None = None

    @property
    def may_be_skipped(self) -> bool:
        """May a run go on without it where a target has changed?"""
        return self.kind not in ("correctness", "use")

    def find_changed_targets(self) -> dict[str, TargetState]:
        """The targets that are not as tested, by name."""
        states = {target.name: check_target(target) for target in self.targets}
        return {name: state for name, state in states.items() if state != "as tested"}

    @property
    def module_name(self) -> str:
        """The module that has it, whose docstring describes it."""
        return f"harness.patches.{self.name.replace('-', '_')}"

    @property
    def docstring(self) -> str:
        """A line that names the change; then paragraphs `Upstream:`, `Patch:` and, for memory and time, `Gain:`."""
        return str(import_module(self.module_name).__doc__).strip()

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return self.docstring.splitlines()[0]


class PatchState(NamedTuple):
    """A patch in one run, and why it is not applied."""

    patch: Patch
    state: State
    reason: str = ""
    changed: tuple[str, ...] = ()
    """The targets that are not as tested."""


class PatchStates(tuple[PatchState, ...]):
    """All patches in one run."""

    def is_applied(self, name: str) -> bool:
        """Is the patch of this name applied? Raises KeyError for a name that no patch has."""
        return {state.patch.name: state.state for state in self}[name] == "applied"

    def with_skipped(self, name: str, reason: str) -> PatchStates:
        """The same, but the patch of this name turned out not to apply to the engine, or its model."""
        return PatchStates(
            state._replace(state="skipped", reason=reason) if state.patch.name == name else state for state in self
        )

    def find_refused(self) -> PatchState | None:
        """The first patch without which this run must not start."""
        refused = (state for state in self if state.state == "refused" and not state.patch.refuses_when_used)
        return next(refused, None)

    def around_initialize(self) -> ExitStack:
        """The context for `deepspeed.initialize`."""
        with ExitStack() as stack:
            for patch in self._applied:
                if patch.before_initialize is not None:
                    patch.before_initialize()
                if patch.around_initialize is not None:
                    stack.enter_context(patch.around_initialize())
            return stack.pop_all()

    def change_engine(self, engine: Any, any_rank: RankAgreement) -> None:
        """Apply those that change an engine which is built."""
        for patch in self._applied:
            if patch.on_engine is not None:
                patch.on_engine(engine, any_rank)

    @property
    def _applied(self) -> list[Patch]:
        return [state.patch for state in self if state.state == "applied"]

    def to_json(self) -> dict[str, str]:
        """State and reason by name, as `metrics.jsonl` and checkpoints record it."""
        return {s.patch.name: f"{s.state}: {s.reason}" if s.reason else s.state for s in self}


def select_patches(run: PatchFacts, switches: Switches) -> PatchStates:
    """The state of every patch in this run. Targets are looked up only for patches that are needed and not off."""
    return PatchStates(select_patch(patch, run, switches) for patch in all_patches())


@cache
def find_patch(name: str) -> Patch:
    """The patch of this name. Raises KeyError."""
    return {patch.name: patch for patch in all_patches()}[name]


def is_planned(name: str, run: PatchFacts, switches: Switches) -> bool:
    """Will this run have the patch, on a machine whose packages are as tested? Looks at no package."""
    patch = find_patch(name)
    return patch.is_needed(run) and not is_switched_off(patch, switches)


def is_switched_off(patch: Patch, switches: Switches) -> bool:
    """Is the patch off in `launch.patches`? Kind `use` has no switch."""
    is_named = not isinstance(switches, str) and switches.get(patch.name) == "off"
    return patch.kind != "use" and (switches == "off" or is_named)


def select_patch(patch: Patch, run: PatchFacts, switches: Switches) -> PatchState:
    """The state of one patch in this run."""
    if not patch.is_needed(run):
        return PatchState(patch, "not needed")
    if is_switched_off(patch, switches):
        return PatchState(patch, "switched off")
    changed = patch.find_changed_targets()
    if not changed:
        return PatchState(patch, "applied")
    reason = ", ".join(f"`{name}` is {state}" for name, state in changed.items())
    return PatchState(patch, "skipped" if patch.may_be_skipped else "refused", reason, tuple(changed))


@cache
def all_patches() -> tuple[Patch, ...]:
    """All patches, by name: each module of this folder that has a `PATCH`."""
    names = sorted(file.stem for file in Path(__file__).parent.glob("[!_]*.py"))
    modules = [import_module(f"harness.patches.{name}") for name in names]
    patches = [module.PATCH for module in modules if hasattr(module, "PATCH")]
    return tuple(sorted(patches, key=lambda patch: patch.name))
