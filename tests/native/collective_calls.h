/* All-reduces of ranks that are threads: their programs, which Python has written to files, and
 * what their arrays hold. */
#ifndef COLLECTIVE_CALLS_H
#define COLLECTIVE_CALLS_H

#include "rank_threads.h"

#define MAX_ALGORITHMS 16
#define MAX_COUNT 3000

static const char *folder;
static char *const *algorithms;
static uint32_t nalgorithms;
static int iterations;

/* PATH FOLDER SIZE ITERATIONS ALGORITHM... FOLDER holds ALGORITHM.RANK (staged) and, where the
 * algorithm has one, ALGORITHM.RANK.direct, for SIZE ranks. */
static void read_arguments(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: %s PATH FOLDER SIZE ITERATIONS ALGORITHM...\n", argv[0]);
        exit(2);
    }
    choose_path(argv[1]);
    folder = argv[2];
    size = (uint32_t)atoi(argv[3]);
    iterations = atoi(argv[4]);
    algorithms = argv + 5;
    nalgorithms = (uint32_t)(argc - 5);
}

static struct pc_program *load(struct pc_comm *comm, const char *algorithm, uint32_t rank,
                               const char *suffix)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.%u%s", folder, algorithm, rank, suffix);
    FILE *file = fopen(path, "rb");
    if (file == NULL && *suffix != 0)
        return NULL;
    static _Thread_local char bytes[1 << 20];
    size_t n = file == NULL ? 0 : fread(bytes, 1, sizeof bytes, file);
    if (file != NULL)
        fclose(file);
    struct pc_program *program;
    int rc = pc_program_load(comm, bytes, n, 0, PC_HOST_DESTINATIONS, &program);
    if (rc != PC_OK)
        die(comm, path, rc);
    return program;
}

static int32_t value(uint32_t rank, int call, uint32_t i)
{
    return (int32_t)((rank + 1) * 1000003u + (uint32_t)call * 7919u + i * 31u);
}

static void check(const int32_t *out, int call, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        int32_t want = 0;
        for (uint32_t r = 0; r < size; r++)
            want = (int32_t)((uint32_t)want + (uint32_t)value(r, call, i));
        if (out[i] != want) {
            fprintf(stderr, "call %d element %u of %u: got %d, want %d\n", call, i, count, out[i],
                    want);
            exit(1);
        }
    }
}

#endif
