/* A call that is refused while a queued one ends, under ThreadSanitizer: only the thread that runs
 * the queue touches the call.
 *
 *   refused TURNS */
#include <stdio.h>
#include <stdlib.h>
#include "pycoll.h"

static void expect(struct pc_comm *comm, const char *what, int rc, int want)
{
    if (rc == want)
        return;
    fprintf(stderr, "%s: got %s, want %s: %s\n", what, pc_code_name(rc), pc_code_name(want),
            pc_comm_error(comm)->text);
    exit(1);
}

/* Rank 0 of two has queued a call with rank 1, whom nobody connects. */
static void turn(void)
{
    struct pc_options options = {.size = 2, .slots = 2, .slot_bytes = 1 << 12};
    struct pc_comm *comm = NULL;
    struct pc_work *work = NULL;
    unsigned char x;
    struct pc_p2p_op m = {
        .at = &x, .nbytes = 1, .peer = 1, .direction = PC_DIRECTION_RECV, .dtype = PC_DTYPE_UINT8};
    uint64_t number;
    expect(comm, "open", pc_comm_open(&options, &comm), PC_OK);
    expect(comm, "remote", pc_comm_remote(comm, 1), PC_OK);
    expect(comm, "sealed", pc_comm_sealed(comm), PC_OK);
    expect(comm, "submit", pc_pairwise_submit(comm, 7, &m, 1, 60.0, "queued", &work), PC_OK);
    pc_comm_abort(comm, PC_ABORTED, -1, "the news");
    pc_refuse(comm, &number); /* it may find that all has ended */
    expect(comm, "the queued call", pc_work_wait(work, 60.0), PC_ABORTED);
    expect(comm, "a refused call behind it", pc_refuse(comm, &number), PC_BROKEN);
    pc_work_free(work);
    pc_comm_close(comm);
}

int main(int argc, char **argv)
{
    int turns = argc == 2 ? atoi(argv[1]) : 0;
    for (int i = 0; i < turns; i++)
        turn();
    printf("%d turns\n", turns);
    return 0;
}
