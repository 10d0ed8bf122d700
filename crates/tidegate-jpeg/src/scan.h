/* Entropy decoding of a baseline scan: Huffman codes to coefficients, a run of units at a time (T.81, F.2.2). */
#ifndef TIDEGATE_JPEG_SCAN_H
#define TIDEGATE_JPEG_SCAN_H

#include <stddef.h>
#include <stdint.h>

enum { TGJ_UNIT_BLOCKS = 10, TGJ_PAIR_BITS = 11, TGJ_SKIP_BITS = 12, TGJ_DC_BITS = 9 };

/* The lookups: the size of a DC difference, one or two AC coefficients, as many of them as are stepped over at once. */
enum { TGJ_DC = 1, TGJ_PAIR = 2, TGJ_SKIP = 4 };

/* A table as a DHT segment holds it, and the lookups made from it. */
struct tgj_huffman {
  uint8_t counts[17], symbols[256];
  uint16_t first_code[17], first_symbol[17]; /* by length */
  unsigned made; /* which of the lookups are those of this table */
  uint16_t dc[1 << TGJ_DC_BITS];
  uint64_t pair[1 << TGJ_PAIR_BITS];
  uint16_t skip[1 << TGJ_SKIP_BITS];
};

/* The scan of one picture. The tables and the buffer outlive it. */
struct tgj_scan {
  const uint8_t *next, *end; /* JPEG bytes that were not taken into the buffer yet */
  uint8_t *buffer;           /* the entropy-coded bytes up to the next marker, without stuffing, then zeros */
  size_t capacity, bytes;

  const uint8_t *at; /* what to take into `bits` next */
  uint64_t bits;     /* the first bit is the highest */
  unsigned count;    /* how many of them are there, at least */

  unsigned restart_interval, units_left, restarts;
  int32_t last_dc[3];
  struct tgj_huffman dc[4], ac[4];
};

/* One block of a unit. */
struct tgj_scan_block {
  int component;
  int dc, ac;           /* numbers of its tables */
  int means;            /* write the DC coefficient and nothing else */
  int16_t (*out)[64];   /* of the first unit, natural order, zeroed by the caller where `means` */
  size_t step;          /* blocks from unit to unit */
};

/* Makes one lookup of a table, unless it is there from the last picture. Returns 0 if the table is malformed. */
int tgj_huffman_make(struct tgj_huffman *, unsigned lookup, const uint8_t counts[17], const uint8_t symbols[256]);

/* Starts on entropy-coded bytes that follow a scan header. Returns 0 if there is no memory. */
int tgj_scan_start(struct tgj_scan *, const uint8_t *next, const uint8_t *end, unsigned restart_interval);

/* Decodes `units` units of `count` blocks each. Returns 0 at the first code, coefficient or marker that a sound picture
 * would not have there; what was written is unspecified then and the scan is over. */
int tgj_scan_units(struct tgj_scan *, const struct tgj_scan_block blocks[], int count, size_t units);

/* Whether all that was decoded was there. To be asked after the last unit. */
int tgj_scan_complete(const struct tgj_scan *);

void tgj_scan_free(struct tgj_scan *);

#endif
