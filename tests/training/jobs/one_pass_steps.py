# SPDX-License-Identifier: Apache-2.0
"""`one_pass_steps.py CASES STEPS OUT.json FOLDER`: each case trained twice, with `one-pass-adam` switched off and on. Of
each side: losses, norms, a digest of weights, masters and states of this rank, and the patch's state, by rank. Sides of
`overlapped-step` say what they began early, too. `saved`, `resumed`, `observed`, `rescheduled` (between backward
pass and step): the steps of which that is asked.
"""

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path

import torch

from harness.patches.cpu_adam_resume import replay_cpu_adam
from harness.patches.one_pass_adam import show_gradients_when
from tests.support.training.patch_sides import Side, digest_weights

cases, steps, out, folder = sys.argv[-4:]


class Parts(torch.nn.Module):
    """Tied ends; one part is frozen, one is never used, one in every second step. No size is a multiple of a vector, and
    each is one of the ranks: DeepSpeed leaves what it pads with uninitialised.
    """

    def __init__(self, width: int):
        super().__init__()
        self.table = torch.nn.Embedding(37, width)
        self.body, self.sometimes = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.frozen, self.never = torch.nn.Linear(width, width), torch.nn.Linear(width, 2)
        self.head = torch.nn.Linear(width, 37, bias=False)
        self.head.weight = self.table.weight
        self.frozen.requires_grad_(False)

    def forward(self, ids, *, both):
        hidden = self.frozen(torch.tanh(self.body(self.table(ids))))
        hidden = hidden + self.sometimes(hidden) if both else hidden
        return torch.nn.functional.cross_entropy(self.head(hidden).float(), ids.roll(1))


def digest_tensors(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def digest_numbers(module):
    """Of this rank's weights; torch's cast writes a NaN with other bits in a vector than at the end."""
    shards = [getattr(parameter, "ds_tensor", parameter).detach().float() for parameter in module.parameters()]
    return digest_tensors([part for each in shards for part in (each.nan_to_num(0.0), each.isnan())])


def digest_states(zero):
    """Of masters and states that are in memory; of those on NVMe their files."""
    swapper = getattr(zero, "optimizer_swapper", None)
    if swapper is not None:
        files = sorted(p for p in Path(swapper.swap_folder).rglob("*.swp") if "gradient" not in p.name)
        return [hashlib.sha256(p.read_bytes()).hexdigest() for p in files]
    masters = getattr(zero, "fp32_partitioned_groups_flat", None) or zero.single_partition_of_fp32_groups
    states = [zero.optimizer.state[master] for master in masters]
    return digest_tensors([*masters, *(s[name] for s in states for name in ("exp_avg", "exp_avg_sq") if name in s)])


def compare_tensors():
    """(dtype, elements, scale, which tensor) of every difference between the op and three passes, by hand: fp16 gradients,
    too, which no engine computes on a CPU. Gradients from denormal to near infinity; sizes with every kind of scalar end.
    """
    from deepspeed.ops.op_builder import CPUAdamBuilder

    from harness.patches.one_pass_adam import make_builder

    plain, one_pass = CPUAdamBuilder().load(), make_builder().load()
    found = []
    formats = (torch.bfloat16, torch.float16, torch.float32)
    for number, (dtype, weight_dtype) in enumerate([(each, weight) for each in formats for weight in (None, each)]):
        for op in (plain, one_pass):
            op.create_adam(900 + number, 1e-3, 0.9, 0.999, 1e-8, 0.01, number % 2 == 0, False)
        for step, size in enumerate((1, 15, 16, 127, 129, 511, 513, 4097, 70001), start=1):
            draws = torch.Generator().manual_seed(size)
            gradient = torch.randn(size, generator=draws) * 10.0 ** torch.randint(-9, 4, (size,), generator=draws)
            gradient, scale = gradient.to(dtype), torch.tensor([1.0, 0.37, 2.0**-16])[step % 3].item()
            sides = []
            for op in (plain, one_pass):
                tensors = [torch.randn(size, generator=torch.Generator().manual_seed(n)) for n in range(3)]
                master, first, second = tensors[0], tensors[1], tensors[2].square()
                master[::7] *= 1e-40
                weights = None if weight_dtype in (None, torch.float32) else torch.empty(size, dtype=weight_dtype)
                numbers = (900 + number, step, 1e-3, 0.9, 0.999, 1e-8, 0.01, True)
                if op is plain:
                    used = gradient.to(torch.float32, copy=True).mul_(scale)
                    op.adam_update(*numbers, master, used, first, second)
                    weights = weights if weights is None else weights.copy_(master)
                else:
                    used = gradient.clone()
                    op.adam_update_in_one_pass(*numbers, master, used, first, second, scale, weights)
                sides.append([master, first, second, weights, used if dtype == torch.float32 else None])
            found += [
                (str(dtype), size, scale, place)
                for place, pair in enumerate(zip(*sides, strict=True))
                if pair[0] is not None and not torch.equal(pair[0].view(torch.uint8), pair[1].view(torch.uint8))
            ]
    return found


def build(case, name, *, is_off):
    sections = {**case["spec"]}
    if case.get("nvme"):
        sections["zero"]["offload_optimizer"]["nvme_path"] = str(side.folder / f"{name}-{is_off}")
    side.switches = {"one-pass-adam": "off", "overlapped-step": "off"} if is_off else "auto"
    side.states = {}
    return side.build(Parts(case.get("width", 30)), **sections)


def resume(engine, case, name, *, is_off):
    """Save, and go on in another engine."""
    folder = str(side.folder / f"resumed-{name}-{is_off}")
    engine.save_checkpoint(folder)
    steps_done = engine.global_steps
    engine.destroy()
    engine = build(case, name, is_off=is_off)
    engine.load_checkpoint(folder)
    replay_cpu_adam(engine, steps_done)
    return engine


def settle(engine):
    """Let what was begun early come to its end: else the step may cancel it."""
    overlapped = getattr(engine.optimizer, "overlapped_step", None)
    for each in overlapped._groups.values() if overlapped else ():
        if each.work is not None:
            each.work.result()
    return overlapped.early["begun"] if overlapped else 0


def train(case, name, *, is_off):
    torch.manual_seed(0)
    engine = build(case, name, is_off=is_off)
    now, saved, early, begun = [0], [], Counter(), []
    observed = case.get("observed", ())
    losses, norms = [], []
    generator = torch.Generator().manual_seed(side.distributed.rank)
    groups = engine.optimizer.optimizer.param_groups
    groups[-1]["betas"] = tuple(case.get("betas", groups[-1]["betas"]))
    if "loss_scale" in case:
        engine.optimizer.loss_scaler.cur_scale = case["loss_scale"]
    for step in range(case.get("steps", int(steps))):
        now[0] = step
        for values in groups if case.get("is_scheduled") else ():
            values["lr"] = 1e-2 / (1 + step)
        if step in case.get("resumed", ()):
            early.update(getattr(getattr(engine.optimizer, "overlapped_step", None), "early", {}))
            engine = resume(engine, case, name, is_off=is_off)
        if observed:
            show_gradients_when(engine, lambda: now[0] in observed)
        for _ in range(engine.gradient_accumulation_steps()):
            loss = engine(torch.randint(0, 37, (24,), generator=generator), both=step % 2 == 0)
            engine.backward(loss * float("nan") if step == case.get("nan_step") else loss)
            if case.get("settles") and engine.is_gradient_accumulation_boundary():
                begun.append(settle(engine))
                for values in groups if step in case.get("rescheduled", ()) else ():
                    values["lr"] /= 2
            if step in case.get("saved", ()):
                engine.optimizer.checkpoint_event_prologue()
                saved.append(digest_states(engine.optimizer))
            engine.step()
            losses.append(loss.item())
        norms.append(str(float(engine.get_global_grad_norm())))
    zero = engine.optimizer
    weights = digest_weights(engine.module) if not case.get("is_any_nan") else digest_numbers(engine.module)
    found = {"losses": losses, "norms": norms, "weights": weights, "states": digest_states(zero)}
    found |= {"skipped": engine.skipped_steps, "patch": side.states["one-pass-adam"], "saved": saved}
    early.update(getattr(getattr(zero, "overlapped_step", None), "early", {}))
    found |= {"early": early, "begun": begun, "overlapped": side.states["overlapped-step"]}
    engine.destroy()
    return found


side = Side(Path(folder))
outcomes = {"tensors": compare_tensors()}
for name, case in json.loads(cases).items():
    pair = [train(case, name, is_off=is_off) for is_off in (True, False)]
    outcomes[name] = side.distributed.all_gather_object(pair)
if side.distributed.is_main_process:
    Path(out).write_text(json.dumps(outcomes))
side.close()
