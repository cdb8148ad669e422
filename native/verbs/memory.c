/* Registers memory regions. Their iova is the process's virtual address, for every memory type. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/internal.h"
#include "verbs/memory.h"

#ifndef PC_VERBS
const char *pc__mr_missing(enum pc_mem_type kind)
{
    (void)kind;
    return pc__ib_library();
}
#else

const char *pc__mr_missing(enum pc_mem_type kind)
{
    const char *missing = pc__ib_library();
    if (missing != NULL)
        return missing;
    if (kind == PC_MEM_DMABUF && pc__ib.reg_dmabuf_mr == NULL)
        return "libibverbs.so.1 has no ibv_reg_dmabuf_mr: install rdma-core 34 or later";
    return pc__mem_missing(kind);
}

static void drop(void *context, void *handle)
{
    const struct pc_mr_domains *r = context;
    struct pc_mr *region = handle;
    for (uint32_t i = 0; i < r->n; i++)
        if (region->with[i] != NULL)
            pc__ib.dereg_mr(region->with[i]);
    free(region);
}

struct ibv_mr *pc__mr_register(struct ibv_pd *domain, const void *memory, size_t nbytes, int access)
{
    void *at = (void *)(uintptr_t)memory;
#ifdef IBV_ACCESS_OPTIONAL_RANGE
    /* Such as IBV_ACCESS_RELAXED_ORDERING: ibv_reg_mr does not know optional flags. */
    if (access & IBV_ACCESS_OPTIONAL_RANGE) {
        if (pc__ib.reg_mr_iova2 != NULL)
            return pc__ib.reg_mr_iova2(domain, at, nbytes, (uintptr_t)at, (unsigned int)access);
        access &= ~IBV_ACCESS_OPTIONAL_RANGE;
    }
#endif
    return pc__ib.reg_mr(domain, at, nbytes, access);
}

/* Registers the span in each domain, or in none. 0, or the errno of the domain that failed. */
static int reg_in_all(const struct pc_mr_domains *r, const struct pc_mem_span *span, int fd,
                      uint64_t offset, struct pc_mr *region)
{
    for (uint32_t i = 0; i < r->n; i++) {
        errno = 0;
        if (fd >= 0)
            region->with[i] = pc__ib.reg_dmabuf_mr(r->domains[i], offset, span->to - span->from,
                                                   span->from, fd, r->access);
        else
            region->with[i] = pc__mr_register(r->domains[i], (const void *)span->from,
                                              span->to - span->from, r->access);
        if (region->with[i] != NULL)
            continue;
        int errnum = errno != 0 ? errno : EINVAL;
        while (i-- > 0) {
            pc__ib.dereg_mr(region->with[i]);
            region->with[i] = NULL;
        }
        return errnum;
    }
    return 0;
}

/* Without the address: ranks compare why they lack the same. */
static int refused(const char *call, const struct pc_mem_span *span, int errnum,
                   struct pc_error *error)
{
    int code = errnum == ENOMEM ? PC_NOMEM : PC_SYSTEM;
    pc__fail(error, code, -1, "%s of %zu bytes: %s%s", call, (size_t)(span->to - span->from),
             strerror(errnum), pc__ib_remedy(errnum));
    error->errnum = errnum;
    return code;
}

static int by_dmabuf(const struct pc_mr_domains *r, const struct pc_mem_span *span,
                     struct pc_mr *region, struct pc_error *error)
{
    const char *missing = pc__mr_missing(PC_MEM_DMABUF);
    uint64_t offset;
    int fd;
    if (*missing != 0)
        return pc__fail(error, PC_UNMAPPABLE, -1, "%s", missing);
    int rc = pc__mem_export_dmabuf(span, error, &fd, &offset);
    if (rc != PC_OK)
        return rc;
    int errnum = reg_in_all(r, span, fd, offset, region);
    close(fd); /* the regions keep the dma-buf */
    return errnum == 0 ? PC_OK : refused("ibv_reg_dmabuf_mr", span, errnum, error);
}

static int by_peermem(const struct pc_mr_domains *r, const struct pc_mem_span *span,
                      struct pc_mr *region, struct pc_error *error)
{
    int rc = pc__mem_peermem(span, error);
    if (rc != PC_OK)
        return rc;
    int errnum = reg_in_all(r, span, -1, 0, region);
    return errnum == 0 ? PC_OK : refused("ibv_reg_mr by nvidia_peermem", span, errnum, error);
}

int pc__mr_gpu(const struct pc_mr_domains *r, struct pc_mem_span *span, uint32_t ways,
               struct pc_error *error, struct pc_mr *out)
{
    struct pc_error first = {0}, second = {0};
    span->kind = PC_MEM_DMABUF;
    if ((ways & 1u << PC_MEM_DMABUF) && by_dmabuf(r, span, out, &first) == PC_OK)
        return PC_OK;
    span->kind = PC_MEM_PEERMEM;
    if ((ways & 1u << PC_MEM_PEERMEM) && by_peermem(r, span, out, &second) == PC_OK)
        return PC_OK;
    span->kind = PC_MEM_STAGED;
    const char *between = *first.text != 0 && *second.text != 0 ? "; " : "";
    return pc__fail(error, PC_UNMAPPABLE, -1, "%.235s%s%.235s", first.text, between, second.text);
}

static int make(void *context, struct pc_mem_span *span, struct pc_error *error, void **handle)
{
    const struct pc_mr_domains *r = context;
    struct pc_mr *region = calloc(1, sizeof *region);
    if (region == NULL)
        return pc__fail(error, PC_NOMEM, -1, "no memory for a registration");
    int rc;
    if (span->kind == PC_MEM_HOST) {
        int errnum = reg_in_all(r, span, -1, 0, region);
        rc = errnum == 0 ? PC_OK : refused("ibv_reg_mr", span, errnum, error);
    } else {
        rc = pc__mr_gpu(r, span, PC_MEM_WAYS, error, region);
    }
    if (rc != PC_OK)
        free(region);
    *handle = region;
    return rc;
}

const struct pc_rcache_ops pc__mr_rcache_ops = {.make = make, .drop = drop};
#endif
