/* Protection domains and memory regions, and the checks and copies of what they allow. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "nic.h"

struct ibv_pd *ibv_alloc_pd(struct ibv_context *base)
{
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    if (!pd || FV_FAILS("alloc_pd")) {
        free(pd);
        return NULL;
    }
    pd->context = base;
    fv_object(fv_context_of(base), FV_PDS, 1);
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    struct fv_context *c = fv_context_of(pd->context);
    bool used = false;
    fv_enter(c);
    for (uint32_t i = 0; i < c->nmrs; i++)
        used |= c->mrs[i] && c->mrs[i]->base.pd == pd;
    for (uint32_t i = 0; i < c->top_qp; i++)
        used |= c->qps[i] && c->qps[i]->base.pd == pd;
    for (const struct fv_srq *srq = c->srqs; srq; srq = srq->later)
        used |= srq->base.pd == pd;
    fv_leave(c);
    if (used)
        return EBUSY;
    fv_object(c, FV_PDS, -1);
    free(pd);
    return 0;
}

static _Atomic uint64_t pinned; /* bytes, of this process */

static bool mapped(uintptr_t address, size_t length)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = address & ~(page - 1), end = (address + length + page - 1) & ~(page - 1);
    unsigned char seen[256];
    for (; first < end; first += sizeof seen * page) {
        size_t n = end - first < sizeof seen * page ? end - first : sizeof seen * page;
        if (mincore((void *)first, n, seen) && errno == ENOMEM)
            return false;
    }
    return true;
}

static bool allowed(unsigned int access)
{
    const unsigned int known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
                               | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
                               | IBV_ACCESS_OPTIONAL_RANGE;
    return !(access & ~known)
           && (!(access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC))
               || (access & IBV_ACCESS_LOCAL_WRITE));
}

/* Memory of the host, which counts as pinned. 0, or an errno. */
static int pin(const struct fv_mr *mr, size_t length)
{
    if (length && !mapped((uintptr_t)mr->memory, length))
        return EFAULT;
    if (atomic_fetch_add(&pinned, length) + length > fv_options.memlock) {
        atomic_fetch_sub(&pinned, length);
        return ENOMEM;
    }
    return 0;
}

/* Gives the region its keys: from here on the NIC knows it. */
static struct ibv_mr *enter(struct ibv_pd *pd, struct fv_mr *mr, void *addr, size_t length)
{
    struct fv_context *c = fv_context_of(pd->context);
    fv_enter(c);
    uint32_t index = 0, tries;
    for (tries = 0; tries < c->nmrs; tries++) {
        index = (c->next_mr + tries) % c->nmrs;
        if (!c->mrs[index])
            break;
    }
    if (tries == c->nmrs) {
        uint32_t more = c->nmrs ? 2 * c->nmrs : 64;
        struct fv_mr **grown = realloc(c->mrs, more * sizeof *grown);
        if (!grown)
            fv_fatal("no memory for a table of %u regions", more);
        memset(grown + c->nmrs, 0, (more - c->nmrs) * sizeof *grown);
        index = c->nmrs;
        c->mrs = grown;
        c->nmrs = more;
    }
    c->next_mr = index + 1;
    /* A key has the region's index, a byte that changes with each use of that index, and a bit that
     * tells lkey from rkey: who takes the one for the other is found out. */
    static _Atomic uint32_t uses;
    uint32_t key = (index + 1) << 9 | (atomic_fetch_add(&uses, 1) & 0xff) << 1;
    mr->base = (struct ibv_mr){.context = pd->context,
                               .pd = pd,
                               .addr = addr,
                               .length = length,
                               .handle = index,
                               .lkey = key,
                               .rkey = key | 1};
    c->mrs[index] = mr;
    fv_object(c, FV_MRS, 1);
    fv_object(c, FV_MR_BYTES, (int64_t)length);
    fv_object(c, FV_RELAXED, (mr->access & IBV_ACCESS_RELAXED_ORDERING) != 0);
    fv_object(c, FV_GPU_MRS, mr->gpu >= 0);
    fv_leave(c);
    return &mr->base;
}

static struct fv_mr *made(uint64_t iova, unsigned int access, char *memory)
{
    struct fv_mr *mr = calloc(1, sizeof *mr);
    if (!mr)
        fv_fatal("no memory for a region");
    *mr = (struct fv_mr){.iova = iova, .access = access, .memory = memory, .gpu = -1, .fd = -1};
    return mr;
}

static struct ibv_mr *region(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                             unsigned int access)
{
    errno = EINVAL;
    if (!allowed(access) || FV_FAILS("reg_mr") || (uintptr_t)addr + length < (uintptr_t)addr)
        return NULL;
    struct fv_mr *mr = made(iova, access, addr);
    int error = fv_gpu_by_address(mr, addr, length);
    if (!error && mr->gpu < 0)
        error = pin(mr, length);
    if (error) {
        free(mr);
        errno = error;
        return NULL;
    }
    return enter(pd, mr, addr, length);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    return region(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                               int access)
{
    return region(pd, addr, length, iova, (unsigned int)access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                unsigned int access)
{
    return region(pd, addr, length, iova, access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access)
{
    struct fv_mr *mr = made(iova, (unsigned int)access, NULL);
    int error = FV_FAILS("reg_dmabuf_mr") ? ENOMEM
                : allowed(mr->access)     ? fv_gpu_by_dmabuf(mr, fd, offset, length)
                                          : EINVAL;
    if (error) {
        free(mr);
        errno = error;
        return NULL;
    }
    return enter(pd, mr, (void *)(uintptr_t)offset, length); /* as the library has it */
}

int ibv_dereg_mr(struct ibv_mr *base)
{
    struct fv_context *c = fv_context_of(base->context);
    fv_enter(c); /* what the NIC does with it at this moment is done when the lock is ours */
    if (base->handle >= c->nmrs || &c->mrs[base->handle]->base != base)
        fv_fatal("a region is deregistered that is not registered");
    struct fv_mr *mr = c->mrs[base->handle];
    c->mrs[base->handle] = NULL;
    fv_gpu_forget(c, mr);
    for (uint32_t i = 0; i < c->top_qp; i++)
        if (c->qps[i])
            fv_responder_forget_region(c->qps[i], mr);
    if (mr->gpu < 0)
        atomic_fetch_sub(&pinned, base->length);
    fv_object(c, FV_GPU_MRS, -(int64_t)(mr->gpu >= 0));
    fv_object(c, FV_MRS, -1);
    fv_object(c, FV_MR_BYTES, -(int64_t)base->length);
    fv_object(c, FV_RELAXED, -(int64_t)((mr->access & IBV_ACCESS_RELAXED_ORDERING) != 0));
    fv_leave(c);
    fv_gpu_unmap(mr);
    free(mr);
    return 0;
}

static struct fv_mr *find(struct fv_context *c, const struct ibv_pd *pd, uint32_t key, bool remote)
{
    uint32_t index = (key >> 9) - 1;
    if (index >= c->nmrs || !c->mrs[index] || c->mrs[index]->base.pd != pd)
        return NULL;
    const struct ibv_mr *mr = &c->mrs[index]->base;
    return (remote ? mr->rkey : mr->lkey) == key ? c->mrs[index] : NULL;
}

static bool within(const struct fv_mr *mr, uint64_t addr, uint32_t length, char **memory)
{
    if (addr < mr->iova || length > mr->base.length || addr - mr->iova > mr->base.length - length)
        return false;
    *memory = mr->memory + (addr - mr->iova);
    return true;
}

const struct fv_mr *fv_remote(struct fv_context *c, const struct ibv_pd *pd, uint32_t rkey,
                              uint64_t addr, uint32_t length, unsigned int access, char **memory)
{
    const struct fv_mr *mr = find(c, pd, rkey, true);
    bool good = mr && (mr->access & access) == access && within(mr, addr, length, memory);
    return good ? mr : NULL;
}

/* Ascending, and the last 8 bytes of a multiple of 8 with a release store, so that who sees them by
 * an acquiring load sees all before them. The rest are plain stores, as a NIC's are: a reader who
 * looks at them earlier has a race, and ThreadSanitizer says so. */
void fv_land(char *to, const char *from, uint32_t n)
{
    uint32_t done = 0;
    bool words = n >= 8 && ((uintptr_t)(to + n) & 7) == 0;
    uint32_t plain = words ? n - 8 : n;
    for (; done < plain; done += 64) {
        memcpy(to + done, from + done, plain - done < 64 ? plain - done : 64);
        atomic_signal_fence(memory_order_seq_cst);
    }
    if (words) {
        uint64_t last;
        memcpy(&last, from + plain, 8);
        __atomic_store_n((uint64_t *)(void *)(to + plain), last, __ATOMIC_RELEASE);
    }
}

/* The region of an element of a list, or NULL where its lkey, its bounds or the access are wrong.
 */
static const struct fv_mr *local(const struct fv_qp *qp, const struct ibv_sge *sge, bool write,
                                 char **memory)
{
    const struct fv_mr *mr = find(qp->context, qp->base.pd, sge->lkey, false);
    if (!mr || (write && !(mr->access & IBV_ACCESS_LOCAL_WRITE)))
        return NULL;
    return within(mr, sge->addr, sge->length, memory) ? mr : NULL;
}

bool fv_gather(const struct fv_qp *qp, const struct ibv_sge *sge, uint32_t nsge, uint32_t from,
               uint32_t n, char *to)
{
    for (; nsge && n; nsge--, sge++) {
        if (from >= sge->length) {
            from -= sge->length;
            continue;
        }
        char *memory;
        if (!local(qp, sge, false, &memory))
            return false;
        uint32_t here = sge->length - from < n ? sge->length - from : n;
        memcpy(to, memory + from, here);
        to += here;
        n -= here;
        from = 0;
    }
    return true;
}

bool fv_scatter(const struct fv_qp *qp, const struct ibv_sge *sge, uint32_t nsge, uint32_t at,
                const char *from, uint32_t n)
{
    for (; nsge && n; nsge--, sge++) {
        if (at >= sge->length) {
            at -= sge->length;
            continue;
        }
        char *memory;
        const struct fv_mr *mr = local(qp, sge, true, &memory);
        if (!mr)
            return false;
        uint32_t here = sge->length - at < n ? sge->length - at : n;
        fv_write(qp->context, mr, memory + at, from, here);
        from += here;
        n -= here;
        at = 0;
    }
    return true;
}
