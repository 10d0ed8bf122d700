/* Inverse transforms of scaled decoding that libjpeg-turbo has no vector code for. */
#ifndef TIDEGATE_IDCT_H
#define TIDEGATE_IDCT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

/* Uses ours for the output pass that was just started, where there is one for a component's scale. */
void tgj_use_own_idct(j_decompress_ptr);

#endif
