/* RDMA writes between two buffers of this process whose memory changes again and again, with the
 * memory regions of the registration cache.
 *
 *   regions DEVICE DEVICE ROUNDS
 *
 * Every byte is checked. At the end the same with a region that was kept in spite of the change:
 * what the device does then is what the cache is there to prevent. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "verbs/device.h"
#include "verbs/memory.h"

#ifndef PC_VERBS
int main(void)
{
    puts(pc_verbs_missing());
    return 1;
}
#else

#define NBYTES ((size_t)40000) /* ten pages, not all of the last */
#define ROOM ((size_t)40960)

static const struct pc_verbs_options options
    = {.queue_pairs = 1, .timeout = 14, .retry_count = 7, .traffic_class = 104};
static struct pc_ib_device rails[2];
static struct ibv_qp *pairs[2];
static struct pc_rcache *pins;
static struct pc_error error;

static void die(const char *what)
{
    fprintf(stderr, "%s: %s (%s)\n", what, error.text, strerror(errno));
    exit(1);
}

static void open_rails(char *const *devices)
{
    struct pc_qp_info ends[2];
    for (int i = 0; i < 2; i++) {
        struct pc_rail_spec spec = {.port = 1, .gid_index = -1};
        snprintf(spec.device, sizeof spec.device, "%s", devices[i]);
        if (pc__ib_device_open(&spec, &options, 64, &error, &rails[i]) != PC_OK
            || pc__qp_create(&rails[i], rails[i].pd, NULL, 8, 8, &error, &pairs[i], &ends[i])
                   != PC_OK)
            die(devices[i]);
    }
    for (int i = 0; i < 2; i++)
        if (pc__qp_connect(&rails[i], pairs[i], &ends[i], &ends[1 - i], &error) != PC_OK)
            die("connect");
}

/* Writes from one buffer to the other, by the first rail to the second. */
static void write_from(const char *from, const struct pc_mr *mine, const char *to,
                       const struct pc_mr *theirs)
{
    struct ibv_sge part = {(uintptr_t)from, NBYTES, mine->with[0]->lkey};
    struct ibv_send_wr wr = {.sg_list = &part,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {(uintptr_t)to, theirs->with[1]->rkey}};
    struct ibv_send_wr *bad;
    struct ibv_wc wc;
    if (ibv_post_send(pairs[0], &wr, &bad) != 0)
        die("ibv_post_send");
    while (ibv_poll_cq(rails[0].cq, 1, &wc) == 0)
        sched_yield();
    if (wc.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "completion: %s\n", pc__ib.wc_status_str(wc.status));
        exit(1);
    }
}

static struct pc_rcache_region *pin(const char *at)
{
    struct pc_rcache_region *p = pc__rcache_get(pins, at, NBYTES, false, &error);
    if (p == NULL)
        die("pin");
    return p;
}

/* New memory at `at`, or at addresses far below all else, so that what is unmapped there is
 * nobody's until it is mapped here again. */
static char *fresh(char *at)
{
    static char *next;
    if (next == NULL)
        next = (char *)mmap(NULL, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
               - ((size_t)64 << 30);
    if (at == NULL)
        at = next -= 2 * ROOM;
    if (mmap(at, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)
        == MAP_FAILED)
        die("mmap");
    return at;
}

static void change(char *at, int how)
{
    static char *aside;
    aside = aside != NULL ? aside : fresh(NULL);
    switch (how) {
    case 0: /* nothing */
        break;
    case 1:
        munmap(at, ROOM);
        fresh(at);
        break;
    case 2:
        fresh(at); /* over it */
        break;
    case 3:
        madvise(at, ROOM, MADV_DONTNEED);
        break;
    case 4: /* other pages take its place */
        if (mremap(at, ROOM, ROOM, MREMAP_MAYMOVE | MREMAP_FIXED, aside) != aside)
            die("mremap");
        fresh(at);
        break;
    default: /* its middle */
        munmap(at + 4096, 4096);
        if (mmap(at + 4096, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                 -1, 0)
            == MAP_FAILED)
            die("mmap");
    }
}

static bool carries(char *from, const struct pc_mr *mine, char *to, const struct pc_mr *theirs,
                    unsigned round)
{
    for (size_t i = 0; i < NBYTES; i++) {
        from[i] = (char)(round * 37 + i % 251 + 1);
        to[i] = 0;
    }
    write_from(from, mine, to, theirs);
    return memcmp(from, to, NBYTES) == 0;
}

static _Atomic int done;

/* Beside it: a buffer of its own, so that entries come, merge and go. */
static void *beside(void *own)
{
    while (!atomic_load(&done)) {
        pc__rcache_put(pins, pin(own));
        munmap(own, ROOM);
        fresh(own);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s DEVICE DEVICE ROUNDS\n", argv[0]);
        return 2;
    }
    const char *missing = pc__ib_load();
    if (missing != NULL) {
        fprintf(stderr, "%s\n", missing);
        return 1;
    }
    open_rails(argv + 1);
    struct pc_mr_domains regions = {.domains = {rails[0].pd, rails[1].pd},
                                    .n = 2,
                                    .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
    struct pc_rcache_counters c;
    pthread_t thread;
    pins = pc__rcache_open(&pc__mr_rcache_ops, &regions, 1 << 22);
    if (*pc__rcache_missing(pins) != 0)
        printf("nothing is kept: %s\n", pc__rcache_missing(pins));
    char *from = fresh(NULL), *to = fresh(NULL);
    pthread_create(&thread, NULL, beside, fresh(NULL));
    unsigned rounds = (unsigned)atoi(argv[3]);
    for (unsigned round = 0; round < rounds; round++) {
        change(from, (int)(round % 6));
        change(to, (int)(round / 6 % 6));
        struct pc_rcache_region *mine = pin(from), *theirs = pin(to);
        bool right = carries(from, mine->handle, to, theirs->handle, round);
        pc__rcache_put(pins, mine);
        pc__rcache_put(pins, theirs);
        if (!right) {
            fprintf(stderr, "round %u: what was written is not there\n", round);
            return 1;
        }
    }
    atomic_store(&done, 1);
    pthread_join(thread, NULL);
    /* While a change of memory is yet to be read nothing is kept. Now there are no more of them. */
    for (int i = 0; i < 10000 && (i == 0 || c.entries == 0 || c.hits == 0); i++) {
        pc__rcache_put(pins, pin(from));
        pc__rcache_query(pins, &c);
        usleep(1000);
    }
    printf("%u writes to memory as it was; kept: %s, found again: %s\n", rounds,
           c.entries > 0 ? "yes" : "no", c.hits > 0 ? "yes" : "no");

    struct pc_rcache_region *mine = pin(from), *theirs = pin(to);
    change(to, 1);
    printf("a region that was kept in spite of it: %s\n",
           carries(from, mine->handle, to, theirs->handle, 7) ? "right" : "nothing arrives");
    pc__rcache_put(pins, mine);
    pc__rcache_put(pins, theirs);
    pc__rcache_close(pins);
    for (int i = 0; i < 2; i++)
        pc__ib.destroy_qp(pairs[i]);
    for (int i = 0; i < 2; i++)
        pc__ib_device_close(&rails[i]);
    return 0;
}
#endif
