/* For wheels: has the engine ask for functions of glibc by the versions that glibc 2.28 has too.
 *
 * glibc 2.32 to 2.34 gave these functions new versions when it moved them into libc.so.6, and made
 * stat a function of its own; what they do did not change. build.py includes this file before every
 * source if PYCOLL_WHEEL is set. On glibc 2.28 some still lie in libdl and libpthread, which are
 * linked for that. */
#ifndef PC_OLD_GLIBC_H
#define PC_OLD_GLIBC_H
#include <sys/stat.h>

#if defined(__x86_64__)
#define PC_GLIBC "GLIBC_2.2.5"
#define PC_GLIBC_CLOCK "GLIBC_2.3.3"
#define PC_STAT_VERSION 1
#elif defined(__aarch64__)
#define PC_GLIBC "GLIBC_2.17"
#define PC_GLIBC_CLOCK "GLIBC_2.17"
#define PC_STAT_VERSION 0
#else
#error "wheels are made for x86_64 and aarch64; unset PYCOLL_WHEEL"
#endif

__asm__(".symver dlopen,dlopen@" PC_GLIBC);
__asm__(".symver dlsym,dlsym@" PC_GLIBC);
__asm__(".symver dlvsym,dlvsym@" PC_GLIBC);
__asm__(".symver dlerror,dlerror@" PC_GLIBC);
__asm__(".symver pthread_create,pthread_create@" PC_GLIBC);
__asm__(".symver pthread_join,pthread_join@" PC_GLIBC);
__asm__(".symver pthread_once,pthread_once@" PC_GLIBC);
__asm__(".symver pthread_sigmask,pthread_sigmask@" PC_GLIBC);
__asm__(".symver pthread_condattr_setclock,pthread_condattr_setclock@" PC_GLIBC_CLOCK);

extern int __xstat(int version, const char *path, struct stat *out);
extern int __fxstat(int version, int fd, struct stat *out);
#define stat(path, out) __xstat(PC_STAT_VERSION, path, out)
#define fstat(fd, out) __fxstat(PC_STAT_VERSION, fd, out)
#endif
