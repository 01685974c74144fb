// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's CPU Adam, whole, and one more function: a step that reads the gradient as it is (bf16, fp16 or fp32),
// scales it, updates master and states, and writes the 16-bit weights, in one walk through memory.
//
// Each thread walks its share in blocks of four vectors. Everything that a block calls is inlined and the optimizer is a
// local copy, so that its constants stay in registers, the block's gradient never leaves the core, and casts run while
// the divider, which bounds Adam, is busy. Per element the arithmetic and its order are those of three passes: a cast to
// fp32 (exact), one multiplication (one rounding), DeepSpeed's own Step_8, one cast to 16 bits. Blocks are multiples of
// a vector, so that the same elements are left to the scalar end. A gradient in fp32 is scaled in place, as DeepSpeed
// does it: it steps with the last one again where a parameter got none.
//
// Compiled without OpenMP: a parallel region in each call of Step_8 costs more than its tile, even one with one thread.
// The threads are DeepSpeed's own pool.

#include "cpu_adam_impl.cpp"

#include <ATen/Parallel.h>

namespace {

#if defined(SIMD_WIDTH)
constexpr size_t kBlock = 4 * SIMD_WIDTH;  // elements: gradient, master and states fill the registers
#else
constexpr size_t kBlock = 64;
#endif
constexpr size_t kShare = 1024;  // elements: shares begin at multiples of it

template <typename T>
inline void cast_and_scale(const T* from, float scale, float* to, size_t count)
{
    for (size_t i = 0; i < count; ++i) { to[i] = static_cast<float>(from[i]) * scale; }
}

template <>
inline void cast_and_scale(const c10::BFloat16* from, float scale, float* to, size_t count)
{
    const uint16_t* bits = reinterpret_cast<const uint16_t*>(from);
    for (size_t i = 0; i < count; ++i) {
        const uint32_t wide = static_cast<uint32_t>(bits[i]) << 16;
        float value;
        std::memcpy(&value, &wide, sizeof(value));
        to[i] = value * scale;
    }
}

template <typename T>
inline void cast_out(const float* from, T* to, size_t count)
{
    for (size_t i = 0; i < count; ++i) { to[i] = static_cast<T>(from[i]); }
}

#if defined(__F16C__)  // c10 casts fp16 bit by bit
template <>
inline void cast_and_scale(const c10::Half* from, float scale, float* to, size_t count)
{
    const size_t vectors = count & ~size_t{7};
    for (size_t i = 0; i < vectors; i += 8) {
        const __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
        _mm256_storeu_ps(to + i, _mm256_mul_ps(wide, _mm256_set1_ps(scale)));
    }
    for (size_t i = vectors; i < count; ++i) { to[i] = static_cast<float>(from[i]) * scale; }
}

template <>
inline void cast_out(const float* from, c10::Half* to, size_t count)
{
    const size_t vectors = count & ~size_t{7};
    for (size_t i = 0; i < vectors; i += 8) {
        const __m128i narrow = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), narrow);
    }
    for (size_t i = vectors; i < count; ++i) { to[i] = static_cast<c10::Half>(from[i]); }
}
#endif

template <>
inline void cast_out(const float* from, c10::BFloat16* to, size_t count)
{
    const uint32_t* words = reinterpret_cast<const uint32_t*>(from);
    uint16_t* bits = reinterpret_cast<uint16_t*>(to);
    for (size_t i = 0; i < count; ++i) {
        const uint32_t word = words[i];
        const uint32_t rounded = (word + 0x7fffU + ((word >> 16) & 1U)) >> 16;
        bits[i] = static_cast<uint16_t>((word & 0x7fffffffU) > 0x7f800000U ? 0x7fc0U : rounded);
    }
}

struct Walk {
    std::shared_ptr<Adam_Optimizer> adam;
    float* master;
    float* exp_avg;
    float* exp_avg_sq;
    float scale;
    size_t count;
    size_t threads = 0;
    float* target[3] = {};  // where the new master, exp_avg and exp_avg_sq are written; null: over the old ones
};

// Around the caches where it can be: a store that is not read first takes half of the memory traffic of one that is.
inline void stream_out(const void* from, void* to, size_t bytes)
{
    size_t done = 0;
#if defined(__SSE2__)
    const size_t vectors = reinterpret_cast<uintptr_t>(to) % 16 == 0 ? bytes / 16 : 0;
    for (size_t i = 0; i < vectors; ++i) {
        _mm_stream_si128(static_cast<__m128i*>(to) + i, _mm_loadu_si128(static_cast<const __m128i*>(from) + i));
    }
    done = vectors * 16;
#endif
    if (done < bytes) { std::memcpy(static_cast<char*>(to) + done, static_cast<const char*>(from) + done, bytes - done); }
}

// So many threads; 0: as torch computes with. Never destroyed: a forked child that exits has none of them to join.
PinnedThreadPool& pool(size_t wanted)
{
    static PinnedThreadPool* pools[2] = {};  // of steps in order, and of those beside a backward pass
    PinnedThreadPool*& threads = pools[wanted != 0];
    if (wanted == 0) { wanted = static_cast<size_t>(std::max(1, at::get_num_threads())); }
    if (threads == nullptr || threads->size() != wanted) {
        delete threads;
        threads = new PinnedThreadPool(std::vector<int>(wanted, -1));
    }
    return *threads;
}

template <typename Grad, typename Weight>
inline void step_block(Adam_Optimizer& adam, const Walk& w, Grad* grads, Weight* weights, size_t at, size_t count)
{
    float *master = w.master + at, *first = w.exp_avg + at, *second = w.exp_avg_sq + at;
    alignas(64) float beside[3][kBlock];
    if (w.target[0] != nullptr) {
        std::memcpy(beside[0], master, count * sizeof(float));
        std::memcpy(beside[1], first, count * sizeof(float));
        std::memcpy(beside[2], second, count * sizeof(float));
        master = beside[0], first = beside[1], second = beside[2];
    }
    alignas(64) float scaled[kBlock];
    float* gradient = scaled;
    if constexpr (std::is_same_v<Grad, float>) { gradient = grads + at; }
    if (!std::is_same_v<Grad, float> || w.scale != 1.0f) { cast_and_scale(grads + at, w.scale, gradient, count); }
    adam.Step_8(master, gradient, first, second, count, false);
    if constexpr (!std::is_same_v<Weight, float>) {
        alignas(64) Weight narrow[kBlock];
        cast_out(master, narrow, count);
        stream_out(narrow, weights + at, count * sizeof(Weight));
    }
    for (size_t i = 0; i < 3 && w.target[0] != nullptr; ++i) {
        stream_out(beside[i], w.target[i] + at, count * sizeof(float));
    }
}

template <typename Grad, typename Weight>
__attribute__((flatten)) void step_share(Walk w, Grad* grads, Weight* weights, size_t begin, size_t end)
{
    Adam_Optimizer adam = *w.adam;
    for (; begin + kBlock <= end; begin += kBlock) { step_block(adam, w, grads, weights, begin, kBlock); }
    if (begin < end) { step_block(adam, w, grads, weights, begin, end - begin); }
#if defined(__SSE2__)
    _mm_sfence();  // streamed stores are not ordered by what tells the caller that this thread is done
#endif
}

template <typename Grad, typename Weight>
void walk(const Walk& w, Grad* grads, Weight* weights)
{
    pool(w.threads).parallel_for(w.count, kShare, [&](size_t begin, size_t end) {
        step_share(w, grads, weights, begin, end);
    });
}

template <typename Grad>
void walk_grads(const Walk& w, const torch::Tensor& grads, const c10::optional<torch::Tensor>& weights)
{
    Grad* from = static_cast<Grad*>(grads.data_ptr());
    if (!weights.has_value()) { return walk<Grad, float>(w, from, nullptr); }
    void* to = weights->data_ptr();
    switch (weights->scalar_type()) {
        case torch::kBFloat16: return walk(w, from, static_cast<c10::BFloat16*>(to));
        case torch::kHalf: return walk(w, from, static_cast<c10::Half*>(to));
        default: TORCH_CHECK(false, "weights are bf16 or fp16, not ", weights->scalar_type());
    }
}

void check(const torch::Tensor& tensor, const char* name, int64_t count)
{
    TORCH_CHECK(tensor.device().is_cpu() && tensor.is_contiguous() && tensor.numel() == count,
                name, " must be ", count, " contiguous elements in host memory");
}

void step_beside(int optimizer_id, size_t number, float lr, float beta1, float beta2, float epsilon, float weight_decay,
          bool bias_correction, torch::Tensor& master, torch::Tensor& grads, torch::Tensor& exp_avg,
          torch::Tensor& exp_avg_sq, float scale, c10::optional<torch::Tensor> weights,
          std::vector<torch::Tensor> targets, size_t threads)
{
    const int64_t count = master.numel();
    check(master, "the master", count);
    check(grads, "the gradient", count);
    check(exp_avg, "exp_avg", count);
    check(exp_avg_sq, "exp_avg_sq", count);
    if (weights.has_value()) { check(*weights, "the weights", count); }
    auto found = s_optimizers.find(optimizer_id);
    TORCH_CHECK(found != s_optimizers.end(), "there is no optimizer ", optimizer_id);
    auto adam = std::static_pointer_cast<Adam_Optimizer>(found->second);
    adam->IncrementStep(number, beta1, beta2);
    adam->update_state(lr, epsilon, weight_decay, bias_correction);
    Walk w{adam, master.data_ptr<float>(), exp_avg.data_ptr<float>(), exp_avg_sq.data_ptr<float>(), scale,
           static_cast<size_t>(count), threads};
    if (!targets.empty()) {
        TORCH_CHECK(targets.size() == 3, "three tensors are written, not ", targets.size());
        TORCH_CHECK(scale == 1.0f || grads.scalar_type() != torch::kFloat, "no gradient is scaled in place beside a pass");
        for (size_t i = 0; i < 3; ++i) {
            check(targets[i], "what is written", count);
            w.target[i] = targets[i].data_ptr<float>();
        }
    }
    switch (grads.scalar_type()) {
        case torch::kBFloat16: return walk_grads<c10::BFloat16>(w, grads, weights);
        case torch::kHalf: return walk_grads<c10::Half>(w, grads, weights);
        case torch::kFloat: return walk_grads<float>(w, grads, weights);
        default: TORCH_CHECK(false, "gradients are bf16, fp16 or fp32, not ", grads.scalar_type());
    }
}

void step(int optimizer_id, size_t number, float lr, float beta1, float beta2, float epsilon, float weight_decay,
          bool bias_correction, torch::Tensor& master, torch::Tensor& grads, torch::Tensor& exp_avg,
          torch::Tensor& exp_avg_sq, float scale, c10::optional<torch::Tensor> weights)
{
    step_beside(optimizer_id, number, lr, beta1, beta2, epsilon, weight_decay, bias_correction, master, grads, exp_avg,
                  exp_avg_sq, scale, weights, {}, 0);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    m.def("adam_update", &ds_adam_step);
    m.def("adam_rollback", &ds_adam_rollback);
    m.def("create_adam", &create_adam_optimizer);
    m.def("destroy_adam", &destroy_adam_optimizer);
    m.def("adam_update_in_one_pass", &step, pybind11::call_guard<pybind11::gil_scoped_release>());
    m.def("adam_update_beside", &step_beside, pybind11::call_guard<pybind11::gil_scoped_release>());
}
