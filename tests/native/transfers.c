/* Transfers between ranks that are threads of one process, so that ThreadSanitizer and
 * AddressSanitizer see every access.
 *
 *   transfers PATH SIZE ITERATIONS SPIN
 *
 * PATH is as in rank_threads.h. Blocking ones, exchanges, posted ones that a second thread of the
 * rank waits for too, and pairwise batches, blocking and queued, follow each other without a pause;
 * every byte is checked. The slots are small, so that most messages take several turns of the
 * ring. */
#include "rank_threads.h"

#define MAX_BYTES 40000
#define LARGE_BYTES 600000 /* such a message is fetched */
#define DEPTH 12           /* posted or queued at once */
#define CONNECTIONS 3      /* between two ranks */

static uint32_t spin;
static int iterations;

static unsigned char value(uint32_t from, uint32_t to, int number, uint64_t i)
{
    return (unsigned char)((from * 31 + to * 7 + (uint32_t)number * 13 + i * 5 + (i >> 8)) & 0xff);
}

static void fill(unsigned char *x, uint64_t nbytes, uint32_t from, uint32_t to, int number)
{
    for (uint64_t i = 0; i < nbytes; i++)
        x[i] = value(from, to, number, i);
}

static void check(const unsigned char *x, uint64_t nbytes, uint32_t from, uint32_t to, int number)
{
    for (uint64_t i = 0; i < nbytes; i++)
        if (x[i] != value(from, to, number, i)) {
            fprintf(stderr, "message %d from %u to %u, byte %llu of %llu: got %u, want %u\n",
                    number, from, to, (unsigned long long)i, (unsigned long long)nbytes, x[i],
                    value(from, to, number, i));
            exit(1);
        }
}

/* One message, or one to and from every rank: `sent` and `got` have room for all. */
struct slot {
    struct pc_work *work;
    unsigned char *sent, *got, *heap;
    struct pc_p2p_op messages[2 * MAX_RANKS];
    uint32_t n;
    int number;
};

struct rank {
    struct pc_comm *comm;
    uint32_t rank;
    struct slot slots[DEPTH];
    pthread_mutex_t lock;
    pthread_cond_t moved;
    struct pc_work *offered; /* to the second thread, which waits for it as well */
    bool ends;
};

static void finish(struct rank *r, struct slot *s)
{
    int rc = PC_OK;
    if (s->work != NULL) {
        while ((rc = pc_work_wait(s->work, 1.0)) == PC_AGAIN) {
        }
        pthread_mutex_lock(&r->lock);
        while (r->offered == s->work) /* the other thread still looks at it */
            pthread_cond_wait(&r->moved, &r->lock);
        pthread_mutex_unlock(&r->lock);
        pc_work_free(s->work);
        s->work = NULL;
    }
    if (rc != PC_OK)
        die(r->comm, "work", rc);
    for (uint32_t i = 0; i < s->n; i++)
        if (s->messages[i].direction == PC_DIRECTION_RECV)
            check(s->messages[i].at, s->messages[i].nbytes, s->messages[i].peer, r->rank,
                  s->number);
    s->n = 0;
}

static void *second(void *argument)
{
    struct rank *r = argument;
    pthread_mutex_lock(&r->lock);
    while (!r->ends) {
        if (r->offered == NULL) {
            pthread_cond_wait(&r->moved, &r->lock);
            continue;
        }
        struct pc_work *work = r->offered;
        pthread_mutex_unlock(&r->lock);
        while (pc_work_wait(work, 0.01) == PC_AGAIN) {
        }
        pthread_mutex_lock(&r->lock);
        r->offered = NULL;
        pthread_cond_broadcast(&r->moved);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void offer(struct rank *r, struct pc_work *work)
{
    pthread_mutex_lock(&r->lock);
    if (r->offered == NULL) {
        r->offered = work;
        pthread_cond_broadcast(&r->moved);
    }
    pthread_mutex_unlock(&r->lock);
}

static void add(struct slot *s, const struct rank *r, uint32_t peer, uint32_t direction,
                uint64_t nbytes, bool registered)
{
    struct pc_p2p_op *m = &s->messages[s->n++];
    unsigned char *base = direction == PC_DIRECTION_RECV ? s->got : registered ? s->heap : s->sent;
    *m = (struct pc_p2p_op){.at = base + (uint64_t)peer * MAX_BYTES,
                            .nbytes = nbytes,
                            .peer = peer,
                            .direction = direction,
                            .dtype = PC_DTYPE_UINT8};
    if (direction == PC_DIRECTION_SEND)
        fill(m->at, nbytes, r->rank, peer, s->number);
    else
        memset(m->at, 0x55, nbytes);
}

static uint64_t length(uint64_t *state)
{
    uint32_t kind = draw(state) % 4, n = draw(state);
    return kind == 0 ? n % 100 : kind == 1 ? n % 5000 : n % MAX_BYTES;
}

static void all_to_all(struct rank *r, struct slot *s, uint64_t *state, bool registered)
{
    for (uint32_t from = 0; from < size; from++)
        for (uint32_t to = 0; to < size; to++) {
            uint64_t nbytes = length(state);
            if (from == r->rank)
                add(s, r, to, PC_DIRECTION_SEND, nbytes, registered);
            if (to == r->rank)
                add(s, r, from, PC_DIRECTION_RECV, nbytes, false);
        }
}

static void run(struct rank *r)
{
    uint64_t state = 11;
    for (int number = 0; number < iterations; number++) {
        struct slot *s = &r->slots[number % DEPTH];
        uint32_t kind = draw(&state) % 6, from = draw(&state) % size, to = draw(&state) % size;
        uint32_t how = draw(&state);
        bool registered = how & 1, large = how % 16 == 2;
        int rc = PC_OK;
        finish(r, s);
        s->number = number;
        if (kind < 2) {
            all_to_all(r, s, &state, registered);
        } else {
            uint64_t nbytes = large && size > 1 ? LARGE_BYTES : length(&state);
            to = large ? 0 : to; /* there is room for one that is large only at the beginning */
            from = large ? size - 1 : from;
            if (large && r->rank == from)
                s->n = 0;
            if (r->rank == from)
                add(s, r, to, PC_DIRECTION_SEND, nbytes, registered && !large);
            if (r->rank == to)
                add(s, r, from, PC_DIRECTION_RECV, nbytes, false);
        }
        if (kind == 0 && how & 2)
            rc = pc_pairwise_submit(r->comm, 77, s->messages, s->n, 100, "queued", &s->work);
        else if (kind == 0)
            rc = pc_pairwise(r->comm, 77, s->messages, s->n, 100);
        else if (kind == 1 || kind == 2 || (from == to && s->n))
            rc = pc_exchange(r->comm, s->messages, s->n, 100);
        else if (s->n && (kind == 3 || how & 4))
            rc = pc_post(r->comm, s->messages, s->n, 100, &s->work);
        else if (s->n)
            rc = pc_exchange(r->comm, s->messages, s->n, 100);
        while (rc == PC_AGAIN)
            rc = pc_resume(r->comm, 1.0);
        if (rc != PC_OK)
            die(r->comm, "call", rc);
        if (s->work != NULL && how & 8)
            offer(r, s->work);
    }
    for (int i = 0; i < DEPTH; i++)
        finish(r, &r->slots[i]);
}

static void *rank_main(void *argument)
{
    struct rank *r = calloc(1, sizeof *r);
    pthread_t waiter;
    r->rank = (uint32_t)(uintptr_t)argument;
    struct pc_options options = {.rank = r->rank,
                                 .size = size,
                                 .slots = 2,
                                 .slot_bytes = 1 << 12,
                                 .heap_bytes = 1 << 24,
                                 .spin = spin};
    r->comm = open_comm(&options);
    pthread_barrier_wait(&joined);
    pthread_barrier_wait(&joined);
    for (int i = 0; i < DEPTH; i++) {
        struct slot *s = &r->slots[i];
        s->sent = malloc(MAX_RANKS * MAX_BYTES + LARGE_BYTES);
        s->got = malloc(MAX_RANKS * MAX_BYTES + LARGE_BYTES);
        s->heap = pc_heap_alloc(r->comm, MAX_RANKS * MAX_BYTES + LARGE_BYTES);
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->moved, NULL);
    pthread_create(&waiter, NULL, second, r);
    run(r);
    pthread_mutex_lock(&r->lock);
    r->ends = true;
    pthread_cond_broadcast(&r->moved);
    pthread_mutex_unlock(&r->lock);
    pthread_join(waiter, NULL);
    pthread_barrier_wait(&barrier); /* the arenas are shared: nobody unmaps before all are done */
    for (int i = 0; i < DEPTH; i++) {
        free(r->slots[i].sent);
        free(r->slots[i].got);
    }
    pc_comm_close(r->comm);
    free(r);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: %s PATH SIZE ITERATIONS SPIN\n", argv[0]);
        return 2;
    }
    choose_path(argv[1]);
    size = (uint32_t)atoi(argv[2]);
    iterations = atoi(argv[3]);
    spin = (uint32_t)atoi(argv[4]);
    run_ranks(rank_main, CONNECTIONS);
    printf("%d messages or batches on %u ranks\n", iterations, size);
    return 0;
}
