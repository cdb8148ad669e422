/* What becomes of requests and completions, on the stand-in and on real devices alike. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "scenario.h"

static void operations(void)
{
    open_both(RW, calm);
    strcpy(a.memory, "from a");
    for (int i = 0; i < 6; i++)
        endpoint_receive(&b, 100 + i, 4096);
    endpoint_send(&a, IBV_WR_SEND, 1, 60, SIGNALED);
    endpoint_send(&a, IBV_WR_SEND, 2, 60, SIGNALED | INLINE);
    endpoint_send(&a, IBV_WR_SEND_WITH_IMM, 3, 60, SIGNALED);
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 4, 65536, SIGNALED);
    endpoint_send(&a, IBV_WR_RDMA_WRITE_WITH_IMM, 5, 65536, SIGNALED);
    endpoint_send(&a, IBV_WR_RDMA_WRITE_WITH_IMM, 6, 0, SIGNALED);
    show("sender", &a, 6);
    show("receiver", &b, 5);
    printf("  memory %s %s\n", b.memory, b.memory + SIZE / 2);
    strcpy(b.memory, "from b");
    endpoint_send(&a, IBV_WR_RDMA_READ, 7, 20000, SIGNALED);
    show("read", &a, 1);
    printf("  memory %s\n", a.memory);
    nothing_more("receiver", &b);
    close_both();
}

static void bounds(void)
{
    static const struct {
        const char *what;
        int64_t shift;
        uint32_t length, key;
        int access;
        bool read;
    } cases[] = {
        {"the last byte", SIZE - 1, 1, 0, RW, false},
        {"one byte past", SIZE - 7, 8, 0, RW, false},
        {"one byte before", -1, 8, 0, RW, false},
        {"past with many packets", SIZE - 20000, 20001, 0, RW, false},
        {"bad rkey", 0, 8, 0x77777, RW, false},
        {"not for writing", 0, 8, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, false},
        {"not for reading", 0, 8, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, true},
        {"read past", SIZE - 7, 8, 0, RW, true},
        {"nothing, with a bad rkey", 0, 0, 0x77777, RW, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ibv_sge sge;
        struct ibv_send_wr *bad, wr, last;
        open_both(cases[i].access, calm);
        for (int j = 0; j < 2; j++)
            endpoint_receive(&b, 100 + j, 8);
        wr = endpoint_wr(&a, cases[i].read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, cases[i].length,
                         &sge);
        wr.wr_id = 1;
        wr.wr.rdma.remote_addr += (uint64_t)cases[i].shift;
        if (cases[i].key)
            wr.wr.rdma.rkey ^= cases[i].key;
        last = wr;
        last.wr_id = 2;
        last.send_flags = SIGNALED;
        wr.next = &last;
        check(!ibv_post_send(a.qp, &wr, &bad), "ibv_post_send");
        printf("  %s\n", cases[i].what);
        if (cases[i].length == 1 || cases[i].length == 0) {
            show("sender", &a, 1);
        } else {
            show("sender", &a, 2); /* the first although it is not signalled */
            show("receiver", &b, 2);
        }
        show_states();
        close_both();
    }
}

static void local_errors(void)
{
    struct ibv_sge sge;
    struct ibv_send_wr *bad, wr;
    open_both(RW, calm);
    wr = endpoint_wr(&a, IBV_WR_RDMA_WRITE, 64, &sge);
    sge.lkey ^= 0x77777;
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 1, 64, 0);
    check(!ibv_post_send(a.qp, &wr, &bad), "ibv_post_send");
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 3, 64, SIGNALED);
    show("bad lkey", &a, 2);
    show_states();
    close_both();
    open_both(RW, calm);
    endpoint_receive(&b, 100, 32);
    endpoint_receive(&b, 101, 32);
    endpoint_send(&a, IBV_WR_SEND, 1, 64, SIGNALED);
    show("receive too small, sender", &a, 1);
    show("receiver", &b, 2);
    show_states();
    close_both();
}

static void flushing(void)
{
    open_both(RW, hasty);
    for (int i = 0; i < 4; i++)
        endpoint_receive(&b, 100 + i, 64);
    endpoint_state(&b, IBV_QPS_ERR);
    show("own QP to ERR", &b, 4);
    struct ibv_wc wc[3];
    bool receive = false;
    endpoint_receive(&b, 104, 64);
    for (uint64_t i = 5; i < 7; i++) { /* when the second comes back, all has that will */
        endpoint_send(&b, IBV_WR_RDMA_WRITE, i, 64, 0);
        do {
            check(endpoint_wait(&b, 1, wc) == 1 && wc->status == IBV_WC_WR_FLUSH_ERR, "flush");
            receive |= wc->wr_id == 104;
        } while (wc->wr_id != i);
    }
    printf("  on it: sends come back, receives %s\n", receive ? "too" : "do not");
    for (int i = 0; i < 3; i++)
        endpoint_send(&a, IBV_WR_RDMA_WRITE, 10 + (uint64_t)i, 64, 0);
    show("its peer", &a, 3);
    show_states();
    close_both();
}

static void not_ready(void)
{
    open_both(RW, (struct timing){14, 6, 1});
    endpoint_send(&a, IBV_WR_SEND, 1, 64, SIGNALED);
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 2, 64, SIGNALED);
    show("no receive, rnr_retry 1", &a, 2);
    show_states();
    close_both();
}

static void order(void)
{
    open_both(RW, calm);
    for (int i = 0; i < 32; i++)
        endpoint_receive(&b, 100 + i, 8);
    for (int i = 0; i < 32; i++) /* every fourth is signalled */
        endpoint_send(&a, IBV_WR_RDMA_WRITE_WITH_IMM, (uint64_t)i, 8, i % 4 == 3 ? SIGNALED : 0);
    show("sender", &a, 8);
    show("receiver", &b, 32);
    nothing_more("sender", &a);
    close_both();
}

static void arming(void)
{
    struct ibv_cq *cq;
    void *context;
    open_both(RW, calm);
    for (int i = 0; i < 8; i++)
        endpoint_receive(&b, 100 + i, 8);
    static const struct {
        const char *what;
        int armed; /* -1: not */
        unsigned flags;
    } cases[] = {{"not armed", -1, IBV_SEND_SOLICITED},
                 {"for any", 0, 0},
                 {"once", -1, 0},
                 {"for solicited ones, other", 1, 0},
                 {"still armed, solicited", -1, IBV_SEND_SOLICITED}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].armed >= 0)
            check(!ibv_req_notify_cq(b.cq, cases[i].armed), "ibv_req_notify_cq");
        endpoint_send(&a, IBV_WR_SEND, i, 8, SIGNALED | cases[i].flags);
        struct ibv_wc wc[2];
        endpoint_wait(&a, 1, wc);
        endpoint_wait(&b, 1, wc);
        bool woken = readable(b.channel->fd, 0);
        printf("  %s: %d\n", cases[i].what, woken);
        if (woken) {
            check(!ibv_get_cq_event(b.channel, &cq, &context) && cq == b.cq, "ibv_get_cq_event");
            ibv_ack_cq_events(cq, 1);
        }
    }
    check(!ibv_req_notify_cq(b.cq, 1), "ibv_req_notify_cq");
    endpoint_state(&b, IBV_QPS_ERR);
    show("flushed", &b, 3);
    printf("  for solicited ones, a failure: %d\n", readable(b.channel->fd, 1000));
    check(!ibv_get_cq_event(b.channel, &cq, &context), "ibv_get_cq_event");
    ibv_ack_cq_events(cq, 1);
    close_both();
}

/* A receive that comes after the send that needs it. */
static void tardy(void)
{
    open_both(RW, calm);
    endpoint_send(&a, IBV_WR_SEND, 1, 64, SIGNALED);
    endpoint_send(&a, IBV_WR_RDMA_WRITE_WITH_IMM, 2, 9000, SIGNALED);
    endpoint_receive(&b, 100, 64);
    endpoint_receive(&b, 101, 64);
    show("sender", &a, 2);
    show("receiver", &b, 2);
    close_both();
}

/* Sends that were lost are read again from where they lay, unless they were inline. */
static void late(void)
{
    open_both(RW, (struct timing){19, 6, 7}); /* 2 s each */
    run("CUT");
    strcpy(a.memory, "early");
    struct ibv_sge sge;
    struct ibv_send_wr *bad, wr = endpoint_wr(&a, IBV_WR_RDMA_WRITE, 8, &sge);
    wr.wr_id = 1;
    wr.send_flags = INLINE;
    check(!ibv_post_send(a.qp, &wr, &bad), "ibv_post_send");
    wr.wr_id = 2;
    wr.send_flags = SIGNALED;
    wr.wr.rdma.remote_addr += 8;
    check(!ibv_post_send(a.qp, &wr, &bad), "ibv_post_send");
    strcpy(a.memory, "late");
    run("HEAL");
    show("sender", &a, 1);
    printf("  inline %s, not inline %s\n", b.memory, b.memory + 8);
    close_both();
}

const struct scenario request_scenarios[] = {
    {"operations", operations},
    {"bounds", bounds},
    {"local_errors", local_errors},
    {"flushing", flushing},
    {"not_ready", not_ready},
    {"tardy", tardy},
    {"order", order},
    {"arming", arming},
    {"late", late},
    {NULL, NULL},
};
