/* Lies to the engine under AddressSanitizer: programs, plans and peers' addresses.
 *
 *   fuzz SEED ITERATIONS PROGRAM...
 *
 * PROGRAM are files of programs for rank 0 of 2, the first one staged. Each turn damages one and
 * loads it. What the
 * loader accepts is run with every count raised out of reach, so that no WAIT holds it back and
 * every instruction touches memory: it must stay inside the buffers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/internal.h"

#define MAX_BYTES (1 << 16)

static uint64_t state;

static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static struct pc_comm *open_rank(uint32_t rank)
{
    struct pc_options options = {
        .rank = rank, .size = 2, .slots = 2, .slot_bytes = 4096, .heap_bytes = 1 << 20, .spin = 0};
    struct pc_comm *comm;
    if (pc_comm_open(&options, &comm) != PC_OK) {
        fprintf(stderr, "open: %s\n", pc_comm_error(comm)->text);
        exit(1);
    }
    return comm;
}

static void connect_pair(struct pc_comm *pair[2])
{
    char blobs[2][256];
    int bytes[2];
    for (int r = 0; r < 2; r++) {
        pair[r] = open_rank((uint32_t)r);
        bytes[r] = pc_comm_address(pair[r], blobs[r], sizeof blobs[r]);
    }
    for (bool done = false; !done;) {
        done = true;
        for (int r = 0; r < 2; r++) {
            int rc = pc_comm_connect(pair[r], (uint32_t)!r, blobs[!r], (size_t)bytes[!r]);
            if (rc != PC_OK && rc != PC_AGAIN) {
                fprintf(stderr, "connect: %s\n", pc_comm_error(pair[r])->text);
                exit(1);
            }
            pc_comm_accept(pair[!r]);
            done = done && rc == PC_OK;
        }
    }
}

static void raise_every_count(struct pc_comm *comm, uint64_t signature)
{
    for (uint32_t i = 0; i < comm->options.size * PC_RECORD_LINES; i++) {
        uint32_t peer = i / PC_RECORD_LINES;
        char *record = pc__record(comm->arena, &comm->layout, peer);
        struct pc_line *line = pc__record_line(record, peer, i % PC_RECORD_LINES);
        struct pc_ready ready = {1 + draw(2) * draw(1u << 30),
                                 1 + draw(2) * draw(1u << 30),
                                 {draw(3), draw(3)},
                                 {draw(3), draw(3)}};
        line->count = UINT64_C(1) << 40;
        line->signature = signature;
        memcpy(line->bytes, &ready, sizeof ready);
    }
}

static size_t damage(unsigned char *bytes, size_t n)
{
    static const uint32_t interesting[]
        = {0, 1, 2, 7, 8, 63, 64, 255, 256, 65535, 65536, 0x7fffffff, 0x80000000, 0xffffffff};
    for (uint32_t edits = draw(4) + 1; edits > 0; edits--) {
        size_t at = draw((uint32_t)n);
        switch (draw(6)) {
        case 0:
            bytes[at] = (unsigned char)draw(256);
            break;
        case 1:
            bytes[at] = (unsigned char)draw(4);
            break;
        case 2:
            if (n >= 4)
                memcpy(bytes + (at & ~(size_t)3) % (n - 3),
                       &interesting[draw(sizeof interesting / sizeof *interesting)], 4);
            break;
        case 3:
            if (n > 32)
                memcpy(bytes + at % (n - 16), bytes + draw((uint32_t)n - 16), 16);
            break;
        case 4:
            bytes[at] ^= (unsigned char)(1u << draw(8));
            break;
        default:
            if (draw(20) == 0)
                return draw((uint32_t)n);
        }
    }
    return n;
}

static size_t read_file(const char *path, unsigned char *bytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(2);
    }
    size_t n = fread(bytes, 1, MAX_BYTES, file);
    fclose(file);
    return n;
}

static bool try_program(struct pc_comm *comm, const unsigned char *bytes, size_t n,
                        const char *staged_path)
{
    static unsigned char whole[MAX_BYTES];
    struct pc_program *program, *staged;
    struct pc_plan *plan;
    uint32_t root = draw(8) == 0 ? draw(3) : 0;
    if (pc_program_load(comm, bytes, n, root, PC_HOST_DESTINATIONS, &program) != PC_OK)
        return false;
    bool direct = program->flags & PC_PROGRAM_DIRECT;
    if (pc_program_load(comm, whole, read_file(staged_path, whole), 0, PC_HOST_DESTINATIONS,
                        &staged)
        != PC_OK) {
        fprintf(stderr, "%s: %s\n", staged_path, pc_comm_error(comm)->text);
        exit(2);
    }
    uint32_t itemsize = 1u << draw(4);
    static const uint32_t dtypes[]
        = {PC_DTYPE_INT8, PC_DTYPE_FLOAT16, PC_DTYPE_FLOAT32, PC_DTYPE_FLOAT64};
    bool many = draw(3) == 0; /* a block for each rank */
    uint64_t blocks[2]
        = {(uint64_t)draw(3000) / itemsize * itemsize, (uint64_t)draw(3000) / itemsize * itemsize};
    struct pc_extent whole_message = {0, many ? 2 : 1};
    struct pc_plan_spec spec = {.signature = 7,
                                .nblocks = many ? 2 : 1,
                                .root = root,
                                .blocks = blocks,
                                .input = whole_message,
                                .output = whole_message,
                                .op = draw(PC_NREDUCE),
                                .tile = 64 * (1 + draw(16)),
                                .stream = draw(2)};
    for (uint32_t i = 0; i < 4; i++)
        if (itemsize == 1u << i)
            spec.dtype = dtypes[i];
    if (draw(10) == 0)
        spec.tile = draw(70000);
    if (draw(10) == 0)
        spec.dtype = draw(20);
    if (draw(4) == 0)
        spec.input = (struct pc_extent){draw(3), draw(3)};
    if (draw(4) == 0)
        spec.output = (struct pc_extent){draw(3), draw(3)};
    int rc = pc_plan_create(comm, &spec, direct ? staged : program, direct ? program : NULL, &plan);
    pc_program_free(program);
    pc_program_free(staged);
    if (rc != PC_OK)
        return true;
    /* Exactly as long as what each holds, so that a byte beyond is seen. */
    uint64_t nin = pc__extent_bytes(plan, spec.input), nout = pc__extent_bytes(plan, spec.output);
    bool whole_in = spec.input.count == spec.nblocks, whole_out = spec.output.count == spec.nblocks;
    char *in = calloc(1, nin), *out = whole_in && whole_out && draw(2) ? in : calloc(1, nout);
    raise_every_count(comm, spec.signature);
    rc = pc_run(comm, plan, in, out, 1e-6);
    while (rc == PC_AGAIN)
        rc = pc_resume(comm, 1e-6);
    if (out != in)
        free(out);
    free(in);
    pc_plan_free(plan);
    return true;
}

static void try_address(void)
{
    struct pc_comm *comm = open_rank(0);
    unsigned char blob[256];
    size_t n = (size_t)pc_comm_address(comm, blob, sizeof blob);
    blob[8] = 1; /* the rank that it claims to be */
    n = damage(blob, n);
    for (int i = 0; i < 3; i++) {
        if (pc_comm_connect(comm, 1 + draw(2), blob, n) == PC_OK) {
            fprintf(stderr, "a damaged address connected\n");
            exit(1);
        }
        pc_comm_accept(comm);
    }
    pc_comm_close(comm);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: %s SEED ITERATIONS PROGRAM...\n", argv[0]);
        return 2;
    }
    state = strtoull(argv[1], NULL, 10);
    int iterations = atoi(argv[2]), accepted = 0;
    for (int i = 0; i < iterations; i++) {
        static unsigned char bytes[MAX_BYTES];
        size_t n = damage(bytes, read_file(argv[3 + draw((uint32_t)argc - 3)], bytes));
        unsigned char *exact = malloc(n ? n : 1); /* so that reading past the end is seen */
        memcpy(exact, bytes, n);
        struct pc_comm *pair[2];
        connect_pair(pair);
        accepted += try_program(pair[0], exact, n, argv[3]);
        pc_comm_close(pair[0]);
        pc_comm_close(pair[1]);
        free(exact);
        if (i % 16 == 0)
            try_address();
    }
    printf("%d programs, %d accepted by the loader\n", iterations, accepted);
    return 0;
}
