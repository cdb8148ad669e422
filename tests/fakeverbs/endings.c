/* Queue pairs, ports and processes that end, on the stand-in and on real devices alike. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "scenario.h"

static void fence(void)
{
    struct ibv_wc wc;
    open_both(RW, hasty);
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 1, 64, SIGNALED);
    endpoint_wait(&a, 1, &wc);
    check(!ibv_destroy_qp(b.qp), "ibv_destroy_qp");
    b.qp = NULL;
    memset(b.memory, 'b', 64);
    memset(a.memory, 'a', 64);
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 2, 64, SIGNALED);
    show("to a destroyed QP", &a, 1);
    printf("  memory %c\n", b.memory[0]);
    endpoint_close(&a);
    endpoint_close(&b);
    open_both(RW, hasty);
    check(!ibv_dereg_mr(b.mr), "ibv_dereg_mr");
    b.mr = NULL;
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 1, 64, SIGNALED);
    show("to a region that is gone", &a, 1);
    show_states();
    close_both();
}

static void transitions(void)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    endpoint_open(&a, device_a, gid_index, RW); /* in INIT */
    printf("  INIT to RTS: %d\n", ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) != 0);
    attr.qp_state = IBV_QPS_RTR;
    printf("  a bare RTR: %d\n", ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) != 0);
    printf("  post in INIT: %d\n", endpoint_send(&a, IBV_WR_RDMA_WRITE, 1, 8, 0) != 0);
    printf("  receive in INIT: %d\n", endpoint_receive(&a, 1, 8) != 0);
    attr.qp_state = IBV_QPS_ERR;
    printf("  to ERR: %d\n", ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) != 0);
    attr.qp_state = IBV_QPS_RESET;
    printf("  to RESET: %d\n", ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) != 0);
    printf("  busy PD, CQ: %d %d\n", ibv_dealloc_pd(a.pd) != 0, ibv_destroy_cq(a.cq) != 0);
    endpoint_close(&a);
}

static void cut(void)
{
    struct ibv_wc wc;
    open_both(RW, hasty);
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 1, 64, SIGNALED);
    endpoint_wait(&a, 1, &wc);
    run("CUT");
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 2, 64, 0);
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 3, 65536, SIGNALED);
    show("cut", &a, 2);
    show_states();
    run("HEAL");
    close_both();
    open_both(RW, (struct timing){19, 6, 7}); /* 2 s each */
    run("CUT");
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 1, 64, 0);
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 2, 65536, SIGNALED);
    run("HEAL");
    show("healed in time", &a, 1);
    show_states();
    close_both();
}

static void port(void)
{
    struct ibv_port_attr attr;
    struct ibv_async_event event;
    endpoint_open(&b, device_b, gid_index, RW);
    check(!ibv_query_port(b.context, 1, &attr), "ibv_query_port");
    printf("  active %d, link layer %d\n", attr.state == IBV_PORT_ACTIVE, attr.link_layer);
    for (int up = 0; up < 2; up++) {
        run(up ? "UP" : "DOWN");
        check(readable(b.context->async_fd, 20000), "no event");
        check(!ibv_get_async_event(b.context, &event), "ibv_get_async_event");
        ibv_ack_async_event(&event);
        check(!ibv_query_port(b.context, 1, &attr), "ibv_query_port");
        printf("  %s, active %d\n", ibv_event_type_str(event.event_type),
               attr.state == IBV_PORT_ACTIVE);
    }
    endpoint_close(&b);
}

static void killed(void)
{
    int there[2], back[2];
    struct remote theirs;
    char byte;
    check(!pipe(there) && !pipe(back), "pipe");
    pid_t child = fork();
    if (!child) {
        endpoint_open(&b, device_b, gid_index, RW);
        check(write(there[1], &b.mine, sizeof b.mine) == sizeof b.mine, "write");
        check(read(back[0], &theirs, sizeof theirs) == sizeof theirs, "read");
        endpoint_connect(&b, &theirs, hasty);
        check(write(there[1], "c", 1) == 1, "write");
        for (;;)
            pause();
    }
    endpoint_open(&a, device_a, gid_index, RW);
    check(read(there[0], &theirs, sizeof theirs) == sizeof theirs, "read");
    check(write(back[1], &a.mine, sizeof a.mine) == sizeof a.mine, "write");
    check(read(there[0], &byte, 1) == 1, "read");
    endpoint_connect(&a, &theirs, hasty);
    endpoint_receive(&a, 100, 8);
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 1, 64, SIGNALED);
    show("before", &a, 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    nothing_more("who waits", &a); /* hears nothing */
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 2, 64, SIGNALED);
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 3, 64, SIGNALED);
    show("killed", &a, 3);
    endpoint_close(&a);
}

/* Completions that nobody has polled when their QP is destroyed. */
static void leftover(void)
{
    struct ibv_cq *cq;
    void *context;
    open_both(RW, calm);
    check(!ibv_req_notify_cq(a.cq, 0), "ibv_req_notify_cq");
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 1, 64, SIGNALED);
    check(readable(a.channel->fd, 20000), "no event");
    check(!ibv_get_cq_event(a.channel, &cq, &context), "ibv_get_cq_event");
    ibv_ack_cq_events(cq, 1);
    check(!ibv_destroy_qp(a.qp), "ibv_destroy_qp");
    a.qp = NULL;
    nothing_more("after its QP", &a);
    close_both();
}

/* What a responder that refuses, and one whose QP fails otherwise, tell by events. */
static void told(void)
{
    struct ibv_async_event event;
    open_both(RW, calm);
    a.theirs.rkey ^= 0x77777;
    endpoint_send(&a, IBV_WR_RDMA_WRITE, 1, 64, SIGNALED);
    show("sender", &a, 1);
    printf("  events: sender %d, receiver %d\n", readable(a.context->async_fd, 0),
           readable(b.context->async_fd, 0));
    if (readable(b.context->async_fd, 0)) {
        check(!ibv_get_async_event(b.context, &event), "ibv_get_async_event");
        printf("  %s, of its QP %d\n", ibv_event_type_str(event.event_type),
               event.element.qp == b.qp);
        ibv_ack_async_event(&event);
    }
    close_both();
}

/* One QP, used again by way of RESET. */
static void again(void)
{
    open_both(RW, calm);
    for (int turn = 0; turn < 2; turn++) {
        endpoint_receive(&b, 100, 64);
        endpoint_send(&a, IBV_WR_SEND, 1, 64, SIGNALED);
        show("sender", &a, 1);
        show("receiver", &b, 1);
        if (turn)
            break;
        endpoint_state(&a, IBV_QPS_RESET);
        endpoint_state(&b, IBV_QPS_RESET);
        endpoint_init(&a);
        endpoint_init(&b);
        endpoint_connect(&a, &b.mine, calm);
        endpoint_connect(&b, &a.mine, calm);
    }
    close_both();
}

const struct scenario ending_scenarios[] = {
    {"fence", fence}, {"leftover", leftover},       {"told", told},
    {"again", again}, {"transitions", transitions}, {"cut", cut},
    {"port", port},   {"killed", killed},           {NULL, NULL},
};
