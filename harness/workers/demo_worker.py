# SPDX-License-Identifier: Apache-2.0
"""A rank of `harness demo NAME`. Arguments: the name, the rank, the number of ranks, a file for the rendezvous."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harness.interpreter import remove_repeated_root

remove_repeated_root()


def main(name: str, rank: int, ranks: int, rendezvous: str) -> None:
    """Run the demo; rank 0 prints its lines."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "DS_ACCELERATOR": "cpu"}
    import torch
    import torch.distributed as dist

    from harness.runtime.demos.traffic_counter import TrafficCounter

    torch.set_num_threads(1)
    counter = TrafficCounter()
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    from harness.runtime.demos import divided_models, engine_demos

    if name != "collectives":
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo alone: all bytes are counted
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    function = f"demo_{name.replace('-', '_')}"
    demo = getattr(divided_models, function, None) or getattr(engine_demos, function)
    lines = demo(counter)
    if rank == 0:
        print("=== demo ===", *lines, sep="\n", file=sys.__stdout__, flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
