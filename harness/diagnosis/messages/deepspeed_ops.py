# SPDX-License-Identifier: Apache-2.0
"""Messages of DeepSpeed's ops: the op builders, the compilers that they call, the optimizers, and the compiled code.

From DeepSpeed 0.14.5 to 0.19.8. Messages of the inference and expert kernels are in `deepspeed_kernels`.
"""

from __future__ import annotations

MESSAGES = r"""
LG157 * Killed signal terminated program (?P<program>[\w+]+)
LG157 * internal compiler error: Killed \(program (?P<program>[\w+]+)\)
LG157 * fatal error: Killed signal terminated program
LG157 * virtual memory exhausted: Cannot allocate memory
LG157 * nvcc error\s+: '(?P<program>[\w+]+)' died due to signal 9
LG050 fatal error: error writing to \S+: No space left on device
    title: the disk was full while an op was compiled
    change: free space in `TMPDIR` and in `TORCH_EXTENSIONS_DIR` (~/.cache/torch_extensions), or point both at a larger
        disk
LG156 unsupported GNU version! gcc versions later than (?P<newest>[\d.]+) are not supported
LG156 unsupported clang version! clang version must be less than (?P<newest>[\d.]+)
LG011 nvcc fatal\s+: Unsupported gpu architecture '(?P<arch>\w+)'
    title: this nvcc does not know the GPU's architecture
    change: install a CUDA toolkit that is new enough for the GPU (compute_89 and 90 from 11.8, compute_100 and 120 from
        12.8) and point CUDA_HOME at it, or set `TORCH_CUDA_ARCH_LIST` to the newest architecture that this nvcc knows,
        with `+PTX`
LG011 nvcc fatal\s+: Value '(?P<arch>\w+)' is not defined for option 'gpu-(?:architecture|code)'
    title: this nvcc does not know the GPU's architecture
    change: install a CUDA toolkit that is new enough for the GPU and point CUDA_HOME at it
LG011 Unknown CUDA arch \((?P<arch>[\w.+]+)\) or GPU not supported
    title: `TORCH_CUDA_ARCH_LIST` names an architecture that this torch does not know
    change: correct or unset `TORCH_CUDA_ARCH_LIST`, or install a torch that is new enough for the GPU
LG011 ptxas fatal\s+: Value '(?P<arch>\w+)' is not defined for option 'gpu-name'
    title: this CUDA toolkit does not know the GPU's architecture
    change: install a CUDA toolkit that is new enough for the GPU and point CUDA_HOME at it
LG156 error: parameter packs not expanded with
    title: nvcc cannot parse the headers of this gcc
    change: install gcc 10 or older and point `CC`, `CXX` and `CUDAHOSTCXX` at it, or use a newer CUDA toolkit
LG024 * nvcc error\s+: '(?P<program>[\w+]+)' died due to signal
    title: nvcc crashed while it compiled an op
    change: build with `MAX_JOBS=1`; if it crashes again, use another release of the CUDA toolkit
LG022 Error: no such instruction:
    title: the assembler is too old for this CPU's instructions
    change: install newer binutils, or a newer gcc that brings its own (`gxx_linux-64` from conda)
LG022 target specific option mismatch
    title: the compiler's target excludes the CPU instructions that the op uses
    change: use a newer gcc, and let it build for this CPU: remove the `-march` of another CPU from CFLAGS and CXXFLAGS
LG025 ninja: error: .* missing and no known rule to make it
    title: the build folder of an op belongs to a different installation
    change: remove the op's folder under TORCH_EXTENSIONS_DIR (~/.cache/torch_extensions), and build again
LG024 Error compiling objects for extension
    change: read the compiler's first `error:` line further up, which names the reason (`pip install` with `-v` shows
        it); without `DS_BUILD_*` variables DeepSpeed compiles ops only when they are used
LG024 Unable to pre-compile (?P<op>\w+)
    title: the installation of DeepSpeed could not pre-compile an op on this system
    change: install without the op's `DS_BUILD_*` variable, or install what the warning above names; install torch first
        (`--no-build-isolation`)
LG023 LINK : fatal error LNK1181: cannot open input file 'aio\.lib'
    title: DeepSpeed's `async_io` does not build on Windows
    change: set `DS_BUILD_AIO=0` (and `DS_BUILD_GDS=0`) for the installation; offload to NVMe does not work on Windows
LG064 No module named 'distutils'
    title: this Python has no `distutils`, which the build of an op needs
    change: `pip install setuptools`
LG158 fatal error: (?P<header>cu\w+\.h|nvrtc\.h|nccl\.h|cooperative_groups\.h|cusparse\w*\.h): No such file or directory
LG158 fatal error: (?P<header>(?:cuda|thrust|cub|crt|nv)/\S+): No such file or directory
LG158 cannot find -l(?P<library>cu(?!file)\w+|nvrtc|nvToolsExt)\b
LG023 fatal error: libaio\.h: No such file or directory
LG176 cannot find -laio\b
LG176 cannot find -lcufile\b
LG023 Error building extension 'async_io'
    title: the build of `async_io`, the op for NVMe offload, failed
    change: install `libaio-dev` (Debian, Ubuntu) or `libaio-devel` with its headers on every host; the compiler's first
        error above it says what is missing
LG022 fatal error: Python\.h: No such file or directory
    title: the headers of this Python are missing
    change: install them on every host (`python3.X-dev` on Debian and Ubuntu, `python3-devel` elsewhere; conda's Python
        has them), for the Python that runs the job
LG022 fatal error: (?P<header>omp\.h|immintrin\.h|stdio\.h|algorithm|iostream|cmath|cstdlib|vector|string):? No such
    title: the C++ compiler lacks its own headers
    change: install the complete compiler (`build-essential`, or `gxx_linux-64` from conda), and use one whose libstdc++
        and libgomp are installed
LG024 fatal error: (?P<header>torch/\S+|ATen/\S+|c10/\S+|pybind11/\S+): No such file or directory
    title: the compiler does not find torch's headers
    change: reinstall torch from its wheel in this environment, and unset CPATH or CPLUS_INCLUDE_PATH if it points at
        another one
LG158 * fatal error: (?P<header>CL/sycl\.hpp|sycl/\S+|hip/\S+|rocblas\S*|hipblas\S*): No such file
    title: the accelerator's own toolkit is missing or incomplete
    change: install the development packages of ROCm (`rocm-dev`, `hipblas-dev`) or oneAPI that fit this torch
LG024 * error: (?:identifier|namespace) "[^"]+" (?:is undefined|has no member)
    title: the source of an op does not compile with this toolkit or torch
    change: use a DeepSpeed release that supports this torch (a newer DeepSpeed for a newer torch), or build without the
        op; the first `error:` line names what is missing
LG024 * error: (?:'\w+' (?:was not declared|is not a member)|no member named|static assertion failed)
    title: the source of an op does not compile with this torch or compiler
    change: use a DeepSpeed release that supports this torch (a newer DeepSpeed for a newer torch); torch 2.1 and newer
        need a compiler with C++17 (gcc 9)
LG022 #error .{0,20}trying to build PyTorch with a too old version of (?P<compiler>GCC|Clang)
    title: the compiler ({compiler}) is too old for this torch
    change: install gcc 9 or newer and point `CC` and `CXX` at it
LG022 #error (?:You need C\+\+(?P<standard>\d+) to compile PyTorch|C\+\+(?P<standard2>\d+) or later compatible compiler)
    title: the compiler is too old for this torch
    change: install gcc 9 or newer and point `CC` and `CXX` at it
LG022 unrecognized command.line option '?-std=c\+\+(?P<standard>\w+)
    title: the compiler is too old for this torch
    change: install gcc 9 or newer and point `CC` and `CXX` at it
LG024 * ^\S{1,200}\.(?:cpp|cc|cxx|cu|cuh|h|hpp)(?:\(\d+\)|:\d+(?::\d+)?): (?:fatal )?error: (?P<error>\S.{0,120})
    title: one of DeepSpeed's ops does not compile: {error}
    change: this is the compiler's first error; use a DeepSpeed that supports this torch, CUDA and compiler, and build
        the op alone before the job; `ds_report` and `harness doctor` list what is missing
LG022 Unable to JIT load the (?P<op>\S+) op due to ninja not being installed
    title: an op must be compiled and ninja is not installed
    change: `pip install ninja` into the environment of the job, on every host
LG176 async_io requires the dev libaio \.so object and headers but these were not found
LG176 async_io: please install the (?P<package>\S+) package with
LG023 Unable to JIT load the async_io op
LG021 Unable to run (?P<nvcc>\S+), unable to compile CUDA op
    title: CUDA_HOME points at a folder without nvcc
    change: point CUDA_HOME at a complete CUDA toolkit (with `bin/nvcc`), not at the runtime alone
LG020 Installed CUDA version (?P<have>[\d.]+) does not match the version torch was compiled with (?P<wanted>[\d.+]+),
    change: install the toolkit of torch's CUDA version and point CUDA_HOME (and PATH) at it, or install a torch for
        this toolkit; `DS_SKIP_CUDA_CHECK=1` skips this check (safe within one major version) and lets pure CPU ops such
        as `cpu_adam` build too
LG025 No module named 'deepspeed\.ops\.\S+_op'
    title: a pre-compiled op of this DeepSpeed installation is missing
    change: install DeepSpeed again in this environment (`pip install --force-reinstall --no-deps --no-cache-dir
        deepspeed`), without `DS_BUILD_*` variables: the op is then compiled when it is used
LG064 No module named 'dskernels'
    title: DeepSpeed's inference kernels are not installed
    change: `pip install deepspeed-kernels`; training does not need them
LG025 -packages/(?!deepspeed|torch/)(?P<package>[a-z]+)\S*\.so: undefined symbol
    title: a compiled package does not match this torch
    change: install that package again for this torch: use a wheel whose name has torch's version, CUDA and C++ ABI, or
        `pip install --force-reinstall --no-build-isolation --no-cache-dir --no-deps NAME` (flash-attn, apex); repeat
        this after every upgrade of torch
LG004 * CUDA error: (?:invalid argument|operation not supported|out of memory) ::! pin_memory|pin_tensor
    title: the driver refused to pin a buffer of this size in host memory
    change: set `pin_memory: false` in `offload_optimizer` and `offload_param` (up to 0.17.6, ZeRO stages 1 and 2 pin
        the fp32 weights anyway: use 0.18.9 or newer), or allow more locked memory (`ulimit -l unlimited`) and pin less:
        a smaller `sub_group_size`, fewer ranks on the host
LG025 PyTorch version mismatch! DeepSpeed ops were compiled
    title: DeepSpeed's ops were built with a different torch than the one that runs
    change: install DeepSpeed again in this environment (`pip install --force-reinstall --no-deps --no-cache-dir
        deepspeed`), or the torch version that the message names
LG025 (?:CUDA|HIP) version mismatch! DeepSpeed ops were compiled
    title: DeepSpeed's ops were built for a different CUDA or ROCm than torch's
    change: install DeepSpeed again in this environment (`pip install --force-reinstall --no-deps --no-cache-dir
        deepspeed`), or a torch for the version that the message names
LG011 Unable to load (?P<op>\S+) op due to no compute capabilities remaining after filtering
    title: this op supports none of the GPU architectures that it would be built for
    change: run on a newer GPU, or add its architecture to `TORCH_CUDA_ARCH_LIST`; else leave out the feature that needs
        the op
LG012 DeepSpeed JIT builder for '(?P<op>[^']+)' (?:found no CUDA devices|cannot probe CUDA device)
    title: an op is built where no GPU is visible, so its architecture is unknown
    change: set `TORCH_CUDA_ARCH_LIST` (such as `8.0;9.0`) before the build; if the process was forked, start processes
        with `spawn`, or build the op before the fork
LG021 Could not detect ROCm version
    title: ROCm is not installed where DeepSpeed looks for it
    change: install ROCm's development packages and set `ROCM_HOME`; `rocminfo` or `.info/version` below it names the
        version
LG021 CANN_HOME does not exist, unable to compile NPU op
    title: Ascend's CANN toolkit is missing, or its environment was not set
    change: install CANN on every host and source its `set_env.sh`, which sets `ASCEND_HOME_PATH`
LG064 Didn't find CCL_ROOT, install oneCCL
    title: oneCCL is not set up
    change: install oneCCL, and source its `setvars.sh` in the shell that starts the job, or leave out the `ccl` backend
LG064 Unable to locate CUTLASS
    title: the Evoformer attention needs NVIDIA's CUTLASS
    change: `pip install nvidia-cutlass`, or clone CUTLASS 3.1 or newer and set `CUTLASS_PATH` to the checkout
LG064 CUTLASS_PATH \S+ does not (?:contain|exist)
    title: the Evoformer attention needs NVIDIA's CUTLASS
    change: `pip install nvidia-cutlass`, or clone CUTLASS 3.1 or newer and set `CUTLASS_PATH` to the checkout
LG064 Please install (?:pytorch and intel_extension_for_pytorch|intel-extension-for-pytorch)
    title: this op for Intel GPUs needs Intel's extension for torch
    change: install the `intel-extension-for-pytorch` release that matches this torch
LG155 This op had not been implemented on (?P<accelerator>\w+) backend
LG155 is not supported on the (?P<accelerator>\w+) accelerator backend
LG155 torch\.ops\.deepspeed\.\S+ is not available\. Ensure torch_supa_ext is built
    change: install a `torch_supa_ext` that was built with this op, and import it before DeepSpeed
LG024 Unable to JIT load the (?P<op>\S+) op due to it not being compatible
    change: the end of the message, or the `[WARNING]` lines above it, say what is missing (a library, a CUDA version,
        an architecture): install that on every host, or leave out the feature that needs the op; `ds_report` lists all
        ops
LG024 compatibility check failed \((?P<error>.*)\), treating the op as not compatible
LG025 \S+\.so: cannot open shared object file: No such file ::! jit_load|_import_module_from_library|cpp_extension
    title: the compiled op is missing: another process removed it, or its build failed on this host
    change: remove the op's folder under TORCH_EXTENSIONS_DIR (~/.cache/torch_extensions) on every host and start again;
        with several hosts give each its own folder, and build ops once before the job
LG025 torch_extensions/\S+\.so: cannot open shared object file
    title: the compiled op is missing: another process removed it, or its build failed on this host
    change: remove the op's folder under TORCH_EXTENSIONS_DIR (~/.cache/torch_extensions) on every host and start again;
        with several hosts give each its own folder, and build ops once before the job
LG025 torch_extensions/\S+\.so: undefined symbol
LG158 * lib(?P<library>cudart|curand|cublas|cublasLt|cusparse|cusolver|nvrtc)\.so\S*: cannot open shared object file
    title: the loader does not find a CUDA library
    change: install the CUDA runtime of torch's version and put its `lib64` into `LD_LIBRARY_PATH` on every host; an op
        that was built for another CUDA must be rebuilt (remove TORCH_EXTENSIONS_DIR)
LG159 has no attribute '(?P<name>ds_opt_(?:adam|adagrad|lion))'
LG159 DeepSpeedCPU\w+ requires the (?P<op>\w+) op, which failed to build/load
LG159 DS_PIN_MEMORY_BACKEND=native requires the pin_memory op, which failed to build/load
    title: the op `pin_memory` was not built or loaded
    change: read the compiler's error further up, or unset `DS_PIN_MEMORY_BACKEND`, so that torch pins the memory
LG024 DeepSpeed pin_memory op must be loaded before async_io
    title: `async_io` was loaded without the op `pin_memory`
    change: load it with `AsyncIOBuilder().load()` of 0.19, not by importing the library; remove the folders of both ops
        under TORCH_EXTENSIONS_DIR after an upgrade of DeepSpeed
LG160 CPU\w+ param is on (?P<device>\S+) and must be 'cpu'
    title: a CPU optimizer was given parameters that are on the GPU
    change: add `"offload_optimizer": {"device": "cpu"}` to `zero_optimization`, or use the optimizer of the device
        (`FusedAdam`, `torch.optim.AdamW`) instead of `DeepSpeedCPUAdam`
LG160 (?:Adam|Adagrad|Lion) optimizer with param type \w+ and state type \w+ is not supported on current hardware
    title: this CPU does not support the optimizer step in this dtype
    change: use fp32 optimizer states (`fp32_optimizer_states: true`) and bf16 or fp32 parameters; bf16 and fp16 on the
        CPU need AVX-512 or AVX2 in the compiled op, so remove its folder under TORCH_EXTENSIONS_DIR if it was built on
        another machine
LG160 AVX512 required for BFloat16
    title: the CPU optimizer was built without AVX-512, and bf16 needs it
    change: train with fp32 optimizer states, or on a CPU with AVX-512; remove the op's folder under
        TORCH_EXTENSIONS_DIR if it was built on another machine
OP016 Fused(?:Adam|Lamb) does not support the AMSGrad variant
OP016 DeepSpeedCPUAdam does not support the AMSGrad variant
OP017 Fused(?:Adam|Lion) has been updated\.
LG160 Fused(?:Adam|Lamb|Lion) does not support sparse gradients
    title: a fused optimizer got sparse gradients
    change: create the embedding with `sparse=False`, or use `torch.optim.SparseAdam` without ZeRO
LG160 Fused(?:Adam|Lion) only support fp16, bf16 and fp32
    title: a fused optimizer got parameters in another dtype
    change: train the parameters in fp16, bf16 or fp32 (no float64, no 8-bit weights); freeze quantized weights
LG160 Cannot rollback (?:optimizer state for )?sub_group_id
    title: `rollback` found no optimizer step of this sub-group to undo
    change: call `rollback` only after a step of the same sub-group; with SuperOffload, report it to DeepSpeed and leave
        out `super_offload` until it is fixed
LG160 Adam rollback (?:currently only supports float32|for optimizer)
    title: the CPU optimizer could not roll back a step
    change: use fp32 optimizer states with SuperOffload, or leave out `super_offload`
ZR030 ZenFlow (?:features are|adamw function is) not available with PyTorch < 2\.0
    title: ZenFlow needs torch 2.0
    change: install torch 2.0 or newer, or remove `zenflow` from the configuration
LG160 * If capturable=True, params and state_steps must be on supported devices
    title: AdamW (torch's or ZenFlow's) has `capturable=True` and parameters on a device that does not support it
    change: leave out `capturable` in `optimizer.params`
LG160 * lr as a Tensor is not supported for capturable=False and foreach=True
    change: give `lr` as a number in `optimizer.params`
LG160 * _foreach ops don't support autograd
    change: leave out `differentiable` in `optimizer.params`
LG160 * Adam with fused=True does not support differentiable=True
    change: leave out `differentiable` in `optimizer.params`
LG160 * API has changed, `state_steps` argument must contain a list of singleton tensors
    title: an AdamW state (torch's or ZenFlow's) stores its step count as a number instead of a tensor
    change: resume from a checkpoint of the same optimizer and a newer torch, or convert `state["step"]` to a tensor
LG160 * torch\.jit\.script not supported with (?:foreach|fused) optimizers
    change: do not script the optimizer (`torch.jit.script`), or leave out `foreach` and `fused`
LG160 ZenFlowAdam: (?:param must be contiguous|too many param groups|.*)
    title: ZenFlow's CPU optimizer refused a parameter
    change: remove `zenflow` from the configuration, and report the message to DeepSpeed
LG160 param\.data must be in shared memory
    title: ZenFlow's CPU optimizer runs in a separate process, and a parameter is not in shared memory
    change: set `zenflow.overlap_step: false`, or remove `zenflow`
SP006 * (?:create_adam|adam_update|create_lion|lion_update|create_adagrad|adagrad_update)\(\): incompatible function
    title: the compiled CPU optimizer got arguments that it does not accept
    change: write `lr`, `betas`, `eps` and `weight_decay` as numbers; after an upgrade of DeepSpeed remove the op's
        folder under TORCH_EXTENSIONS_DIR (~/.cache/torch_extensions), which was built for the older release
LG055 deepspeed_aio: +(?:open for \w+|fstat for \w+|\S+) failed on (?P<file>\S+) error = 28\b
    title: the disk of the offload folder is full
    change: free space on `nvme_path`, or choose a larger disk; `harness plan` counts the bytes that go to NVMe
LG055 deepspeed_aio: +(?:open for \w+|\S+) failed on (?P<file>\S+) error = 13\b
    title: a rank has no permission to open its file in the offload folder
    change: give the job's user write permission on `nvme_path` on every host
LG055 deepspeed_aio: +(?:open for \w+|\S+) failed on (?P<file>\S+) error = 2\b
    title: a swap file is not in the offload folder
    change: point `nvme_path` at a folder that exists on a local disk of every host and that no other job empties
LG055 deepspeed_aio: +(?:open for \w+|\S+) failed on (?P<file>\S+) error = 22\b
    title: the file system of the offload folder does not support direct I/O
    change: put `nvme_path` on a local disk with ext4 or xfs: O_DIRECT does not work on tmpfs, on container overlays and
        on some network file systems
LG053 deepspeed_aio: +(?:open for \w+|\S+) failed on (?P<file>\S+) error = 24\b
    title: too many swap files are open
    change: raise `ulimit -n` on every host
LG055 deepspeed_aio: +(?:open for \w+|fstat for \w+|\S+) failed on (?P<file>\S+) error = (?P<errno>\d+)
LG055 file_offset \+ buffer nbytes > file bytes \d+ > \d+
    title: a swap file is shorter than the tensor that is read from it
    change: empty `nvme_path` before the run, give each job its own folder there, and check the free space on the disk:
        the write before this read was cut short
OF022 deepspeed_aio failure: parallel (?:Read|Write) num_bytes = \d+ not divisible by (?:intra op|thread count)
    title: the bytes of a tensor do not divide evenly over the I/O threads
    change: set `aio.intra_op_parallelism` (up to 0.15.4 `aio.thread_count`) to 1, or to a divisor of the number of
        bytes
LG004 shm_initialize: (?:malloc|calloc) failed to allocate
    title: a rank could not allocate memory for the shared-memory collectives on CPUs
LG005 shared_(?:open|create) \S+ failed
    title: the shared-memory collectives on CPUs could not create their segment in /dev/shm
    change: make /dev/shm larger and writable (`docker run --shm-size=16g`), and remove the segments that dead runs left
        there
LG088 Error: (?:Op must be of type ReduceOp|For bool tensors, op must be of type ReduceOp|Unrecognized ReduceOp type)
    title: the collectives on CPUs do not support this reduction
    change: use a sum, or the `gloo` backend
LG166 Buffer size exceeds the reduce bucket size
    title: a gradient is larger than the reduce bucket of DeepCompile
    change: raise `zero_optimization.reduce_bucket_size` to the largest parameter, or remove `compile.deepcompile`
LG162 (?:Dropout mask|Normalize (?:variance|mean)|Workspace) is null
    title: a kernel of DeepSpeed's transformer layer got no buffer
    change: use the model's own layers instead of `DeepSpeedTransformerLayer`, whose kernels are for BERT and old GPUs
LG156 The current installed version of \S+ \([\d.]+\) is (?:greater|less) than the
LG177 DSOptimizedLinear requires a LoRA config
    change: pass `lora_config=LoRAConfig(...)`, or use `torch.nn.Linear`
LG177 bias=True is not supported by LoRAOptimizedLinear
    change: pass `bias=False`
LG177 init_lora was never called, please initialize before proceeding
    change: call `init_lora()` on each layer after the base weights are loaded (`deepspeed.linear.Init` does it)
LG177 Expecting (?:QuantizationConfig|LoRAConfig) but received
    change: pass an instance of the class that the message names
LG177 base weight sharding is only supported across world size
    change: set `LoRAConfig.base_weight_sharding` to the number of ranks, or to 1
LG177 only bfloat16 is supported when using quantization
    change: train in bfloat16, or pass no `quantization_config`
LG177 currently only supports bfloat16 dtype
    change: train in bfloat16, or pass no `quantization_config`
LG177 expected base weight on cpu but found
    change: create the base weights on the CPU (`LoRAConfig.offload`), and let DeepSpeed move them
LG177 attempting to use optimized linear base weight sharding but torch-distributed is not initialized
    change: call `deepspeed.init_distributed()` before the model is created
LG177 requires_grad=True is not supported with QuantizedParameter
    change: freeze the quantized base weights (`requires_grad=False`); only the LoRA weights are trained
"""
