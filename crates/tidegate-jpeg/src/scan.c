/* Entropy decoding of a baseline scan, for pictures that are as they should be.
 *
 * Half of what a knob costs with libjpeg is its Huffman decoder, which looks for markers with every byte and decodes one
 * code at a time. Here the bytes between two markers are first copied without their stuffing, so that the bit
 * buffer takes eight at a time unseen; and a lookup by the next bits names the codes of up to two
 * coefficients (`pair`), or as many as fit where only the mean of the block is wanted (`skip`).
 *
 * Nothing is repaired: at the first doubt the scan ends, and the caller begins again with libjpeg, which knows what to
 * say. A picture that is accepted here has the same coefficients there.
 *
 * Always true: whatever the bytes, no more than a block's worst case (PADDING) is read past the end of the buffer's
 * content, and those are zeros; every store into a block is at an index below 64.
 */
#include "scan.h"

#include <stdlib.h>
#include <string.h>

/* A block has 64 codes of at most 16 bits, each followed by at most 15: 248 bytes. The bit buffer is ahead by 8. */
enum { PADDING = 320 };

/* Natural order by zigzag index. A lookup of two coefficients may point past the end of the block by two runs. */
static const uint8_t NATURAL[128] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63, 63,
    63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
    63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
    63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

/* Added to the coefficients that a lookup advances by when it ends the block. */
enum { END_OF_BLOCK = 128 };

/* ---- tables --------------------------------------------------------------------------------------------------- */

/* A code at the head of some bits. */
struct code {
  int length; /* 0 if none fits the bits that are there */
  uint8_t symbol;
};

/* Finds the code at the head of the 16 bits `window`, of which only `known` count. */
static struct code find(const struct tgj_huffman *table, unsigned window, int known) {
  for (int length = 1; length <= known; length++) {
    unsigned code = window >> (16 - length);
    unsigned index = code - table->first_code[length]; /* wraps if it is below: then it is too large as well */
    if (index < table->counts[length])
      return (struct code){length, table->symbols[table->first_symbol[length] + index]};
  }
  return (struct code){0, 0};
}

/* What an AC symbol does: how many coefficients it steps over and how many bits its value has (T.81, F.1.2.2.1). */
struct step {
  int run, size, advance;
};

static struct step step_of(uint8_t symbol) {
  int run = symbol >> 4, size = symbol & 15;
  if (size == 0 && run != 15) return (struct step){0, 0, END_OF_BLOCK};
  return (struct step){run, size, run + 1};
}

static void fill_dc(struct tgj_huffman *table) {
  for (unsigned i = 0; i < 1u << TGJ_DC_BITS; i++) {
    struct code code = find(table, i << (16 - TGJ_DC_BITS), TGJ_DC_BITS);
    table->dc[i] = (uint16_t)(code.length | code.symbol << 8);
  }
}

/* The value whose `size` bits end `after` bits before the end of `window` (T.81, F.2.2.1, EXTEND). */
static int value_in(unsigned window, int after, int size) {
  int value = (int)(window >> after & ((1u << size) - 1));
  return size > 0 && value < 1 << (size - 1) ? value + 1 - (1 << size) : value;
}

/* Byte by byte from the lowest: bits in all, coefficients in all, the run before the first, the place of the second; then
 * their values. One coefficient alone has a second of value zero, which writes what is there already. Where its value does
 * not fit, bits in all are 0, and in place of the second stand the bits of its code and of its value. 0 where no code fits. */
static void fill_pair(struct tgj_huffman *table) {
  for (unsigned i = 0; i < 1u << TGJ_PAIR_BITS; i++) {
    unsigned window = i << (16 - TGJ_PAIR_BITS);
    struct code code = find(table, window, TGJ_PAIR_BITS);
    table->pair[i] = 0;
    if (code.length == 0) continue;
    struct step a = step_of(code.symbol), b = {0, 0, 0};
    int bits = code.length + a.size, value_a = 0, value_b = 0;
    if (bits > TGJ_PAIR_BITS) {
      table->pair[i] = (uint64_t)a.advance << 8 | (uint64_t)a.run << 16 | (uint64_t)code.length << 32 |
                       (uint64_t)a.size << 48;
      continue;
    }
    value_a = value_in(window, 16 - bits, a.size);
    if (a.advance < END_OF_BLOCK) {
      struct code second = find(table, window << bits & 0xffff, TGJ_PAIR_BITS - bits);
      struct step step = step_of(second.symbol);
      if (second.length > 0 && bits + second.length + step.size <= TGJ_PAIR_BITS) {
        b = step;
        bits += second.length + b.size;
        value_b = value_in(window, 16 - bits, b.size);
      }
    }
    int place_b = (a.advance & (END_OF_BLOCK - 1)) + b.run;
    table->pair[i] = (uint64_t)bits | (uint64_t)(a.advance + b.advance) << 8 | (uint64_t)a.run << 16 |
                     (uint64_t)place_b << 24 | (uint64_t)(uint16_t)value_a << 32 |
                     (uint64_t)(uint16_t)value_b << 48;
  }
}

/* Bits in all, and coefficients in all from the eighth bit on. 0 where no code fits. */
static void fill_skip(struct tgj_huffman *table) {
  for (unsigned i = 0; i < 1u << TGJ_SKIP_BITS; i++) {
    unsigned window = i << (16 - TGJ_SKIP_BITS);
    int bits = 0, advance = 0;
    while (bits < TGJ_SKIP_BITS && advance < 64) {
      struct code code = find(table, window << bits & 0xffff, TGJ_SKIP_BITS - bits);
      if (code.length == 0) break;
      struct step step = step_of(code.symbol);
      if (step.advance < END_OF_BLOCK && advance + step.advance > 63) break; /* keeps the two apart */
      bits += code.length + step.size;
      advance += step.advance;
    }
    table->skip[i] = (uint16_t)(bits | advance << 8);
  }
}

int tgj_huffman_make(struct tgj_huffman *table, unsigned lookup, const uint8_t counts[17],
                     const uint8_t symbols[256]) {
  unsigned total = 0, code = 0;
  for (int length = 1; length <= 16; length++) {
    total += counts[length];
    code = (code + counts[length]) << 1;
    if (total > 256 || code > 2u << length) return 0; /* more codes than there are */
  }
  for (unsigned i = 0; i < total; i++)
    if (lookup == TGJ_DC && symbols[i] > 15) return 0;
  if (memcmp(table->counts + 1, counts + 1, 16) != 0 || memcmp(table->symbols, symbols, total) != 0) {
    memcpy(table->counts, counts, sizeof table->counts);
    memcpy(table->symbols, symbols, sizeof table->symbols);
    total = code = 0;
    for (int length = 1; length <= 16; length++) {
      table->first_code[length] = (uint16_t)code;
      table->first_symbol[length] = (uint16_t)total;
      total += counts[length];
      code = (code + counts[length]) << 1;
    }
    table->made = 0;
  }
  if (table->made & lookup) return 1;
  if (lookup == TGJ_DC) fill_dc(table);
  else if (lookup == TGJ_PAIR) fill_pair(table);
  else fill_skip(table);
  table->made |= lookup;
  return 1;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

/* Takes the bytes up to the next marker into the buffer, without the zero that follows each 0xff (T.81, F.1.2.3). */
static void take_segment(struct tgj_scan *scan) {
  const uint8_t *from = scan->next;
  uint8_t *to = scan->buffer;
  for (;;) {
    size_t left = (size_t)(scan->end - from);
    const uint8_t *mark = memchr(from, 0xff, left);
    size_t plain = mark == NULL ? left : (size_t)(mark - from);
    memcpy(to, from, plain);
    to += plain, from += plain;
    if (scan->end - from < 2 || from[1] != 0) break;
    *to++ = 0xff;
    from += 2;
  }
  memset(to, 0, PADDING);
  scan->next = from;
  scan->bytes = (size_t)(to - scan->buffer);
  scan->at = scan->buffer;
  scan->bits = 0;
  scan->count = 0;
  memset(scan->last_dc, 0, sizeof scan->last_dc);
}

int tgj_scan_start(struct tgj_scan *scan, const uint8_t *next, const uint8_t *end,
                   unsigned restart_interval) {
  size_t needed = (size_t)(end - next) + PADDING;
  if (needed > scan->capacity) {
    free(scan->buffer);
    scan->capacity = 0;
    scan->buffer = malloc(needed);
    if (scan->buffer == NULL) return 0;
    scan->capacity = needed;
  }
  scan->next = next;
  scan->end = end;
  scan->restart_interval = scan->units_left = restart_interval;
  scan->restarts = 0;
  take_segment(scan);
  return 1;
}

void tgj_scan_free(struct tgj_scan *scan) { free(scan->buffer); }

/* Bits of the segment that were not decoded; below zero if more were decoded than there are. */
static ptrdiff_t bits_left(const struct tgj_scan *scan) {
  return (scan->buffer + scan->bytes - scan->at) * 8 + (ptrdiff_t)scan->count;
}

int tgj_scan_complete(const struct tgj_scan *scan) { return bits_left(scan) >= 0; }

/* Goes on behind a restart marker. Returns 0 unless the right one follows the last unit at once. */
static int restart(struct tgj_scan *scan) {
  ptrdiff_t left = bits_left(scan);
  if (left < 0 || left > 7) return 0;
  if (scan->end - scan->next < 2 || scan->next[0] != 0xff || scan->next[1] != 0xd0 + scan->restarts) return 0;
  scan->next += 2;
  scan->restarts = (scan->restarts + 1) & 7;
  scan->units_left = scan->restart_interval;
  take_segment(scan);
  return 1;
}

/* ---- codes ------------------------------------------------------------------------------------------------------- */

#define INLINE static inline __attribute__((always_inline))

/* The bit buffer while it is in registers. */
struct bits {
  const uint8_t *at;
  uint64_t bits;
  unsigned count;
};

/* Brings the buffer to 56 bits or more. The bits below `count` may be there already and are then the same ones. */
INLINE void refill(struct bits *b) {
  uint64_t next;
  memcpy(&next, b->at, sizeof next);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  next = __builtin_bswap64(next);
#endif
  b->bits |= next >> b->count;
  b->at += (63 - b->count) >> 3;
  b->count |= 56;
}

INLINE void drop(struct bits *b, unsigned count) {
  b->bits <<= count;
  b->count -= count;
}

/* The `size` bits from `start` on, as a value (T.81, F.2.2.1, EXTEND). No branch: which sign it has cannot be foreseen. */
INLINE int value_at(uint64_t bits, unsigned start, unsigned size) {
  uint64_t head = bits << start;
  int value = (int)(head >> 1 >> (63 - size));
  int negative = (int)((int64_t)head >> 63) + 1; /* 1 where the first bit is 0 */
  return value + ((negative - (int)((unsigned)negative << size)));
}

/* Decodes the AC coefficients of a block from `k` on, code by code. Needs no bits in the buffer. Stops after one if
 * `once`. Returns the next k, at least 64 once the block is complete, or -1. */
static int decode_slowly(struct bits *b, const struct tgj_huffman *table, int16_t *out, int k, int once) {
  do {
    refill(b);
    struct code code = find(table, (unsigned)(b->bits >> 48), 16);
    if (code.length == 0) return -1;
    struct step step = step_of(code.symbol);
    if (step.advance == END_OF_BLOCK) {
      drop(b, (unsigned)code.length);
      return 64;
    }
    k += step.advance;
    if (k > 64) return -1;
    if (out != NULL) out[NATURAL[k - 1]] = (int16_t)value_at(b->bits, (unsigned)code.length, (unsigned)step.size);
    drop(b, (unsigned)(code.length + step.size));
  } while (k < 64 && !once);
  return k;
}

/* The same on a copy, so that the address of the bit buffer is not taken and it stays in registers. */
INLINE int go_slowly(struct bits *b, const struct tgj_huffman *table, int16_t *out, int k, int once) {
  struct bits copy = *b;
  k = decode_slowly(&copy, table, out, k, once);
  *b = copy;
  return k;
}

/* Decodes one lookup of coefficients; the buffer has 27 bits for it. Returns the next k as `decode_slowly`. */
INLINE int decode_pair(struct bits *b, const struct tgj_huffman *table, int16_t *out, int k) {
  uint64_t entry = table->pair[b->bits >> (64 - TGJ_PAIR_BITS)];
  unsigned bits = entry & 255;
  int next = k + (int)(entry >> 8 & 255);
  if (__builtin_expect(bits == 0, 0)) {
    unsigned start = entry >> 32 & 255, size = entry >> 48 & 255;
    if (entry == 0 || next > 63) return go_slowly(b, table, out, k, 1);
    out[NATURAL[next - 1]] = (int16_t)value_at(b->bits, start, size);
    drop(b, start + size);
    return next;
  }
  out[NATURAL[k + (int)(entry >> 16 & 255)]] = (int16_t)(entry >> 32);
  out[NATURAL[k + (int)(entry >> 24 & 255)]] = (int16_t)(entry >> 48);
  /* The second of two may lie behind the end of the block, where it is another block's. */
  if (__builtin_expect((next & (END_OF_BLOCK - 1)) > 63, 0)) return go_slowly(b, table, out, k, 0);
  drop(b, bits);
  return next;
}

INLINE int decode_block(struct bits *b, const struct tgj_huffman *table, int16_t *out) {
  int k = 1;
  for (;;) {
    refill(b);
    k = decode_pair(b, table, out, k);
    if ((unsigned)k > 63) return k >= 0;
    if (b->count < 27) continue; /* only after a slow one */
    k = decode_pair(b, table, out, k);
    if ((unsigned)k > 63) return k >= 0;
  }
}

INLINE int skip_some(struct bits *b, const struct tgj_huffman *table, int k) {
  unsigned entry = table->skip[b->bits >> (64 - TGJ_SKIP_BITS)];
  int next = k + (int)(entry >> 8);
  if (__builtin_expect(entry == 0, 0)) return go_slowly(b, table, NULL, k, 1);
  if (__builtin_expect((next & (END_OF_BLOCK - 1)) > 63, 0)) return go_slowly(b, table, NULL, k, 0);
  drop(b, entry & 255);
  return next;
}

INLINE int skip_block(struct bits *b, const struct tgj_huffman *table) {
  int k = 1;
  for (;;) {
    refill(b);
    k = skip_some(b, table, k);
    if ((unsigned)k > 63) return k >= 0;
    if (b->count < 27) continue;
    k = skip_some(b, table, k);
    if ((unsigned)k > 63) return k >= 0;
  }
}

/* Reads the difference of a DC coefficient to the last one. Returns 0 if there is no code. */
INLINE int read_dc(struct bits *b, const struct tgj_huffman *table, int32_t *last) {
  refill(b);
  unsigned entry = table->dc[b->bits >> (64 - TGJ_DC_BITS)];
  unsigned length = entry & 255, size = entry >> 8;
  if (__builtin_expect(length == 0, 0)) {
    struct code code = find(table, (unsigned)(b->bits >> 48), 16);
    if (code.length == 0) return 0;
    length = (unsigned)code.length, size = code.symbol;
  }
  *last += value_at(b->bits, length, size);
  drop(b, length + size);
  return *last == (int16_t)*last;
}

/* Written out because compilers make a string instruction of a loop or memset here, which costs as much as three codes. */
INLINE void clear(int16_t *out) {
  typedef int16_t eight __attribute__((vector_size(16), aligned(16), may_alias));
  eight *at = (eight *)out, zero = {0};
  at[0] = zero, at[1] = zero, at[2] = zero, at[3] = zero;
  at[4] = zero, at[5] = zero, at[6] = zero, at[7] = zero;
}

INLINE int decode_units(struct tgj_scan *scan, const struct tgj_scan_block blocks[], int count, size_t units) {
  struct bits b = {scan->at, scan->bits, scan->count};
  const uint8_t *limit = scan->buffer + scan->bytes + sizeof b.bits;
  for (size_t unit = 0; unit < units; unit++) {
    for (int i = 0; i < count; i++) {
      const struct tgj_scan_block *block = &blocks[i];
      int16_t *out = block->out[unit * block->step];
      if (b.at > limit) return 0;
      if (!block->means) clear(out);
      if (!read_dc(&b, &scan->dc[block->dc], &scan->last_dc[block->component])) return 0;
      out[0] = (int16_t)scan->last_dc[block->component];
      if (!(block->means ? skip_block(&b, &scan->ac[block->ac])
                         : decode_block(&b, &scan->ac[block->ac], out)))
        return 0;
    }
  }
  scan->at = b.at, scan->bits = b.bits, scan->count = b.count;
  return 1;
}

static int decode_units_plain(struct tgj_scan *scan, const struct tgj_scan_block blocks[], int count,
                              size_t units) {
  return decode_units(scan, blocks, count, units);
}

#if defined(__x86_64__) && defined(__GNUC__)
/* Shifts by a register cost a third there. */
__attribute__((target("bmi,bmi2"))) static int
decode_units_bmi2(struct tgj_scan *scan, const struct tgj_scan_block blocks[], int count, size_t units) {
  return decode_units(scan, blocks, count, units);
}
#define HAS_BMI2 __builtin_cpu_supports("bmi2")
#else
#define decode_units_bmi2 decode_units_plain
#define HAS_BMI2 0
#endif

int tgj_scan_units(struct tgj_scan *scan, const struct tgj_scan_block blocks[], int count, size_t units) {
  struct tgj_scan_block rest[TGJ_UNIT_BLOCKS];
  if (count > TGJ_UNIT_BLOCKS) return 0;
  memcpy(rest, blocks, (size_t)count * sizeof *rest);
  while (units > 0) {
    size_t now = units;
    if (scan->restart_interval > 0) {
      if (scan->units_left == 0 && !restart(scan)) return 0;
      if (now > scan->units_left) now = scan->units_left;
      scan->units_left -= (unsigned)now;
    }
    int done = HAS_BMI2 ? decode_units_bmi2(scan, rest, count, now) : decode_units_plain(scan, rest, count, now);
    if (!done) return 0;
    for (int i = 0; i < count; i++) rest[i].out += now * rest[i].step;
    units -= now;
  }
  return 1;
}
