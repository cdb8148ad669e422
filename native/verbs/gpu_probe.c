/* Tries to register a GPU's memory with an RDMA device, for who asks whether that works here. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "core/internal.h"
#include "memory/mem_type.h"
#include "verbs/memory.h"

#ifndef PC_VERBS
int pc_verbs_gpu_probe(int device, const char *card, struct pc_error *error,
                       struct pc_gpu_probe *out)
{
    (void)device;
    (void)card;
    (void)out;
    return pc__fail(error, PC_UNMAPPABLE, -1, "%s", pc__ib_library());
}
#else

/* An allocation of its own, of the unit in which the driver maps memory: smaller ones share theirs
 * with others. */
#define ROOM ((size_t)2 << 20)
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

#define SAY(out, ...) snprintf((out), sizeof(out), __VA_ARGS__)

static struct ibv_context *opened(const char *card)
{
    int n = 0;
    struct ibv_device **list = pc__ib.get_device_list(&n);
    struct ibv_context *context = NULL;
    errno = ENODEV;
    for (int i = 0; list != NULL && i < n && context == NULL; i++)
        if (strcmp(pc__ib.get_device_name(list[i]), card) == 0)
            context = pc__ib.open_device(list[i]);
    if (list != NULL)
        pc__ib.free_device_list(list);
    return context;
}

static void by_dmabuf(struct ibv_pd *domain, const struct pc_mem_span *span,
                      struct pc_gpu_probe *out)
{
    struct pc_error error;
    uint64_t offset;
    int fd;
    const char *missing = pc__mr_missing(PC_MEM_DMABUF);
    if (*missing != 0 || pc__mem_export_dmabuf(span, &error, &fd, &offset) != PC_OK) {
        SAY(out->dmabuf, "%s", *missing != 0 ? missing : error.text);
        return;
    }
    errno = EINVAL;
    struct ibv_mr *region
        = pc__ib.reg_dmabuf_mr(domain, offset, span->to - span->from, span->from, fd, ACCESS);
    int errnum = errno;
    close(fd);
    if (region != NULL)
        pc__ib.dereg_mr(region);
    else if (errnum == EOPNOTSUPP || errnum == EPROTONOSUPPORT)
        SAY(out->dmabuf,
            "ibv_reg_dmabuf_mr: %s: the card's driver takes no dma-buf: install Linux "
            "5.12 or later, and its mlx5_ib or that of DOCA-OFED",
            strerror(errnum));
    else
        SAY(out->dmabuf, "ibv_reg_dmabuf_mr: %s: dmesg | tail", strerror(errnum));
}

static void by_peermem(struct ibv_pd *domain, const struct pc_mem_span *span,
                       struct pc_gpu_probe *out)
{
    struct pc_error error;
    if (pc__mem_peermem(span, &error) != PC_OK) {
        SAY(out->peermem, "%s", error.text);
        return;
    }
    errno = EINVAL;
    struct ibv_mr *region
        = pc__mr_register(domain, (const void *)span->from, span->to - span->from, ACCESS);
    int errnum = errno;
    if (region != NULL)
        pc__ib.dereg_mr(region);
    else
        SAY(out->peermem,
            "ibv_reg_mr: %s, though nvidia_peermem is loaded: modprobe -r "
            "nvidia_peermem && modprobe nvidia_peermem, or reinstall NVIDIA's driver behind the "
            "card's",
            strerror(errnum));
}

static int attempt(int device, const char *card, uint64_t address, struct pc_error *error,
                   struct pc_gpu_probe *out)
{
    struct pc_mem_span span;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int rc = pc__mem_query((const void *)(uintptr_t)address, page, true, error, &span);
    if (rc != PC_OK)
        return rc;
    struct ibv_context *context = opened(card);
    struct ibv_pd *domain = context != NULL ? pc__ib.alloc_pd(context) : NULL;
    if (domain == NULL) {
        rc = pc__fail(error, PC_SYSTEM, -1, "%s cannot be opened beside GPU %d: %s", card, device,
                      strerror(errno));
    } else {
        by_dmabuf(domain, &span, out);
        by_peermem(domain, &span, out);
        pc__ib.dealloc_pd(domain);
    }
    if (context != NULL)
        pc__ib.close_device(context);
    return rc;
}

int pc_verbs_gpu_probe(int device, const char *card, struct pc_error *error,
                       struct pc_gpu_probe *out)
{
    struct pc_mem_gpu gpu;
    struct pc_error ignored;
    uint64_t address;
    const char *missing = pc__ib_library();
    memset(out, 0, sizeof *out);
    if (missing != NULL)
        return pc__fail(error, PC_UNMAPPABLE, -1, "%s", missing);
    int rc = pc__mem_query_gpu(device, error, &gpu);
    if (rc != PC_OK)
        return rc;
    out->flush = pc__mem_flush_method(&gpu, false);
    rc = pc_cuda_alloc(device, ROOM, error, &address);
    if (rc != PC_OK)
        return rc;
    rc = attempt(device, card, address, error, out);
    pc_cuda_free(device, address, &ignored);
    return rc;
}
#endif
