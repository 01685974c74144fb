# SPDX-License-Identifier: Apache-2.0
"""A run on the simulated device: model and engine are built as a rank builds them; then two steps, a save, an
evaluation, and a resume from that save.

Nothing is written: `deny_writes` stops every file that would be opened for writing.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, masking_utils

from harness.plan.simulation.clock_rates import ClockRates
from harness.run.resolved_run import ResolvedRun
from harness.runtime.distributed import Distributed
from harness.runtime.engine import build_engine, install_step, resolve_topology
from harness.runtime.engine_protocol import Engine
from harness.runtime.micro_batch import MicroBatch
from harness.runtime.models import pretrained
from harness.runtime.models.model_builder import model_kwargs
from harness.runtime.models.safetensors_reader import SafetensorsFiles
from harness.runtime.objectives.objective_list import make_objective
from harness.runtime.patch_selection import resolve_patches
from harness.runtime.simulation.compiled_ops import DISK_BYTES
from harness.runtime.simulation.device import SimulatedRank, simulated_device
from harness.runtime.simulation.device_events import DeviceObserver
from harness.runtime.simulation.fake_attention import KERNELS_USED
from harness.runtime.simulation.memory_tracker import MemoryTracker
from harness.runtime.simulation.race_detector import RaceDetector
from harness.runtime.simulation.simulated_ranks import enter_phases, install_stage_inputs, simulated_distributed
from harness.runtime.simulation.simulated_resume import ForkedResume, merge_resume, simulate_resume
from harness.runtime.simulation.simulated_save import SavedFile, SimulatedSave, simulate_save
from harness.runtime.simulation.step_clock import StepClock
from harness.runtime.simulation.streams import OBSERVERS
from harness.runtime.simulation.timeline import Timeline
from harness.runtime.simulation.traffic import GatheredParameters, Traffic, count_gathers
from harness.runtime.step import Stepper
from harness.runtime.telemetry.state_bytes import state_bytes
from harness.runtime.text_part import find_text_part

_SCHEDULE_STEPS = 100
_DOCUMENTS = 8
"""Of a simulated packed row, equally long."""
Progress = Callable[[str], None]

_OPEN_WEIGHTS = f"{pretrained.__name__}.open_safetensors"


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """The run, its DeepSpeed JSON with the accumulation that is simulated, the model's configuration, the rank, and the
    capacity in bytes a rank (`cuda`, `cpu`; none for one that is not known). `with_races`: look for races, too;
    `rates`: time the last step by them, `with_trace`: with all of its work. `folder`: an empty one, where a simulated
    checkpoint has names and no bytes; without it nothing is saved.
    """

    run: ResolvedRun
    ds_config: dict[str, Any]
    model_config: dict[str, Any]
    rank: SimulatedRank
    capacity: dict[str, int] = field(default_factory=dict)
    steps: int = 2
    with_evaluation: bool = True
    with_races: bool = False
    rates: ClockRates | None = None
    with_trace: bool = False
    folder: Path | None = None


class _PhaseTimer:
    """Takes the place of the step timer: a span is a phase of the tracker. `step` names the optimizer's."""

    def __init__(self, tracker: MemoryTracker) -> None:
        self._tracker = tracker
        self.step = "step"

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Enter the phase; what comes between two spans counts to the one before."""
        if name != "pipeline" and self._tracker.phase != "evaluate":  # instructions of a pipeline enter their own
            self._tracker.enter_phase(self.step if name == "optimizer" else name)
        yield


def simulate(
    request: SimulationRequest, on_progress: Progress, observers: tuple[DeviceObserver, ...] = ()
) -> dict[str, Any]:
    """Simulate the run; returns the result as JSON values. Running out of device memory is a result.

    Raises UserError as a rank does, and whatever DeepSpeed raises.
    """
    start = time.perf_counter()
    tracker = MemoryTracker(request.capacity)
    traffic = Traffic(tracker)
    gathers: dict[str, GatheredParameters] = {}
    states: dict[str, int] = {}
    detector = RaceDetector(lambda tensor: tensor.untyped_storage() in tracker.pinned) if request.with_races else None
    timeline = Timeline() if request.with_trace else None
    clock = StepClock(request.rates, tracker, timeline) if request.rates else None
    save: SimulatedSave | None = None
    resumed: dict[str, Any] | None = None
    failure: torch.OutOfMemoryError | None = None
    with ExitStack() as stack:
        watching = [observer for observer in (traffic, detector, clock, *observers) if observer is not None]
        stack.enter_context(simulated_device(request.rank, tracker, watching))
        stack.enter_context(count_gathers(tracker, gathers))
        try:
            distributed = simulated_distributed(request.rank)
            engine, stepper = _build(request, tracker, distributed, on_progress)
            resume = None
            if request.folder is not None:
                load = partial(_load, request, engine, (tracker, traffic, gathers), detector)
                resume = stack.enter_context(closing(ForkedResume(load)))
            _take_steps(request, tracker, engine, stepper, distributed, on_progress)
            if request.folder is not None and resume is not None:
                on_progress("a save")
                spec = request.run.spec.checkpoint
                in_background = spec.async_save and spec.save_steps is not None
                save = simulate_save(engine, request.folder, tracker, in_background=in_background)
            if request.with_evaluation:
                _evaluate(request, tracker, engine, stepper, on_progress)
            states = state_bytes(engine)
            if save is not None and resume is not None:
                on_progress("a resume")
                resumed = resume.run(save.files)
        except torch.OutOfMemoryError as error:
            if tracker.failed is None:
                raise
            failure = error
            failure.__traceback__ = None
    result = _to_result(tracker, traffic, gathers, states, time.perf_counter() - start)
    result["clock"] = None if clock is None else clock.to_json()
    result |= {"checkpoint": save.to_json()} if save is not None else {}
    result |= {"races": detector.to_json()} if detector is not None else {}
    return result if resumed is None else merge_resume(result, resumed)


def _build(
    request: SimulationRequest, tracker: MemoryTracker, distributed: Distributed, on_progress: Progress
) -> tuple[Engine, Stepper]:
    """As `train_context.build_context` does it, without data and checks."""
    run, ds_config = request.run, request.ds_config
    if not run.spec.data.packing:  # transformers would read the positions of a row, to see whether it is packed
        cast("Any", masking_utils).find_packed_sequence_indices = lambda *_, **__: None
    topology = resolve_topology(run, distributed)
    patches = resolve_patches(run, ds_config, is_main_process=False, is_resumed=False)
    tracker.enter_phase("load")
    on_progress("building the model")
    config = make_config(request.model_config)
    objective = make_objective(run)
    with simulated_weights(list_weights(config, model_kwargs(run))) if run.spec.model.name_or_path else nullcontext():
        model = objective.build_model(ds_config, config)
    on_progress("building the engine")
    engine = build_engine(run, ds_config, model, _SCHEDULE_STEPS, patches, distributed)
    del model
    patches = install_step(
        engine, patches, distributed, is_main_process=False, overlap_gib=run.spec.zero.overlap_step_gib
    )
    objective.install_loss(engine, patches, is_main_process=False)
    return engine, objective.make_stepper(engine, distributed, topology)


def _take_steps(
    request: SimulationRequest,
    tracker: MemoryTracker,
    engine: Engine,
    stepper: Stepper,
    distributed: Distributed,
    on_progress: Progress,
) -> None:
    """As `train.py` does it: the loss of a step is read a step later, that of the last one at once."""
    timer: Any = _PhaseTimer(tracker)
    accumulation = int(request.ds_config["gradient_accumulation_steps"])
    read_loss: Callable[[], Any] = lambda: None  # noqa: E731
    if request.run.parallel_dims.pipeline > 1:
        rows = int(request.ds_config["train_micro_batch_size_per_gpu"])
        hidden_size = int(make_config(request.model_config).hidden_size)
        install_stage_inputs(engine, rows, request.run.spec.data.max_length, hidden_size)
        enter_phases(engine, timer)
    for step in range(1, request.steps + 1):
        timer.step = "first step" if step == 1 else "step"
        for observer in OBSERVERS:
            observer.on_step(step)
        on_progress(f"step {step} of {request.steps}: {accumulation} micro-batches")
        batches = [_make_batch(request) for _ in range(accumulation)]
        num_targets = sum(batch.labels.numel() for batch in batches)
        losses = stepper.train_step(batches, num_targets, timer)
        read_last_loss, read_loss = read_loss, distributed.all_reduce_sum_async(losses)
        read_last_loss()
        del batches, losses
    read_loss()
    for observer in OBSERVERS:
        observer.on_step(None)
    tracker.enter_phase("end")


def _evaluate(
    request: SimulationRequest, tracker: MemoryTracker, engine: Engine, stepper: Stepper, on_progress: Progress
) -> None:
    tracker.enter_phase("evaluate")
    on_progress("an evaluation batch")
    engine.eval()
    with torch.no_grad():
        stepper.eval_step(_make_batch(request))
    engine.train()
    tracker.enter_phase("end")


def _load(
    request: SimulationRequest,
    engine: Engine,
    counts: tuple[MemoryTracker, Traffic, dict[str, GatheredParameters]],
    detector: RaceDetector | None,
    files: list[SavedFile],
) -> dict[str, Any]:
    """Load a checkpoint into the new engine, in the process that was forked: its phase `resume`."""
    DISK_BYTES.clear()
    tracker, traffic, _ = counts
    traffic.order.clear()
    traffic.callers.clear()
    dims, read = request.run.parallel_dims, dict[str, int]()
    folder, model_ranks = cast("Path", request.folder), dims.tensor * dims.pipeline
    patches = resolve_patches(request.run, request.ds_config, is_main_process=False, is_resumed=True)
    try:
        read = simulate_resume(engine, patches, folder, files, tracker, model_ranks)
    except torch.OutOfMemoryError:
        if tracker.failed is None:
            raise
    tracker.finish()
    own = {file.name for file in files}
    result = {**_to_result(*counts, {}, 0.0), "read": read, "stand_ins": sorted(read.keys() - own)}
    return result if detector is None else {**result, "races": detector.to_json()}


def _make_batch(request: SimulationRequest) -> MicroBatch:
    """Rows of full length, page-locked as the prefetcher's: packed ones have positions, others a mask."""
    data = request.run.spec.data
    shape = (int(request.ds_config["train_micro_batch_size_per_gpu"]), data.max_length)
    ids = torch.zeros(shape, dtype=torch.long)
    others = torch.ones(shape, dtype=torch.long)
    if data.packing:
        return MicroBatch(ids, ids.clone(), others, None, _make_borders(*shape)).pin_memory()
    return MicroBatch(ids, ids.clone(), attention_mask=others if shape[0] > 1 else None).pin_memory()


def _make_borders(rows: int, length: int) -> tuple[int, ...]:
    count = min(_DOCUMENTS, length)
    starts = (row * length + length * i // count for row in range(rows) for i in range(count))
    return (*starts, rows * length)


def make_config(fields: dict[str, Any]) -> PreTrainedConfig:
    """The `transformers` configuration of these fields, of a composite that of its text; without a cache of keys."""
    fields = {name: value for name, value in fields.items() if name not in ("auto_map", "quantization_config")}
    config: PreTrainedConfig = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config = find_text_part(config).config or config
    config.use_cache = False
    return config


def _to_result(
    tracker: MemoryTracker,
    traffic: Traffic,
    gathers: dict[str, GatheredParameters],
    states: dict[str, int],
    seconds: float,
) -> dict[str, Any]:
    """Values for JSON: bytes a rank."""
    return {
        "peaks": {
            phase: {device: {"bytes": p.bytes, "holders": p.holders} for device, p in peaks.items()}
            for phase, peaks in tracker.peaks.items()
            if phase not in ("start", "end")
        },
        "failed": None if tracker.failed is None else asdict(tracker.failed),
        "host_exceeded": None if tracker.host_exceeded is None else asdict(tracker.host_exceeded),
        "states": states,
        "collectives": _by_phase(traffic.collectives, traffic.collective_bytes),
        "copies": _by_phase(traffic.copies, traffic.copy_bytes),
        "collective_order": traffic.order,
        "collective_callers": traffic.callers,
        "gathers": {phase: {"on_demand": g.on_demand, "ahead": g.ahead} for phase, g in gathers.items()},
        "disk": dict(DISK_BYTES),
        "attention_kernels": dict(KERNELS_USED),
        "seconds": round(seconds, 1),
        "process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _by_phase(counts: Any, sizes: Any) -> dict[str, dict[str, dict[str, int]]]:
    result: dict[str, dict[str, dict[str, int]]] = {}
    for (phase, kind), count in sorted(counts.items()):
        result.setdefault(phase, {})[kind] = {"count": count, "bytes": sizes[phase, kind]}
    return result


def deny_writes(allowed: Path) -> None:
    """From now on this process opens no file for writing except below `allowed` and devices: a simulated run can write
    neither a checkpoint nor a data cache.
    """
    root = f"{allowed.resolve()}{os.sep}"
    writing = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        if (
            event == "open"
            and isinstance(arguments[0], str)
            and isinstance(arguments[2], int)
            and arguments[2] & writing
        ):
            path = os.path.abspath(arguments[0])  # noqa: PTH100 - `resolve` opens folders, which is an event, too
            if not path.startswith((root, "/dev/", "/proc/")):
                raise PermissionError(f"a simulation writes no file, and `{path}` was opened for writing")

    sys.addaudithook(check)


class SimulatedWeights(SafetensorsFiles):
    """Safetensors files of a model that are nowhere. Reads leave the tensor as it is."""

    def read_into(self, name: str, out: torch.Tensor) -> None:  # noqa: ARG002
        """Check that there is such a tensor."""
        if name not in self.shapes:
            raise KeyError(name)


def list_weights(config: PreTrainedConfig, arguments: dict[str, Any]) -> SimulatedWeights:
    """Every parameter and persistent buffer of the model, as a file of this model would have them."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, **arguments)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return SimulatedWeights({name: Path("simulated.safetensors") for name in shapes}, shapes)


@contextmanager
def simulated_weights(weights: SimulatedWeights) -> Iterator[None]:
    """In this context pretrained models are loaded from such files, at every ZeRO stage."""

    def from_pretrained(_: str, *, config: PreTrainedConfig, dtype: torch.dtype, **arguments: Any) -> Any:
        from transformers.initialization import no_init_weights

        for unused in ("revision", "output_loading_info", "ignore_mismatched_sizes"):
            arguments.pop(unused, None)
        with no_init_weights():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, **arguments)
        return model, {"mismatched_keys": [], "missing_keys": []}

    with (
        patch(_OPEN_WEIGHTS, lambda _: weights),
        patch.object(AutoModelForCausalLM, "from_pretrained", from_pretrained),
    ):
        yield
