#!/bin/sh
# The command that `harness launch` ran. Run by hand, nobody watches over the ranks.
cd /tmp/frozen || exit 2
export HARNESS_RUN_DIR=/tmp/frozen/runs/zero3-offload-20261123-202152
export PATH=/opt/harness/.venv/bin:"$PATH"
export PYTHONSAFEPATH=1
export OMP_NUM_THREADS=2
export PYTHONPATH=/opt/harness/harness/workers/stubs:/opt/harness
exec /opt/harness/.venv/bin/deepspeed --num_gpus 2 --master_port 21430 /opt/harness/harness/workers/train_worker.py --run /tmp/frozen/runs/zero3-offload-20261123-202152
