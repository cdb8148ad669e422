/* What the stand-in does more strictly than some device, and what can be watched on it alone. */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "scenario.h"

/* Slots of the queues are free when a later completion has been polled, and not before. */
static void slots(void)
{
    int n = 0;
    open_both(RW, calm);
    check(!ibv_req_notify_cq(a.cq, 0), "ibv_req_notify_cq");
    while (endpoint_send(&a, IBV_WR_RDMA_WRITE, 1, 8, n == DEPTH - 1 ? SIGNALED : 0) == 0)
        n++;
    check(readable(a.channel->fd, 20000), "no event");
    printf("  sends: %d, ", n);
    for (n = 0; endpoint_send(&a, IBV_WR_RDMA_WRITE, 1, 8, 0) == 0;)
        n++;
    printf("before it is polled: %d\n", n);
    show("polled", &a, 1);
    for (n = 0; endpoint_send(&a, IBV_WR_RDMA_WRITE, 1, 8, 0) == 0;)
        n++;
    printf("  then: %d\n", n);
    for (n = 0; endpoint_receive(&b, 100, 8) == 0;)
        n++;
    printf("  receives: %d\n", n);
    struct ibv_cq *cq;
    void *context;
    check(!ibv_get_cq_event(a.channel, &cq, &context), "ibv_get_cq_event");
    ibv_ack_cq_events(cq, 1);
    close_both();
}

/* A message of two requests, and what is seen of it where a fuse blows. */
static void message(void)
{
    struct ibv_sge sge;
    struct ibv_send_wr *bad, line, data;
    struct ibv_wc wc;
    uint32_t landed = 0;
    open_both(RW, hasty);
    memset(a.memory, 'x', 40000);
    endpoint_receive(&b, 100, 0);
    data = endpoint_wr(&a, IBV_WR_RDMA_WRITE, 40000, &sge);
    data.wr_id = 1;
    data.next = &line;
    struct ibv_sge head = {(uintptr_t)a.memory, 64, 0};
    line = endpoint_wr(&a, IBV_WR_RDMA_WRITE_WITH_IMM, 64, &(struct ibv_sge){0});
    line.sg_list = &head;
    line.wr_id = 2;
    line.send_flags = SIGNALED | INLINE;
    line.wr.rdma.remote_addr += 65536;
    check(!ibv_post_send(a.qp, &data, &bad), "ibv_post_send");
    struct ibv_wc first;
    check(endpoint_wait(&a, 1, &first) == 1, "nothing came back");
    printf("  sender: %d=%s\n", (int)first.wr_id, ibv_wc_status_str(first.status));
    while (b.memory[landed] == 'x')
        landed++;
    printf("  landed: %u bytes, line %d\n", landed, b.memory[65536 + 63] == 'x');
    printf("  receiver: %d\n", ibv_poll_cq(b.cq, 1, &wc));
    close_both();
}

/* Two QPs, and in which order what was posted to them in turn completes. */
static void overtaking(void)
{
    struct ibv_qp *other[2];
    struct ibv_wc wc[32];
    open_both(RW, calm);
    another_pair(other);
    struct ibv_qp *mine = a.qp;
    for (int i = 0; i < 32; i++) {
        a.qp = i % 2 ? mine : other[0];
        check(!endpoint_send(&a, IBV_WR_RDMA_WRITE, (uint64_t)i, 8, SIGNALED), "posting");
    }
    a.qp = mine;
    printf("  order:");
    for (int i = 0, n = endpoint_wait(&a, 32, wc); i < n; i++)
        printf(" %d", (int)wc[i].wr_id);
    printf("\n");
    check(!ibv_destroy_qp(other[0]) && !ibv_destroy_qp(other[1]), "ibv_destroy_qp");
    close_both();
}

/* Many messages of many sizes, each checked as it comes: once, in order, whole. */
static void stream(void)
{
    enum { MESSAGES = 3000, WINDOW = 24, PLACE = 20000 };
    struct ibv_wc wc[WINDOW];
    uint32_t posted = 0, done = 0, came = 0;
    open_both(RW, (struct timing){17, 7, 7});
    for (uint32_t i = 0; i < 2 * WINDOW; i++)
        endpoint_receive(&b, 100, 0);
    while (done < MESSAGES || came < MESSAGES) {
        for (; posted < MESSAGES && posted < done + WINDOW && posted < came + WINDOW; posted++) {
            uint32_t length = 8 + posted * 7919 % (PLACE - 8) / 8 * 8, at = posted % WINDOW * PLACE;
            struct ibv_sge sge;
            struct ibv_send_wr *bad, wr = endpoint_wr(&a, IBV_WR_RDMA_WRITE_WITH_IMM, length, &sge);
            memset(a.memory + at, (int)posted, length);
            sge.addr += at;
            wr.wr.rdma.remote_addr += at;
            wr.imm_data = htonl(posted);
            wr.send_flags = SIGNALED;
            check(!ibv_post_send(a.qp, &wr, &bad), "ibv_post_send");
        }
        int n = ibv_poll_cq(a.cq, WINDOW, wc);
        for (int i = 0; i < n; i++, done++)
            check(wc[i].status == IBV_WC_SUCCESS, ibv_wc_status_str(wc[i].status));
        n = ibv_poll_cq(b.cq, WINDOW, wc);
        for (int i = 0; i < n; i++, came++) {
            const char *place = b.memory + came % WINDOW * PLACE;
            check(ntohl(wc[i].imm_data) == came, "out of order");
            for (uint32_t k = 0; k < wc[i].byte_len; k++)
                if (place[k] != (char)came)
                    check(false, "not what was sent");
            endpoint_receive(&b, 100, 0);
        }
        if (n == 0)
            sched_yield();
    }
    nothing_more("receiver", &b);
    printf("  %u messages\n", came);
    close_both();
}

/* Lines as the transport writes them: who sees the last word by an acquiring load sees the rest. */
static void lines(void)
{
    enum { LINES = 5000, WORDS = 8 };
    struct endpoint *ends[2] = {&a, &b};
    open_both(RW, calm);
    for (uint64_t n = 1; n <= LINES; n++) {
        struct endpoint *from = ends[n % 2], *to = ends[1 - n % 2];
        struct ibv_sge sge;
        struct ibv_wc wc;
        struct ibv_send_wr *bad, wr = endpoint_wr(from, IBV_WR_RDMA_WRITE, 64, &sge);
        uint64_t line[WORDS], *seen = (uint64_t *)(void *)to->memory;
        for (uint64_t i = 0; i < WORDS; i++)
            line[i] = n * (WORDS - i);
        sge.addr = (uintptr_t)line;
        wr.send_flags = SIGNALED | INLINE;
        check(!ibv_post_send(from->qp, &wr, &bad), "ibv_post_send");
        while (__atomic_load_n(&seen[WORDS - 1], __ATOMIC_ACQUIRE) != n)
            sched_yield();
        for (uint64_t i = 0; i < WORDS; i++)
            check(seen[i] == line[i], "a line in pieces");
        check(endpoint_wait(from, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "lost");
    }
    printf("  %d lines\n", LINES);
    close_both();
}

static void write_for_ever(int to, int from)
{
    struct remote theirs;
    struct ibv_wc wc[DEPTH];
    endpoint_open(&a, device_a, gid_index, RW);
    check(write(to, &a.mine, sizeof a.mine) == sizeof a.mine, "write");
    check(read(from, &theirs, sizeof theirs) == sizeof theirs, "read");
    endpoint_connect(&a, &theirs, calm);
    for (;;) {
        endpoint_send(&a, IBV_WR_RDMA_WRITE, 0, SIZE / 2, SIGNALED);
        ibv_poll_cq(a.cq, DEPTH, wc);
    }
}

/* A process that is killed while it writes hurts none but its own connection. */
static void killed_writing(void)
{
    for (uint64_t turn = 0; turn < 20; turn++) {
        struct remote theirs;
        int there[2], back[2];
        check(!pipe(there) && !pipe(back), "pipe");
        pid_t pid = fork();
        if (!pid)
            write_for_ever(there[1], back[0]);
        endpoint_open(&b, device_b, gid_index, RW);
        check(read(there[0], &theirs, sizeof theirs) == sizeof theirs, "read");
        endpoint_connect(&b, &theirs, calm);
        check(write(back[1], &b.mine, sizeof b.mine) == sizeof b.mine, "write");
        endpoint_open(&a, device_a, gid_index, RW);
        struct ibv_qp *first = b.qp;
        endpoint_qp(&b);
        endpoint_connect(&a, &b.mine, calm);
        endpoint_connect(&b, &a.mine, calm);
        for (uint64_t n = 0; n < 100; n++) {
            struct ibv_wc wc;
            if (n == turn * 2)
                kill(pid, SIGKILL);
            check(!endpoint_send(&a, IBV_WR_RDMA_WRITE, n, 4096, SIGNALED), "posting");
            check(endpoint_wait(&a, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "lost");
        }
        waitpid(pid, NULL, 0);
        check(!ibv_destroy_qp(first), "ibv_destroy_qp");
        close_both();
        for (int i = 0; i < 2; i++) {
            close(there[i]);
            close(back[i]);
        }
    }
    printf("  all well\n");
}

/* Holds what it has until its input ends. */
static void hold(void)
{
    char byte;
    open_both(RW, calm);
    printf("holding\n");
    check(read(0, &byte, 1) == 0, "more input");
    close_both();
}

static void overflow(void)
{
    open_both(RW, calm);
    struct ibv_cq *small = ibv_create_cq(a.context, 1, NULL, NULL, 0), *large = a.cq;
    check(!ibv_destroy_qp(a.qp), "ibv_destroy_qp");
    a.cq = small;
    endpoint_qp(&a);
    endpoint_state(&b, IBV_QPS_RESET);
    endpoint_init(&b);
    endpoint_connect(&a, &b.mine, calm);
    endpoint_connect(&b, &a.mine, calm);
    for (uint64_t i = 0; i < 2; i++)
        endpoint_send(&a, IBV_WR_RDMA_WRITE, i, 8, SIGNALED);
    readable(a.context->async_fd, 20000);
    a.cq = large;
}

const struct scenario strict_scenarios[] = {
    {"slots", slots},   {"message", message},   {"overtaking", overtaking},
    {"stream", stream}, {"lines", lines},       {"killed_writing", killed_writing},
    {"hold", hold},     {"overflow", overflow}, {NULL, NULL},
};
