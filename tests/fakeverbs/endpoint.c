#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "endpoint.h"

void check(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

void endpoint_open(struct endpoint *e, const char *device, int gid_index, int access)
{
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    memset(e, 0, sizeof *e);
    for (int i = 0; i < n; i++)
        if (!strcmp(ibv_get_device_name(list[i]), device))
            e->context = ibv_open_device(list[i]);
    ibv_free_device_list(list);
    check(e->context, device);
    e->gid_index = gid_index;
    e->memory = aligned_alloc(4096, SIZE);
    memset(e->memory, 0, SIZE);
    check((e->pd = ibv_alloc_pd(e->context)) != NULL, "ibv_alloc_pd");
    check((e->channel = ibv_create_comp_channel(e->context)) != NULL, "ibv_create_comp_channel");
    check((e->cq = ibv_create_cq(e->context, 8 * DEPTH, NULL, e->channel, 0)) != NULL,
          "ibv_create_cq");
    check((e->mr = ibv_reg_mr(e->pd, e->memory, SIZE, access)) != NULL, "ibv_reg_mr");
    check(!ibv_query_gid(e->context, 1, gid_index, &e->mine.gid), "ibv_query_gid");
    endpoint_qp(e);
}

void endpoint_init(struct endpoint *e)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    check(!ibv_modify_qp(e->qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
          "to INIT");
}

void endpoint_qp(struct endpoint *e)
{
    struct ibv_qp_init_attr init = {.send_cq = e->cq,
                                    .recv_cq = e->cq,
                                    .srq = e->srq,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {DEPTH, DEPTH, 2, 2, 64}};
    e->qp = ibv_create_qp(e->pd, &init);
    check(e->qp, "ibv_create_qp");
    endpoint_init(e);
    e->mine.qpn = e->qp->qp_num;
    e->mine.psn = (e->qp->qp_num * 2654435761u) & 0xffffff;
    e->mine.rkey = e->mr->rkey;
    e->mine.addr = (uintptr_t)e->memory;
}

void endpoint_connect(struct endpoint *e, const struct remote *theirs, struct timing timing)
{
    e->theirs = *theirs;
    struct ibv_qp_attr attr
        = {.qp_state = IBV_QPS_RTR,
           .path_mtu = IBV_MTU_4096,
           .dest_qp_num = theirs->qpn,
           .rq_psn = theirs->psn,
           .max_dest_rd_atomic = 4,
           .min_rnr_timer = 12,
           .ah_attr
           = {.is_global = 1,
              .port_num = 1,
              .grh = {.dgid = theirs->gid, .sgid_index = (uint8_t)e->gid_index, .hop_limit = 64}}};
    check(!ibv_modify_qp(e->qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN
                             | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
          "to RTR");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .sq_psn = e->mine.psn,
                                .timeout = timing.timeout,
                                .retry_cnt = timing.retries,
                                .rnr_retry = timing.rnr_retries,
                                .max_rd_atomic = 4};
    check(!ibv_modify_qp(e->qp, &attr,
                         IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT
                             | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
          "to RTS");
}

void endpoint_close(struct endpoint *e)
{
    if (e->qp)
        check(!ibv_destroy_qp(e->qp), "ibv_destroy_qp");
    check(!ibv_destroy_cq(e->cq), "ibv_destroy_cq");
    check(!ibv_destroy_comp_channel(e->channel), "ibv_destroy_comp_channel");
    if (e->mr)
        check(!ibv_dereg_mr(e->mr), "ibv_dereg_mr");
    check(!ibv_dealloc_pd(e->pd), "ibv_dealloc_pd");
    check(!ibv_close_device(e->context), "ibv_close_device");
    free(e->memory);
}

void endpoint_state(struct endpoint *e, enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = {.qp_state = state};
    check(!ibv_modify_qp(e->qp, &attr, IBV_QP_STATE), "ibv_modify_qp");
}

int endpoint_query(struct endpoint *e)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    check(!ibv_query_qp(e->qp, &attr, IBV_QP_STATE, &init), "ibv_query_qp");
    return attr.qp_state;
}

struct ibv_send_wr endpoint_wr(struct endpoint *e, enum ibv_wr_opcode opcode, uint32_t length,
                               struct ibv_sge *sge)
{
    struct ibv_send_wr wr = {.opcode = opcode, .sg_list = sge, .num_sge = length ? 1 : 0};
    *sge = (struct ibv_sge){(uintptr_t)e->memory, length, e->mr->lkey};
    wr.wr.rdma.remote_addr = e->theirs.addr;
    wr.wr.rdma.rkey = e->theirs.rkey;
    wr.imm_data = 0x01020304;
    return wr;
}

int endpoint_send(struct endpoint *e, enum ibv_wr_opcode opcode, uint64_t wr_id, uint32_t length,
                  unsigned flags)
{
    struct ibv_sge sge;
    struct ibv_send_wr wr = endpoint_wr(e, opcode, length, &sge), *bad;
    wr.wr_id = wr_id;
    wr.send_flags = flags;
    return ibv_post_send(e->qp, &wr, &bad);
}

int endpoint_receive(struct endpoint *e, uint64_t wr_id, uint32_t length)
{
    struct ibv_sge sge = {(uintptr_t)e->memory + SIZE / 2, length, e->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = length ? 1 : 0}, *bad;
    return ibv_post_recv(e->qp, &wr, &bad);
}

int endpoint_wait(struct endpoint *e, int n, struct ibv_wc *wc)
{
    time_t end = time(NULL) + 20;
    int have = 0;
    while (have < n && time(NULL) < end) {
        int more = ibv_poll_cq(e->cq, n - have, wc + have);
        check(more >= 0, "ibv_poll_cq");
        have += more;
        if (!more)
            sched_yield();
    }
    return have;
}
