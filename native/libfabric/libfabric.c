/* Loads libfabric, and says what is missing for it. */
#include "libfabric/libfabric.h"

#ifndef PC_LIBFABRIC
const char *pc__fi_load(void)
{
    return "pycoll was built without libfabric's headers: apt-get install libfabric-dev (or dnf "
           "install libfabric-devel), then build again";
}
#else
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define PC_INSTALL \
    "apt-get install libfabric1 (or dnf install libfabric; for EFA, the EFA installer of AWS)"

struct pc_libfabric pc__fi;

/* Where the dynamic linker finds it, then where the EFA installer of AWS puts it. */
static const char *const paths[] = {
    "libfabric.so.1",
    "/opt/amazon/efa/lib/libfabric.so.1",
    "/opt/amazon/efa/lib64/libfabric.so.1",
};

static const struct {
    const char *name, *version;
    size_t at;
} symbols[] = {
#define PC_SYMBOL(name, version) {"fi_" #name, version, offsetof(struct pc_libfabric, name)},
    PC_LIBFABRIC_FUNCTIONS(PC_SYMBOL)
#undef PC_SYMBOL
};

static pthread_once_t loading = PTHREAD_ONCE_INIT;
static char unloadable[300];

static void *open_library(void)
{
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        void *library = dlopen(paths[i], RTLD_NOW | RTLD_LOCAL);
        if (library != NULL)
            return library;
        if (i == 0) /* the linker's own reason tells more than that a folder is not there */
            snprintf(unloadable, sizeof unloadable,
                     "libfabric cannot be loaded (%.100s): " PC_INSTALL, dlerror());
    }
    return NULL;
}

static void load(void)
{
    Dl_info where;
    void *library = open_library();
    if (library == NULL)
        return;
    unloadable[0] = 0;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        /* By version: the unversioned symbol may have another struct than these headers. */
        void *found = dlvsym(library, symbols[i].name, symbols[i].version);
        if (found == NULL) {
            snprintf(unloadable, sizeof unloadable,
                     "libfabric.so.1 has no %s of %s: a newer one is wanted: " PC_INSTALL,
                     symbols[i].name, symbols[i].version);
            return;
        }
        memcpy((char *)&pc__fi + symbols[i].at, &found, sizeof found);
    }
    if (dladdr((void *)(uintptr_t)pc__fi.version, &where) != 0 && where.dli_fname != NULL)
        snprintf(pc__fi.path, sizeof pc__fi.path, "%s", where.dli_fname);
    uint32_t version = pc__fi.version();
    if (FI_VERSION_LT(version, PC_LIBFABRIC_API))
        snprintf(unloadable, sizeof unloadable,
                 "%.120s is libfabric %u.%u, want %u.%u or later: " PC_INSTALL, pc__fi.path,
                 FI_MAJOR(version), FI_MINOR(version), FI_MAJOR(PC_LIBFABRIC_API),
                 FI_MINOR(PC_LIBFABRIC_API));
}

const char *pc__fi_load(void)
{
    pthread_once(&loading, load);
    return unloadable;
}
#endif
