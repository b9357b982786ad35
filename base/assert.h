/* Assertions for programmer errors. They stay in release builds, so each must cost O(1). */
#ifndef OX_BASE_ASSERT_H
#define OX_BASE_ASSERT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the failed condition with its file and line to stderr and aborts. */
__attribute__((noreturn, cold)) void ox_assert_failed(const char *condition, const char *file, int line);

/* OX_STATIC_ASSERT(condition, "why"): checked by the compiler, in C11 and C++17. */
#ifdef __cplusplus
#define OX_STATIC_ASSERT static_assert
#else
#define OX_STATIC_ASSERT _Static_assert
#endif

#define OX_ASSERT(condition) \
    ((condition) ? (void)0 : ox_assert_failed(#condition, __FILE__, __LINE__))

#ifdef __cplusplus
}
#endif
#endif
