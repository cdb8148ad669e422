/* A clock that costs a few nanoseconds: the processor's counter, which runs at one rate on all
 * cores of every machine that pycoll is for. What a tick is, who reads two of them finds out. */
#ifndef PC_TICKS_H
#define PC_TICKS_H
#include <stdint.h>
#include <time.h>

static inline uint64_t pc__ticks(void)
{
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t x;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(x));
    return x;
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
#endif
}
#endif
