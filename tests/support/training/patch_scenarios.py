# SPDX-License-Identifier: Apache-2.0
"""Each patch with a small training that shows what it is against. A patch without one fails `test_each_patch.py`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, NamedTuple

from tests.support.training import engine_scenarios as engines
from tests.support.training import loop_scenarios as loops
from tests.support.training.engine_scenarios import Measure
from tests.support.training.patch_sides import Measurement, Side, digest_weights, make_model, train_on


class Scenario(NamedTuple):
    """`measure` is called with the patch switched off and with all patches, in processes of their own. `bound`: largest
    relative difference of the numbers in its result, where they are not the same to the bit.
    """

    measure: Measure
    ranks: int = 1
    needs_libaio: bool = False
    needs_mlflow: bool = False
    bound: float = 0.0


def measure_mlflow_import(side: Side) -> Measurement:
    """Was mlflow imported with DeepSpeed?"""
    return Measurement("mlflow" in sys.modules, train_engine(side))


def measure_cpuinfo_processes(side: Side) -> Measurement:
    """Processes that describe the CPU for the ops of an engine, on a machine where that was done before."""
    import cpuinfo

    cpuinfo.get_cpu_info()
    started, popen = [], subprocess.Popen

    class CountedPopen(popen):  # type: ignore[misc, valid-type]
        def __init__(self, command: Any, *args: Any, **kwargs: Any) -> None:
            started.append(str(command))
            super().__init__(command, *args, **kwargs)

    subprocess.Popen = CountedPopen  # type: ignore[misc]
    result = train_engine(side, offload_optimizer={"device": "cpu"})
    return Measurement(sum("cpuinfo" in command for command in started), result)


def train_engine(side: Side, **zero: Any) -> list[Any]:
    """Losses and weights of three steps."""
    engine = side.build(make_model(), zero={"stage": 1, **zero})
    return [train_on(engine), digest_weights(engine.module)]


SCENARIOS = {
    # A sum over chunks is rounded in another order than one over all tokens.
    "chunked-loss": Scenario(loops.measure_logits, ranks=2, bound=1e-6),
    "cpu-adam-resume": Scenario(loops.measure_resume),
    "cpu-offload-single-grad": Scenario(engines.measure_cpu_offload_grads, ranks=2),
    "cpuinfo-cache": Scenario(measure_cpuinfo_processes),
    "lazy-compile": Scenario(loops.measure_compiler_import),
    "muon-embeddings": Scenario(engines.measure_muon_embeddings),
    "no-mlflow": Scenario(measure_mlflow_import, needs_mlflow=True),
    "nvme-counters": Scenario(loops.measure_swapped_bytes, needs_libaio=True),
    "nvme-offload-no-grad-swap": Scenario(engines.measure_nvme_grads, ranks=2, needs_libaio=True),
    "nvme-prefetch-duplicate": Scenario(engines.measure_duplicate_prefetch, needs_libaio=True),
    "nvme-release": Scenario(engines.measure_kept_states, needs_libaio=True),
    "one-pass-adam": Scenario(engines.measure_walks, ranks=2),
    "overlapped-step": Scenario(engines.measure_late_steps, ranks=2),
    "stage0-hidden-step": Scenario(engines.measure_hidden_step),
    "stage0-nonfinite-guard": Scenario(engines.measure_nonfinite_step),
    "timed-collectives": Scenario(loops.measure_collective_times, ranks=2),
    "zero12-oversized-grads": Scenario(engines.measure_recorded_gradients, ranks=2),
    "zero3-leaf-params": Scenario(engines.measure_leaf_walks, ranks=2),
    "zero3-updated-shards": Scenario(engines.measure_gather_order),
}
