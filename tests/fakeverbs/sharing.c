/* Two QPs of `b` that take their receives from one queue, on the stand-in and on real devices
 * alike. The queue is of a protection domain of its own. */
#include <errno.h>
#include <stdio.h>
#include "scenario.h"

enum { RECEIVES = 15, LIMIT = 8 };

static struct ibv_pd *domain;
static struct ibv_qp *own[2], *first[2]; /* of `a` and `b`; the second ones are a.qp and b.qp */
static uint32_t posted;

static int post(uint32_t n)
{
    struct ibv_recv_wr wr = {.wr_id = 100}, *bad;
    int error = 0;
    for (; n && !error; n--, posted += !error, wr.wr_id += !error)
        error = ibv_post_srq_recv(b.srq, &wr, &bad);
    return error;
}

static void open_sharing(void)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = RECEIVES, .max_sge = 1}};
    open_both(RW, calm);
    check((domain = ibv_alloc_pd(b.context)) != NULL, "ibv_alloc_pd");
    check((b.srq = ibv_create_srq(domain, &init)) != NULL, "ibv_create_srq");
    another_pair(own);
    another_pair(first);
    posted = 0;
}

static void close_sharing(void)
{
    struct ibv_srq *srq = b.srq;
    printf("  destroyed while it is used: %d\n", ibv_destroy_srq(srq) == EBUSY);
    for (int i = 0; i < 2; i++)
        check(!ibv_destroy_qp(own[i]) && !ibv_destroy_qp(first[i]), "ibv_destroy_qp");
    check(!ibv_destroy_qp(b.qp), "ibv_destroy_qp");
    b.qp = NULL;
    check(ibv_dealloc_pd(domain) != 0, "the domain of a queue is gone");
    check(!ibv_destroy_srq(srq), "ibv_destroy_srq");
    check(!ibv_dealloc_pd(domain), "ibv_dealloc_pd");
    close_both();
}

static void send_by(struct ibv_qp *qp, uint32_t n)
{
    struct ibv_qp *second = a.qp;
    a.qp = qp;
    for (uint32_t i = 0; i < n; i++)
        check(!endpoint_send(&a, IBV_WR_RDMA_WRITE_WITH_IMM, i, 8, i + 1 == n ? SIGNALED : 0),
              "ibv_post_send");
    a.qp = second;
}

/* Sends so many by each QP, and says which QPs received. */
static void exchange(uint32_t by_first, uint32_t by_second)
{
    struct ibv_wc wc[2 * RECEIVES];
    int of_first = 0, of_second = 0;
    send_by(first[0], by_first);
    send_by(a.qp, by_second);
    check(endpoint_wait(&a, (by_first > 0) + (by_second > 0), wc) > 0, "nothing came back");
    int n = endpoint_wait(&b, (int)(by_first + by_second), wc);
    for (int i = 0; i < n; i++) {
        check(wc[i].status == IBV_WC_SUCCESS, ibv_wc_status_str(wc[i].status));
        of_first += wc[i].qp_num == first[1]->qp_num;
        of_second += wc[i].qp_num == b.qp->qp_num;
    }
    posted -= (uint32_t)n;
    printf("  received by the first %d, by the second %d\n", of_first, of_second);
}

static void sharing(void)
{
    open_sharing();
    printf("  receive of its own: %d\n", endpoint_receive(&b, 1, 0) != 0);
    int error = post(2 * RECEIVES);
    printf("  posted %u, then refused: %d\n", posted, error == ENOMEM);
    exchange(3, 2);
    exchange(0, 4);
    error = post(2 * RECEIVES);
    printf("  posted %u\n", posted);
    exchange(RECEIVES, 0); /* one QP may take all */
    close_sharing();
}

static void low(void)
{
    struct ibv_srq_attr attr = {.srq_limit = 2 * RECEIVES};
    struct ibv_async_event event;
    open_sharing();
    post(RECEIVES);
    printf("  limit above its size: %d\n", ibv_modify_srq(b.srq, &attr, IBV_SRQ_LIMIT) != 0);
    attr.srq_limit = LIMIT;
    check(!ibv_modify_srq(b.srq, &attr, IBV_SRQ_LIMIT), "ibv_modify_srq");
    exchange(4, 3);
    printf("  at the limit: %d\n", readable(b.context->async_fd, 50));
    exchange(0, 1);
    printf("  below: %d\n", readable(b.context->async_fd, 20000));
    check(!ibv_get_async_event(b.context, &event), "ibv_get_async_event");
    printf("  %s, of the queue: %d\n", ibv_event_type_str(event.event_type),
           event.element.srq == b.srq);
    ibv_ack_async_event(&event);
    exchange(2, 2);
    printf("  not armed: %d, ", readable(b.context->async_fd, 50));
    check(!ibv_query_srq(b.srq, &attr), "ibv_query_srq");
    printf("limit %u\n", attr.srq_limit);
    close_sharing();
}

/* Once the second of two sends by a failed QP of `b` has come back, the device has done all that it
 * does about the failure. */
static void flush(struct ibv_qp *failed)
{
    struct ibv_wc wc;
    struct ibv_qp *second = b.qp;
    b.qp = failed;
    for (uint64_t i = 0; i < 2; i++) {
        check(!endpoint_send(&b, IBV_WR_RDMA_WRITE, i, 8, 0), "ibv_post_send");
        check(endpoint_wait(&b, 1, &wc) == 1 && wc.wr_id == i && wc.status == IBV_WC_WR_FLUSH_ERR,
              "flush");
    }
    b.qp = second;
}

/* Who sends to an empty queue waits; who fails takes nothing along. */
static void starved(void)
{
    struct ibv_wc wc[2];
    open_sharing();
    post(4);
    exchange(2, 2);
    send_by(first[0], 1);
    send_by(a.qp, 1);
    printf("  empty: %d received\n", ibv_poll_cq(b.cq, 2, wc));
    post(2);
    show("sender", &a, 2);
    printf("  then: %d received\n", endpoint_wait(&b, 2, wc));
    post(3);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    check(!ibv_modify_qp(first[1], &attr, IBV_QP_STATE), "ibv_modify_qp");
    flush(first[1]);
    printf("  a QP that takes no more says so: %d\n", readable(b.context->async_fd, 50));
    exchange(0, 3);
    nothing_more("receiver", &b);
    close_sharing();
}

const struct scenario sharing_scenarios[]
    = {{"sharing", sharing}, {"low", low}, {"starved", starved}, {NULL, NULL}};
