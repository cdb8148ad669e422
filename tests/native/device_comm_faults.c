/* What goes wrong on GPUs, and what must then be said; with the stand-in for libcuda.
 *
 *   plane_faults SCENARIO FOLDER
 *
 * Two ranks in one thread, whose all-reduce by FOLDER/ring.RANK nobody need wait for. SCENARIO:
 *   absent    rank 1 makes no call: rank 0 tells after its timeout for whom it waited
 *   mismatch  the ranks make different calls
 *   abort     the communicator is aborted while a kernel waits
 *   lost      the sockets to rank 1 close while a kernel waits for it
 *   close     a plane closes while a kernel waits
 *   fault     a kernel of somebody else's makes the driver refuse everything
 *   threads   two threads launch, each on its own default stream
 *   graph     a captured call is replayed, by way of the proxy; its plan lives as long as the graph
 *   lies      addresses with any byte changed are refused
 *   refused   the driver refuses each thing that opening asks for, one after the other */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "pycoll.h"

#define COUNT 1000u
#define REPLAYS 20

static const char *scenario, *folder;
static struct pc_comm *comms[2];
static struct pc_device_comm *planes[2];
static struct pc_program *programs[2];
static char addresses[2][1024];
static int address_bytes[2];
static int sockets[2];
static uintptr_t streams[2], function;
static uint64_t device[2][2]; /* in, out */
static int32_t *host[2];
static uint64_t host_device[2];

static bool plays(const char *name)
{
    return strcmp(scenario, name) == 0;
}

static void check(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "%s: not so: %s; the ranks say: %s / %s\n", scenario, what,
                pc_comm_error(comms[0])->text, pc_comm_error(comms[1])->text);
        exit(1);
    }
}

static void must(int rc, uint32_t rank)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "%s: rank %u: %s: %s\n", scenario, rank, pc_code_name(rc),
            pc_comm_error(comms[rank])->text);
    exit(1);
}

static void cuda(int rc, const struct pc_error *error)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "%s: %s: %s\n", scenario, pc_code_name(rc), error->text);
    exit(1);
}

static struct pc_program *load(uint32_t rank)
{
    static char bytes[1 << 16];
    char path[512];
    struct pc_program *program;
    snprintf(path, sizeof path, "%s/ring.%u", folder, rank);
    FILE *file = fopen(path, "rb");
    size_t n = file == NULL ? 0 : fread(bytes, 1, sizeof bytes, file);
    if (file != NULL)
        fclose(file);
    must(pc_program_load(comms[rank], bytes, n, 0, PC_MAX_DESTINATIONS, &program), rank);
    return program;
}

static void open_comms(bool remote)
{
    char blobs[2][1024];
    int nbytes[2];
    for (uint32_t r = 0; r < 2; r++) {
        struct pc_options options
            = {.rank = r, .size = 2, .slots = 2, .slot_bytes = 4096, .heap_bytes = 0};
        must(pc_comm_open(&options, &comms[r]), r);
        must(nbytes[r] = pc_comm_address(comms[r], blobs[r], sizeof blobs[r]), r);
    }
    for (bool all = false; !all;) {
        all = true;
        for (uint32_t r = 0; r < 2; r++) {
            int rc = remote ? pc_comm_remote(comms[r], 1 - r)
                            : pc_comm_connect(comms[r], 1 - r, blobs[1 - r], (size_t)nbytes[1 - r]);
            if (rc != PC_AGAIN)
                must(rc, r);
            all = all && rc != PC_AGAIN;
            pc_comm_accept(comms[r]);
        }
    }
    if (remote && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
        exit(2);
    for (uint32_t r = 0; r < 2; r++) {
        if (remote)
            must(pc_comm_adopt(comms[r], 1 - r, sockets[r]), r);
        must(pc_comm_sealed(comms[r]), r);
        programs[r] = load(r);
    }
}

static int open_plane(uint32_t rank, bool remote)
{
    uint32_t all[] = {0, 1};
    struct pc_device_comm_options options = {.device = 0,
                                             .nlocals = remote ? 1 : 2,
                                             .locals = remote ? all + rank : all,
                                             .heap_bytes = 1 << 16};
    return pc_device_comm_open(comms[rank], &options, &planes[rank]);
}

static void open_planes(bool remote)
{
    struct pc_error error;
    uintptr_t module;
    for (uint32_t r = 0; r < 2; r++) {
        must(open_plane(r, remote), r);
        must(address_bytes[r]
             = pc_device_comm_address(planes[r], addresses[r], sizeof addresses[r]),
             r);
    }
    for (uint32_t r = 0; r < 2; r++) {
        uint8_t reached[2] = {0};
        int rc = pc_device_comm_connect(planes[r], 1 - r, addresses[1 - r],
                                        (size_t)address_bytes[1 - r]);
        reached[1 - r] = rc == PC_OK;
        check(rc == (remote ? PC_UNMAPPABLE : PC_OK), "who reaches whom");
        must(pc_device_comm_seal(planes[r], reached, !remote, 0), r);
    }
    cuda(pc_cuda_module(0, "any", &error, &module), &error);
    cuda(pc_cuda_function(0, module, "pc_int32_sum", &error, &function), &error);
    for (uint32_t r = 0; r < 2; r++) {
        void *memory;
        cuda(pc_cuda_stream(0, 0, &error, &streams[r]), &error);
        cuda(pc_cuda_host_alloc(0, 2 * 4 * COUNT, &error, &memory, &host_device[r]), &error);
        host[r] = memory;
        device[r][0] = pc_device_comm_alloc(planes[r], 4 * COUNT);
        device[r][1] = pc_device_comm_alloc(planes[r], 4 * COUNT);
        check(device[r][0] != 0 && device[r][1] != 0, "room in the heap");
        check(pc_device_comm_alloc(planes[r], 1 << 16) == 0, "no more than there is");
    }
}

static struct pc_device_plan *plan(uint32_t rank, uint64_t signature)
{
    uint64_t nbytes = 4 * COUNT;
    struct pc_plan_spec spec = {.signature = signature,
                                .nblocks = 1,
                                .blocks = &nbytes,
                                .input = {0, 1},
                                .output = {0, 1},
                                .dtype = PC_DTYPE_INT32,
                                .op = PC_REDUCE_SUM,
                                .tile = 128};
    struct pc_device_plan_options options = {.function = function};
    struct pc_plan *made;
    struct pc_device_plan *out;
    must(pc_plan_create(comms[rank], &spec, programs[rank], NULL, &made), rank);
    must(pc_device_plan_create(planes[rank], made, &options, &out), rank);
    return out;
}

static int launch(uint32_t rank, struct pc_device_plan *p, double timeout)
{
    return pc_device_comm_launch(planes[rank], p, device[rank][0], device[rank][1], streams[rank],
                                 timeout);
}

/* The kernel has ended, whatever it did; and who asks is told. */
static void expect(uint32_t rank, int code, int peer, const char *text)
{
    struct pc_error error;
    int rc;
    while ((rc = pc_device_comm_wait(planes[rank], 1)) == PC_AGAIN) {
    }
    cuda(pc_cuda_stream_wait(0, streams[rank], &error), &error);
    const struct pc_error *told = pc_comm_error(comms[rank]);
    check(rc == code && told->code == code, pc_code_name(code));
    check(told->peer == peer, "of that rank");
    check(strstr(told->text, text) != NULL, text);
    check(pc_device_comm_check(planes[rank]) == code, "and again");
}

static void close_all(void)
{
    struct pc_error error;
    for (uint32_t r = 0; r < 2; r++)
        pc_device_comm_detach(planes[r], plays("close") || plays("fault") ? 0 : 10);
    for (uint32_t r = 0; r < 2; r++) {
        cuda(pc_cuda_host_free(0, host[r], &error), &error);
        cuda(pc_cuda_stream_free(0, streams[r], &error), &error);
        char said[sizeof pc_comm_error(comms[r])->text];
        strcpy(said, pc_comm_error(comms[r])->text);
        pc_device_comm_close(planes[r]);
        check(strcmp(pc_comm_error(comms[r])->text, said) == 0, "the same, without the plane");
        pc_program_free(programs[r]);
    }
    for (uint32_t r = 0; r < 2; r++)
        pc_comm_close(comms[r]);
}

static void play_faults(void)
{
    bool remote = plays("lost");
    open_comms(remote);
    open_planes(remote);
    struct pc_device_plan *a = plan(0, 1), *b = plan(1, 2);
    must(launch(0, a, plays("absent") ? 0.2 : 100), 0);
    if (plays("absent")) {
        struct pc_stuck stuck;
        expect(0, PC_TIMEDOUT, 1, "waits for count 1 of rank 1, which has reached 0");
        check(pc_device_comm_stuck(planes[0], &stuck) == 1 && stuck.peer == 1 && stuck.want == 1,
              "where it stood");
        check(launch(0, a, 100) == PC_TIMEDOUT, "no call after that");
    } else if (plays("mismatch")) {
        must(launch(1, b, 100), 1);
        expect(1, PC_MISMATCH, 0, "message 0 from rank 0 belongs to another call");
        expect(0, PC_MISMATCH, 1, "message 0 from rank 1 belongs to another call");
    } else if (plays("abort")) {
        pc_comm_abort(comms[0], PC_LOST, 1, "rank 1 is gone");
        expect(0, PC_ABORTED, 1, "rank 1 is gone");
        check(pc_comm_error(comms[0])->cause == PC_LOST, "and why");
    } else if (plays("lost")) {
        shutdown(sockets[1], SHUT_RDWR);
        expect(0, PC_LOST, 1, "rank 1 is lost");
    }
    pc_device_plan_free(a);
    pc_device_plan_free(b);
    close_all();
}

static void *symbol(const char *name)
{
    void *found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
    if (found == NULL)
        exit(2);
    return found;
}

static void play_fault(void)
{
    void (*fail)(const char *);
    *(void **)&fail = symbol("fakecuda_fail");
    open_comms(false);
    open_planes(false);
    struct pc_device_plan *a = plan(0, 1);
    must(launch(0, a, 100), 0);
    check(pc_device_comm_wait(planes[0], 0) == PC_AGAIN, "it waits for rank 1");
    fail("cuEventQuery:1");
    int rc = pc_device_comm_wait(planes[0], 20);
    check(rc < 0 && rc != PC_AGAIN, "it does not wait for what never ends");
    check(strstr(pc_comm_error(comms[0])->text, "cuEventQuery") != NULL, "who said so");
    pc_device_plan_free(a);
    close_all();
}

#define PER_THREAD ((uintptr_t)2) /* CU_STREAM_PER_THREAD */

static void *launch_later(void *p)
{
    struct pc_error error;
    must(pc_device_comm_launch(planes[0], p, device[0][0], device[0][1], PER_THREAD, 20), 0);
    cuda(pc_cuda_stream_wait(0, PER_THREAD, &error), &error);
    return NULL;
}

static void play_threads(void)
{
    open_comms(false);
    open_planes(false);
    struct pc_error error;
    struct pc_device_plan *plans[2][2];
    pthread_t thread;
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t k = 0; k < 2; k++)
            plans[r][k] = plan(r, 1 + k);
    must(pc_device_comm_launch(planes[0], plans[0][0], device[0][0], device[0][1], PER_THREAD, 20),
         0);
    pthread_create(&thread, NULL, launch_later, plans[0][1]);
    must(launch(1, plans[1][0], 20), 1);
    must(launch(1, plans[1][1], 20), 1);
    pthread_join(thread, NULL);
    cuda(pc_cuda_stream_wait(0, PER_THREAD, &error), &error);
    cuda(pc_cuda_stream_wait(0, streams[1], &error), &error);
    for (uint32_t r = 0; r < 2; r++) {
        must(pc_device_comm_wait(planes[r], 20), r);
        for (uint32_t k = 0; k < 2; k++)
            pc_device_plan_free(plans[r][k]);
    }
    close_all();
}

static void play_graph(void)
{
    int (*begin)(void *, int), (*end)(void *, void **), (*make)(void **, void *, uint64_t);
    int (*replay)(void *, void *), (*drop)(void *), (*drop_executable)(void *);
    int (*retain)(void **, int), (*set_current)(void *);
    *(void **)&begin = symbol("cuStreamBeginCapture_v2");
    *(void **)&end = symbol("cuStreamEndCapture");
    *(void **)&make = symbol("cuGraphInstantiateWithFlags");
    *(void **)&replay = symbol("cuGraphLaunch");
    *(void **)&drop = symbol("cuGraphDestroy");
    *(void **)&drop_executable = symbol("cuGraphExecDestroy");
    *(void **)&retain = symbol("cuDevicePrimaryCtxRetain");
    *(void **)&set_current = symbol("cuCtxSetCurrent");
    open_comms(true);
    open_planes(true);
    struct pc_error error;
    struct pc_device_plan *plans[2];
    void *context;
    check(retain(&context, 0) == 0 && set_current(context) == 0,
          "a context, as a user's thread has");
    struct pc_device_comm_state state;
    void *graphs[2], *executables[2];
    for (uint32_t r = 0; r < 2; r++)
        plans[r] = plan(r, 1);
    for (uint32_t r = 0; r < 2; r++) {
        check(begin((void *)streams[r], 0) == 0, "a capture begins");
        cuda(pc_cuda_copy(0, device[r][0], host_device[r], 4 * COUNT, streams[r], &error), &error);
        must(launch(r, plans[r], 100), r);
        cuda(pc_cuda_copy(0, host_device[r] + 4 * COUNT, device[r][1], 4 * COUNT, streams[r],
                          &error),
             &error);
        check(end((void *)streams[r], &graphs[r]) == 0, "and ends");
        check(make(&executables[r], graphs[r], 0) == 0, "a graph of it");
        pc_device_plan_free(plans[r]); /* the graph has it */
        pc_device_comm_state(planes[r], &state);
        check(state.captured == 1 && state.launched == 0 && state.pinned == 1, "what was done");
    }
    for (uint32_t turn = 0; turn < REPLAYS; turn++) {
        for (uint32_t r = 0; r < 2; r++) {
            for (uint32_t i = 0; i < COUNT; i++)
                host[r][i] = (int32_t)(1000 * turn + 10 * r + i);
            check(replay(executables[r], (void *)streams[r]) == 0, "a replay");
        }
        for (uint32_t r = 0; r < 2; r++) {
            cuda(pc_cuda_stream_wait(0, streams[r], &error), &error);
            for (uint32_t i = 0; i < COUNT; i++)
                check(host[r][COUNT + i] == (int32_t)(2000 * turn + 10 + 2 * i), "the sum");
        }
    }
    for (uint32_t r = 0; r < 2; r++) {
        must(pc_device_comm_check(planes[r]), r);
        check(drop_executable(executables[r]) == 0 && drop(graphs[r]) == 0, "the graph's end");
    }
    for (uint32_t r = 0; r < 2; r++) {
        do { /* the driver gives it up when it likes */
            pc_device_comm_state(planes[r], &state);
        } while (state.pinned != 0);
        check(state.handed_over > 0, "the proxy has worked");
        pc_device_plan_free(plan(r, 2)); /* which gives back what may go */
    }
    close_all();
}

static void play_lies(void)
{
    open_comms(false);
    for (uint32_t r = 0; r < 2; r++) {
        must(open_plane(r, false), r);
        must(address_bytes[r]
             = pc_device_comm_address(planes[r], addresses[r], sizeof addresses[r]),
             r);
    }
    const size_t offset = 80; /* of what the address says of the arena's place */
    size_t n = (size_t)address_bytes[1];
    int refused = 0;
    char lie[1024];
    for (size_t at = 0; at < n; at++)
        for (int bit = 0; bit < 8; bit += 3) {
            memcpy(lie, addresses[1], n);
            lie[at] ^= (char)(1 << bit);
            int rc = pc_device_comm_connect(planes[0], 1, lie, n);
            check(rc == PC_OK || rc == PC_INVALID || rc == PC_UNMAPPABLE, "a refusal");
            refused += rc != PC_OK;
            if (rc == PC_OK) /* it said more than is needed, of this process */
                break;
        }
    check(refused > 200, "most of them");
    for (size_t shorter = 0; shorter < n; shorter += 7)
        check(pc_device_comm_connect(planes[1], 0, addresses[0], shorter) == PC_INVALID,
              "a short one");
    check(pc_device_comm_connect(planes[1], 1, addresses[1], n) == PC_INVALID, "not itself");
    memcpy(lie, addresses[0], n);
    lie[offset] ^= 8;
    check(pc_device_comm_connect(planes[1], 0, lie, n) == PC_INVALID,
          "counts that lie across lines");
    uint8_t all[2] = {1, 1};
    check(pc_device_comm_seal(planes[1], all, 1, 0) == PC_INVALID, "not reached, whatever is said");
    for (uint32_t r = 0; r < 2; r++)
        pc_device_comm_detach(planes[r], 0);
    for (uint32_t r = 0; r < 2; r++) {
        pc_device_comm_close(planes[r]);
        pc_program_free(programs[r]);
        pc_comm_close(comms[r]);
    }
}

/* Each of the functions once with each number of calls before, until none fails any more. */
static void play_refused(void)
{
    static const char *const names[]
        = {"cuMemAlloc",    "cuMemHostAlloc",  "cuMemcpyAsync",       "cuStreamCreateWithPriority",
           "cuEventCreate", "cuMemsetD8Async", "cuStreamSynchronize", "cuMemHostRegister"};
    void (*fail)(const char *);
    *(void **)&fail = symbol("fakecuda_fail");
    open_comms(true);
    const uint8_t none[2] = {0};
    int failures = 0;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        for (int call = 1;; call++) {
            char what[64];
            snprintf(what, sizeof what, "%s:%d", names[k], call);
            if (pc_cuda_devices() == 0) /* which loads it */
                exit(2);
            fail(what);
            int rc = open_plane(0, true);
            if (rc == PC_OK)
                rc = pc_device_comm_seal(planes[0], none, 0, 0);
            if (rc != PC_OK)
                check(strstr(pc_comm_error(comms[0])->text, "cu") != NULL, "who refused");
            pc_device_comm_close(planes[0]);
            planes[0] = NULL;
            fail("");
            failures += rc != PC_OK;
            if (rc == PC_OK)
                break;
        }
    check(failures >= 10, "that many may fail");
    for (uint32_t r = 0; r < 2; r++) {
        pc_program_free(programs[r]);
        pc_comm_close(comms[r]);
    }
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s SCENARIO FOLDER\n", argv[0]);
        return 2;
    }
    scenario = argv[1];
    folder = argv[2];
    if (plays("graph"))
        play_graph();
    else if (plays("fault"))
        play_fault();
    else if (plays("threads"))
        play_threads();
    else if (plays("lies"))
        play_lies();
    else if (plays("refused"))
        play_refused();
    else
        play_faults();
    printf("%s\n", scenario);
    return 0;
}
