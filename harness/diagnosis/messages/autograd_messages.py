# SPDX-License-Identifier: Apache-2.0
"""Messages of torch's autograd, activation checkpointing, child processes, compilers and unpickling."""

from __future__ import annotations

MESSAGES = r"""
LG213 * Recomputed values for the following tensors have different metadata
    title: gradient checkpointing recomputed tensors of another shape or dtype than the forward pass saved; under ZeRO-3
        these are often partitioned parameters
    change: set `use_reentrant=True` (`gradient_checkpointing_kwargs={"use_reentrant": True}`), make the block
        deterministic (no KV cache, randomness or changed autocast), or use ZeRO stage 2
LG213 A different number of tensors was saved during the original forward and recomputation
    |trying to save more tensors during recomputation
    title: gradient checkpointing saved a different number of tensors in the recomputation than in the forward pass
    change: set `use_reentrant=True` (`gradient_checkpointing_kwargs={"use_reentrant": True}`), `use_cache=False`, and
        make the block run the same operations both times: expert routing, a KV cache or autocast may change them
LG213 Unpack is being triggered for a tensor that was already unpacked once
    |torch\.utils\.checkpoint is incompatible with \.grad\(\)|Checkpointing is not compatible with \.grad\(\)
    title: gradient checkpointing does not support this backward call (`torch.autograd.grad`, `inputs=`, or a second
        call)
    change: set `use_reentrant=False`, call `backward` without `inputs`, and call it only once
LG116 object has no attribute 'ipg_(?:index|buffer|buckets)'
    title: the script did not call the engine's backward, so ZeRO has no buffer for the gradients
    change: call `engine.backward(loss)` (or `accelerator.backward(loss)`) instead of `loss.backward()`
LG080 has already been reduced\..*Gradient computed twice|Gradient computed twice for this partition
    title: ZeRO got a parameter's gradient twice in one backward pass: under reentrant gradient checkpointing a module
        runs twice or shares its parameters
    change: use `use_reentrant=False` (`gradient_checkpointing_kwargs={"use_reentrant": False}`) or turn gradient
        checkpointing off for the module that runs more than once; or use ZeRO stage 1 or 3, or a newer DeepSpeed
LG080 Expected to mark a variable ready only once
    title: DDP got a parameter's gradient twice in one backward pass, most often from reentrant gradient checkpointing
    change: set `use_reentrant=False`, or `find_unused_parameters=False`
LG080 Trying to backward through the graph a second time
    title: the graph of this loss was already freed by an earlier backward pass
    change: compute a new loss for every `backward`, detach tensors that you keep between steps, and pass
        `retain_graph=True` only where two losses share a graph
LG214 one of the variables needed for gradient computation has been modified by an inplace operation
LG214 a (?:view of a )?leaf Variable that requires grad is being used in an in-place operation
    |a view of a leaf Variable that requires grad
    title: code changed a parameter, or a view of one, in place while autograd was recording
    change: change it under `torch.no_grad()`; after `enable_input_require_grads` clone the embeddings before you write
        into them
LG214 Output \d+ of \w+ is a view and is being modified inplace
LG212 Expected to have finished reduction in the prior iteration
LG212 DDP expects same model across all ranks|has inconsistent \d+ params|verify(?:ing)? model across processes
    title: the ranks built different models
    change: build the model from the same configuration and seed on all ranks, with the same adapters and frozen
        parameters
LG212 DistributedDataParallel is not needed when a module doesn't have any parameters that require a gradient
    title: no parameter of the model requires a gradient
    change: set `requires_grad` on the parameters that should be trained, or add adapters
LG083 (?:'weight'|weight) must be 2-D
    title: an embedding was called while ZeRO-3 had its weight partitioned (1-D)
    change: run the model through the engine (`engine(...)`, not a submodule by itself); read weights inside
        `deepspeed.zero.GatheredParameters`; for submodules that run outside the engine's `forward` use ZeRO stage 2
LG198 * mat1 and mat2 shapes cannot be multiplied \(\S+ and 1x\d{5,}\)
    title: a matrix multiplication got a packed 4-bit weight: its layer was replaced, copied or partitioned without the
        quantization state
    change: use ZeRO stage 2 for the quantized model, do not read `weight` of its layers, and install bitsandbytes, peft
        and transformers released at about the same time; or load the model without quantization
LG083 mat2 must be a matrix, got 1-D tensor|mat1 and mat2 shapes cannot be multiplied \(\S+ and (?:0x\d*|\d+x0|0)\)
    title: a matrix multiplication got a weight of size 0, which ZeRO-3 has partitioned
    change: run the module through the engine, gather its parameters (`deepspeed.zero.GatheredParameters`), or use ZeRO
        stage 2
LG083 The expanded size of the tensor \(\d+\) must match the existing size \(0\)|size of tensor [ab] \(0\) must match
    |size of tensor [ab] \(\d+\) must match the size of tensor [ab] \(0\)
    title: code outside a module's `forward` used a parameter that ZeRO-3 has partitioned (size 0)
    change: read it inside `deepspeed.zero.GatheredParameters`, register it
        (`deepspeed.zero.register_external_parameter`), or use ZeRO stage 2
LG083 The size of tensor \w \(\d+\) must match .* \(0\)|torch\.Size\(\[0\]\) (?:doesn't|does not) match
LG083 * shape '\[[\d, -]+\]' is invalid for input of size 0
    title: code reshaped a tensor of size 0, most often a parameter that ZeRO-3 has partitioned
    change: read it inside `deepspeed.zero.GatheredParameters`, or use ZeRO stage 2
LG083 * index \d+ is out of bounds for dimension \d+ with size 0
    title: code indexed an empty tensor: a parameter that ZeRO-3 has partitioned (size 0), or an empty batch
    change: read parameters inside `deepspeed.zero.GatheredParameters`; look for empty examples
LG216 Cannot re-initialize CUDA in forked subprocess
    title: a process forked a child after it had used CUDA
    change: start processes with `spawn` (`multiprocessing.set_start_method("spawn")`, data loader:
        `multiprocessing_context="spawn"`), and do not touch CUDA before the ranks or workers start
LG216 An attempt has been made to start a new process before the current process has finished its bootstrapping
    title: the script starts a child process while it is being imported
    change: put the code that starts training under `if __name__ == "__main__":`
LG216 (?:Can't|cannot) pickle (?P<what>.*)|Can't get attribute '(?P<name>\w+)' on <module '__m(?:p_)?main__'
    |Can't pickle local object|object (?:that )?cannot be pickled
    title: an object that should be saved or sent to another process cannot be pickled
    change: move functions and classes to the top level of a module, do not pass lambdas, locks, open files or the
        engine to workers, or use `num_workers=0`
LG216 context has already been set
    change: call `set_start_method` once, at the top of the script
LG217 * torch\._dynamo\.exc\.(?P<kind>\w+)|torch\._inductor\.exc\.(?P<kind2>\w+)|BackendCompilerFailed|InductorError
    |LoweringException
    title: torch.compile could not compile the model
    change: train without `torch_compile` (or DeepSpeed's `compile` block), or with a newer torch and DeepSpeed;
        TORCHDYNAMO_DISABLE=1 shows whether the model runs without it
LG217 RuntimeError: (?:Triton Error \[CUDA\]: (?P<error>.*))
    title: CUDA refused a triton kernel: {error}
    change: install the triton that this torch requires, give each rank or host its own TRITON_CACHE_DIR, and check the
        driver
LG217 triton\.(?:compiler\.errors|runtime\.(?:errors|autotuner))\.(?P<kind>\w+)
    |OutOfResources: out of resource: shared memory
    title: a triton kernel cannot be compiled or run on this GPU: {kind}
    change: install the triton that this torch requires and a newer release of the package with the kernel
        (liger-kernel, flash-linear-attention); a GPU with little shared memory needs smaller blocks
LG217 * FileNotFoundError.*(?:\.triton/cache|torchinductor_|triton_cache)|(?:\.triton/cache
    |torchinductor_).*(?:No such file|File exists|[Pp]ermission denied|Stale file)
    title: a file of the triton or inductor cache was missing or unusable, most often because several ranks share the
        cache folder
    change: put TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR on a local disk, one folder per rank, and remove the old
        caches
LG217 subprocess\.CalledProcessError: .*'(?:/usr/bin/)?gcc'.*(?:triton|cuda_utils|-lcuda)|cannot find -lcuda
    |Failed to find C compiler\. Please specify via CC
    title: triton could not compile its launcher: a C compiler, Python's headers or libcuda.so is missing
    change: install gcc and python3-dev, and put the folder of libcuda.so on LIBRARY_PATH (`ldconfig -p | grep libcuda`)
LG035 (?:Weights only load failed|WeightsUnpickler error|Unsupported (?:global|class)).*?(?:GLOBAL
    |global:?) (?P<name>deepspeed\.\S+|(?!torch|numpy)\w+\.\S+) was not an allowed global :: fast_checkpoint_engine
    |decoupled_checkpoint_engine
    title: a checkpoint engine of DeepSpeed calls `torch.load` with the default `weights_only=True`, which refuses
        `{name}`
    change: load it with the default engine (remove `checkpoint.writer` from the JSON), or add the class to the
        allow-list (`torch.serialization.add_safe_globals`); for a checkpoint that you trust, set
        TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1
LG035 (?:GLOBAL|[Uu]nsupported (?:global|class):?) (?:GLOBAL )?(?P<name>deepspeed\.[\w.]+)
    title: torch 2.6 and later refuse to unpickle `{name}` from a DeepSpeed checkpoint (`weights_only` is on by
        default), and the caller of `torch.load` did not set it to False
    change: install DeepSpeed 0.16.0 or later, which loads its own files with `weights_only=False`; for a script or a
        `checkpoint.writer` engine that calls `torch.load` itself, allow-list the class
        (`torch.serialization.add_safe_globals`) or set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 for a checkpoint that you
        trust
LG035 (?:GLOBAL|[Uu]nsupported (?:global|class):?) (?:GLOBAL )?(?P<name>numpy\.[\w.]+)
    title: torch 2.6 and later refuse to unpickle `{name}`, as in `rng_state_*.pth` of the Trainer (`weights_only` is on
        by default)
    change: install a newer transformers, which allow-lists numpy's random state, or remove the `rng_state_*.pth` files
        of that checkpoint; for a checkpoint that you trust, set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1
LG035 (?:GLOBAL|[Uu]nsupported (?:global|class):?) (?:GLOBAL )?(?P<name>(?:transformers|accelerate|trl|peft|argparse
    |omegaconf|megatron)[\w.]*)
    title: torch 2.6 and later refuse to unpickle `{name}` (`weights_only` is on by default)
    change: install newer DeepSpeed (0.16.0 and later), transformers and accelerate, or allow-list the class
        (`torch.serialization.add_safe_globals`); for a checkpoint that you trust, set
        TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1
LG035 Weights only load failed|WeightsUnpickler error
    title: torch 2.6 and later refuse to unpickle this file: `weights_only` is on by default, and the file contains more
        than tensors
    change: install newer releases of the packages that load it (DeepSpeed 0.16.0 and later, transformers, accelerate);
        for a file that you trust, set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1, allow-list its classes
        (`torch.serialization.add_safe_globals`), or pass `weights_only=False`
LG048 Function '\w+Backward\d*' returned nan values
LG231 stack expects each tensor to be equal size|each element in list of batch should be of equal size
LG231 Unable to create tensor, you should probably activate truncation and/or padding
LG231 (?:expected sequence of length \d+ at dim \d+ \(got \d+\)|too many dimensions 'str'
    |setting an array element with a sequence)
LG231 default_collate: batch must contain tensors
    title: a batch has values that are not tensors or numbers, such as None
    change: remove such columns, or use a collator that converts them to tensors
LG231 All input tensors must have (?:the )?same (?:length|shape|size)
    |Some items in the output dictionary have a different batch size
LG229 * 'loss': '?0\.0(?P<collapsed>'?), 'grad_norm': '?nan
    title: the loss is 0.0 and the gradient norm NaN: the weights or activations have become NaN
LG229 * (?:^|[\s{,'"(])(?:train_)?(?:loss|Loss)['"]?\s*[=:]\s*(?:tensor\()?['"]?(?:nan|NaN)\b
    title: the loss became NaN
LG083 * returned an invalid gradient at index \d+ - got \[0\] but expected shape
    title: autograd returned a gradient of size 0 for a parameter that ZeRO-3 had partitioned
    change: use parameters only inside the `forward` of their own module, register them
        (`deepspeed.zero.register_external_parameter`), or use ZeRO stage 2
LG081 returned an invalid gradient at index \d+ - expected (?:type|device)
    title: a gradient has a different dtype or device than its tensor
    change: keep all modules of the model in one dtype and on one device, and do not cast inside a checkpointed block
LG237 [Tt]ensors? must be contiguous|input tensor must be contiguous|expected contiguous tensor
LG081 Attempting to unscale FP16 gradients
    title: the trainable weights are fp16, and torch's GradScaler only unscales gradients of fp32 weights
    change: load the model in fp32 or bf16 (`torch_dtype`), keep trainable adapters in fp32, or set `bf16` instead of
        `fp16`
LG147 No inf checks were recorded for this optimizer
    title: the optimizer has no gradients: no trainable parameter contributed to the loss
    change: check which parameters are trainable (`print_trainable_parameters()`), and that the loss depends on them
"""
