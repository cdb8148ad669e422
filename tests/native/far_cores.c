/* Exchanges between two processes for which the probe of fills has found near cores, or far ones.
 *
 *   far_cores SCENARIO
 *
 * `probe`: which fills are timed, and what the probe makes of their costs. `near` and `far`:
 * messages of 1 B to 8 MiB, anywhere in their pages; they come right, and those go by the kernel
 * that should. `refused` and `half`: far, but the kernel lets neither rank, or only rank 0, read
 * the other's memory. `user`: rank 1 gives up root, so that it may not. `reader` and `sender`: rank
 * 1 is killed as it reads, or before all was read of what it sends.
 *
 * What the probe would measure here depends on the machine, so it is told what fills have cost. The
 * kernel is asked by process_vm_readv below, which counts, refuses and kills. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "p2p/p2p.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define LONGEST (8 * MIB)
#define ROOM (LONGEST + 2 * PC_PAGE)
#define FAR_BYTES (64 * KIB) /* from here on by the kernel, if far */
#define LONG_BYTES (4 * MIB) /* and near, too; also what is read in one step */
#define TURNS 8              /* of which one is staged all the same, if far */
#define FOREVER 60.0
#define NOBODY 65534

static struct { /* of both processes */
    char blobs[2][256];
    int bytes[2];
    _Atomic uint32_t opened, connected, finished, turned;
} *shared;

static struct pc_comm *comm;
static uint32_t me;
static pid_t peer_pid; /* of rank 1 */
static unsigned char *pattern, *sent, *got;
static bool refused, dies, kills;
static uint32_t asked, copied, steps; /* process_vm_readv: calls; those of data; that went well */

static void fail(const char *what, uint64_t found, uint64_t want)
{
    fprintf(stderr, "rank %u: %s: got %llu, want %llu\n", me, what, (unsigned long long)found,
            (unsigned long long)want);
    exit(1);
}

static void expect(const char *what, int rc, int want)
{
    if (rc == want)
        return;
    fprintf(stderr, "rank %u: %s: got %s, want %s: %s\n", me, what, pc_code_name(rc),
            pc_code_name(want), comm ? pc_comm_error(comm)->text : "");
    exit(1);
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *mine, unsigned long n,
                         const struct iovec *theirs, unsigned long m, unsigned long flags)
{
    bool data = asked++ > 0; /* first of all a reader tries whether it may */
    copied += data;
    if (refused) {
        errno = EPERM;
        return -1;
    }
    if (data && dies)
        kill(getpid(), SIGKILL);
    if (data && kills) {
        siginfo_t how;
        kill(peer_pid, SIGKILL);
        waitid(P_PID, (id_t)peer_pid, &how, WEXITED | WNOWAIT);
        kills = false;
    }
    ssize_t got_bytes = syscall(SYS_process_vm_readv, pid, mine, n, theirs, m, flags);
    steps += data && got_bytes > 0;
    return got_bytes;
}

static void meet(_Atomic uint32_t *count)
{
    for (uint32_t until = (atomic_fetch_add(count, 1) / 2 + 1) * 2; atomic_load(count) < until;)
        usleep(100);
}

static void open_rank(void)
{
    struct pc_options options = {.rank = me,
                                 .size = 2,
                                 .slots = 4,
                                 .slot_bytes = 256 << 10,
                                 .heap_bytes = 1 << 20,
                                 .spin = 20};
    int rc = PC_AGAIN;
    expect("open", pc_comm_open(&options, &comm), PC_OK);
    shared->bytes[me] = pc_comm_address(comm, shared->blobs[me], sizeof shared->blobs[me]);
    meet(&shared->opened);
    while (rc == PC_AGAIN) {
        pc_comm_accept(comm);
        rc = pc_comm_connect(comm, !me, shared->blobs[!me], (size_t)shared->bytes[!me]);
    }
    expect("connect", rc, PC_OK);
    atomic_fetch_add(&shared->connected, 1);
    while (atomic_load(&shared->connected) < 2)
        pc_comm_accept(comm);
    expect("sealed", pc_comm_sealed(comm), PC_OK);
}

/* Tells the probe of what this rank sends what a fill in either form has cost. */
static void set_probe(bool far)
{
    struct pc_probe told = {.turn = 1 + PC_FORM_UNTIMED}; /* two thirds of a period are ahead */
    pc__probe_learn(&told, PC_FORM_CACHED, far ? 1000 : 100);
    pc__probe_learn(&told, PC_FORM_STREAMED, 100);
    if (told.stream != far)
        fail("streams", told.stream, far);
    pc__lock(comm->p2p);
    pc__edge_queue_of(comm, 0, !me)->probe = told;
    pc__unlock(comm->p2p);
}

static int exchange(struct pc_p2p_op *messages, uint32_t n)
{
    bool told = false;
    int rc = pc_exchange(comm, messages, n, FOREVER);
    while (rc == PC_AGAIN) {
        siginfo_t how = {0};
        if (me == 0 && !told
            && waitid(P_PID, (id_t)peer_pid, &how, WEXITED | WNOHANG | WNOWAIT) == 0
            && how.si_pid == peer_pid) {
            pc_comm_gone(comm, 1, true);
            told = true;
        }
        rc = pc_resume(comm, 0.01);
    }
    return rc;
}

static struct pc_p2p_op message(uint32_t direction, void *at, uint64_t nbytes)
{
    return (struct pc_p2p_op){
        .at = at, .nbytes = nbytes, .peer = !me, .direction = direction, .dtype = PC_DTYPE_UINT8};
}

/* Exchanges a message of each rank; neither lies at a multiple of anything. */
static void turn(uint64_t nbytes, uint32_t number, bool far)
{
    uint64_t at = 1 + (number * 61 + me * 17) % PC_PAGE, to = 1 + (number * 89 + me * 5) % PC_PAGE;
    uint64_t mine = (number * 7 + me * 1009) % PC_PAGE,
             theirs = (number * 7 + !me * 1009) % PC_PAGE;
    memcpy(sent + at, pattern + mine, nbytes);
    memset(got + to - 1, 0x55, nbytes + 2);
    struct pc_p2p_op messages[] = {message(PC_DIRECTION_SEND, sent + at, nbytes),
                                   message(PC_DIRECTION_RECV, got + to, nbytes)};
    set_probe(far);
    expect("exchange", exchange(messages, 2), PC_OK);
    memset(sent + at, 0xaa, nbytes); /* its reader has it */
    if (memcmp(got + to, pattern + theirs, nbytes) != 0)
        fail("a message came wrong, of bytes", nbytes, nbytes);
    if (got[to - 1] != 0x55 || got[to + nbytes] != 0x55)
        fail("beside a message something was written, of bytes", nbytes, nbytes);
}

/* How often a rank should read, of TURNS messages. */
static uint32_t reads(uint64_t nbytes, bool far, bool allowed)
{
    if (!allowed || nbytes < (far ? FAR_BYTES : LONG_BYTES))
        return 0;
    return nbytes < LONG_BYTES ? TURNS - 1
                               : TURNS * (uint32_t)((nbytes + LONG_BYTES - 1) / LONG_BYTES);
}

static void exchange_all(bool far, bool allowed)
{
    const uint64_t lengths[] = {1,
                                PC_INLINE_BYTES,
                                PC_INLINE_BYTES + 1,
                                4097,
                                32 * KIB,
                                FAR_BYTES - 1,
                                FAR_BYTES,
                                FAR_BYTES + 1,
                                256 * KIB - 1,
                                MIB + 13,
                                LONG_BYTES - 1,
                                LONG_BYTES,
                                LONG_BYTES + 1,
                                LONGEST};
    uint32_t number = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint32_t before = copied;
        for (int n = 0; n < TURNS; n++)
            turn(lengths[i], number++, far);
        uint32_t want = reads(lengths[i], far, allowed);
        if (copied - before != want) {
            fprintf(stderr, "messages of %llu bytes: ", (unsigned long long)lengths[i]);
            fail("reads of the peer's memory", copied - before, want);
        }
    }
    if (steps != copied)
        fail("reads that went well", steps, copied);
    if (!allowed && asked != 1)
        fail("times that the kernel was asked", asked, 1);
}

/* What goes one way is copied by two ranks at once, far or near. */
static void send_one_way(void)
{
    uint32_t before = copied;
    for (uint32_t number = 0; number < TURNS; number++) {
        set_probe(true);
        struct pc_p2p_op m = me == 0 ? message(PC_DIRECTION_SEND, pattern + number, MIB)
                                     : message(PC_DIRECTION_RECV, got, MIB);
        expect("one way", exchange(&m, 1), PC_OK);
        if (me == 1 && memcmp(got, pattern + number, MIB) != 0)
            fail("a message came wrong, of bytes", MIB, MIB);
    }
    if (copied != before)
        fail("reads of the peer's memory, one way", copied - before, 0);
}

static void end_by_death(bool reader)
{
    dies = reader && me == 1;
    kills = !reader && me == 0;
    struct pc_p2p_op messages[]
        = {message(PC_DIRECTION_SEND, sent, MIB), message(PC_DIRECTION_RECV, got, MIB)};
    set_probe(true);
    int rc = exchange(messages, 2);
    expect("with a rank that is killed", rc, PC_LOST);
    if (pc_comm_error(comm)->peer != 1)
        fail("rank at fault", (uint64_t)pc_comm_error(comm)->peer, 1);
    expect("another exchange", exchange(messages, 2), PC_BROKEN);
}

static void expect_choice(struct pc_probe *probe, uint64_t cached, uint64_t streamed, bool want)
{
    pc__probe_learn(probe, PC_FORM_CACHED, cached);
    pc__probe_learn(probe, PC_FORM_STREAMED, streamed);
    if (probe->stream != want) {
        fprintf(stderr, "costs of %llu and %llu, ", (unsigned long long)cached,
                (unsigned long long)streamed);
        fail("streams", probe->stream, want);
    }
}

static void check_probe(void)
{
    struct pc_probe near = {0}, far = {0}, other = {0};
    expect_choice(&near, 100, 100, false);
    expect_choice(&near, 200, 100, false); /* the reader would pay as much */
    expect_choice(&near, 100, 100, false);
    expect_choice(&near, 1000000, 100, false); /* something else ran within it */
    expect_choice(&near, 100, 100, false);
    expect_choice(&far, 201, 100, true);
    expect_choice(&far, 250, 100, true);
    expect_choice(&far, 100, 100, false);       /* a core has come near: heard of at once */
    for (int turns = 0; !far.stream; turns++) { /* and gone again: after a few probes */
        if (turns == 4)
            fail("probes until cores are far", (uint64_t)turns, 3);
        pc__probe_learn(&far, PC_FORM_CACHED, 1000);
        pc__probe_learn(&far, PC_FORM_STREAMED, 100);
    }
    uint32_t timed[PC_FORM_UNTIMED + 1] = {0};
    uint64_t ticks;
    bool stream;
    for (uint32_t i = 0; i < 3 * PC_PROBE_PERIOD; i++) {
        enum pc_form form = pc__probe_begin(&other, PC_PROBE_BYTES, &stream, &ticks);
        timed[form]++;
        if (form != PC_FORM_UNTIMED && stream != (form == PC_FORM_STREAMED))
            fail("the form that is timed", stream, form);
        pc__probe_begin(&other, PC_PROBE_BYTES - 1, &stream, &ticks); /* too short to count */
        if (stream)
            fail("a short fill streams", stream, false);
    }
    if (timed[PC_FORM_CACHED] != 3 || timed[PC_FORM_STREAMED] != 3)
        fail("fills that are timed", timed[PC_FORM_CACHED] + timed[PC_FORM_STREAMED], 6);
}

static void run(const char *scenario)
{
    bool far = strcmp(scenario, "near") != 0, allowed = true;
    if (strcmp(scenario, "refused") == 0 || (strcmp(scenario, "half") == 0 && me == 1)) {
        refused = true;
        allowed = false;
    } else if (strcmp(scenario, "user") == 0 && me == 1) {
        expect("setresuid", setresuid(NOBODY, NOBODY, NOBODY), 0);
        allowed = false;
    }
    meet(&shared->turned);
    turn(FAR_BYTES, 1, false); /* a reader finds out whether it can read the sender's memory */
    meet(&shared->turned);     /* and both have: a turn may end before the peer has read its part */
    if (strcmp(scenario, "reader") == 0 || strcmp(scenario, "sender") == 0) {
        end_by_death(strcmp(scenario, "reader") == 0);
        return;
    }
    exchange_all(far, allowed);
    send_one_way();
    meet(&shared->finished);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    if (strcmp(argv[1], "probe") == 0) {
        check_probe();
        printf("%s\n", argv[1]);
        return 0;
    }
    alarm(240);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pattern = malloc(ROOM);
    sent = malloc(ROOM);
    got = malloc(ROOM);
    for (uint64_t i = 0, x = 1; i < ROOM; i++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        pattern[i] = (unsigned char)(x >> 56);
    }
    peer_pid = fork();
    me = peer_pid == 0;
    if (me == 1)
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* rank 0 has said why */
    open_rank();
    run(argv[1]);
    pc_comm_close(comm);
    free(pattern);
    free(sent);
    free(got);
    int status = 0;
    if (me == 1)
        return 0;
    waitpid(peer_pid, &status, 0);
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (killed != (dies || strcmp(argv[1], "reader") == 0 || strcmp(argv[1], "sender") == 0)
        || (!killed && status != 0))
        fail("status of rank 1", (uint64_t)status, 0);
    printf("%s\n", argv[1]);
    return 0;
}
