// mge/cpu/philox.hpp: Philox4x32-10, the stream of random words that all devices share.
//
// In: a state (seed, counter). Out: words of its stream, and numbers in [0, 1) made of them.
// Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011, section 3.3.
#ifndef MGE_CPU_PHILOX_HPP
#define MGE_CPU_PHILOX_HPP

#include "mge/cpu/vec.hpp"

namespace mge::cpu {

typedef uint32_t vu __attribute__((vector_size(4 * kWidth)));
typedef uint64_t vlu __attribute__((vector_size(4 * kWidth)));

// The upper and the lower half of the products of the lanes with m.
MGE_INLINE void multiply(vu x, uint32_t m, vu* high, vu* low) {
  // Products of the even lanes and of the odd ones, 64 bits each; `pmuludq` reads the lower halves alone.
#if defined(__AVX512F__)
  const __m512i factor = _mm512_set1_epi64(m);
  vlu even = (vlu)_mm512_mul_epu32((__m512i)x, factor), odd = (vlu)_mm512_mul_epu32((__m512i)((vlu)x >> 32), factor);
#elif defined(__AVX2__)
  const __m256i factor = _mm256_set1_epi64x(m);
  vlu even = (vlu)_mm256_mul_epu32((__m256i)x, factor), odd = (vlu)_mm256_mul_epu32((__m256i)((vlu)x >> 32), factor);
#elif defined(__SSE2__)
  const __m128i factor = _mm_set1_epi64x(m);
  vlu even = (vlu)_mm_mul_epu32((__m128i)x, factor), odd = (vlu)_mm_mul_epu32((__m128i)((vlu)x >> 32), factor);
#else
  vlu even = ((vlu)x & 0xffffffff) * m, odd = ((vlu)x >> 32) * m;
#endif
  *high = (vu)((even >> 32) | (odd & 0xffffffff00000000));
  *low = (vu)((even & 0xffffffff) | (odd << 32));
}

// Writes the four words of kWidth blocks, from number `block` on.
MGE_INLINE void philox_blocks(uint64_t seed, uint64_t block, uint32_t* to) {
  vu x0, x1, x2 = {}, x3 = {};
  MGE_UNROLL
  for (int i = 0; i < kWidth; ++i) {
    const uint64_t number = (block + static_cast<uint64_t>(i)) & ((uint64_t(1) << 62) - 1);
    x0[i] = static_cast<uint32_t>(number), x1[i] = static_cast<uint32_t>(number >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  MGE_UNROLL
  for (int round = 0; round < 10; ++round) {
    vu high0, low0, high1, low1;
    multiply(x0, 0xD2511F53, &high0, &low0);
    multiply(x2, 0xCD9E8D57, &high1, &low1);
    x0 = high1 ^ x1 ^ k0, x1 = low1, x2 = high0 ^ x3 ^ k1, x3 = low0;
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
  uint32_t words[4][kWidth];
  std::memcpy(words[0], &x0, sizeof x0), std::memcpy(words[1], &x1, sizeof x1);
  std::memcpy(words[2], &x2, sizeof x2), std::memcpy(words[3], &x3, sizeof x3);
  for (int i = 0; i < kWidth; ++i)
    for (int k = 0; k < 4; ++k) to[4 * i + k] = words[k][i];
}

constexpr int64_t kDraw = 1024;  // words in one turn

// Calls use(begin, end, words) for parts of at most kDraw of the words 0 to count - 1 behind a state's counter, on all
// threads; `words` has those of the part.
template <class F>
void over_words(const uint64_t* state, int64_t count, F&& use) {
  const uint64_t seed = state[0], counter = state[1];
  parallel_for((count + kDraw - 1) / kDraw, 16, [&](int64_t from, int64_t to) {
    alignas(64) uint32_t words[kDraw + 8 * kWidth];
    for (int64_t part = from; part < to; ++part) {
      const int64_t begin = part * kDraw, end = std::min(count, begin + kDraw);
      const uint64_t first = counter + static_cast<uint64_t>(begin);
      const int64_t skipped = static_cast<int64_t>(first % 4);
      for (int64_t i = 0; i < end - begin + skipped; i += 4 * kWidth)
        philox_blocks(seed, first / 4 + static_cast<uint64_t>(i / 4), words + i);
      use(begin, end, words + skipped);
    }
  });
}

// A number in [0, 1) of the upper bits of a word.
template <int bits>
MGE_INLINE float unit(uint32_t word) {
  return static_cast<float>(static_cast<int32_t>(word >> (32 - bits))) * (1.0f / (1 << bits));
}
// One of 53 bits: 27 of the first word, then 26 of the second.
MGE_INLINE double unit(uint32_t first, uint32_t second) {
  return ((first >> 5) * 0x1p26 + (second >> 6)) * 0x1p-53;
}

}  // namespace mge::cpu

#endif  // MGE_CPU_PHILOX_HPP
