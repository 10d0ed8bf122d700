/* The C half of the codec: everything that must stand between setjmp and longjmp. `ffi.rs` mirrors it. */
#ifndef TIDEGATE_JPEG_CODEC_H
#define TIDEGATE_JPEG_CODEC_H

#include <stddef.h>
#include <stdint.h>

enum { TGJ_COMPONENTS = 3, TGJ_MESSAGE = 200 };

/* What a call came to. */
enum {
  TGJ_OK = 0,
  TGJ_FAILED = 1,   /* libjpeg gave up; the message says why */
  TGJ_MISMATCH = 2, /* libjpeg read another header than the caller, or a buffer does not fit it */
  TGJ_MEMORY = 3,
};

struct tgj_codec;

/* The header as the caller read it. */
struct tgj_header {
  uint16_t width, height;
  uint8_t components;
  uint8_t horizontal[TGJ_COMPONENTS], vertical[TGJ_COMPONENTS];
};

/* One plane per component: `rows` rows of `stride` bytes. */
struct tgj_planes {
  uint8_t components;
  uint8_t *data[TGJ_COMPONENTS];
  size_t stride[TGJ_COMPONENTS], rows[TGJ_COMPONENTS];
};

/* The 1/8 image: one byte for each 8x8 luma block, or null where it is not wanted. */
struct tgj_eighth {
  uint8_t *data;
  size_t width, height;
};

/* What happens to the coefficients on their way through. */
struct tgj_recipe {
  int quality;          /* 1 to 100, or 0 to keep the tables */
  int dead_zone;        /* round AC coefficients at 2/3 instead of 1/2 */
  int gray;             /* drop chroma */
  int keep;             /* frequency diagonals kept, 0 for all */
  int keep_background;  /* the same where the mask is 0 */
  const uint8_t *mask;  /* one byte per unit of unit_h x unit_v luma blocks, or null */
  const uint8_t *cover; /* the same: 0 keeps the unit, any other is the gray that it becomes; or null */
  size_t mask_width, mask_height;
  size_t unit_h, unit_v;
};

/* What the last call left behind. */
struct tgj_report {
  unsigned warnings;              /* oddities that do not touch the picture */
  unsigned damages;               /* picture data that is wrong or missing */
  char message[TGJ_MESSAGE];      /* of the failure, else of the first damage, else empty */
};

struct tgj_codec *tgj_new(void);
void tgj_free(struct tgj_codec *);
void tgj_report(const struct tgj_codec *, struct tgj_report *);
const uint8_t *tgj_output(const struct tgj_codec *, size_t *bytes);

int tgj_open(struct tgj_codec *, const uint8_t *jpeg, size_t bytes, const struct tgj_header *);
int tgj_decode_planes(struct tgj_codec *, int eighths, const struct tgj_planes *,
                      uint16_t tables[TGJ_COMPONENTS][64], struct tgj_eighth);
int tgj_decode_bgr(struct tgj_codec *, int eighths, uint8_t *data, size_t width, size_t height,
                   struct tgj_eighth);
int tgj_read_eighth(struct tgj_codec *, struct tgj_eighth);
int tgj_load(struct tgj_codec *, struct tgj_eighth);
int tgj_transcode(struct tgj_codec *, const struct tgj_recipe *);
int tgj_encode_planes(struct tgj_codec *, const struct tgj_header *, const struct tgj_planes *,
                      int quality, const uint16_t tables[TGJ_COMPONENTS][64]);
int tgj_encode_bgr(struct tgj_codec *, const uint8_t *data, size_t width, size_t height,
                   int quality);

/* Lets libjpeg alone read the frames from now on, or not, and says whether it read the last one; for tests. */
void tgj_prefer_libjpeg(struct tgj_codec *, int alone);
int tgj_was_libjpeg(const struct tgj_codec *);

/* The kernel and its plain twin, for tests. */
void tgj_requantise(int16_t block[64], const uint16_t multiplier[64], const uint16_t bias[64]);
void tgj_requantise_plain(int16_t block[64], const uint16_t multiplier[64],
                          const uint16_t bias[64]);

#endif
