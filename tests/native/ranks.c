/* Ranks as threads of one process, so that ThreadSanitizer and AddressSanitizer see every access.
 *
 *   ranks PATH FOLDER SIZE ITERATIONS ALGORITHM...
 *
 * PATH is as in rank_threads.h; connections are handed over while calls run. Calls follow each
 * other without a pause and mix algorithms, sizes, in place and out of place, registered arrays,
 * blocking and queued; every element is checked. Another thread reads what rank 0 has noted of its
 * calls, whose signatures are their numbers. */
#include "collective_calls.h"

#define DEPTH 8       /* calls queued at once */
#define CONNECTIONS 3 /* between two ranks */

struct slot {
    struct pc_plan *plan;
    struct pc_work *work;
    int32_t *in, *out;
    uint32_t count;
    int call;
};

static _Atomic bool all_called;

/* Reads the event ring all the time, and has kinds of calls give way to others. */
static void *watch(void *argument)
{
    struct pc_trace *trace = pc_comm_trace(argument);
    struct pc_trace_event *events = calloc(PC_TRACE_EVENTS, sizeof *events);
    struct pc_trace_label *labels = calloc(PC_TRACE_LABELS, sizeof *labels);
    uint64_t kind = 0;
    do {
        uint32_t n = pc_trace_read(trace, events);
        for (uint32_t i = 0; i < n; i++)
            if (events[i].sequence == 0 || events[i].sequence != events[i].signature) {
                fprintf(stderr, "event %llu is torn\n", (unsigned long long)events[i].sequence);
                exit(1);
            }
        for (uint32_t i = 0; i < 4 * PC_TRACE_LABELS; i++)
            pc_trace_label(trace, (++kind << 32) + kind % PC_TRACE_LABELS, "a kind of calls");
        n = pc_trace_labels(trace, labels);
        for (uint32_t i = 0; i < n; i++)
            if (labels[i].signature == 0 || strcmp(labels[i].text, "a kind of calls") != 0) {
                fprintf(stderr, "a label is torn: %s\n", labels[i].text);
                exit(1);
            }
    } while (!atomic_load(&all_called));
    free(labels);
    free(events);
    return NULL;
}

static void finish(struct pc_comm *comm, struct slot *s)
{
    int rc = PC_OK;
    if (s->work != NULL) {
        while ((rc = pc_work_wait(s->work, 1.0)) == PC_AGAIN) {
        }
        pc_work_free(s->work);
        s->work = NULL;
    }
    if (rc != PC_OK)
        die(comm, "work", rc);
    if (s->plan != NULL)
        check(s->out, s->call, s->count);
    pc_plan_free(s->plan);
    s->plan = NULL;
}

static void run_calls(struct pc_comm *comm, uint32_t rank)
{
    struct pc_program *staged[MAX_ALGORITHMS], *direct[MAX_ALGORITHMS];
    struct slot slots[DEPTH] = {{0}};
    int32_t *heap[2 * DEPTH], *plain[2 * DEPTH];
    for (int i = 0; i < 2 * DEPTH; i++) {
        heap[i] = pc_heap_alloc(comm, MAX_COUNT * sizeof(int32_t));
        plain[i] = malloc((MAX_COUNT + 1) * sizeof(int32_t));
    }
    for (uint32_t a = 0; a < nalgorithms; a++) {
        staged[a] = load(comm, algorithms[a], rank, "");
        direct[a] = any_remote ? NULL : load(comm, algorithms[a], rank, ".direct");
    }
    uint64_t state = 42;
    for (int call = 0; call < iterations; call++) {
        uint32_t a = draw(&state) % nalgorithms, count = draw(&state) % MAX_COUNT;
        if (draw(&state) % 3 == 0)
            count %= 12; /* as many small ones, whose bytes lie in the count's line */
        bool in_place = draw(&state) % 2, queued = draw(&state) % 2;
        bool registered = draw(&state) % 3 != 0, offset = draw(&state) % 2;
        uint32_t tile = 64u << draw(&state) % 4;
        struct slot *s = &slots[call % DEPTH];
        finish(comm, s);
        /* sometimes only some ranks use registered memory: then nobody may take the direct form */
        bool mine = registered && (draw(&state) % 4 != 0 || rank % 2 == 0);
        int32_t **arrays = mine ? heap : plain;
        s->in = arrays[2 * (call % DEPTH)] + (mine ? 0 : offset);
        s->out = in_place ? s->in : arrays[2 * (call % DEPTH) + 1] + (mine ? 0 : offset);
        s->count = count;
        s->call = call;
        memset(s->out, 0x55, count * sizeof(int32_t));
        for (uint32_t i = 0; i < count; i++)
            s->in[i] = value(rank, call, i);
        uint64_t nbytes = count * 4u;
        struct pc_plan_spec spec = {.signature = (uint64_t)call + 1,
                                    .nblocks = 1,
                                    .blocks = &nbytes,
                                    .input = {0, 1},
                                    .output = {0, 1},
                                    .dtype = PC_DTYPE_INT32,
                                    .op = PC_REDUCE_SUM,
                                    .tile = tile};
        int rc = pc_plan_create(comm, &spec, staged[a], direct[a], &s->plan);
        if (rc == PC_OK && queued) {
            rc = pc_submit(comm, s->plan, s->in, s->out, 100, "queued", &s->work);
        } else if (rc == PC_OK) {
            rc = pc_run(comm, s->plan, s->in, s->out, 100);
            while (rc == PC_AGAIN)
                rc = pc_resume(comm, 1.0);
        }
        if (rc != PC_OK)
            die(comm, algorithms[a], rc);
    }
    for (int i = 0; i < DEPTH; i++)
        finish(comm, &slots[i]);
    for (uint32_t a = 0; a < nalgorithms; a++) {
        pc_program_free(staged[a]);
        pc_program_free(direct[a]);
    }
    for (int i = 0; i < 2 * DEPTH; i++) {
        pc_heap_free(comm, heap[i]);
        free(plain[i]);
    }
}

static void *rank_main(void *argument)
{
    uint32_t rank = (uint32_t)(uintptr_t)argument;
    struct pc_options options = {.rank = rank,
                                 .size = size,
                                 .slots = 2,
                                 .slot_bytes = 1 << 16,
                                 .heap_bytes = 1 << 20,
                                 .spin = 0};
    struct pc_comm *comm = open_comm(&options);
    pthread_t watcher;
    if (rank == 0)
        pthread_create(&watcher, NULL, watch, comm);
    pthread_barrier_wait(&joined);
    run_calls(comm, rank);
    pthread_barrier_wait(&joined);
    if (rank == 0) {
        atomic_store(&all_called, true);
        pthread_join(watcher, NULL);
    }
    if (any_mapped) /* the arenas are shared: nobody unmaps before all are done */
        pthread_barrier_wait(&barrier);
    pc_comm_close(comm);
    return NULL;
}

int main(int argc, char **argv)
{
    read_arguments(argc, argv);
    run_ranks(rank_main, CONNECTIONS);
    printf("%d calls on %u ranks\n", iterations, size);
    return 0;
}
