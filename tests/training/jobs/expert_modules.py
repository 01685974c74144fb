# SPDX-License-Identifier: Apache-2.0
"""A block with experts that are modules of their own, all of a rank's tokens to one of them: ZeRO-3 beside one process."""

import deepspeed
import torch
from torch import nn

from harness.runtime.distributed import destroy_process_group, init_process_group
from harness.runtime.engine import mark_moe_leaf_modules

WIDTH, EXPERTS, STEPS, RATE = 16, 4, 4, 0.1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor, chosen: int) -> torch.Tensor:
        return x + self.experts[chosen](x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)  # ZeRO-3 gathers a leaf for its backward where its input has a gradient
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor, chosen: int) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x, chosen)
        return x.pow(2).mean()


def make() -> Model:
    torch.manual_seed(0)
    return Model()


def inputs(step: int, rank: int) -> torch.Tensor:
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))


ranks = init_process_group()
model = make()
assert mark_moe_leaf_modules(model) == ["Block"]
config = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "zero_allow_untested_optimizer": True,
    "optimizer": {"type": "SGD", "params": {"lr": RATE}},
    "gradient_clipping": 0.0,
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
plain = make()
optimizer = torch.optim.SGD(plain.parameters(), lr=RATE)
for step in range(STEPS):
    loss = engine(inputs(step, ranks.rank), (step + ranks.rank) % EXPERTS)
    engine.backward(loss)
    engine.step()
    optimizer.zero_grad()
    losses = [plain(inputs(step, rank), (step + rank) % EXPERTS) for rank in range(ranks.world_size)]
    torch.stack(losses).mean().backward()
    optimizer.step()
    assert abs(loss.item() - losses[ranks.rank].item()) <= 1e-5 * abs(loss.item()), (step, loss, losses)
destroy_process_group()
