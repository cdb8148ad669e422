/* libfabric, loaded by dlopen at first use: a machine without it runs everything else.
 *
 * Most of its functions are inline in its headers, and call through the objects that it has
 * returned; the few others are called through pc__fi. Code that needs it is between #ifdef
 * PC_LIBFABRIC and #endif. */
#ifndef PC_LIBFABRIC_H
#define PC_LIBFABRIC_H
#include <stdint.h>

#ifdef __has_include
#if __has_include(<rdma/fi_cm.h>) && !defined(PC_NO_LIBFABRIC)
#define PC_LIBFABRIC 1
#endif
#endif

#ifdef PC_LIBFABRIC
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

/* Each function with the version of its symbol. Later versions only append to the structs, and the
 * library allocates them all: of an fi_info, only what version 1.11 had is used here. */
#define PC_LIBFABRIC_FUNCTIONS(X) \
    X(version, "FABRIC_1.0") \
    X(strerror, "FABRIC_1.0") \
    X(getinfo, "FABRIC_1.3") \
    X(freeinfo, "FABRIC_1.3") \
    X(dupinfo, "FABRIC_1.3") \
    X(fabric, "FABRIC_1.1")
#define PC_LIBFABRIC_API FI_VERSION(1, 11)
/* Asked for where the library has it, of what writes: the interface from which on EFA's cards write
 * by themselves on all instances (p4d, p5), and a provider can be forbidden to call CUDA. */
#define PC_LIBFABRIC_API_WRITES FI_VERSION(1, 18)

struct pc_libfabric {
#define PC_LIBFABRIC_MEMBER(name, version) __typeof__(fi_##name) *name;
    PC_LIBFABRIC_FUNCTIONS(PC_LIBFABRIC_MEMBER)
#undef PC_LIBFABRIC_MEMBER
    char path[256]; /* of the library */
};

extern struct pc_libfabric pc__fi; /* filled by pc__fi_load */
#endif

/* Loads the library once. "", or what is missing and what mends that; valid for ever. */
const char *pc__fi_load(void);
#endif
