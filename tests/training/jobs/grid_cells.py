# SPDX-License-Identifier: Apache-2.0
"""`grid_cells.py REQUEST.json OUT.jsonl`, on each rank: cells of `tests/releases/cells.py` under the DeepSpeed of this
interpreter, whichever release that is (so nothing of the harness is imported). Rank 0 adds a line for each cell that it
starts and one for each that it has compared with a plain torch process.

A request: `cells`, `dimensions`, `known` (results of an earlier process by key), `boxes` of other releases and `scratch`, a
folder of all ranks. A red cell is reduced to the values that it needs; then each dimension is varied alone, to see with
which values it stays red: these are its box.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
import traceback
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, WORDS, ROWS, LENGTH, STEPS = 16, 24, 2, 4, 3
RATE, EPS, LIMIT = 0.1, 0.01, 0.2
FP32_LIMIT, BF16_FACTOR = 1e-4, 4.0


class Net(nn.Module):
    """Embedding, a block that may be used twice, a layer that may have no gradient, a head that may be tied."""

    def __init__(self, cell, dtype, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.cell = cell
        self.embed = nn.Embedding(WORDS, WIDTH)
        nn.init.normal_(self.embed.weight, std=0.2)
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.seldom = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if cell["tied"] == "yes":
            self.head.weight = self.embed.weight
        self.to(dtype)

    def forward(self, tokens, is_first, is_short=False):
        reuse = self.cell["reuse"]

        def saved(hidden):
            again = reuse == "checkpointed" and torch.is_grad_enabled()
            return checkpoint(self.block, hidden, use_reentrant=True) if again else self.block(hidden)

        hidden = saved(self.embed(tokens) if tokens.ndim == 2 else tokens)
        if reuse in ("twice", "checkpointed"):
            hidden = saved(hidden + 0.5)
        if self.cell["unused"] == "none" or (self.cell["unused"] == "sometimes" and is_first):
            hidden = hidden + self.seldom(hidden)
        return self.head(torch.tanh(hidden if is_short else self.middle(hidden)))


def batches(accumulation, world):
    """Tokens: (steps, micro-batches, ranks, rows, length). Each micro-batch takes words of its own, so that none stands for
    another.
    """
    generator = torch.Generator().manual_seed(1)
    shape = (STEPS, accumulation, world, ROWS, LENGTH)
    offsets = torch.randint(WORDS, shape[:3], generator=generator)[..., None, None]
    return (torch.randint(WORDS // 3, shape, generator=generator) + offsets) % WORDS


def loss_of(model, tokens, is_first, reuse, at_outputs=1.0):
    """Sized so that gradients are neither tiny for Adam's eps nor clipped by chance. `at_outputs`: gradients are multiplied by
    it where they enter the model's outputs.
    """

    def called(*arguments):
        output = model(*arguments)
        if at_outputs != 1.0:
            output.register_hook(lambda gradient: gradient * at_outputs)
        return output.float()

    def one(output, part):
        return 4 * (output - torch.nn.functional.one_hot((part * 7 + 1) % WORDS, WORDS)).square().mean()

    others = (tokens + 5) % WORDS
    output = called(tokens, is_first)
    if reuse == "pair":
        return (one(output, tokens) + one(called(others, is_first, True), others)) / 2
    if reuse == "chain":
        again = output[..., :WIDTH].to(next(model.parameters()).dtype)
        return (one(output, tokens) + one(called(again, is_first), others)) / 2
    if reuse == "outside":
        inner = getattr(model, "module", model)
        return (one(output, tokens) + inner.block(inner.embed(others)).float().square().mean()) / 2
    return one(output, tokens)


def plain(cell, dtype, fault="", skips=False):
    """Weights after one process of plain torch: the model in `dtype`, its optimizer in fp32. `skips`: a parameter without
    gradient is left out of the step, where it otherwise has a gradient of 0. `fault`: what to do wrong, see `FAULTS`.
    """
    accumulation, world = int(cell["accumulation"]), dist.get_world_size()
    model = Net(cell, dtype)
    master = [p.detach().float().clone().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(master, lr=RATE, eps=EPS)
    if fault.startswith("Adam counts one step too many"):
        for p in master:
            p.grad = torch.zeros_like(p)
        optimizer.step()
    scale = {
        "gradients divided by the accumulation steps once more": 1 / accumulation,
        "gradients multiplied by the accumulation steps": accumulation,
        "gradients summed over ranks, not averaged": world,
        "gradients averaged over ranks twice": 1 / world,
        "gradients of 0": 0.0,
    }.get(fault, 1.0)
    limit = None if cell["clipping"] == "off" else LIMIT
    limit = {"clipped at 1": 1.0, "not clipped": None}.get(fault, limit)
    sums = [None] * len(master)
    for step in batches(accumulation, world):
        if "gradients of earlier steps" not in fault:
            sums = [None] * len(master)
        add_gradients(sums, model, step, cell, fault)
        for p, total, last in zip(master, sums, model.parameters(), strict=True):
            is_lost = last.grad is None and fault == "no gradient for what the last micro-batch does not use"
            p.grad = None if total is None or is_lost else total.float() * scale
            if p.grad is None and not skips:
                p.grad = torch.zeros_like(p)
        if limit is not None:
            nn.utils.clip_grad_norm_(master, limit)
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(model.parameters(), master, strict=True):
                p.copy_(q)
    return [p.detach().float() for p in model.parameters()]


def add_gradients(sums, model, step, cell, fault):
    """Add the gradients of a step's micro-batches, of all ranks, in the model's format as the engine does it."""
    accumulation, world = int(cell["accumulation"]), dist.get_world_size()
    at_outputs = fault == "divided by the accumulation steps at each output of the engine"
    kept = {
        "the last micro-batch alone": {accumulation - 1},
        "the first micro-batch alone": {0},
        "the first and the last micro-batch alone": {0, accumulation - 1},
    }.get(fault, set(range(accumulation)))
    ranks = {"rank 0 alone": [0], "rank 1 alone": [1]}.get(fault, range(world))
    for number in sorted(kept):
        for rank in ranks:
            loss = loss_of(
                model, step[number, rank], number == 0, cell["reuse"], 1 / accumulation if at_outputs else 1.0
            )
            for p in model.parameters():
                p.grad = None
            (loss / (1 if at_outputs else accumulation) / world).backward()
            for i, p in enumerate(model.parameters()):
                if p.grad is not None:
                    sums[i] = p.grad.clone() if sums[i] is None else sums[i] + p.grad


FAULTS = (
    "the last micro-batch alone",
    "the first micro-batch alone",
    "the first and the last micro-batch alone",
    "gradients divided by the accumulation steps once more",
    "gradients multiplied by the accumulation steps",
    "gradients summed over ranks, not averaged",
    "gradients averaged over ranks twice",
    "gradients of 0",
    "divided by the accumulation steps at each output of the engine",
    "Adam counts one step too many",
    "Adam counts one step too many, and gradients of earlier steps stay",
    "gradients of earlier steps stay",
    "no gradient for what the last micro-batch does not use",
    "not clipped",
    "clipped at 1",
    "rank 0 alone",
    "rank 1 alone",
)
"""What is tried to explain a red cell by, in this order."""


def config_of(cell, scratch):
    zero = {"stage": int(cell["stage"])}
    if cell["stage"] == "3":
        # with the defaults, some releases read a parameter on gloo before it is gathered, now and then
        zero |= {"stage3_param_persistence_threshold": 0, "overlap_comm": False}
    if cell["offload"] != "none":
        device = "nvme" if cell["offload"] == "nvme" else "cpu"
        zero["offload_optimizer"] = {"device": device}
        if cell["offload"] == "ratio":
            zero["offload_optimizer"]["ratio"] = 0.5
            zero["sub_group_size"] = 300
        if device == "nvme":
            zero["offload_optimizer"] |= {"nvme_path": str(scratch / "nvme"), "buffer_count": 5}
    adam = {"lr": RATE, "eps": EPS, "adam_w_mode": False}
    if cell["offload"] != "ratio":  # which takes DeepSpeedCPUAdam alone
        adam["torch_adam"] = True
    return {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": int(cell["accumulation"]),
        "steps_per_print": 10**9,
        "optimizer": {"type": "Adam", "params": adam},
        "gradient_clipping": 0.0 if cell["clipping"] == "off" else LIMIT,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
        **({"bf16": {"enabled": True}} if cell["format"] == "bf16" else {}),
    }


def engine_of(cell, dtype, scratch, seed=0):
    model = Net(cell, dtype, seed)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config_of(cell, scratch))
    return engine


def trained(cell, dtype, scratch):
    """Weights after the engine's steps."""
    accumulation, rank = int(cell["accumulation"]), dist.get_rank()
    engine = engine_of(cell, dtype, scratch)
    data = batches(accumulation, dist.get_world_size())
    for number, step in enumerate(data[:, :, rank]):
        for part, rows in enumerate(step):
            if cell["evaluation"] == "yes":
                engine.eval()
                with torch.no_grad():
                    engine((rows + 3) % WORDS, True)
                engine.train()
            loss = loss_of(engine, rows, part == 0, cell["reuse"])
            if cell["caller"] == "script":
                engine.backward(loss)
            else:
                engine.backward(loss / accumulation, scale_wrt_gas=False)
            engine.step()
        if number == 0 and cell["resumed"] == "yes":
            folder = scratch / "checkpoint"
            engine.save_checkpoint(str(folder), tag="one")
            engine.destroy()
            del engine
            engine = engine_of(cell, dtype, scratch, seed=7)
            path, _ = engine.load_checkpoint(str(folder), tag="one")
            if path is None:
                raise RuntimeError("load_checkpoint returned no path")
            dist.barrier()
    whole = []
    for parameter in engine.module.parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
            whole.append(parameter.detach().float().clone())
    engine.destroy()
    return whole


def distance(one, other):
    """The length of the difference of all weights."""
    return sum(float((a - b).square().sum()) for a, b in zip(one, other, strict=True)) ** 0.5


def judged(cell, scratch):
    """`off` and `limit`, with `is` where a red cell trains what one of the faults trains; or `error`."""
    dtype = torch.bfloat16 if cell["format"] == "bf16" else torch.float32
    if dist.get_rank() == 0:
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / "nvme").mkdir(parents=True)
    dist.barrier()
    try:
        found = trained(cell, dtype, scratch)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split()) or f"{Path(place.filename).name}: {place.line}"
        return {"error": f"{type(error).__name__}: {text[:160]}"}
    finally:
        gc.collect()
    if dist.get_rank() != 0:
        return {}  # rank 0 compares
    start = [p.detach().float() for p in Net(cell, dtype).parameters()]
    ways = (False, True) if cell["unused"] != "none" else (False,)
    right = {skips: plain(cell, dtype, skips=skips) for skips in ways}
    length = distance(right[False], start)
    limit = FP32_LIMIT
    if dtype is torch.bfloat16:
        limit = BF16_FACTOR * distance(right[False], plain(cell, torch.float32)) / length
    off, skips = min((distance(found, weights) / length, skips) for skips, weights in right.items())
    answer = {"off": off, "limit": limit}
    if not off <= limit:
        for fault in FAULTS:
            if distance(found, plain(cell, dtype, fault, skips)) / length <= limit:
                answer["is"] = fault
                break
    return answer


def key_of(cell):
    return " ".join(f"{name}={value}" for name, value in cell.items())


class Trial:
    """Results by key, written as they come. All ranks go the same way: what rank 0 judged is sent to the others."""

    def __init__(self, request, out):
        self.known, self.dimensions = request["known"], request["dimensions"]
        self.scratch, self.out = Path(request["scratch"]), out
        self.has_ops = request["has_ops"]

    def is_red(self, cell):
        answer = self.answer(cell)
        return "off" in answer and not answer["off"] <= answer["limit"]

    def answer(self, cell):
        key = key_of(cell)
        if key not in self.known:
            self.write({"start": key})
            answer = [judged(cell, self.scratch)]
            dist.broadcast_object_list(answer)
            self.known[key] = answer[0]
            self.write({"key": key, **answer[0]})
        return self.known[key]

    def write(self, row):
        if dist.get_rank() == 0:
            with self.out.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")

    def is_valid(self, cell):
        stages = {"none": "0123", "cpu": "123", "ratio": "3" * self.has_ops, "nvme": "3" * self.has_ops}
        return cell["stage"] in stages[cell["offload"]]

    def reduce(self, cell):
        """The red cell with as many dimensions as possible at their plainest value."""
        for name, values in reversed(self.dimensions.items()):
            for value in values[: values.index(cell[name])]:
                plainer = cell | {name: value}
                if name != "stage" and self.is_valid(plainer) and self.is_red(plainer):
                    cell = plainer
                    break
        return cell

    def widen(self, cell):
        """The values of each dimension with which the cell is red, the others left as they are."""
        return {
            name: [
                value
                for value in values
                if value == cell[name] or (self.is_valid(cell | {name: value}) and self.is_red(cell | {name: value}))
            ]
            for name, values in self.dimensions.items()
        }

    def run(self, cells, boxes):
        """Compare all cells. A red one that is in a box of another release, with the same fault, is taken to be in it here."""
        for cell in cells:
            self.answer(cell)
        kept = []
        for cell in cells if self.dimensions else []:
            if not self.is_red(cell) or any(is_inside(cell, box["values"]) for box in kept):
                continue
            fault = self.answer(cell).get("is", "")
            for box in boxes:
                if fault and fault == box["is"] and is_inside(cell, box["values"]) and self.is_right(box, cells):
                    kept.append(box)
                    self.write(
                        {"box": box["values"], "least": box["least"], "answer": self.answer(cell), "seen": key_of(cell)}
                    )
                    break
            else:
                least = self.reduce(cell)
                values = self.widen(least)
                kept.append({"values": values, "least": least, "is": self.answer(least).get("is", "")})
                self.write({"box": values, "least": least, "answer": self.answer(least)})
                if not is_inside(cell, values):
                    self.write({"outside": key_of(cell), "least": key_of(least)})
        self.write({"done": deepspeed.__version__})

    def is_right(self, box, cells):
        """Is no cell of the box right?"""
        answers = [self.answer(cell) for cell in cells if is_inside(cell, box["values"])]
        return all("error" in answer or not answer["off"] <= answer["limit"] for answer in answers)


def is_inside(cell, values):
    return all(cell[name] in values[name] for name in cell)


deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo reduces as well, and is not compiled for minutes
deepspeed.init_distributed()
torch.set_num_threads(1)
gc.freeze()
request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
Trial(request, Path(sys.argv[2])).run(request["cells"], request["boxes"])
dist.barrier()
dist.destroy_process_group()
