# SPDX-License-Identifier: Apache-2.0
"""`run_program.py FAULT PROGRAM [ARGUMENT ...]`: a script, or the module after `-m`, with this fault in DeepSpeed or torch;
`none` for none.
"""

import runpy
import sys
from pathlib import Path

from tests.support.training.engine_faults import inject_fault

fault, *program = sys.argv[1:]
sys.path.insert(0, str(Path.cwd()))
with inject_fault("" if fault == "none" else fault):
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        runpy.run_path(program[0], run_name="__main__")
