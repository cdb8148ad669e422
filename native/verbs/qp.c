/* Creates the queue pairs of a rail, and connects them (INIT, RTR, RTS). */
#include "verbs/device.h"
#ifdef PC_VERBS
#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include "verbs/gid.h"
#include "core/internal.h"
#include "verbs/port.h"

#define PC_24_BITS 0xffffffu /* of a queue pair number, and of a PSN */

int pc__qp_create(struct pc_ib_device *rail, struct ibv_pd *pd, struct ibv_srq *srq, uint32_t sends,
                  uint32_t receives, struct pc_error *error, struct ibv_qp **qp,
                  struct pc_qp_info *mine)
{
    uint32_t psn;
    int rc = pc__ib_device_query(rail, error);
    if (rc != PC_OK)
        return rc;
    if (getrandom(&psn, sizeof psn, 0) != sizeof psn)
        return pc__ib_device_fail(rail, errno, "getrandom", 0, error);
    struct ibv_qp *made = pc__ib_device_create_qp(rail, pd, srq, sends, receives, rail->max_inline);
    if (made == NULL)
        return pc__ib_device_fail(rail, errno, "ibv_create_qp",
                                  errno == ENOMEM ? rail->max_pairs : rail->max_sends, error);
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .pkey_index = rail->pkey_index,
        .port_num = (uint8_t)rail->spec.port,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
    };
    rc = pc__ib.modify_qp(made, &attr,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (rc != 0) {
        pc__ib.destroy_qp(made);
        return pc__ib_device_fail(rail, rc, "ibv_modify_qp to INIT", 0, error);
    }
    *qp = made;
    *mine = (struct pc_qp_info){
        .qpn = made->qp_num,
        .psn = psn & PC_24_BITS,
        .lid = rail->lid,
        .mtu = (uint8_t)rail->mtu,
        .link_layer = rail->link_layer,
        .gid_type = rail->gid_type,
        .reads = rail->reads_in,
    };
    memcpy(mine->gid, rail->gid.raw, sizeof mine->gid);
    return PC_OK;
}

static const char *kind(const struct pc_qp_info *end)
{
    union ibv_gid gid;
    memcpy(gid.raw, end->gid, sizeof gid.raw);
    if (end->link_layer == IBV_LINK_LAYER_INFINIBAND)
        return "InfiniBand";
    if (end->gid_type != 2)
        return "RoCE v1";
    return pc__gid_is_ipv4(&gid) ? "RoCE v2 over IPv4" : "RoCE v2 over IPv6";
}

static int check_ends(const struct pc_ib_device *rail, const struct pc_qp_info *mine,
                      const struct pc_qp_info *theirs, struct pc_error *error)
{
    if (theirs->qpn > PC_24_BITS || theirs->psn > PC_24_BITS || theirs->mtu < IBV_MTU_256
        || theirs->mtu > IBV_MTU_4096 || theirs->link_layer < IBV_LINK_LAYER_INFINIBAND
        || theirs->link_layer > IBV_LINK_LAYER_ETHERNET || theirs->gid_type > 2)
        return pc__fail(error, PC_INVALID, -1,
                        "%s port %u: the peer's end of a queue pair is nonsense", rail->spec.device,
                        rail->spec.port);
    if (strcmp(kind(mine), kind(theirs)) != 0)
        return pc__fail(error, PC_INVALID, -1,
                        "%s port %u speaks %s, the peer's port %s: name ports or GIDs that fit",
                        rail->spec.device, rail->spec.port, kind(mine), kind(theirs));
    return PC_OK;
}

static void fill_ah_attr(const struct pc_ib_device *rail, const struct pc_qp_info *mine,
                         const struct pc_qp_info *theirs, struct ibv_ah_attr *out)
{
    const size_t subnet = 8; /* bytes of an InfiniBand GID */
    *out = (struct ibv_ah_attr){
        .dlid = theirs->lid,
        .sl = (uint8_t)rail->options->service_level,
        .port_num = (uint8_t)rail->spec.port,
        .is_global = mine->link_layer == IBV_LINK_LAYER_ETHERNET || rail->global
                     || memcmp(mine->gid, theirs->gid, subnet) != 0,
        .grh = {.sgid_index = (uint8_t)rail->spec.gid_index,
                .hop_limit = 64,
                .traffic_class = (uint8_t)rail->options->traffic_class},
    };
    memcpy(out->grh.dgid.raw, theirs->gid, sizeof theirs->gid);
}

static int unreachable(const struct pc_ib_device *rail, const struct pc_qp_info *theirs, int errnum,
                       struct pc_error *error)
{
    char there[PC_GID_TEXT], here[PC_GID_TEXT];
    union ibv_gid gid;
    memcpy(gid.raw, theirs->gid, sizeof gid.raw);
    errno = errnum;
    return pc__fail(error, PC_SYSTEM, -1,
                    "%s port %u: ibv_modify_qp to RTR: no way from %s to %s: %s", rail->spec.device,
                    rail->spec.port, pc__gid_text(&rail->gid, here), pc__gid_text(&gid, there),
                    strerror(errnum));
}

int pc__qp_connect(struct pc_ib_device *rail, struct ibv_qp *qp, const struct pc_qp_info *mine,
                   const struct pc_qp_info *theirs, struct pc_error *error)
{
    int rc = check_ends(rail, mine, theirs, error);
    if (rc != PC_OK)
        return rc;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = pc__mtu_smaller(mine->mtu, theirs->mtu),
        .dest_qp_num = theirs->qpn,
        .rq_psn = theirs->psn,
        .max_dest_rd_atomic = rail->reads_in,
        .min_rnr_timer = 12, /* 0.64 ms; only a shared receive queue can be empty */
    };
    fill_ah_attr(rail, mine, theirs, &attr.ah_attr);
    rc = pc__ib.modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN
                              | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (rc != 0)
        return unreachable(rail, theirs, rc, error);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .sq_psn = mine->psn,
        .timeout = (uint8_t)rail->options->timeout,
        .retry_cnt = (uint8_t)rail->options->retry_count,
        .rnr_retry = 7, /* for ever */
        .max_rd_atomic = rail->reads_out < theirs->reads ? rail->reads_out : theirs->reads,
    };
    rc = pc__ib.modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT
                              | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
    if (rc != 0)
        return pc__ib_device_fail(rail, rc, "ibv_modify_qp to RTS", 0, error);
    return PC_OK;
}
#endif
