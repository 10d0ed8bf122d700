/* One decompressor and one compressor of libjpeg that live as long as a camera.
 *
 * libjpeg keeps the coefficients of a whole picture in "virtual arrays" that it allocates and frees with every
 * frame: 6 MB at 1080p, freshly mapped each time. Here its memory manager's three methods for them are replaced:
 * the arrays live in one buffer that is reused, and for a picture of one scan they hold a single row of
 * units. Decoder and encoder then run in step, a row at a time, the row never leaving the cache:
 *
 *   encoder asks for row n  ->  decoder consumes row n  ->  recipe is applied in place  ->  encoder writes row n
 *
 * The usual picture, one baseline scan, is decoded into these rows by `scan.c`; libjpeg still reads the header,
 * transforms and encodes. At the first doubt the picture is begun again with libjpeg's own entropy decoder, so that what
 * is damaged is judged by one reader only.
 *
 * Buffered-image mode gives the same one-row decoding to the scaled planes, and lets the size of the chroma
 * IDCT be set between jpeg_start_decompress and jpeg_start_output; libjpeg would otherwise keep more chroma
 * than the scaled picture needs.
 *
 * Always true: libjpeg's error exit jumps to the frame of the call in progress and nowhere else; nothing is
 * printed; rows are zeroed before the decoder writes them, so that no frame shows through a damaged later one.
 */
#include "codec.h"
#include "idct.h"
#include "scan.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

_Static_assert(TGJ_MESSAGE >= JMSG_LENGTH_MAX, "a message of libjpeg fits");
_Static_assert(sizeof(JCOEF) == 2 && sizeof(JBLOCK) == 128, "coefficients are 16-bit");

/* A progressive picture of more scans is an attack: each costs a pass over all blocks. */
enum { SCANS_MAX = 100, ALIGNMENT = 64 };

/* The coarsest step with which pixels are encoded. */
enum { STEP_MAX = 8191 };

/* libjpeg declares this type and leaves it to the memory manager, which is us. Row r is rows[r % kept]. */
struct jvirt_barray_control {
  JBLOCKARRAY rows;
  JDIMENSION blocks; /* across */
  JDIMENSION total;  /* rows in the picture */
  JDIMENSION step;   /* rows in a row of units */
  JDIMENSION kept;   /* rows held at a time: step, or total */
  JDIMENSION clean;  /* rows below this were zeroed for this picture */
};

/* Inside this file: the scan was in doubt, and libjpeg is to begin again. */
enum { DOUBT = -1 };

/* What is wanted of the coefficients. */
enum want { WANT_ALL, WANT_LUMA, WANT_MEANS };

struct quantiser {
  uint16_t multiplier[64], bias[64];
};

struct tgj_codec {
  struct jpeg_decompress_struct decoder;
  struct jpeg_compress_struct encoder;
  struct jpeg_error_mgr errors;
  struct jpeg_source_mgr source;
  struct jpeg_destination_mgr destination;
  jmp_buf jump;
  int failure;
  struct tgj_report report;

  struct jvirt_barray_control arrays[TGJ_COMPONENTS];
  int arrays_used;
  int whole;   /* the arrays hold the whole picture */
  int started; /* decompression of the opened picture has started */

  const uint8_t *jpeg; /* the opened picture, to begin again */
  size_t jpeg_bytes;
  struct tgj_header header;
  int libjpeg_preferred, libjpeg_alone; /* for all pictures; for this one */
  int fast;                             /* the picture is read by `scan` */
  JDIMENSION units_read;                /* rows of units that it has read */
  enum want want;
  struct tgj_scan scan;
  uint8_t *coefficients;
  size_t coefficients_bytes;
  JBLOCKROW *rows;
  size_t rows_count;

  struct tgj_eighth eighth;
  const struct tgj_recipe *recipe;
  struct quantiser foreground[TGJ_COMPONENTS], background[TGJ_COMPONENTS];
  JDIMENSION units_ready; /* rows of units that the encoder may read */

  uint8_t *output;
  size_t output_capacity, output_bytes;
};

static struct tgj_codec *codec_of(j_common_ptr common) { return common->client_data; }

/* ---- errors ------------------------------------------------------------------------------------------------- */

static void fail(struct tgj_codec *codec, int failure, const char *message) {
  codec->failure = failure;
  if (message != NULL) snprintf(codec->report.message, TGJ_MESSAGE, "%s", message);
  longjmp(codec->jump, 1);
}

static void error_exit(j_common_ptr common) {
  struct tgj_codec *codec = codec_of(common);
  common->err->format_message(common, codec->report.message);
  fail(codec, common->err->msg_code == JERR_OUT_OF_MEMORY ? TGJ_MEMORY : TGJ_FAILED, NULL);
}

static void emit_message(j_common_ptr common, int level) {
  struct tgj_codec *codec = codec_of(common);
  if (level >= 0) return; /* a trace */
  switch (common->err->msg_code) {
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_HIT_MARKER: /* so it is where the bytes end within a scan: without an end marker alone nothing is missing */
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
      if (codec->report.damages++ == 0)
        common->err->format_message(common, codec->report.message);
      break;
    default: codec->report.warnings++;
  }
}

static void output_message(j_common_ptr common) { (void)common; }

/* ---- bytes in and out --------------------------------------------------------------------------------------- */

static void init_source(j_decompress_ptr decoder) { (void)decoder; }

static boolean fill_input_buffer(j_decompress_ptr decoder) {
  static const JOCTET end[2] = {0xff, JPEG_EOI};
  WARNMS(decoder, JWRN_JPEG_EOF);
  decoder->src->next_input_byte = end;
  decoder->src->bytes_in_buffer = sizeof end;
  return TRUE;
}

static void skip_input_data(j_decompress_ptr decoder, long count) {
  struct jpeg_source_mgr *source = decoder->src;
  if (count <= 0) return;
  if ((size_t)count > source->bytes_in_buffer) {
    (void)fill_input_buffer(decoder);
    return;
  }
  source->next_input_byte += count;
  source->bytes_in_buffer -= (size_t)count;
}

static void term_source(j_decompress_ptr decoder) { (void)decoder; }

static void init_destination(j_compress_ptr encoder) {
  struct tgj_codec *codec = codec_of((j_common_ptr)encoder);
  encoder->dest->next_output_byte = codec->output;
  encoder->dest->free_in_buffer = codec->output_capacity;
}

/* Called when the buffer is full, whatever free_in_buffer says. */
static boolean empty_output_buffer(j_compress_ptr encoder) {
  struct tgj_codec *codec = codec_of((j_common_ptr)encoder);
  size_t full = codec->output_capacity;
  uint8_t *larger = full > SIZE_MAX / 2 ? NULL : realloc(codec->output, 2 * full);
  if (larger == NULL) fail(codec, TGJ_MEMORY, "no memory for the encoded frame");
  codec->output = larger;
  codec->output_capacity = 2 * full;
  encoder->dest->next_output_byte = larger + full;
  encoder->dest->free_in_buffer = full;
  return TRUE;
}

static void term_destination(j_compress_ptr encoder) {
  struct tgj_codec *codec = codec_of((j_common_ptr)encoder);
  codec->output_bytes = codec->output_capacity - encoder->dest->free_in_buffer;
}

/* ---- coefficient arrays -------------------------------------------------------------------------------------- */

static jvirt_barray_ptr request_array(j_common_ptr common, int pool, boolean zeroed,
                                      JDIMENSION blocks, JDIMENSION total, JDIMENSION access) {
  struct tgj_codec *codec = codec_of(common);
  (void)pool, (void)zeroed, (void)access;
  if (codec->arrays_used == codec->decoder.num_components ||
      codec->arrays_used == TGJ_COMPONENTS)
    fail(codec, TGJ_MISMATCH, "more coefficient arrays than components");
  int index = codec->arrays_used++;
  struct jvirt_barray_control *array = &codec->arrays[index];
  array->blocks = blocks;
  array->total = total;
  array->step = (JDIMENSION)codec->decoder.comp_info[index].v_samp_factor;
  array->kept = codec->whole ? total : array->step;
  array->clean = 0;
  return array;
}

static void realize_arrays(j_common_ptr common) {
  struct tgj_codec *codec = codec_of(common);
  size_t blocks = 0, rows = 0;
  for (int i = 0; i < codec->arrays_used; i++) {
    blocks += (size_t)codec->arrays[i].blocks * codec->arrays[i].kept;
    rows += codec->arrays[i].kept;
  }
  size_t bytes = blocks * sizeof(JBLOCK); /* at most 65504 x 65504 blocks of 64 pixels: no overflow in 64 bits */
  if (bytes > codec->coefficients_bytes) {
    free(codec->coefficients);
    codec->coefficients_bytes = 0;
    codec->coefficients = aligned_alloc(ALIGNMENT, bytes); /* a block is two alignments */
    if (codec->coefficients == NULL) fail(codec, TGJ_MEMORY, "no memory for coefficients");
    codec->coefficients_bytes = bytes;
  }
  if (rows > codec->rows_count) {
    free(codec->rows);
    codec->rows_count = 0;
    codec->rows = malloc(rows * sizeof *codec->rows);
    if (codec->rows == NULL) fail(codec, TGJ_MEMORY, "no memory for coefficient rows");
    codec->rows_count = rows;
  }
  JBLOCKROW next = (JBLOCKROW)codec->coefficients;
  JBLOCKARRAY row = codec->rows;
  for (int i = 0; i < codec->arrays_used; i++) {
    struct jvirt_barray_control *array = &codec->arrays[i];
    array->rows = row;
    for (JDIMENSION r = 0; r < array->kept; r++, next += array->blocks) *row++ = next;
  }
}

/* Reads the means of the luma blocks of one row of units. */
static void take_eighth(struct tgj_codec *codec, JDIMENSION unit) {
  if (codec->eighth.data == NULL) return;
  const struct jvirt_barray_control *luma = &codec->arrays[0];
  int step = codec->decoder.comp_info[0].quant_table->quantval[0];
  for (JDIMENSION r = unit * luma->step; r < (unit + 1) * luma->step; r++) {
    if (r >= codec->eighth.height) return;
    JBLOCKROW blocks = luma->rows[r % luma->kept];
    uint8_t *out = codec->eighth.data + r * codec->eighth.width;
    for (size_t x = 0; x < codec->eighth.width; x++) {
      /* The DC coefficient is eight times the mean. */
      int mean = 128 + ((blocks[x][0] * step + 4) >> 3);
      out[x] = (uint8_t)(mean < 0 ? 0 : mean > 255 ? 255 : mean);
    }
  }
}

static void check_rows(struct tgj_codec *codec, const struct jvirt_barray_control *array,
                       JDIMENSION start, JDIMENSION count) {
  /* What is kept is contiguous only from its first row on. */
  if (start > array->total || count > array->total - start || start % array->kept + count > array->kept)
    fail(codec, TGJ_MISMATCH, "coefficient rows out of range");
}

static void scan_unit_row(struct tgj_codec *);

static JBLOCKARRAY decoder_rows(j_common_ptr common, jvirt_barray_ptr array, JDIMENSION start,
                                JDIMENSION count, boolean writable) {
  struct tgj_codec *codec = codec_of(common);
  check_rows(codec, array, start, count);
  /* libjpeg wants to transform what it believes to have decoded. */
  while (!writable && codec->fast && !codec->whole && codec->units_read * array->step < start + count)
    scan_unit_row(codec);
  /* In step: the decoder is about to overwrite the row of units before this one. */
  if (writable && !codec->whole && array == &codec->arrays[0] && start >= array->step)
    take_eighth(codec, start / array->step - 1);
  for (; array->clean < start + count; array->clean++)
    memset(array->rows[array->clean % array->kept], 0, array->blocks * sizeof(JBLOCK));
  return array->rows + start % array->kept;
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

/* Makes the lookups that the scan needs of component `i`. */
static int make_tables(struct tgj_codec *codec, int i) {
  j_decompress_ptr decoder = &codec->decoder;
  int dc = decoder->comp_info[i].dc_tbl_no, ac = decoder->comp_info[i].ac_tbl_no;
  const JHUFF_TBL *of_dc = decoder->dc_huff_tbl_ptrs[dc], *of_ac = decoder->ac_huff_tbl_ptrs[ac];
  int means = codec->want == WANT_MEANS || (codec->want == WANT_LUMA && i > 0);
  return of_dc != NULL && of_ac != NULL &&
         tgj_huffman_make(&codec->scan.dc[dc], TGJ_DC, of_dc->bits, of_dc->huffval) &&
         tgj_huffman_make(&codec->scan.ac[ac], means ? TGJ_SKIP : TGJ_PAIR, of_ac->bits, of_ac->huffval);
}

/* Whether the picture is one that `scan` reads: one sequential scan of all components in their order. */
static int start_scan(struct tgj_codec *codec) {
  j_decompress_ptr decoder = &codec->decoder;
  codec->units_read = 0;
  if (codec->libjpeg_alone || jpeg_has_multiple_scans(decoder) || decoder->arith_code ||
      decoder->progressive_mode || decoder->Ss != 0 || decoder->Se != 63 || decoder->Ah != 0 ||
      decoder->Al != 0 || decoder->blocks_in_MCU > TGJ_UNIT_BLOCKS)
    return 0;
  for (int i = 0; i < decoder->num_components; i++)
    if (decoder->cur_comp_info[i] != &decoder->comp_info[i] || !make_tables(codec, i)) return 0;
  const uint8_t *next = codec->source.next_input_byte;
  if (!tgj_scan_start(&codec->scan, next, next + codec->source.bytes_in_buffer, decoder->restart_interval))
    fail(codec, TGJ_MEMORY, "no memory for the scan");
  return 1;
}

/* Decodes the next row of units with `scan`. */
static void scan_unit_row(struct tgj_codec *codec) {
  j_decompress_ptr decoder = &codec->decoder;
  JDIMENSION unit = codec->units_read++;
  if (unit >= decoder->total_iMCU_rows) fail(codec, TGJ_MISMATCH, "more rows than the header says");
  int alone = decoder->num_components == 1, count = 0;
  struct tgj_scan_block blocks[TGJ_UNIT_BLOCKS];
  for (int i = 0; i < decoder->num_components; i++) {
    const jpeg_component_info *component = &decoder->comp_info[i];
    struct jvirt_barray_control *array = &codec->arrays[i];
    int means = codec->want == WANT_MEANS || (codec->want == WANT_LUMA && i > 0);
    JDIMENSION first = unit * array->step;
    /* A gray picture is coded block by block, without those below its edge (T.81, A.2.2). */
    JDIMENSION down = array->step, across = alone ? 1 : (JDIMENSION)component->h_samp_factor;
    if (alone && component->height_in_blocks - first < down) down = component->height_in_blocks - first;
    (void)decoder_rows((j_common_ptr)decoder, array, first, array->step, TRUE);
    for (JDIMENSION y = 0; y < down; y++)
      for (JDIMENSION x = 0; x < across; x++) {
        struct tgj_scan_block block = {.component = i,
                                       .dc = component->dc_tbl_no,
                                       .ac = component->ac_tbl_no,
                                       .means = means,
                                       .out = array->rows[(first + y) % array->kept] + x,
                                       .step = across};
        if (!alone) blocks[count++] = block;
        else if (!tgj_scan_units(&codec->scan, &block, 1, component->width_in_blocks))
          fail(codec, DOUBT, NULL);
      }
  }
  if (!alone && !tgj_scan_units(&codec->scan, blocks, count, decoder->MCUs_per_row)) fail(codec, DOUBT, NULL);
  if (codec->units_read == decoder->total_iMCU_rows && !tgj_scan_complete(&codec->scan)) fail(codec, DOUBT, NULL);
}

/* Starts decompression into our arrays: one row of units at a time if the picture allows and `whole` does not forbid. */
static void start_decoder(struct tgj_codec *codec, int whole, enum want want) {
  j_decompress_ptr decoder = &codec->decoder;
  codec->want = want;
  codec->whole = whole || jpeg_has_multiple_scans(decoder);
  codec->started = 1;
  codec->arrays_used = 0;
  decoder->buffered_image = TRUE;
  decoder->do_block_smoothing = FALSE;
  decoder->dct_method = JDCT_ISLOW;
  (void)jpeg_start_decompress(decoder);
  if (codec->arrays_used != decoder->num_components)
    fail(codec, TGJ_MISMATCH, "fewer coefficient arrays than components");
  codec->fast = start_scan(codec);
  /* For all that libjpeg knows, every row has been read. */
  if (codec->fast) decoder->input_iMCU_row = decoder->total_iMCU_rows;
}

/* A component that no scan has given has no table and nothing in its rows: it is gray. */
static void complete_components(struct tgj_codec *codec) {
  j_decompress_ptr decoder = &codec->decoder;
  for (int i = 0; i < codec->arrays_used; i++) {
    struct jvirt_barray_control *array = &codec->arrays[i];
    for (; array->clean < array->kept; array->clean++)
      memset(array->rows[array->clean], 0, array->blocks * sizeof(JBLOCK));
    if (decoder->comp_info[i].quant_table != NULL) continue;
    codec->report.damages++;
    JQUANT_TBL *table = decoder->mem->alloc_small((j_common_ptr)decoder, JPOOL_IMAGE, sizeof *table);
    for (int k = 0; k < 64; k++) table->quantval[k] = 1;
    decoder->comp_info[i].quant_table = table;
  }
}

/* Decodes the coefficients of the picture, in all its scans. */
static void consume_all(struct tgj_codec *codec) {
  j_decompress_ptr decoder = &codec->decoder;
  while (codec->fast && codec->units_read < decoder->total_iMCU_rows) scan_unit_row(codec);
  while (!codec->fast) {
    int consumed = jpeg_consume_input(decoder);
    if (consumed == JPEG_REACHED_EOI) break;
    /* All is there. What may follow is no part of the picture for those who read it a row at a time, either. */
    if (consumed == JPEG_SCAN_COMPLETED && !jpeg_has_multiple_scans(decoder)) break;
    if (consumed == JPEG_SUSPENDED) fail(codec, TGJ_FAILED, "the decoder made no progress");
    if (decoder->input_scan_number > SCANS_MAX) fail(codec, TGJ_FAILED, "more than 100 scans");
  }
  complete_components(codec);
  for (JDIMENSION unit = 0; unit < decoder->total_iMCU_rows; unit++) take_eighth(codec, unit);
}

/* Decodes the coefficients of the next row of units. */
static void consume_unit_row(struct tgj_codec *codec) {
  if (codec->fast) {
    scan_unit_row(codec);
    return;
  }
  for (;;) switch (jpeg_consume_input(&codec->decoder)) {
      case JPEG_ROW_COMPLETED:
      case JPEG_SCAN_COMPLETED: return;
      case JPEG_REACHED_SOS: break;
      default: fail(codec, TGJ_FAILED, "the picture has fewer rows than its header says");
    }
}

static void start_output(struct tgj_codec *codec) {
  if (codec->whole) consume_all(codec);
  (void)jpeg_start_output(&codec->decoder, codec->decoder.input_scan_number);
  tgj_use_own_idct(&codec->decoder);
}

static void finish_decoder(struct tgj_codec *codec) {
  if (!codec->whole) take_eighth(codec, codec->decoder.total_iMCU_rows - 1);
  jpeg_abort_decompress(&codec->decoder);
  codec->started = 0;
}

/* Decodes the 1/8 image alone. */
static void read_eighth(struct tgj_codec *codec) {
  codec->decoder.raw_data_out = TRUE;
  start_decoder(codec, 0, WANT_MEANS);
  if (codec->whole) consume_all(codec);
  else
    for (JDIMENSION row = 0; row < codec->decoder.total_iMCU_rows; row++) consume_unit_row(codec);
  finish_decoder(codec);
}

static void create_decoder(struct tgj_codec *codec) {
  jpeg_create_decompress(&codec->decoder);
  codec->decoder.src = &codec->source;
  codec->decoder.mem->request_virt_barray = request_array;
  codec->decoder.mem->realize_virt_arrays = realize_arrays;
  codec->decoder.mem->access_virt_barray = decoder_rows;
}

static void open_picture(struct tgj_codec *codec) {
  j_decompress_ptr decoder = &codec->decoder;
  const struct tgj_header *header = &codec->header;
  memset(&codec->report, 0, sizeof codec->report);
  /* libjpeg keeps tables from picture to picture, so that one without its own would be read with those of another. */
  jpeg_destroy_decompress(decoder);
  create_decoder(codec);
  codec->source.next_input_byte = codec->jpeg;
  codec->source.bytes_in_buffer = codec->jpeg_bytes;
  (void)jpeg_read_header(decoder, TRUE);
  J_COLOR_SPACE expected = header->components == 1 ? JCS_GRAYSCALE : JCS_YCbCr;
  if (decoder->image_width != header->width || decoder->image_height != header->height ||
      decoder->num_components != header->components || decoder->data_precision != 8 ||
      decoder->jpeg_color_space != expected || decoder->arith_code)
    fail(codec, TGJ_MISMATCH, "libjpeg read another header");
  for (int i = 0; i < decoder->num_components; i++) {
    const jpeg_component_info *component = &decoder->comp_info[i];
    if (component->h_samp_factor != header->horizontal[i] ||
        component->v_samp_factor != header->vertical[i])
      fail(codec, TGJ_MISMATCH, "libjpeg read other sampling factors");
  }
}

static void decode_planes(struct tgj_codec *codec, int eighths, const struct tgj_planes *planes,
                          uint16_t tables[TGJ_COMPONENTS][64]) {
  j_decompress_ptr decoder = &codec->decoder;
  decoder->raw_data_out = TRUE;
  decoder->do_fancy_upsampling = FALSE;
  decoder->scale_num = (unsigned)eighths;
  decoder->scale_denom = 8;
  start_decoder(codec, 0, eighths == 1 ? WANT_MEANS : planes->components == 1 ? WANT_LUMA : WANT_ALL);
  for (int i = 0; i < decoder->num_components; i++) {
    jpeg_component_info *component = &decoder->comp_info[i];
    component->component_needed = i < planes->components;
    component->DCT_scaled_size = eighths;
    if (!component->component_needed) continue;
    size_t across = (size_t)component->width_in_blocks * (size_t)eighths;
    size_t down = (size_t)decoder->total_iMCU_rows * (size_t)(component->v_samp_factor * eighths);
    if (across > planes->stride[i] || down > planes->rows[i])
      fail(codec, TGJ_MISMATCH, "the planes are too small");
  }
  start_output(codec);
  JSAMPROW rows[TGJ_COMPONENTS][MAX_SAMP_FACTOR * DCTSIZE];
  JSAMPARRAY image[TGJ_COMPONENTS] = {rows[0], rows[1], rows[2]};
  JDIMENSION lines = (JDIMENSION)(decoder->max_v_samp_factor * eighths);
  for (size_t unit = 0; decoder->output_scanline < decoder->output_height; unit++) {
    for (int i = 0; i < planes->components; i++) {
      size_t count = (size_t)(decoder->comp_info[i].v_samp_factor * eighths);
      for (size_t r = 0; r < count; r++)
        rows[i][r] = planes->data[i] + (unit * count + r) * planes->stride[i];
    }
    if (jpeg_read_raw_data(decoder, image, lines) == 0)
      fail(codec, TGJ_FAILED, "the decoder made no progress");
  }
  for (int i = 0; i < decoder->num_components; i++) {
    for (int k = 0; k < 64; k++) tables[i][k] = decoder->comp_info[i].quant_table->quantval[k];
  }
  finish_decoder(codec);
}

static void decode_bgr(struct tgj_codec *codec, int eighths, uint8_t *data, size_t width,
                       size_t height) {
  j_decompress_ptr decoder = &codec->decoder;
  decoder->raw_data_out = FALSE;
  decoder->do_fancy_upsampling = TRUE;
  decoder->scale_num = (unsigned)eighths;
  decoder->scale_denom = 8;
  decoder->out_color_space = JCS_EXT_BGR;
  start_decoder(codec, 0, WANT_ALL);
  if (decoder->output_width != width || decoder->output_height != height)
    fail(codec, TGJ_MISMATCH, "the image has another size");
  start_output(codec);
  while (decoder->output_scanline < decoder->output_height) {
    JSAMPROW row = data + 3 * width * decoder->output_scanline;
    if (jpeg_read_scanlines(decoder, &row, 1) == 0)
      fail(codec, TGJ_FAILED, "the decoder made no progress");
  }
  finish_decoder(codec);
}

/* ---- coefficients through -------------------------------------------------------------------------------------- */

/* coefficient = (|coefficient| * multiplier + bias) / 65536, with its sign, cut to what baseline coding can hold. */
void tgj_requantise_plain(int16_t block[64], const uint16_t multiplier[64],
                          const uint16_t bias[64]) {
  for (int i = 0; i < 64; i++) {
    int value = block[i] < -32767 ? -32767 : block[i];
    uint32_t size = (uint32_t)(value < 0 ? -value : value);
    uint32_t scaled = (size * multiplier[i] + bias[i]) >> 16;
    int cut = scaled > 1023 ? 1023 : (int)scaled;
    block[i] = (int16_t)(value < 0 ? -cut : cut);
  }
}

void tgj_requantise(int16_t block[64], const uint16_t multiplier[64], const uint16_t bias[64]) {
#ifdef __SSE2__
  const __m128i zero = _mm_setzero_si128(), ones = _mm_set1_epi16(-1);
  const __m128i lowest = _mm_set1_epi16(-32767), most = _mm_set1_epi16(1023);
  for (int i = 0; i < 64; i += 8) {
    __m128i *at = (__m128i *)(block + i);
    __m128i value = _mm_max_epi16(_mm_loadu_si128(at), lowest);
    __m128i m = _mm_loadu_si128((const __m128i *)(multiplier + i));
    __m128i b = _mm_loadu_si128((const __m128i *)(bias + i));
    __m128i sign = _mm_srai_epi16(value, 15);
    __m128i size = _mm_sub_epi16(_mm_xor_si128(value, sign), sign);
    __m128i low = _mm_mullo_epi16(size, m);
    __m128i high = _mm_mulhi_epu16(size, m);
    /* The low half plus the bias carries iff low > 65535 - bias, that is, the saturating difference is not 0. */
    __m128i no_carry = _mm_cmpeq_epi16(_mm_subs_epu16(low, _mm_xor_si128(b, ones)), zero);
    high = _mm_sub_epi16(_mm_add_epi16(high, no_carry), ones);
    high = _mm_min_epi16(high, most);
    _mm_storeu_si128(at, _mm_sub_epi16(_mm_xor_si128(high, sign), sign));
  }
#else
  tgj_requantise_plain(block, multiplier, bias);
#endif
}

/* Fills the quantiser that leads from table `from` to table `to` and drops diagonals from `keep` on. */
static void make_quantiser(struct quantiser *quantiser, const UINT16 *from, const UINT16 *to,
                           int dead_zone, int keep) {
  for (int i = 0; i < 64; i++) {
    int dropped = keep > 0 && (i & 7) + (i >> 3) >= keep;
    uint32_t ratio = (65536u * from[i] + to[i] / 2u) / to[i];
    /* At 65535 and one half every coefficient up to 32767 maps to itself. */
    int same = ratio > 65535;
    quantiser->multiplier[i] = dropped ? 0 : (uint16_t)(same ? 65535 : ratio);
    quantiser->bias[i] = dropped ? 0 : (uint16_t)(!same && dead_zone && i > 0 ? 65536 / 3 : 32768);
  }
}

/* Numbers the tables by what each component was coded with. A picture may define a number again between its scans, which
 * jpeg_copy_critical_parameters() refuses. */
static void number_tables(struct tgj_codec *codec) {
  j_decompress_ptr decoder = &codec->decoder;
  int numbers[TGJ_COMPONENTS], used = 0;
  for (int i = 0; i < decoder->num_components; i++) {
    const jpeg_component_info *component = &decoder->comp_info[i], *other = decoder->comp_info;
    while (other < component && (other->quant_tbl_no != component->quant_tbl_no ||
                                 memcmp(other->quant_table->quantval, component->quant_table->quantval,
                                        sizeof component->quant_table->quantval) != 0))
      other++;
    numbers[i] = other < component ? numbers[other - decoder->comp_info] : used++;
  }
  for (int i = 0; i < decoder->num_components; i++) {
    jpeg_component_info *component = &decoder->comp_info[i];
    component->quant_tbl_no = numbers[i];
    JQUANT_TBL **slot = &decoder->quant_tbl_ptrs[numbers[i]];
    if (*slot == NULL) *slot = jpeg_alloc_quant_table((j_common_ptr)decoder);
    memcpy((*slot)->quantval, component->quant_table->quantval, sizeof (*slot)->quantval);
  }
}

static void plan_recipe(struct tgj_codec *codec) {
  j_decompress_ptr decoder = &codec->decoder;
  j_compress_ptr encoder = &codec->encoder;
  const struct tgj_recipe *recipe = codec->recipe;
  number_tables(codec);
  jpeg_copy_critical_parameters(decoder, encoder);
  if (recipe->gray && encoder->num_components > 1) {
    int table = encoder->comp_info[0].quant_tbl_no;
    jpeg_set_colorspace(encoder, JCS_GRAYSCALE);
    encoder->comp_info[0].quant_tbl_no = table;
  }
  UINT16 standard[2][64];
  if (recipe->quality > 0) {
    jpeg_set_quality(encoder, recipe->quality, TRUE);
    for (int t = 0; t < 2; t++)
      memcpy(standard[t], encoder->quant_tbl_ptrs[t]->quantval, sizeof standard[t]);
  }
  int luma = encoder->comp_info[0].quant_tbl_no;
  for (int i = 0; i < encoder->num_components; i++) {
    int number = encoder->comp_info[i].quant_tbl_no;
    const UINT16 *from = decoder->comp_info[i].quant_table->quantval;
    UINT16 *to = encoder->quant_tbl_ptrs[number]->quantval;
    for (int k = 0; k < 64; k++) {
      /* A step of 0, which no encoder may write (T.81, B.2.4.1), makes each of its coefficients 0 for every reader. */
      UINT16 wanted = recipe->quality > 0 ? standard[number != luma][k] : 1;
      to[k] = wanted > from[k] ? wanted : from[k];
    }
    make_quantiser(&codec->foreground[i], from, to, recipe->dead_zone, recipe->keep);
    int background = recipe->keep_background;
    if (background == 0 || (recipe->keep > 0 && recipe->keep < background)) background = recipe->keep;
    make_quantiser(&codec->background[i], from, to, recipe->dead_zone, background);
  }
}

/* Makes a block one gray: its mean in luma, none in chroma. */
static void cover_block(JBLOCK block, int gray, int is_luma, uint16_t step) {
  memset(block, 0, sizeof(JBLOCK));
  if (!is_luma) return;
  /* The DC coefficient is eight times the mean, counted from the middle. */
  int mean = (gray - CENTERJSAMPLE) * DCTSIZE;
  int half = step / 2;
  block[0] = (JCOEF)((mean < 0 ? mean - half : mean + half) / step);
}

/* Makes the next row of units ready for the encoder. */
static void prepare_unit_row(struct tgj_codec *codec) {
  const struct tgj_recipe *recipe = codec->recipe;
  JDIMENSION unit = codec->units_ready++;
  if (!codec->whole) consume_unit_row(codec);
  for (int i = 0; i < codec->encoder.num_components; i++) {
    const struct jvirt_barray_control *array = &codec->arrays[i];
    const jpeg_component_info *component = &codec->decoder.comp_info[i];
    const struct quantiser *front = &codec->foreground[i], *back = &codec->background[i];
    int table = codec->encoder.comp_info[i].quant_tbl_no;
    uint16_t dc_step = codec->encoder.quant_tbl_ptrs[table]->quantval[0];
    for (JDIMENSION r = unit * array->step; r < (unit + 1) * array->step; r++) {
      JBLOCKROW blocks = array->rows[r % array->kept];
      if (recipe->mask == NULL && recipe->cover == NULL) {
        for (JDIMENSION x = 0; x < array->blocks; x++)
          tgj_requantise(blocks[x], front->multiplier, front->bias);
        continue;
      }
      /* Block to luma block to unit of the mask. */
      size_t across = (size_t)(codec->decoder.max_h_samp_factor / component->h_samp_factor);
      size_t down = (size_t)(codec->decoder.max_v_samp_factor / component->v_samp_factor);
      size_t y = r * down / recipe->unit_v;
      if (y >= recipe->mask_height) y = recipe->mask_height - 1;
      const uint8_t *mask = recipe->mask == NULL ? NULL : recipe->mask + y * recipe->mask_width;
      const uint8_t *cover = recipe->cover == NULL ? NULL : recipe->cover + y * recipe->mask_width;
      for (JDIMENSION x = 0; x < array->blocks; x++) {
        size_t column = x * across / recipe->unit_h;
        if (column >= recipe->mask_width) column = recipe->mask_width - 1;
        if (cover != NULL && cover[column]) {
          cover_block(blocks[x], cover[column], i == 0, dc_step);
          continue;
        }
        const struct quantiser *q = mask == NULL || mask[column] ? front : back;
        tgj_requantise(blocks[x], q->multiplier, q->bias);
      }
    }
  }
}

static JBLOCKARRAY encoder_rows(j_common_ptr common, jvirt_barray_ptr array, JDIMENSION start,
                                JDIMENSION count, boolean writable) {
  struct tgj_codec *codec = codec_of(common);
  (void)writable;
  check_rows(codec, array, start, count);
  while (codec->units_ready * array->step < start + count) prepare_unit_row(codec);
  return array->rows + start % array->kept;
}

static void transcode(struct tgj_codec *codec) {
  j_compress_ptr encoder = &codec->encoder;
  if (!codec->started) {
    codec->decoder.raw_data_out = TRUE;
    start_decoder(codec, 0, codec->recipe->gray ? WANT_LUMA : WANT_ALL);
    if (codec->whole) consume_all(codec);
  }
  codec->units_ready = 0;
  plan_recipe(codec);
  jvirt_barray_ptr arrays[TGJ_COMPONENTS] = {&codec->arrays[0], &codec->arrays[1],
                                             &codec->arrays[2]};
  jpeg_write_coefficients(encoder, arrays);
  jpeg_finish_compress(encoder);
  jpeg_abort_decompress(&codec->decoder);
  codec->started = 0;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static void start_encoder(j_compress_ptr encoder, size_t width, size_t height, int components,
                          J_COLOR_SPACE space) {
  encoder->image_width = (JDIMENSION)width;
  encoder->image_height = (JDIMENSION)height;
  encoder->input_components = components;
  encoder->in_color_space = space;
  jpeg_set_defaults(encoder);
  encoder->dct_method = JDCT_ISLOW;
}

static void keep_tables(j_compress_ptr encoder, const uint16_t tables[TGJ_COMPONENTS][64]) {
  for (int i = 0; i < encoder->num_components; i++) {
    unsigned basic[64];
    /* libjpeg divides by eight times the step in 16 bits. Above 2047 a step rounds everything to 0 in any case. */
    for (int k = 0; k < 64; k++) basic[k] = tables[i][k] < STEP_MAX ? tables[i][k] : STEP_MAX;
    jpeg_add_quant_table(encoder, i, basic, 100, FALSE);
    int same = i == 2 && memcmp(tables[1], tables[2], sizeof tables[1]) == 0;
    encoder->comp_info[i].quant_tbl_no = same ? 1 : i;
  }
}

static void encode_planes(struct tgj_codec *codec, const struct tgj_header *header,
                          const struct tgj_planes *planes, int quality,
                          const uint16_t tables[TGJ_COMPONENTS][64]) {
  j_compress_ptr encoder = &codec->encoder;
  start_encoder(encoder, header->width, header->height, header->components,
                header->components == 1 ? JCS_GRAYSCALE : JCS_YCbCr);
  encoder->raw_data_in = TRUE;
  for (int i = 0; i < header->components; i++) {
    encoder->comp_info[i].h_samp_factor = header->horizontal[i];
    encoder->comp_info[i].v_samp_factor = header->vertical[i];
  }
  if (quality > 0) jpeg_set_quality(encoder, quality, TRUE);
  else keep_tables(encoder, tables);
  jpeg_start_compress(encoder, TRUE);
  size_t valid[TGJ_COMPONENTS], last[TGJ_COMPONENTS];
  for (int i = 0; i < header->components; i++) {
    const jpeg_component_info *component = &encoder->comp_info[i];
    valid[i] = component->downsampled_width;
    last[i] = component->downsampled_height - 1;
    if (planes->stride[i] < (size_t)component->width_in_blocks * DCTSIZE || planes->rows[i] <= last[i])
      fail(codec, TGJ_MISMATCH, "the planes are too small");
  }
  JSAMPROW rows[TGJ_COMPONENTS][MAX_SAMP_FACTOR * DCTSIZE];
  JSAMPARRAY image[TGJ_COMPONENTS] = {rows[0], rows[1], rows[2]};
  JDIMENSION lines = (JDIMENSION)(encoder->max_v_samp_factor * DCTSIZE);
  for (size_t unit = 0; encoder->next_scanline < encoder->image_height; unit++) {
    for (int i = 0; i < header->components; i++) {
      const jpeg_component_info *component = &encoder->comp_info[i];
      size_t count = (size_t)component->v_samp_factor * DCTSIZE;
      size_t pad = (size_t)component->width_in_blocks * DCTSIZE - valid[i];
      for (size_t r = 0; r < count; r++) {
        size_t y = unit * count + r;
        /* Beyond the edge the last row and column repeat: the cheapest content for a block. */
        rows[i][r] = planes->data[i] + (y > last[i] ? last[i] : y) * planes->stride[i];
        if (pad > 0) memset(rows[i][r] + valid[i], rows[i][r][valid[i] - 1], pad);
      }
    }
    if (jpeg_write_raw_data(encoder, image, lines) == 0)
      fail(codec, TGJ_FAILED, "the encoder made no progress");
  }
  jpeg_finish_compress(encoder);
}

static void encode_bgr(struct tgj_codec *codec, const uint8_t *data, size_t width, size_t height,
                       int quality) {
  j_compress_ptr encoder = &codec->encoder;
  start_encoder(encoder, width, height, 3, JCS_EXT_BGR);
  jpeg_set_quality(encoder, quality, TRUE);
  jpeg_start_compress(encoder, TRUE);
  while (encoder->next_scanline < encoder->image_height) {
    /* libjpeg reads through this pointer and leaves the samples alone. */
    JSAMPROW row = (JSAMPROW)(uintptr_t)(data + 3 * width * encoder->next_scanline);
    if (jpeg_write_scanlines(encoder, &row, 1) == 0)
      fail(codec, TGJ_FAILED, "the encoder made no progress");
  }
  jpeg_finish_compress(encoder);
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

/* Runs `body` where libjpeg may jump out of it, and once more from the header on if the scan was in doubt. Locals of the
 * caller are not changed inside, so none is clobbered. */
#define GUARDED(codec, body)                        \
  do {                                              \
    if (setjmp((codec)->jump) != 0) {               \
      jpeg_abort_decompress(&(codec)->decoder);     \
      jpeg_abort_compress(&(codec)->encoder);       \
      (codec)->started = 0;                         \
      (codec)->output_bytes = 0;                    \
      if ((codec)->failure != DOUBT) return (codec)->failure; \
      (codec)->libjpeg_alone = 1;                   \
      open_picture(codec);                          \
    }                                               \
    body;                                           \
    return TGJ_OK;                                  \
  } while (0)

static int create(struct tgj_codec *codec) {
  if (setjmp(codec->jump) != 0) return 0;
  create_decoder(codec);
  jpeg_create_compress(&codec->encoder);
  codec->encoder.dest = &codec->destination;
  codec->encoder.mem->access_virt_barray = encoder_rows;
  return 1;
}

struct tgj_codec *tgj_new(void) {
  struct tgj_codec *codec = calloc(1, sizeof *codec);
  if (codec == NULL) return NULL;
  codec->output_capacity = 64 << 10;
  codec->output = malloc(codec->output_capacity);
  codec->decoder.err = codec->encoder.err = jpeg_std_error(&codec->errors);
  codec->decoder.client_data = codec->encoder.client_data = codec;
  codec->errors.error_exit = error_exit;
  codec->errors.emit_message = emit_message;
  codec->errors.output_message = output_message;
  codec->source.init_source = init_source;
  codec->source.fill_input_buffer = fill_input_buffer;
  codec->source.skip_input_data = skip_input_data;
  codec->source.resync_to_restart = jpeg_resync_to_restart;
  codec->source.term_source = term_source;
  codec->destination.init_destination = init_destination;
  codec->destination.empty_output_buffer = empty_output_buffer;
  codec->destination.term_destination = term_destination;
  if (codec->output == NULL || !create(codec)) {
    tgj_free(codec);
    return NULL;
  }
  return codec;
}

void tgj_free(struct tgj_codec *codec) {
  if (codec == NULL) return;
  jpeg_destroy_decompress(&codec->decoder); /* does nothing if it was never created */
  jpeg_destroy_compress(&codec->encoder);
  tgj_scan_free(&codec->scan);
  free(codec->coefficients);
  free(codec->rows);
  free(codec->output);
  free(codec);
}

void tgj_report(const struct tgj_codec *codec, struct tgj_report *report) {
  *report = codec->report;
}

const uint8_t *tgj_output(const struct tgj_codec *codec, size_t *bytes) {
  *bytes = codec->output_bytes;
  return codec->output;
}

void tgj_prefer_libjpeg(struct tgj_codec *codec, int alone) { codec->libjpeg_preferred = alone; }

int tgj_was_libjpeg(const struct tgj_codec *codec) { return !codec->fast; }

int tgj_open(struct tgj_codec *codec, const uint8_t *jpeg, size_t bytes,
             const struct tgj_header *header) {
  codec->output_bytes = 0;
  codec->started = 0;
  codec->eighth.data = NULL;
  codec->jpeg = jpeg;
  codec->jpeg_bytes = bytes;
  codec->header = *header;
  codec->libjpeg_alone = codec->libjpeg_preferred;
  GUARDED(codec, {
    jpeg_abort_compress(&codec->encoder);
    open_picture(codec);
  });
}

int tgj_decode_planes(struct tgj_codec *codec, int eighths, const struct tgj_planes *planes,
                      uint16_t tables[TGJ_COMPONENTS][64], struct tgj_eighth eighth) {
  codec->eighth = eighth;
  GUARDED(codec, decode_planes(codec, eighths, planes, tables));
}

int tgj_decode_bgr(struct tgj_codec *codec, int eighths, uint8_t *data, size_t width,
                   size_t height, struct tgj_eighth eighth) {
  codec->eighth = eighth;
  GUARDED(codec, decode_bgr(codec, eighths, data, width, height));
}

int tgj_load(struct tgj_codec *codec, struct tgj_eighth eighth) {
  codec->eighth = eighth;
  GUARDED(codec, {
    codec->decoder.raw_data_out = TRUE;
    start_decoder(codec, 1, WANT_ALL);
    consume_all(codec);
  });
}

int tgj_read_eighth(struct tgj_codec *codec, struct tgj_eighth eighth) {
  codec->eighth = eighth;
  GUARDED(codec, read_eighth(codec));
}

int tgj_transcode(struct tgj_codec *codec, const struct tgj_recipe *recipe) {
  codec->eighth.data = NULL;
  codec->recipe = recipe;
  GUARDED(codec, transcode(codec));
}

int tgj_encode_planes(struct tgj_codec *codec, const struct tgj_header *header,
                      const struct tgj_planes *planes, int quality,
                      const uint16_t tables[TGJ_COMPONENTS][64]) {
  memset(&codec->report, 0, sizeof codec->report);
  codec->output_bytes = 0;
  GUARDED(codec, encode_planes(codec, header, planes, quality, tables));
}

int tgj_encode_bgr(struct tgj_codec *codec, const uint8_t *data, size_t width, size_t height,
                   int quality) {
  memset(&codec->report, 0, sizeof codec->report);
  codec->output_bytes = 0;
  GUARDED(codec, encode_bgr(codec, data, width, height, quality));
}
