# SPDX-License-Identifier: Apache-2.0
"""Torch: process groups, NCCL, autograd, checkpointing, worker processes, compilers. `messages` has what torch says."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause

CAUSES = (
    FailureCause(
        "LG210",
        "nccl-refused",
        "a call of NCCL failed on this rank; the line `Last error` says why",
        "read the `Last error` line, and run once with NCCL_DEBUG=INFO: it names the call, the interface and the "
        "device",
        (),
    ),
    FailureCause(
        "LG211",
        "process-group-missing",
        "torch.distributed was used before its process group was initialized, or after it was destroyed",
        "start the script with a launcher (`deepspeed`, `torchrun`, `accelerate launch`) and call "
        "`deepspeed.init_distributed()` (or create the Accelerator or TrainingArguments) before the line named",
        (),
    ),
    FailureCause(
        "LG212",
        "ddp-unused-parameters",
        "DistributedDataParallel got no gradient for some parameters, because they did not contribute to the loss",
        "set `find_unused_parameters=True` (`ddp_find_unused_parameters`), or freeze parameters that are not used; the "
        "job runs under DDP, not under DeepSpeed, which does not need this",
        (),
    ),
    FailureCause(
        "LG213",
        "recomputation-differs",
        "gradient checkpointing recomputed other tensors in the backward pass than the forward pass saved",
        'set `use_reentrant=True` (`gradient_checkpointing_kwargs={"use_reentrant": True}`), or make the block '
        "deterministic: no randomness, KV cache or side effects",
        (),
    ),
    FailureCause(
        "LG214",
        "tensor-changed-in-place",
        "an in-place operation changed a tensor that the backward pass needs",
        "replace the in-place operation (`x += y`, `x[...] = y`, `relu_`) by one that makes a new tensor, or clone it; "
        "`torch.autograd.set_detect_anomaly(True)` names the operation; do not step or load weights between forward "
        "and "
        "backward",
        (),
    ),
    FailureCause(
        "LG215",
        "data-loader-worker-died",
        "a worker process of the data loader ended",
        "run with `num_workers=0` (`dataloader_num_workers`) to see its error; without one, host memory or /dev/shm "
        "ran "
        "out (`dmesg`, `df /dev/shm`): use fewer workers",
        (),
    ),
    FailureCause(
        "LG216",
        "process-start-refused",
        "a child process could not be started",
        "start processes with the method `spawn` before CUDA is used, put the script's entry point under `if "
        '__name__ == "__main__":`, and give them only objects that can be pickled (no lambdas, locals, open files)',
        (),
    ),
    FailureCause(
        "LG217",
        "compiled-code-failed",
        "torch.compile or triton could not compile or run a kernel",
        "run once without it (`torch_compile=False`, TORCH_COMPILE_DISABLE=1) to see an error of the model itself; "
        "remove the caches (`~/.triton/cache`, /tmp/torchinductor_*), and give each host its own TRITON_CACHE_DIR",
        (),
    ),
    FailureCause(
        "LG218",
        "gpu-library-failed",
        "cuBLAS or cuDNN reported an error",
        "run again with CUDA_LAUNCH_BLOCKING=1: the cause is most often an earlier fault of a kernel (an index out "
        "of range), or memory that ran out; then compare the CUDA versions of torch and of LD_LIBRARY_PATH",
        (),
    ),
    FailureCause(
        "LG219",
        "inference-tensor-in-training",
        "the backward pass got a tensor that was created under `torch.inference_mode`, such as a parameter that "
        "ZeRO-3 gathered during evaluation",
        "use `torch.no_grad()` instead of `torch.inference_mode()` for evaluation and generation; with ZeRO-3 also set "
        "`stage3_prefetch_bucket_size: 0`, or a newer DeepSpeed",
        (),
    ),
    FailureCause(
        "LG229",
        "loss-turned-into-nan",
        "the loss or the gradient norm became NaN, and the job continued",
        "check the batch of the first such step (all labels masked, empty texts) and the learning rate; train in "
        "bf16 instead of fp16; try `overlap_comm: false` or a newer DeepSpeed (0.14.3 and 0.19.0 fixed races in "
        "overlapped gradient reduction), and `sdpa` attention",
        (),
        page="A loss that was NaN for a few steps of fp16 and recovered is not reported.",
    ),
    FailureCause(
        "LG237",
        "tensor-not-contiguous",
        "a collective got a tensor that is not contiguous in memory",
        "make it so before the engine is created: `for p in model.parameters(): p.data = p.data.contiguous()`",
        (),
    ),
    FailureCause(
        "LG239",
        "rendezvous-tried-again",
        "a rank had not reached the rendezvous yet and tried again",
        "check that the main process is up on that host and started first, that MASTER_ADDR is an address that all "
        "hosts reach, that firewalls open the port, and that the number of nodes is right",
        (),
        level="echo",
        page="Torch prints these warnings while it waits for the first rank. Any other failure in the log comes first.",
    ),
    FailureCause(
        "LG192",
        "communicator-not-set-up",
        "the first collective could not be set up: a rank waited for the connection data of another rank, which "
        "never published it; the ranks that report it only waited",
        "look for the first error of rank 0 and of ranks that say nothing; kill processes that an earlier run left on "
        "any host; check that MASTER_ADDR and the port are reachable from all, and name the interface "
        "(NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)",
        (),
        level="echo",
    ),
    FailureCause(
        "LG194",
        "gpu-shared-by-ranks",
        "two ranks use the same GPU",
        "call `torch.cuda.set_device(local_rank)` before anything is put on the GPU, start no more ranks per host than "
        "it has GPUs, and give each rank its own CUDA_VISIBLE_DEVICES or none",
        (),
    ),
)
