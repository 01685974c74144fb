# SPDX-License-Identifier: Apache-2.0
"""`run_in_folder.py FOLDER SCRIPT`, on each rank: run a program of a user's in its folder."""

from __future__ import annotations

import os
import runpy
import sys

import deepspeed

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo reduces as well, and nothing is compiled
os.chdir(sys.argv[1])
os.environ["DS_ACCELERATOR"] = "cpu"
if "accelerate" in sys.argv[2]:
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"  # as `accelerate launch` sets it
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
