/* Queue pairs that are destroyed before anybody has polled what they consumed of a shared receive
 * queue: it is as full afterwards.
 *
 *   shared_receives TURNS
 *
 * libibverbs is the stand-in of tests/fakeverbs. In each turn a queue pair of fake1 sends MESSAGES
 * to one of fake0, which is destroyed then. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "verbs/verbs.h"

enum { MESSAGES = 5, SENDS = 64 };

static const struct pc_verbs_options options = {.queue_pairs = 1, .timeout = 14, .retry_count = 7};

static void die(const char *what, const struct pc_error *error)
{
    fprintf(stderr, "%s: %s\n", what, error == NULL ? "" : error->text);
    exit(1);
}

static void open_rail(struct pc_ib_device *rail, const char *device)
{
    struct pc_error error;
    struct pc_rail_spec spec = {.port = 1, .gid_index = -1};
    snprintf(spec.device, sizeof spec.device, "%s", device);
    if (pc__ib_device_open(&spec, &options, 1024, &error, rail) != PC_OK)
        die("open", &error);
}

static void send_all(const struct pc_ib_device *rail, struct ibv_qp *qp)
{
    struct ibv_wc done;
    struct ibv_send_wr *bad,
        wr = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_SIGNALED};
    for (int i = 0; i < MESSAGES; i++)
        if (ibv_post_send(qp, &wr, &bad) != 0)
            die("ibv_post_send", NULL);
    uint64_t deadline = pc__now() + UINT64_C(20000000000);
    for (int got = 0; got < MESSAGES;) {
        int n = ibv_poll_cq(rail->cq, 1, &done);
        if ((n == 1 && done.status != IBV_WC_SUCCESS) || pc__now() > deadline)
            die("no receive is left", NULL);
        got += n;
        sched_yield();
    }
}

static void turn(struct pc_verbs_net *w, struct pc_ib_device *far)
{
    struct pc_error error;
    struct pc_event events[PC_EVENTS_AT_ONCE];
    struct pc_qp_info near_end, far_end;
    struct pc_verbs_connection conn = {.shares = true};
    struct pc_ib_device *near = &w->rails[0];
    struct ibv_qp *sender;
    if (pc__srq_usable(w, 0, &error) != PC_OK
        || pc__qp_create(near, near->pd, w->srqs[0]->queue, SENDS, 0, &error, &conn.qp, &near_end)
               != PC_OK
        || pc__srq_add(w, &conn, &error) != PC_OK
        || pc__qp_create(far, far->pd, NULL, SENDS, 1, &error, &sender, &far_end) != PC_OK
        || pc__qp_connect(near, conn.qp, &near_end, &far_end, &error) != PC_OK
        || pc__qp_connect(far, sender, &far_end, &near_end, &error) != PC_OK)
        die("connect", &error);
    send_all(far, sender);
    pc__ib.destroy_qp(conn.qp);
    pc__srq_remove(w, 0, near_end.qpn);
    for (uint32_t n = pc__wr_poll(near, events), i = 0; i < n; i++)
        if (pc__srq_consumed(w, 0, events[i].qpn) != NULL)
            die("a destroyed queue pair has an owner", NULL);
    pc__srq_refill(w, 0, true);
    pc__ib.destroy_qp(sender);
}

int main(int argc, char **argv)
{
    struct pc_verbs_net *w = calloc(1, sizeof *w);
    struct pc_ib_device far;
    int turns = argc == 2 ? atoi(argv[1]) : 0;
    w->nrails = 1;
    open_rail(&w->rails[0], "fake0");
    open_rail(&far, "fake1");
    if (!pc__srq_open(w, 0))
        die(w->base.state.unshared, NULL);
    for (int i = 0; i < turns; i++)
        turn(w, &far);
    printf("%d of %u\n", turns * MESSAGES, w->srqs[0]->max_wr);
    pc__srq_close(w, 0);
    pc__ib_device_close(&far);
    pc__ib_device_close(&w->rails[0]);
    free(w);
    return 0;
}
