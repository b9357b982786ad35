/* A sequence of random numbers that is the same in every run of a program. */
#ifndef OX_TESTS_DRAW_H
#define OX_TESTS_DRAW_H

#include <stdint.h>

uint32_t random_u32(void);
/* Signed fractions over forty binary orders of magnitude. */
float random_f32(void);

#endif
