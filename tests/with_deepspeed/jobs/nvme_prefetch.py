"""The engine of the tripwire `nvme_is_read_ahead_twice`, mended: `nvme_prefetch.py OUT.json` writes what was swapped in."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
import tripwires

from harness.runtime.distributed import destroy_process_group, init_process_group
from harness.runtime.patches.nvme_prefetch_duplicate import drop_duplicate_prefetches


def main(out: Path) -> None:
    init_process_group()
    with tempfile.TemporaryDirectory() as folder:
        engine = tripwires.engine_with_parameters_on_nvme(folder)
        swapper = engine.module.lm_head.weight.nvme_swapper
        found: dict[str, Any] = {"asked": 0, "read": 0, "losses": []}
        _count(swapper, found, "read")
        drop_duplicate_prefetches(engine.module)
        _count(swapper, found, "asked")
        ids = torch.arange(16).view(1, 16)
        for _ in range(6):
            loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
            engine.backward(loss)
            engine.step()
            found["losses"].append(float(loss.detach()))
        found["losses"] = found["losses"][::2]  # the weights change after every second
        out.write_text(json.dumps(found))
    destroy_process_group()


def _count(swapper: Any, found: dict[str, Any], name: str) -> None:
    swap_in = swapper.swap_in

    def counting(params: Any, **more: Any) -> None:
        found[name] += len(params)
        swap_in(params, **more)

    swapper.swap_in = counting


if __name__ == "__main__":
    main(Path(sys.argv[-1]))
