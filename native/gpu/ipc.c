/* Opens the GPU memory of peers: by address in the same process, by CUDA IPC in another one of the
 * host. A process can open an allocation once, and ranks may be threads: so open allocations are
 * counted, by handle and unique number, as a new allocation may have an old one's address. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "gpu/driver/cuda.h"
#include "gpu/device_comm.h"

#define PC_IPC_MAGIC 0x4c504350u /* "PCPL" */

struct address { /* the address blob that Python carries to the peers */
    uint32_t magic;
    uint32_t version;
    struct pc_device_header header; /* as it stands in the arena */
    uint64_t nbytes;                /* of the arena */
    uint64_t offset;                /* of the arena within its allocation */
    uint64_t id;                    /* the unique number of that allocation */
    uint32_t exported;              /* other processes can open it */
    uint32_t reserved;
    unsigned char handle[PC_CUDA_HANDLE];
};

struct opened {
    struct opened *next;
    unsigned char handle[PC_CUDA_HANDLE];
    uint64_t id;
    int device;
    uint32_t users;
    uint64_t address;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pc_device_comm *here; /* all device communicators of this process */
static struct opened *opened;

static uint64_t digest(const uint32_t *ranks, uint32_t n)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint32_t i = 0; i < n; i++)
        hash = (hash ^ ranks[i]) * UINT64_C(0x100000001b3);
    return hash;
}

int pc__ipc_open(struct pc_device_comm *dc)
{
    const struct pc_options *o = &dc->comm->options;
    dc->header = (struct pc_device_header){.magic = PC_DEVICE_ARENA_MAGIC,
                                           .version = PC_VERSION,
                                           .rank = o->rank,
                                           .size = o->size,
                                           .local = dc->local,
                                           .nlocals = dc->nlocals,
                                           .slots = dc->layout.slots,
                                           .slot_bytes = dc->layout.slot_bytes,
                                           .heap_bytes = dc->heap.bytes,
                                           .among = digest(dc->locals, dc->nlocals)};
    if (getrandom(dc->header.token, sizeof dc->header.token, 0) != sizeof dc->header.token)
        return pc__fail(dc->error, PC_SYSTEM, -1, "getrandom");
    int rc = pc__device_comm_upload(dc, dc->arena, &dc->header, sizeof dc->header);
    if (rc != PC_OK)
        return rc;
    pthread_mutex_lock(&lock);
    dc->next = here;
    here = dc;
    pthread_mutex_unlock(&lock);
    return PC_OK;
}

int pc_device_comm_address(struct pc_device_comm *dc, void *blob, size_t capacity)
{
    struct address a = {.magic = PC_IPC_MAGIC,
                        .version = PC_VERSION,
                        .header = dc->header,
                        .nbytes = dc->layout.end};
    struct pc_cuda_pointer where;
    struct pc_error ignored;
    if (capacity < sizeof a)
        return pc__fail(dc->error, PC_INVALID, -1, "an address needs %zu bytes, got %zu", sizeof a,
                        capacity);
    /* No error if other processes cannot open the allocation: ranks of this process can. */
    if (pc_cuda_pointer(dc->arena, &ignored, &where) == PC_OK && where.kind == PC_CUDA_DEVICE
        && pc_cuda_ipc_get(dc->device, dc->arena, &ignored, a.handle) == PC_OK) {
        a.offset = dc->arena - where.base;
        a.id = where.id;
        a.exported = 1;
    }
    memcpy(blob, &a, sizeof a);
    return (int)sizeof a;
}

/* Checks what must be equal if `peer` opened its device communicator as this rank did. */
static bool check_address(const struct pc_device_comm *dc, uint32_t peer, const struct address *a)
{
    struct pc_device_header want = dc->header;
    want.rank = peer;
    want.local = dc->peers[peer].local;
    memcpy(want.token, a->header.token, sizeof want.token);
    return memcmp(&want, &a->header, sizeof want) == 0 && a->nbytes == dc->layout.end
           && a->offset % PC_LINE_BYTES == 0 && a->exported <= 1;
}

/* Finds the device communicator of this process by its token: the peer's address is not trusted. */
static bool find_here(struct pc_device_comm *dc, const struct address *a, int *device,
                      uint64_t *arena)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (const struct pc_device_comm *p = here; p != NULL && !found; p = p->next) {
        found = p != dc && memcmp(&p->header, &a->header, sizeof p->header) == 0;
        if (found) {
            *device = p->device;
            *arena = p->arena;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static struct opened *find_opened(int device, const unsigned char *handle, uint64_t id)
{
    for (struct opened *o = opened; o != NULL; o = o->next)
        if (o->device == device && o->id == id && memcmp(o->handle, handle, sizeof o->handle) == 0)
            return o;
    return NULL;
}

int pc__ipc_open_memory(int device, const unsigned char *handle, uint64_t id,
                        struct pc_error *error, uint64_t *base)
{
    int rc = PC_OK;
    pthread_mutex_lock(&lock);
    struct opened *o = find_opened(device, handle, id);
    if (o == NULL && (o = calloc(1, sizeof *o)) == NULL) {
        rc = pc__fail(error, PC_NOMEM, -1, "no memory for a device communicator");
    } else if (o->users == 0) {
        rc = pc_cuda_ipc_open(device, handle, error, &o->address);
        if (rc == PC_OK) {
            memcpy(o->handle, handle, sizeof o->handle);
            o->id = id;
            o->device = device;
            o->next = opened;
            opened = o;
        } else {
            free(o);
        }
    }
    if (rc == PC_OK) {
        o->users++;
        *base = o->address;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

void pc__ipc_close_memory(int device, uint64_t base)
{
    struct pc_error ignored;
    pthread_mutex_lock(&lock);
    for (struct opened **at = &opened; *at != NULL; at = &(*at)->next) {
        struct opened *o = *at;
        if (o->address != base || o->device != device)
            continue;
        if (--o->users == 0) {
            *at = o->next;
            pc_cuda_ipc_close(device, base, &ignored);
            free(o);
        }
        break;
    }
    pthread_mutex_unlock(&lock);
}

/* Checks what was opened: its length, and the header at its start. */
static int check_memory(struct pc_device_comm *dc, uint32_t peer, const struct address *a,
                        uint64_t base)
{
    struct pc_device_header header;
    struct pc_cuda_pointer where;
    int rc = pc_cuda_pointer(base, dc->error, &where);
    if (rc != PC_OK)
        return rc;
    uint64_t room = where.nbytes - (base - where.base);
    if (where.kind != PC_CUDA_DEVICE || a->offset > room || a->nbytes > room - a->offset)
        return pc__fail(dc->error, PC_INVALID, (int)peer,
                        "the GPU memory of rank %u has %llu bytes, want %llu at %llu", peer,
                        (unsigned long long)room, (unsigned long long)a->nbytes,
                        (unsigned long long)a->offset);
    rc = pc__device_comm_download(dc, &header, base + a->offset, sizeof header);
    if (rc == PC_OK && memcmp(&header, &a->header, sizeof header) != 0)
        return pc__fail(dc->error, PC_INVALID, (int)peer,
                        "the GPU memory of rank %u does not begin as it says", peer);
    return rc;
}

static int try_memory(struct pc_device_comm *dc, uint32_t peer, const struct address *a)
{
    struct pc_device_peer *p = &dc->peers[peer];
    int device;
    uint64_t base;
    if (find_here(dc, a, &device, &p->arena)) {
        struct pc_error error;
        if (pc_cuda_peer(dc->device, device, &error) == PC_OK)
            return PC_OK;
        p->arena = 0;
        return pc__fail(dc->error, PC_UNMAPPABLE, (int)peer, "the GPU memory of rank %u: %s", peer,
                        error.text);
    }
    if (!a->exported)
        return pc__fail(dc->error, PC_UNMAPPABLE, (int)peer,
                        "rank %u, another process, has GPU memory that CUDA IPC does not share",
                        peer);
    struct pc_error error;
    int rc = pc__ipc_open_memory(dc->device, a->handle, a->id, &error, &base);
    if (rc != PC_OK)
        return pc__fail(dc->error, PC_UNMAPPABLE, (int)peer, "the GPU memory of rank %u: %s", peer,
                        error.text);
    rc = check_memory(dc, peer, a, base);
    if (rc != PC_OK) {
        pc__ipc_close_memory(dc->device, base);
        return rc;
    }
    p->arena = base + a->offset;
    p->base = base;
    p->mapped = true;
    return PC_OK;
}

int pc_device_comm_connect(struct pc_device_comm *dc, uint32_t peer, const void *blob,
                           size_t nbytes)
{
    struct address a;
    int rc, mode;
    if (peer >= dc->comm->options.size || peer == dc->comm->options.rank || dc->sealed)
        return pc__fail(dc->error, PC_INVALID, (int)peer, "rank %u of %u cannot be reached now",
                        peer, dc->comm->options.size);
    struct pc_device_peer *p = &dc->peers[peer];
    if (p->arena != 0)
        return PC_OK;
    if (p->local == UINT32_MAX || !pc__mapped(dc->comm, peer))
        return pc__fail(dc->error, PC_UNMAPPABLE, (int)peer, "rank %u is on another host", peer);
    if (nbytes != sizeof a)
        return pc__fail(dc->error, PC_INVALID, (int)peer,
                        "address of rank %u has %zu bytes, want %zu", peer, nbytes, sizeof a);
    memcpy(&a, blob, sizeof a);
    if (a.magic != PC_IPC_MAGIC || a.version != PC_VERSION || !check_address(dc, peer, &a))
        return pc__fail(
            dc->error, PC_INVALID, (int)peer,
            "address of rank %u is of rank %u of %u, %u slots of %u bytes, %llu of heap; "
            "want rank %u of %u, %u of %u, %llu",
            peer, a.header.rank, a.header.size, a.header.slots, a.header.slot_bytes,
            (unsigned long long)a.header.heap_bytes, peer, dc->header.size, dc->header.slots,
            dc->header.slot_bytes, (unsigned long long)dc->header.heap_bytes);
    mode = pc__cuda_relax(PC_CUDA_RELAXED);
    rc = try_memory(dc, peer, &a);
    pc__cuda_relax(mode);
    return rc;
}

void pc__ipc_drop(struct pc_device_comm *dc, uint32_t peer)
{
    struct pc_device_peer *p = &dc->peers[peer];
    if (p->mapped)
        pc__ipc_close_memory(dc->device, p->base);
    p->mapped = false;
    p->arena = 0;
}

void pc__ipc_close(struct pc_device_comm *dc)
{
    for (uint32_t p = 0; dc->peers != NULL && p < dc->comm->options.size; p++)
        pc__ipc_drop(dc, p);
    pthread_mutex_lock(&lock);
    for (struct pc_device_comm **at = &here; *at != NULL; at = &(*at)->next)
        if (*at == dc) {
            *at = dc->next;
            break;
        }
    pthread_mutex_unlock(&lock);
}
