/* The version of the library, and what it was built for. */
#include "core/internal.h"

#ifndef PC_VERSION_TEXT
#define PC_VERSION_TEXT "0"
#endif

const char *pc_version(void)
{
    return PC_VERSION_TEXT;
}

const char *pc_compiler(void)
{
#if defined(__clang__)
    return "clang " __clang_version__;
#else
    return "gcc " __VERSION__;
#endif
}

const char *pc_cpu_features(void)
{
    return pc__cpu_features();
}
