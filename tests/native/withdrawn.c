/* A message that its reader takes from where it lies, of a rank whose transfers have ended.
 *
 *   withdrawn MEMORY HOW
 *
 * MEMORY is where the message lies: `heap`, or `own` (its reader asks the kernel for it). HOW its
 * sender's transfers end: `abort`; `call` (a pairwise call finds nobody and breaks the
 * communicator); `queued` (the same call beside its caller); `close`, behind which the heap is
 * gone; `amid` (an abort while the reader copies, from the heap); or `unheard` (an abort of which
 * nobody tells the reader). The sender then writes there. Its reader must not say that it has
 * received: it sleeps until it hears why, or its deadline comes.
 *
 * Both ranks are communicators of one thread, so each outcome is the same every time. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "p2p/p2p.h"

#define BYTES 600000u /* such a message is offered */
#define FOREVER 60.0
#define PAGE 4096u

static struct pc_comm *comms[2];
static unsigned char *sent, *got;
static struct pc_work *sending;

static void expect(struct pc_comm *comm, const char *what, int rc, int want)
{
    if (rc == want)
        return;
    fprintf(stderr, "%s: got %s, want %s: %s\n", what, pc_code_name(rc), pc_code_name(want),
            pc_comm_error(comm)->text);
    exit(1);
}

static void open_ranks(void)
{
    char blobs[2][256];
    int bytes[2], found[2] = {PC_AGAIN, PC_AGAIN};
    for (uint32_t r = 0; r < 2; r++) {
        struct pc_options options
            = {.rank = r, .size = 2, .slots = 2, .slot_bytes = 1 << 12, .heap_bytes = 1 << 24};
        expect(comms[r], "open", pc_comm_open(&options, &comms[r]), PC_OK);
        bytes[r] = pc_comm_address(comms[r], blobs[r], sizeof blobs[r]);
    }
    while (found[0] != PC_OK || found[1] != PC_OK)
        for (uint32_t r = 0; r < 2; r++) {
            pc_comm_accept(comms[r]);
            found[r] = pc_comm_connect(comms[r], !r, blobs[!r], (size_t)bytes[!r]);
            if (found[r] != PC_AGAIN)
                expect(comms[r], "connect", found[r], PC_OK);
        }
}

static struct pc_p2p_op message(uint32_t direction, uint32_t peer, void *at, uint64_t nbytes)
{
    return (struct pc_p2p_op){
        .at = at, .nbytes = nbytes, .peer = peer, .direction = direction, .dtype = PC_DTYPE_UINT8};
}

static struct pc_work *post(uint32_t rank, uint32_t direction, void *at, double timeout)
{
    struct pc_work *work = NULL;
    struct pc_p2p_op m = message(direction, !rank, at, BYTES);
    expect(comms[rank], "post", pc_post(comms[rank], &m, 1, timeout, &work), PC_OK);
    return work;
}

/* By the first large message a reader finds out whether it can read the memory of its sender. */
static void greet(void)
{
    struct pc_work *s = post(0, PC_DIRECTION_SEND, sent, FOREVER),
                   *r = post(1, PC_DIRECTION_RECV, got, FOREVER);
    int mine = PC_AGAIN, theirs = PC_AGAIN;
    while (mine == PC_AGAIN || theirs == PC_AGAIN) {
        mine = mine == PC_AGAIN ? pc_work_wait(s, 0) : mine;
        theirs = theirs == PC_AGAIN ? pc_work_wait(r, 0) : theirs;
    }
    expect(comms[0], "the first message is sent", mine, PC_OK);
    expect(comms[1], "the first message is received", theirs, PC_OK);
    pc_work_free(s);
    pc_work_free(r);
}

/* A call of both ranks, which rank 1 does not make. */
static void call_alone(bool queued)
{
    unsigned char x = 0;
    struct pc_p2p_op m = message(PC_DIRECTION_RECV, 1, &x, 1);
    struct pc_work *work = NULL;
    int rc = queued ? pc_pairwise_submit(comms[0], 77, &m, 1, 0.05, "queued", &work)
                    : pc_pairwise(comms[0], 77, &m, 1, 0.05);
    if (queued) {
        expect(comms[0], "submit", rc, PC_OK);
        rc = PC_AGAIN;
    }
    while (rc == PC_AGAIN)
        rc = queued ? pc_work_wait(work, 1.0) : pc_resume(comms[0], 1.0);
    expect(comms[0], "a call that nobody answers", rc, PC_TIMEDOUT);
    pc_work_free(work);
}

/* Ends the transfers of rank 0, whose user then writes where the message was. */
static void end(const char *how)
{
    if (strcmp(how, "close") == 0) {
        pc_comm_close(comms[0]);
        comms[0] = NULL;
    } else {
        if (strcmp(how, "call") == 0 || strcmp(how, "queued") == 0)
            call_alone(strcmp(how, "queued") == 0);
        else
            pc_comm_abort(comms[0], PC_ABORTED, -1, "an end");
        int rc = pc_work_wait(sending, FOREVER); /* whichever thread sees the abort first */
        if (rc == PC_OK || rc == PC_AGAIN) {
            fprintf(stderr, "the message of rank 0 has not failed\n");
            exit(1);
        }
    }
    pc_work_free(sending);
    memset(sent, 2, BYTES);
}

/* Rank 1 has copied up to here: rank 0 ends, and then it goes on. */
static void amid(int number)
{
    (void)number;
    end("abort");
    mprotect(got + BYTES / PAGE / 2 * PAGE, PAGE, PROT_READ | PROT_WRITE);
}

static void receive_by_the_deadline(void)
{
    struct pc_work *receiving = post(1, PC_DIRECTION_RECV, got, 0.2);
    expect(comms[1], "of which nobody tells", pc_work_wait(receiving, FOREVER), PC_TIMEDOUT);
    pc_work_free(receiving);
}

static void receive_until_told(void)
{
    struct pc_work *receiving = post(1, PC_DIRECTION_RECV, got, FOREVER);
    expect(comms[1], "what was withdrawn is waited for", pc_work_wait(receiving, 0.05), PC_AGAIN);
    uint64_t until = UINT64_MAX;
    bool sleeps = pc__p2p_sleep_begin(comms[1], &until);
    pc__p2p_sleep_end(comms[1]);
    if (!sleeps || until == UINT64_MAX) {
        fprintf(stderr, "who waits for what was withdrawn does not sleep until its deadline\n");
        exit(1);
    }
    pc_comm_abort(comms[1], PC_ABORTED, 0, "the news");
    expect(comms[1], "what was withdrawn", pc_work_wait(receiving, FOREVER), PC_ABORTED);
    pc_work_free(receiving);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    bool in_heap = strcmp(argv[1], "heap") == 0;
    open_ranks();
    sent = in_heap ? pc_heap_alloc(comms[0], BYTES) : malloc(BYTES);
    got = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(sent, 1, BYTES);
    greet();
    sending = post(0, PC_DIRECTION_SEND, sent, FOREVER);
    expect(comms[0], "nobody has read", pc_work_wait(sending, 0), PC_AGAIN);
    if (strcmp(argv[2], "amid") == 0) {
        signal(SIGSEGV, amid);
        mprotect(got + BYTES / PAGE / 2 * PAGE, PAGE, PROT_NONE);
    } else {
        end(argv[2]);
    }
    if (strcmp(argv[2], "unheard") == 0)
        receive_by_the_deadline();
    else
        receive_until_told();
    for (int r = 0; r < 2; r++)
        pc_comm_close(comms[r]);
    printf("%s %s\n", argv[1], argv[2]);
    return 0;
}
