/* The inverse transform to 5 by 5 samples, of which libjpeg-turbo has no vector code: a third of the time of a frame at
 * five eighths of its size.
 *
 * Five samples of a row are x[m] = sum over k < 5 of c(k)/2 X[k] cos((2m + 1) k pi / 10), with c(0) = 1/sqrt 2 and c(k) = 1: the
 * cosine transform of five points, on coefficients of one of eight (T.81, A.3.3, in place of its eight). Sample 4 - m has the
 * same even terms as sample m, and the odd ones with the other sign. Both directions are the same function on the columns of a
 * matrix, with the matrix turned between them.
 *
 * Always true: whatever the coefficients, only the 5 by 5 samples are written.
 */
#include "idct.h"

#include <string.h>

/* libjpeg keeps this from its users. Only the first members are named: they are as in every version since 6b. */
typedef void (*transform)(j_decompress_ptr, jpeg_component_info *, JCOEFPTR, JSAMPARRAY, JDIMENSION);
struct jpeg_inverse_dct {
  void (*start_pass)(j_decompress_ptr);
  transform transforms[MAX_COMPONENTS];
};

#ifdef __SSE2__
#include <emmintrin.h>

/* Bits of a fraction: of the constants, and of what goes from one direction to the other. */
enum { CONSTANT_BITS = 13, BETWEEN_BITS = 2 };

/* Two constants side by side, for pairs of values: sqrt 2 cos((2m + 1) k pi / 10), or 1 for k = 0. */
#define PAIR(a, b) _mm_set1_epi32((int)((uint32_t)(uint16_t)(a) | (uint32_t)(b) << 16))

struct samples {
  __m128i row[5];
};

/* One of the two halves of the columns: `even` holds the terms 0 and 2, `last` 4 and nothing, `odd` 1 and 3. */
static inline __attribute__((always_inline)) void half(__m128i even, __m128i last, __m128i odd, __m128i bias,
                                                       int shift, __m128i out[5]) {
  __m128i even0 = _mm_add_epi32(_mm_madd_epi16(even, PAIR(8192, 9373)), _mm_madd_epi16(last, PAIR(3580, 0)));
  __m128i even1 = _mm_add_epi32(_mm_madd_epi16(even, PAIR(8192, -3580)), _mm_madd_epi16(last, PAIR(-9373, 0)));
  __m128i even2 = _mm_add_epi32(_mm_madd_epi16(even, PAIR(8192, -11585)), _mm_madd_epi16(last, PAIR(11585, 0)));
  __m128i odd0 = _mm_madd_epi16(odd, PAIR(11018, 6810)), odd1 = _mm_madd_epi16(odd, PAIR(6810, -11018));
  even0 = _mm_add_epi32(even0, bias);
  even1 = _mm_add_epi32(even1, bias);
  out[0] = _mm_srai_epi32(_mm_add_epi32(even0, odd0), shift);
  out[1] = _mm_srai_epi32(_mm_add_epi32(even1, odd1), shift);
  out[2] = _mm_srai_epi32(_mm_add_epi32(even2, bias), shift);
  out[3] = _mm_srai_epi32(_mm_sub_epi32(even1, odd1), shift);
  out[4] = _mm_srai_epi32(_mm_sub_epi32(even0, odd0), shift);
}

/* Transforms eight columns of five coefficients each. */
static inline __attribute__((always_inline)) struct samples columns(struct samples in, int bias, int shift) {
  __m128i low[5], high[5], zero = _mm_setzero_si128(), biases = _mm_set1_epi32(bias);
  half(_mm_unpacklo_epi16(in.row[0], in.row[2]), _mm_unpacklo_epi16(in.row[4], zero),
       _mm_unpacklo_epi16(in.row[1], in.row[3]), biases, shift, low);
  half(_mm_unpackhi_epi16(in.row[0], in.row[2]), _mm_unpackhi_epi16(in.row[4], zero),
       _mm_unpackhi_epi16(in.row[1], in.row[3]), biases, shift, high);
  struct samples out;
  for (int m = 0; m < 5; m++) out.row[m] = _mm_packs_epi32(low[m], high[m]);
  return out;
}

/* Turns the first five columns of five rows into rows. */
static inline __attribute__((always_inline)) struct samples turn(struct samples in) {
  __m128i zero = _mm_setzero_si128();
  __m128i a = _mm_unpacklo_epi16(in.row[0], in.row[1]), b = _mm_unpacklo_epi16(in.row[2], in.row[3]);
  __m128i c = _mm_unpacklo_epi16(in.row[4], zero);
  __m128i d = _mm_unpackhi_epi16(in.row[0], in.row[1]), e = _mm_unpackhi_epi16(in.row[2], in.row[3]);
  __m128i f = _mm_unpackhi_epi16(in.row[4], zero);
  __m128i first = _mm_unpacklo_epi32(a, b), second = _mm_unpackhi_epi32(a, b), third = _mm_unpacklo_epi32(d, e);
  __m128i c_second = _mm_unpackhi_epi32(c, zero);
  c = _mm_unpacklo_epi32(c, zero);
  f = _mm_unpacklo_epi32(f, zero);
  return (struct samples){{_mm_unpacklo_epi64(first, c), _mm_unpackhi_epi64(first, c),
                           _mm_unpacklo_epi64(second, c_second), _mm_unpackhi_epi64(second, c_second),
                           _mm_unpacklo_epi64(third, f)}};
}

static void to_5_by_5(j_decompress_ptr decoder, jpeg_component_info *component, JCOEFPTR block, JSAMPARRAY rows,
                      JDIMENSION column) {
  (void)decoder;
  const uint16_t *steps = component->quant_table->quantval;
  struct samples samples;
  for (int k = 0; k < 5; k++)
    samples.row[k] = _mm_mullo_epi16(_mm_loadu_si128((const __m128i *)(block + 8 * k)),
                                     _mm_loadu_si128((const __m128i *)(steps + 8 * k)));
  int shift = CONSTANT_BITS - BETWEEN_BITS;
  samples = turn(columns(samples, 1 << (shift - 1), shift));
  /* The constants are those of the transform times 2 sqrt 2, in both directions; samples are from 0 on. */
  shift = CONSTANT_BITS + BETWEEN_BITS + 3;
  samples = turn(columns(samples, (1 << (shift - 1)) + (128 << shift), shift));
  for (int m = 0; m < 5; m++) {
    __m128i bytes = _mm_packus_epi16(samples.row[m], samples.row[m]);
    uint32_t four = (uint32_t)_mm_cvtsi128_si32(bytes);
    memcpy(rows[m] + column, &four, sizeof four);
    rows[m][column + 4] = (JSAMPLE)_mm_cvtsi128_si32(_mm_srli_si128(bytes, 4));
  }
}

void tgj_use_own_idct(j_decompress_ptr decoder) {
  for (int i = 0; i < decoder->num_components; i++)
    if (decoder->comp_info[i].component_needed && decoder->comp_info[i].DCT_scaled_size == 5)
      decoder->idct->transforms[i] = to_5_by_5;
}
#else
void tgj_use_own_idct(j_decompress_ptr decoder) { (void)decoder; }
#endif
