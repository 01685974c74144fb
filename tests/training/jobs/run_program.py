# SPDX-License-Identifier: Apache-2.0
"""`run_program.py FAULT PROGRAM [ARGUMENT ...]`: a script, or the module after `-m`, with this fault in DeepSpeed or torch;
`none` for none.

accelerate 1.15 counts one process for DeepSpeed on ranks without a device (a gather then has one place for two ranks):
this job gives it the ranks that there are, as it finds them on GPUs.
"""

import os
import runpy
import sys
from pathlib import Path

import deepspeed
from accelerate import DistributedType, PartialState

from tests.support.training.engine_faults import inject_fault

deepspeed.init_distributed("gloo")
_count_one = PartialState.__init__


def count_ranks(self, *arguments, **options):
    _count_one(self, *arguments, **options)
    if self.distributed_type == DistributedType.DEEPSPEED:
        self.num_processes, self.backend = int(os.environ["WORLD_SIZE"]), "gloo"
        self.process_index, self.local_process_index = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])


PartialState.__init__ = count_ranks
fault, *program = sys.argv[1:]
sys.path.insert(0, str(Path.cwd()))
with inject_fault("" if fault == "none" else fault):
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        runpy.run_path(program[0], run_name="__main__")
