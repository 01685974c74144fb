# SPDX-License-Identifier: Apache-2.0
"""Does a model fit: each way of training it by numbers of GPUs, with host memory, disks, the step and the money."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

from harness.check.auto_plan import check_request, name_of
from harness.check.check_file import check_file
from harness.check.training_ways import LORA_ON_GPUS, OF_ALL, WAYS, Way, degrees_of, places_of, way_named
from harness.errors import UserError
from harness.facts.devices import find_device, usual_gpus_per_host
from harness.facts.gpu_prices import GPU_PRICES, GpuPrice
from harness.facts.model_lookup import ModelFacts
from harness.findings import Finding
from harness.plan.memory.memory_estimate import Capacity
from harness.plan.planner import Plan, make_plan
from harness.plan.search.alternatives import (
    Alternative,
    evaluate_alternative,
    with_offload,
)
from harness.plan.search.machine_costs import lost_share
from harness.plan.search.nearest_fit import offloads
from harness.plan.search.pinned_keys import keep_pinned
from harness.plan.search.plan_request import PlanRequest, min_gpus_for_states, spec_from_request
from harness.plan.search.settings_search import HEADROOM, CandidateSettings, may_fit, rank_alternatives
from harness.plan.search.spec_changes import merge_changes, spec_changes_for
from harness.plan.settings.checkpointed_layers import with_checkpointing
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.cost_range import CostRange, cost_range
from harness.plan.time.step_time import estimate_step_time
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.parse.source import KeyPath
from harness.spec.run_spec import RunSpec
from harness.spec.yaml_text import spec_as_yaml

State = Literal["fits", "not certain", "host", "disks", "no"]
"""`host` and `disks`: the GPUs hold it, on hosts with more memory or disks than these have or are known to have."""
_STATES: tuple[State, ...] = ("fits", "disks", "not certain", "host", "no")
_MICRO_BATCHES = (1, 2, 4, 8)
_MOST_HOSTS = 512


@dataclass(frozen=True)
class FitCell:
    """A way on so many GPUs: the fastest settings that fit, else the closest ones. `cost`: of the table's tokens."""

    way: str
    gpus: int
    state: State
    best: Alternative
    cost: CostRange | None = None


@dataclass(frozen=True)
class FitTable:
    """`rows`: the cells of each way by rising numbers of GPUs; `fewest`: of each way the first that holds it.
    `refused`: why `harness launch` does not start a way. `host_memory`: bytes of a host of `gpus_per_host`, None where
    nobody knows them; `assumed_from`: whose hosts they are, where the user gave none. `network`: bytes a second a host.
    """

    model: str
    gpu: str
    max_length: int
    tokens_per_step: int
    tokens: float
    gpus_per_host: int
    host_memory: int | None
    assumed_from: GpuPrice | None
    nvme: int | None
    network: float
    price: float | None
    state_bytes: float
    raw_floor_gpus: int
    rows: Mapping[str, tuple[FitCell, ...]]
    fewest: Mapping[str, FitCell | None]
    refused: Mapping[str, Finding]

    @property
    def fewest_of_all(self) -> FitCell | None:
        """The smallest number on which all parameters can be trained: `harness launch` takes it, no size is unknown."""
        sure = [each for way, each in self.fewest.items() if each and each.state == "fits" and self.takes(way)]
        full = [each for each in sure if way_named(each.way) in OF_ALL] or sure
        return min(full, key=lambda each: each.gpus, default=None)

    def takes(self, way: str) -> bool:
        """Does `harness launch` start it?"""
        return way not in self.refused

    def fewest_for(self, run: ResolvedRun) -> FitCell | None:
        """The smallest number, sure or not, for the run's own way: its adapters, else all parameters."""
        model = run.spec.model
        if model.lora is None:
            return self.fewest_of_all or self.tight
        cell = self.fewest.get("LoRA" if model.quantization is None else "QLoRA")
        return cell if cell is not None and cell.state in ("fits", "not certain") else None

    @property
    def tight(self) -> FitCell | None:
        """A smaller number that is not certain."""
        best, cells = self.fewest_of_all, [cell for row in self.rows.values() for cell in row]
        unsure = [each for each in cells if each.state == "not certain" and way_named(each.way) in OF_ALL]
        unsure = [each for each in unsure if self.nvme is not None or not each.best.nvme_bytes]
        first = min(unsure, key=lambda each: each.gpus, default=None)
        return first if first is not None and (best is None or first.gpus < best.gpus) else None


def state_of(best: Alternative, capacity: Capacity) -> State:
    """The resource that an alternative lacks. What is not certain fits by the middle of its range, as in a search."""
    if capacity.gpu is not None and best.gpu_peak > capacity.gpu:
        return "no"
    if best.fit.fits is False:
        return "disks" if best.fit.binding == "NVMe" else "host" if best.fit.binding == "host memory" else "no"
    if best.fit.uncertain is not None or (best.fit.headroom or 0.0) < HEADROOM:
        return "not certain"
    if best.nvme_bytes and capacity.nvme is None:
        return "disks"
    return "host" if capacity.host is None and offloads(best.settings) else "fits"


def _order_of(best: Alternative, capacity: Capacity) -> tuple[int, bool]:
    """The place of its state. Where host memory is not known, what also depends on it stands behind what alone does."""
    state = state_of(best, capacity)
    is_both = state == "not certain" and capacity.host is None and offloads(best.settings)
    return _STATES.index("host" if is_both else state), is_both


def needs_other_hosts(cell: FitCell, host_memory: int | None) -> bool:
    """Does it lack more memory than anybody puts into such a host: another as much?"""
    return cell.state == "host" and host_memory is not None and cell.best.host_peak > 2 * host_memory


class FitSearch:
    """The cells of one model. `request`: the run; its number of GPUs is that of no cell, and its adapters are those of
    the ways. `sections`: the other keys of a spec, None without one. `trainer`: a key of `TRAINERS`, whose loop is
    planned. `host_price`: whose hosts they are, of a kind that the price table has not. Raises UserError for a
    request that no cell can have.
    """

    def __init__(
        self,
        request: PlanRequest,
        tokens: float = 1e9,
        price: float | None = None,
        sections: Mapping[str, Any] | None = None,
        trainer: str = "",
        host_price: GpuPrice | None = None,
    ) -> None:
        own = [text for text in request.overrides if not text.startswith(("model.lora", "model.quantization"))]
        per_host = request.gpus_per_node or usual_gpus_per_host(request.gpu)
        self.request, self.tokens = replace(request, overrides=tuple(own), gpus_per_node=per_host), tokens
        self.sections, self.trainer = sections, trainer
        check_request(replace(self.request, gpus=1, gpus_per_node=None))
        device = find_device(request.gpu)
        listed = (row for row in GPU_PRICES if device is not None and row.kind == device.name)
        self.price = next(listed, None) or host_price
        self.dollars = price if price is not None else self.price.dollars if self.price else None

    @property
    def gpus_per_host(self) -> int:
        """GPUs of a whole host."""
        return self.request.gpus_per_node or usual_gpus_per_host(self.request.gpu)

    def assumed_host(self, gpus: int) -> int | None:
        """Bytes of the part of a host that is sold with so many GPUs; None where no host is known."""
        return None if self.price is None else self.price.host_memory * min(gpus, self.gpus_per_host)

    @cached_property
    def _plans(self) -> dict[tuple[int, tuple[str, ...], int], Plan]:
        return {}

    def _raw(self, gpus: int, way: Way) -> dict[str, Any]:
        request = replace(self.request, gpus=gpus, overrides=(*self.request.overrides, *way.adapters))
        raw = spec_from_request(request)
        if self.sections is None:
            return raw
        raw = merge_changes(raw, {"precision": None, "optimizer": None, "train": {"num_train_epochs": None}})
        return merge_changes(raw, self.sections)

    def _plan(self, gpus: int, way: Way) -> Plan:
        key = (gpus, way.adapters, self.request.max_length)
        if key not in self._plans:
            spec = RunSpec.model_validate(self._raw(gpus, way))
            run = resolve_run(spec, name=name_of(self.request), world_size=gpus)
            plan = make_plan(run, Path.cwd(), with_alternatives=False, trainer=self.trainer, by_name=True)
            if self.request.host_memory is None:
                plan = replace(plan, capacity=replace(plan.capacity, host=self.assumed_host(gpus)))
            self._plans[key] = plan
        return self._plans[key]

    def capacity(self, gpus: int) -> Capacity:
        """Memory of a GPU and of a host of such a cell."""
        return self._plan(gpus, WAYS[0]).capacity

    def cell(self, gpus: int, way: Way) -> FitCell | None:
        """The best of a way; None where the user's own keys leave nothing."""
        plan = self._plan(gpus, way)
        if plan.model is None or plan.settings is None or plan.device is None:
            return None
        found: list[Alternative] = []
        for kind in ("sequence", "tensor"):  # tensor ranks where whole layers have no room
            found += self._alternatives(plan, plan.model, plan.settings, way, kind)
            if any(state_of(each, plan.capacity) in ("fits", "disks") for each in found):
                break
        ranked = rank_alternatives(found)
        if not ranked:
            return None
        best = min(ranked, key=lambda each: _order_of(each, plan.capacity))
        state = state_of(best, plan.capacity)
        return FitCell(way.name, gpus, state, best, self._cost(plan.model, best))

    def _cost(self, model: ModelFacts, best: Alternative) -> CostRange | None:
        if best.time is None:
            return None
        lost = lost_share(model, best.settings, self._plan(best.settings.world_size, WAYS[0]).rates)
        return cost_range(self.tokens, best.time, best.settings, lost, self.dollars)

    def _alternatives(
        self, plan: Plan, model: ModelFacts, settings: PlanSettings, way: Way, kind: Literal["sequence", "tensor"]
    ) -> Iterator[Alternative]:
        """Each place with growing micro-batches, as long as they fit, with checkpointing and without."""
        candidates = CandidateSettings(plan.run, model)
        raw, pinned = self._raw(settings.world_size, way), [key for key in self.request.pinned if key[0] != "model"]
        places, degrees = places_of(way, self.request.stage, settings), degrees_of(settings, model, way, kind)
        for (stage, optimizer_device, param_device), degree in product(places, degrees):
            if stage == 0 and settings.world_size > 1 and self.request.stage is None:
                continue
            base = with_offload(settings, stage, optimizer_device, param_device)
            if degree > 1:
                data = settings.data_parallel_size // degree
                base = replace(base, data_parallel_size=data, **{f"{kind}_parallel_size": degree})  # type: ignore[arg-type]
            sequences = settings.micro_batch * settings.accumulation * degree
            for checkpointing in (True, False):
                for micro in (settings.sequences_a_row * rows for rows in _MICRO_BATCHES):
                    if sequences % micro:
                        break
                    sketch = base.with_values(micro_batch=micro, accumulation=sequences // micro)
                    other = candidates.resolve(with_checkpointing(sketch, checkpointing=checkpointing))
                    if other is None or not _is_kept(other, model, raw, pinned):
                        continue
                    other = replace(other, state_bytes=1) if way.in_8_bits else other
                    found = evaluate_alternative(model, settings, other, plan.device, plan.capacity, plan.rates)
                    yield found
                    if not may_fit(found) and not (found.nvme_bytes and found.fit.fits is None):
                        break

    def with_batch(self, cell: FitCell, ratio: float) -> FitCell | None:
        """The same settings with so many times the accumulation; None where that is no whole number."""
        plan, accumulation = self._plan(cell.gpus, way_named(cell.way)), cell.best.settings.accumulation * ratio
        if plan.model is None or accumulation != int(accumulation):
            return None
        settings = replace(cell.best.settings, accumulation=int(accumulation))
        time = estimate_step_time(plan.model, settings, plan.device, plan.rates)
        best = replace(cell.best, settings=settings, time=time)
        return replace(cell, best=best, cost=self._cost(plan.model, best))

    def without_offload(self, gpus: int, way: Way = WAYS[0]) -> tuple[list[int], list[FitCell]]:
        """Numbers of GPUs, these among them, up to one on which all fits without offload, and the cells of that way."""
        numbers = sorted({*counts_of(self.gpus_per_host), gpus})
        cells = [cell for each in numbers if (cell := self.cell(each, way))]
        while (
            cells and numbers[-1] < self.gpus_per_host * _MOST_HOSTS and not any(each.state == "fits" for each in cells)
        ):
            numbers.append(numbers[-1] * 2)
            cells += [cell for cell in (self.cell(numbers[-1], way),) if cell]
        return numbers, cells

    def gpus_without_offload(self, run: ResolvedRun) -> int | None:
        """The fewest that hold the run with its adapters; None where no number is sure, as for 4-bit weights."""
        model, way = run.spec.model, WAYS[0] if run.spec.model.lora is None else LORA_ON_GPUS
        row = [] if model.quantization else self.without_offload(run.parallel_dims.world_size or 1, way)[1]
        fewest = self.fewest(row)
        return fewest.gpus if fewest is not None and fewest.state == "fits" else None

    def fewest(self, row: Sequence[FitCell]) -> FitCell | None:
        """The first cell of a row that fits, or would on other hosts; between two numbers of hosts each is tried."""
        index = next((index for index, cell in enumerate(row) if cell.state in ("fits", "disks")), None)
        if index is None:
            host = self.capacity(self.gpus_per_host).host
            held = sorted((cell for cell in row if cell.state != "no"), key=lambda cell: cell.state == "host")
            return next((cell for cell in held if not needs_other_hosts(cell, host)), None)
        best = row[index]
        if index == 0 or best.gpus <= self.gpus_per_host:
            return best
        low, high = row[index - 1].gpus // self.gpus_per_host, best.gpus // self.gpus_per_host
        while high - low > 1:
            middle = (low + high) // 2
            cell = self.cell(middle * self.gpus_per_host, way_named(best.way))
            if cell is not None and cell.state in ("fits", "disks"):
                best, high = cell, middle
            else:
                low = middle
        return best

    def refusal(self, cell: FitCell) -> Finding | None:
        """The reason why `harness launch` does not start these settings."""
        way = way_named(cell.way)
        plan, raw = self._plan(cell.gpus, way), self._raw(cell.gpus, way)
        if plan.model is None:
            return None
        if way.in_8_bits:
            message = (
                "no `optimizer.type` has states in 8 bits; a loop of your own can (`bitsandbytes.optim.AdamW8bit`)"
            )
            return Finding("SP007", "error", message)
        text = spec_as_yaml(merge_changes(raw, spec_changes_for(cell.best.settings, plan.model, raw)))
        checked = check_file(name_of(self.request), text=text, world_size=cell.gpus, launching=True, allow_code=True)
        return next((each for each in checked.report.findings if each.is_error), None)

    def at(self, max_length: int, tokens_per_step: int) -> FitSearch:
        """The same model with other sequences and another batch."""
        request = replace(self.request, max_length=max_length, tokens_per_step=tokens_per_step)
        return FitSearch(request, self.tokens, self.dollars, self.sections, self.trainer, self.price)


def _is_kept(settings: PlanSettings, model: ModelFacts, raw: Mapping[str, Any], pinned: Sequence[KeyPath]) -> bool:
    """Do these settings have the values of the user's own keys?"""
    try:
        return bool(keep_pinned([settings], lambda each: each, model, raw, pinned))
    except UserError:
        return False


def counts_of(per_host: int) -> tuple[int, ...]:
    """Parts of a host, then hosts, doubled, six or seven of them."""
    inside = tuple(n for n in (1, 2, 4) if n < per_host)
    return (*inside, *(per_host * 2**power for power in range(4)))


def make_fit_table(search: FitSearch, gpus: int = 1) -> FitTable:
    """The table on these GPUs, on parts of a host and on up to eight hosts; on more where a way that trains all
    parameters without offload still fits on none. Raises UserError for a model of unknown size.
    """
    per_host, (numbers, first) = search.gpus_per_host, search.without_offload(gpus)
    rows = {way.name: [cell for gpus in numbers if (cell := search.cell(gpus, way))] for way in WAYS[1:]}
    wanted = {name: tuple(row) for name, row in {WAYS[0].name: first, **rows}.items() if row}
    fewest = {name: search.fewest(row) for name, row in wanted.items()}
    refused = {}
    for name, cell in fewest.items():
        finding = search.refusal(cell) if cell is not None else None
        if finding is not None:
            refused[name] = finding
    plans, request = [search._plan(each, WAYS[0]) for each in numbers], search.request
    plan = next((each for each in plans if each.settings is not None), plans[0])
    if plan.model is None or plan.settings is None or plan.device is None:
        raise UserError(plan.findings)
    states = plan.settings.bytes_per_parameter.per_rank(plan.model.num_parameters, 1, 0)
    is_given = request.host_memory is not None
    return FitTable(
        request.model,
        plan.device.name,
        request.max_length,
        request.tokens_per_step,
        search.tokens,
        per_host,
        plan.capacity.host if is_given else search.assumed_host(per_host),
        None if is_given else search.price,
        plan.capacity.nvme,
        plan.rates.network or plan.device.network * per_host,
        search.dollars,
        states,
        min_gpus_for_states(states, plan.device),
        wanted,
        fewest,
        refused,
    )


def make_page_tables(search: FitSearch, gpus: int) -> list[FitTable]:
    """The table of a page first, then those of its sliders on the same GPUs: sequences of a quarter and of four times
    the tokens, each with a quarter and with four times the batch, by accumulation. Raises UserError.
    """
    request, batch = search.request, search.request.tokens_per_step
    lengths = sorted({max(256, request.max_length // 4), request.max_length * 4} - {request.max_length})
    first = make_fit_table(search, gpus)
    tables = [first]
    numbers = sorted({cell.gpus for row in first.rows.values() for cell in row})
    for length in lengths:
        other = search.at(length, batch)
        rows = {way.name: tuple(cell for n in numbers if (cell := other.cell(n, way))) for way in WAYS}
        tables.append(replace(first, max_length=length, rows=rows))
    for table in tuple(tables):
        for ratio in (0.25, 4.0):
            rows = {
                name: tuple(found for cell in row if (found := search.with_batch(cell, ratio)))
                for name, row in table.rows.items()
            }
            tables.append(replace(table, tokens_per_step=int(batch * ratio), rows=rows))
    return tables
