# SPDX-License-Identifier: Apache-2.0
"""Messages of DeepSpeed's optional kernels: Triton, Evoformer, quantization, inference, sparse attention.

They come from releases 0.14.5 to 0.19.8.
"""

from __future__ import annotations

MESSAGES = r"""
LG161 fused (?:RMSNorm|RoPE) needs Triton, which is not installed
    title: a fused kernel needs Triton, which is not installed
    change: install the release of `triton` that this torch requires, or switch the fused kernel off
LG161 fused (?P<kernel>RMSNorm|RoPE) is not yet supported on ROCm
    change: switch the fused kernel off on AMD GPUs
LG161 fused (?P<kernel>RMSNorm|RoPE) runs CUDA kernels but
    change: move the model and its inputs to the GPU before the forward pass, or switch the fused kernel off
LG161 fused (?P<kernel>RMSNorm|RoPE) supports (?:bfloat16 and float16|normalized dimensions up to|unsqueeze_dim)
    change: train in bf16 or fp16 and stay within the size limit in the message, or switch the fused kernel off
LG161 fused (?P<kernel>RMSNorm|RoPE) (?:needs|expected|treats)
LG161 (?P<key>combine_impl|row_weighting_impl)="fused\w*" (?:needs|is|runs|requires(?! score_apply)|supports|folds)
    title: a fused kernel of AutoEP does not support these tensors or this device
    change: set `expert_parallel.row_weighting_impl` to `eager`, or leave `expert_parallel.combine_impl` unset; the
        fused kernels need Triton, an NVIDIA GPU and bf16 or fp16
LG161 group_gemm_triton requires Triton, which is not available
    change: install the release of `triton` that this torch requires, or set `expert_parallel.use_grouped_mm: false`
LG161 Only 2D x 3D grouped GEMM is supported
LG161 group_gemm_triton requires a contiguous mat_b
    change: pass the weight in its own layout with `trans_b=True` instead of a transposed view
LG161 mat_a and mat_b must share dtype
    change: cast the tokens to the dtype of the experts' weights, for example with autocast off around the layer
LG161 * Unsupported dtype \S+; supported:
    change: use one of the dtypes that the message lists
LG161 offs must be 1D of length E=
LG161 Contraction dim mismatch: mat_a
LG161 swiglu(?:_packed)? expects
LG161 The packed SwiGLU kernel has no second derivative
    change: call `backward` without `create_graph=True`, or set `expert_parallel.gate_up_impl` to `separate`
LG161 seq_len must be greater than 16 :: evoformer
    title: the Evoformer attention needs sequences longer than 16
    change: pad the sequence dimension, or use torch's own attention for short inputs
LG161 (?:Q|K|V|O|dO|bias[12]) must be on cuda
    title: the Evoformer attention got a tensor that is not on the GPU
    change: move all its inputs, including the biases, to the GPU
LG161 Hidden size is too large\. Need to change kMax
    title: the Evoformer attention supports head sizes up to 64
    change: use more heads of a smaller size, or torch's own attention
LG161 bias[12] shape is incorrect
    title: the shape of an Evoformer attention bias does not fit the queries
    change: for queries of shape [batch, n_seq, seq_len, heads, dim], give bias 1 the shape [batch, n_seq, 1, 1,
        seq_len] and bias 2 the shape [batch, 1, heads, seq_len, seq_len]
LG161 \[De-quantization Error\]: you need to call quantize before dequantizing
    title: `FP_Quantize.dequantize` was called before `quantize`
    change: quantize with the same object first: it stores the shape and the dtype
LG161 \[De-quantization Error\]: quantized data should have the same size
    title: the output tensor for `dequantize` has a different size than the tensor that was quantized
    change: pass an output tensor of the original size, or no output tensor
LG161 Selective-Dequantization works on 3d tensor only
    change: reshape the tensor to three dimensions before `selective_dequantize`
LG161 Missing \S+-(?:de)?quantization, please add the template arguments
    title: DeepSpeed has no kernel for this number of bits
    change: quantize to 4, 6, 8 or 12 bits (`q_bits`), with a number of mantissa bits that DeepSpeed supports for it
LG161 Please specify the right quantization range for the selected precision
    title: DeepSpeed has no kernel for this number of bits
    change: quantize to 4, 6, 8 or 12 bits (`q_bits`)
LG161 * only support bf16 for now
    title: the floating-point quantizer supports bf16 only
    change: cast the weights to bf16 before quantization
LG161 meta tensor is only supported with q_bit=8
    change: quantize to 8 bits, or load the weights before quantization
LG161 Incompatible dimensions \(input:
    title: the inner dimensions of the fp8 matmul's input and weight differ
LG155 Selective dequantize isn't implemented for HPU
    change: use `dequantize` on HPUs
LG155 Quantiz(?:e|ation) on HPU (?:only supports|is only to)
    change: quantize to FP8 with 3 mantissa bits on HPUs, or leave quantization out
LG155 Unsupported ActivationFuncType
    title: DeepSpeed's inference does not support this activation on NPUs
    change: set `replace_with_kernel_inject: false` on NPUs
LG155 experimental fp_quantizer path is not needed for hpZ
    title: the floating-point quantizer is not available on NPUs
    change: leave out ZeRO++'s quantization on NPUs (`zero_quantized_weights`, `zero_quantized_gradients`)
LG155 only (?:Symmetric quantization|int8) is implemented
    title: the NPU quantizer does not support this kind of quantization
    change: leave out ZeRO++'s quantization on NPUs (`zero_quantized_weights`, `zero_quantized_gradients`)
LG155 * ^AssertionError$ ::! npu/quantizer
    title: the NPU quantizer does not support this kind of quantization
    change: leave out ZeRO++'s quantization on NPUs (`zero_quantized_weights`, `zero_quantized_gradients`)
LG155 (?:swizzle_quant|quantized_reduction) supports int4 and int8
    change: leave out ZeRO++'s quantization on NPUs
ZR020 (?:numel|unpacked numel) must be divisible by groups
    title: a shard cannot be split evenly into the quantizer's groups
    change: leave out `zero_quantized_weights` and `zero_quantized_gradients` on NPUs, or choose a number of ranks that
        divides the parameters evenly
ZR020 groups must cover all partitions
    title: the groups of the NPU quantizer cannot be split evenly over the ranks
    change: leave out `zero_quantized_gradients` on NPUs, or use the same number of ranks on every host, a power of two
ZR020 (?:partitions|data|scales) must split evenly
    title: the groups of the NPU quantizer cannot be split evenly over the ranks
    change: leave out `zero_quantized_gradients` on NPUs, or use the same number of ranks on every host, a power of two
ZR020 group size must (?:fit the packed layout|be whole bytes)
    title: the group size of the NPU quantizer does not fill complete bytes
    change: leave out `zero_quantized_weights` and `zero_quantized_gradients` on NPUs
ZR020 sum must split into out_groups
    title: the groups of the NPU quantizer cannot be split evenly over the ranks
    change: leave out `zero_quantized_gradients` on NPUs
ZR020 the int4 wire format is a flat packed byte tensor
    title: the NPU quantizer got a tensor in an unexpected layout
    change: leave out `zero_quantized_gradients` on NPUs, and report it to DeepSpeed
LG064 Please install triton 2\.0\+ or .pip install deepspeed\[sd\]
    title: DeepSpeed's inference for diffusion models needs Triton
    change: `pip install deepspeed[sd]`
LG162 You are running with DeepSpeed Inference mode\.\s+Please switch to Training mode
    title: `backward` went through a layer that DeepSpeed replaced for inference
    change: train a model that `deepspeed.init_inference` has not touched; with the hybrid engine, call `model.train()`
        before the training step
LG162 DeepSpeed MoE Transformer Inference not yet tested for bfloat
    change: use fp16 or fp32 for MoE inference
LG162 \d+ is not divisible by \d+ ::! inference
    title: the model's width or number of heads is not divisible by the tensor degree of inference
    change: choose a `tensor_parallel.tp_size` that divides the number of heads
LG162 (?:bias residual|einsum sec sm ecm|pad_transform) fallback is(?:n't| not) implemented
    title: this inference op has no torch fallback for this accelerator
    change: set `replace_with_kernel_inject: false`
LG162 rms_mlp_gemm_fallback not implemented for activation type
    change: set `replace_with_kernel_inject: false`: this activation has no fallback
LG162 * (?:Dim|Trans count) \d+ is not supported
    change: set `replace_with_kernel_inject: false`: this shape of attention has no fallback
LG162 retake workspace called before allocate workspace
    title: `retake_inference_cache` ran before the inference workspace was allocated
    change: run one `generate` or forward pass before `retake_inference_cache`, or set `release_inference_cache: false`
LG162 Could not allocate workspace
    title: the device has too little memory for the inference workspace
    change: lower `max_out_tokens` and the batch size, or set `replace_with_kernel_inject: false`
LG162 Only (?:INT4 and INT8|asymmetric) quantization is supported
    title: inference does not support these weight quantization settings
    change: set `num_bits` to 4 or 8 and `symmetric: false` in `weight_quantization`
LG162 * Unsupported quantization bits
    change: set `num_bits` to 4 or 8 in `weight_quantization`
LG162 Please provide quantization config in ds_config
    change: add `weight_quantization` to the configuration
LG162 Model weight is expected in half
    change: load the model in fp16 before its weights are quantized
LG162 matched multiple quantization key word
    change: choose the keys of `weight_quantization.post_init_quant` so that each module matches only one
LG162 Parameter has already been quantized
    change: quantize a model only once
LG162 Shared prefill requires rebuilding the transformer inference extension
    change: remove the folder `transformer_inference` under TORCH_EXTENSIONS_DIR, so that the op is rebuilt
LG162 KV cache repeat (?:does not match|requires)
    title: the repeated prompts do not match the KV cache of inference
    change: run one full forward pass of the prompt, then call `generate` with the number of prompts and the
        `num_return_sequences` that the workspace was allocated for
LG162 token_idx is expected to be
    title: the inference fallback got a position of the wrong type
    change: set `replace_with_kernel_inject: false`
LG162 layer_past not supported in alibi yet
    change: set `use_triton: false` for models with ALiBi positions
LG162 TritonSelfAttention does not support alibi
    change: set `use_triton: false` for models with ALiBi positions
LG162 triton supports fp16 data_type_fp
    change: use fp16 with `use_triton: true`, or set `use_triton: false`
LG162 mp_size has to be 1 with triton attention yet
    change: set `use_triton: false`, or `tensor_parallel.tp_size: 1`
LG162 * inner-product dimension K should be larger than 1$
    title: a Triton kernel of inference got a matrix that it does not support
    change: set `use_triton: false`
LG162 * AssertionError: (?:matrix \w+(?: \w+)? must be contiguous|incompatible dimensions)$
    title: a Triton kernel of inference got a matrix that it does not support
    change: set `use_triton: false`
LG162 * Only dim=-1 is supported
    change: set `use_triton: false`
LG162 * ^NotImplementedError ::! transformer/inference/op_binding
    title: this inference op has no torch fallback for this accelerator or dtype
    change: set `replace_with_kernel_inject: false`
LG178 sparse attention only supports training in fp16 currently
    change: train with `fp16`, or use torch's own attention
LG178 * only self-attention is supported for now
    change: use sparse attention for self-attention only
LG178 Sequence Length, \S+, needs to be dividable by Block size
    change: pad the sequences to a multiple of `sparse_attention.block`
LG178 Number of (?:(?:random|global|sliding window) blocks|blocks in a local window|different layouts|layout versions)
    change: correct the number of blocks in `sparse_attention` so that it fits into a row of blocks (sequence length /
        `block`)
LG178 only "(?:uni/)?bi-directional" attentions (?:are supported|can support)
    change: set `sparse_attention.attention` to `unidirectional` or `bidirectional`; horizontal global attention needs
        `bidirectional`
LG178 Global block (?:start|end) ind
    change: write as many end indices as start indices, each end above its start
LG178 Please extend "(?:extend_position_embedding|update_model_self_attention_to_sparse_self_attention)" function
    change: use sparse attention with BERT or RoBERTa, or replace the model's attention with `SparseSelfAttention`
        yourself
LG178 (?:relative position embedding|Attention mask|Key padding mask) must be
    change: cast the mask to the dtype of the attention
LG178 The hidden size \(\S+\) is not a multiple of the number of attention heads
LG178 Layout should be a 2 or 3 dimensional tensor
LG178 * Size of tensor A along
LG178 * Reduction size for SDD
LG178 * Supported modes are: sdd
LG178 * Only GPU devices are supported
LG178 * Inputs must be (?:on the same device|the same dtype); got
LG178 Expected tensor (?:\S+ to have size|with trailing dimensions of shape)
LG178 Tensors with more than 4 dimensions are not currently supported
"""
