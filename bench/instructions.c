/* instructions FOLDER ALGORITHM NBYTES CALLS: all-reduces of two ranks over shared memory, stepped
 * by one thread, so that each run has as many instructions as the last; see instructions.py.
 *
 * It is linked with the engine of the tree that is measured, and of a tree from before native/ had
 * folders, too. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if __has_include("core/internal.h")
#include "core/internal.h"
#else
#include "internal.h"
#define pc__call_try pc__try
#define pc__progress pc__advance
#define pc_comm_accept pc_comm_poll
#endif

enum { SIZE = 2, TIMEOUT = 100 };

static void must(int rc, struct pc_comm *comm)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", comm == NULL ? "failed" : pc_comm_error(comm)->text);
        exit(1);
    }
}

static struct pc_program *load(struct pc_comm *comm, const char *folder, const char *name,
                               unsigned r)
{
    static char path[512], bytes[1 << 20];
    struct pc_program *program;
    snprintf(path, sizeof path, "%s/%s.%u", folder, name, r);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    must(pc_program_load(comm, bytes, n, 0, &program), comm);
    return program;
}

static void join(struct pc_comm *comms[SIZE])
{
    char blobs[SIZE][1024];
    int lengths[SIZE];
    for (unsigned r = 0; r < SIZE; r++) {
        struct pc_options options
            = {.rank = r, .size = SIZE, .slots = 4, .slot_bytes = 1 << 16, .heap_bytes = 1 << 20};
        must(pc_comm_open(&options, &comms[r]), NULL);
        must(lengths[r] = pc_comm_address(comms[r], blobs[r], sizeof blobs[r]), comms[r]);
    }
    for (unsigned joined = 0; joined != (1u << SIZE) - 1;)
        for (unsigned r = 0; r < SIZE; r++) {
            int rc = pc_comm_connect(comms[r], !r, blobs[!r], (size_t)lengths[!r]);
            joined |= (unsigned)(rc == PC_OK) << r;
            must(pc_comm_accept(comms[r]), comms[r]);
        }
    for (unsigned r = 0; r < SIZE; r++)
        must(pc_comm_sealed(comms[r]), comms[r]);
}

static void call(struct pc_comm *comms[SIZE], struct pc_plan *plans[SIZE], char *in[SIZE],
                 char *out[SIZE])
{
    int rc[SIZE];
    for (unsigned r = 0; r < SIZE; r++)
        rc[r] = pc__call_try(comms[r], plans[r], in[r], out[r], TIMEOUT);
    while (rc[0] != PC_OK || rc[1] != PC_OK)
        for (unsigned r = 0; r < SIZE; r++)
            if (rc[r] == PC_AGAIN) {
                rc[r] = pc__progress(comms[r], 0);
                if (rc[r] != PC_AGAIN)
                    pc__leave(comms[r]);
            } else {
                must(rc[r], comms[r]);
            }
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: %s FOLDER ALGORITHM NBYTES CALLS\n", argv[0]);
        return 2;
    }
    uint64_t nbytes = strtoull(argv[3], NULL, 10);
    struct pc_comm *comms[SIZE];
    struct pc_plan *plans[SIZE];
    char *in[SIZE], *out[SIZE];
    join(comms);
    for (unsigned r = 0; r < SIZE; r++) {
        struct pc_plan_spec spec = {.signature = 7,
                                    .nblocks = 1,
                                    .blocks = &nbytes,
                                    .input = {0, 1},
                                    .output = {0, 1},
                                    .dtype = PC_DTYPE_INT32,
                                    .op = PC_REDUCE_SUM,
                                    .tile = 1 << 14};
        must(pc_plan_create(comms[r], &spec, load(comms[r], argv[1], argv[2], r), NULL, &plans[r]),
             comms[r]);
        in[r] = aligned_alloc(64, nbytes);
        out[r] = aligned_alloc(64, nbytes);
        memset(in[r], 1 + (int)r, nbytes);
    }
    for (int i = 0, n = atoi(argv[4]); i < n; i++)
        call(comms, plans, in, out);
    for (unsigned r = 0; r < SIZE; r++)
        for (uint64_t i = 0; i < nbytes; i++)
            if (out[r][i] != 3) {
                fprintf(stderr, "byte %llu of rank %u is %d, want 3\n", (unsigned long long)i, r,
                        out[r][i]);
                return 1;
            }
    return 0;
}
