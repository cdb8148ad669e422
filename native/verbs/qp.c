/* Creates the queue pairs of a rail, and connects them (INIT, RTR, RTS). */
#include "verbs/device.h"
#ifdef PC_VERBS
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>
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
        .pkey = rail->pkey,
        .pkey_index = rail->pkey_index,
        .mtu = (uint8_t)rail->mtu,
        .link_layer = rail->link_layer,
        .gid_type = rail->gid_type,
        .reads = rail->reads_in,
    };
    for (uint32_t f = 0; f < PC_GID_FAMILIES; f++) {
        memcpy(mine->gids[f], rail->gids[f].gid.raw, sizeof mine->gids[f]);
        mine->indexes[f] = (uint8_t)rail->gids[f].index;
    }
    return PC_OK;
}

static bool has(const struct pc_qp_info *end, uint32_t family)
{
    return !pc__gid_is_empty(end->gids[family]);
}

/* The family by which two ends are connected, the same for both: the first that both have, else the
 * first that this one has, as InfiniBand and RoCE v1 know no families. */
static uint32_t family_with(const struct pc_qp_info *end, const struct pc_qp_info *other)
{
    for (uint32_t f = 0; f < PC_GID_FAMILIES; f++)
        if (has(end, f) && has(other, f))
            return f;
    return has(end, PC_GID_IPV4) ? PC_GID_IPV4 : PC_GID_IPV6;
}

static const char *kind(const struct pc_qp_info *end)
{
    if (end->link_layer == IBV_LINK_LAYER_INFINIBAND)
        return "InfiniBand";
    if (end->gid_type != 2)
        return "RoCE v1";
    return !has(end, PC_GID_IPV4)   ? "RoCE v2 over IPv6"
           : !has(end, PC_GID_IPV6) ? "RoCE v2 over IPv4"
                                    : "RoCE v2 over IPv4 and IPv6";
}

static bool fit(const struct pc_qp_info *mine, const struct pc_qp_info *theirs)
{
    uint32_t family = family_with(mine, theirs);
    return mine->link_layer == theirs->link_layer
           && (mine->link_layer == IBV_LINK_LAYER_INFINIBAND
               || (mine->gid_type == theirs->gid_type
                   && (mine->gid_type != 2 || (has(mine, family) && has(theirs, family)))));
}

/* By their partition keys, which are checked on InfiniBand only; 0: one is not known. */
static bool may_talk(const struct pc_qp_info *mine, const struct pc_qp_info *theirs)
{
    uint32_t both = mine->pkey ^ theirs->pkey, any = mine->pkey | theirs->pkey;
    return mine->link_layer != IBV_LINK_LAYER_INFINIBAND || mine->pkey == 0 || theirs->pkey == 0
           || ((both & PC_PKEY_PARTITION) == 0 && (any & ~PC_PKEY_PARTITION) != 0);
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
    if (!fit(mine, theirs))
        return pc__fail(error, PC_INVALID, -1,
                        "%s port %u speaks %s, the peer's port %s: name ports or GIDs that fit",
                        rail->spec.device, rail->spec.port, kind(mine), kind(theirs));
    if (!may_talk(mine, theirs))
        return pc__fail(error, PC_INVALID, -1,
                        "%s port %u has partition key %#x, the peer's port %#x: packets pass only "
                        "within a partition, and not between two limited members (pkey= of "
                        "PYCOLL_VERBS)",
                        rail->spec.device, rail->spec.port, mine->pkey, theirs->pkey);
    return PC_OK;
}

static void fill_ah_attr(const struct pc_ib_device *rail, const struct pc_qp_info *mine,
                         const struct pc_qp_info *theirs, struct ibv_ah_attr *out)
{
    const size_t subnet = 8; /* bytes of an InfiniBand GID */
    uint32_t here = family_with(mine, theirs), there = family_with(theirs, mine);
    *out = (struct ibv_ah_attr){
        .dlid = theirs->lid,
        .sl = (uint8_t)rail->options->service_level,
        .port_num = (uint8_t)rail->spec.port,
        .is_global = mine->link_layer == IBV_LINK_LAYER_ETHERNET || rail->global
                     || memcmp(mine->gids[here], theirs->gids[there], subnet) != 0,
        .grh = {.sgid_index = mine->indexes[here],
                .hop_limit = 64,
                .traffic_class = (uint8_t)rail->options->traffic_class},
    };
    memcpy(out->grh.dgid.raw, theirs->gids[there], sizeof theirs->gids[there]);
}

static int unreachable(const struct pc_ib_device *rail, const struct pc_qp_info *mine,
                       const struct pc_qp_info *theirs, int errnum, struct pc_error *error)
{
    char there[PC_GID_TEXT], here[PC_GID_TEXT];
    errno = errnum;
    return pc__fail(error, PC_SYSTEM, -1,
                    "%s port %u: ibv_modify_qp to RTR: no way from %s to %s: %s", rail->spec.device,
                    rail->spec.port, pc__gid_text(mine->gids[family_with(mine, theirs)], here),
                    pc__gid_text(theirs->gids[family_with(theirs, mine)], there), strerror(errnum));
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
        return unreachable(rail, mine, theirs, rc, error);
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

static const char *ask(const struct pc_ib_device *rail, const struct pc_qp_info *mine,
                       uint32_t family)
{
    struct pc_port_attr port;
    __be16 pkey;
    if (pc__port_query(rail->context, rail->spec.port, &port) == 0 && port.known.lid != mine->lid)
        return "its port has another LID";
    if (has(mine, family)
        && !pc__gid_there(rail->context, rail->spec.port, mine->indexes[family],
                          mine->gids[family]))
        return "its port has another GID";
    if (mine->pkey != 0
        && pc__ib.query_pkey(rail->context, (uint8_t)rail->spec.port, mine->pkey_index, &pkey) == 0
        && ntohs(pkey) != mine->pkey)
        return "its port has another partition key";
    return NULL;
}

static bool alike(const struct pc_qp_info *a, const struct pc_qp_info *b, uint32_t family)
{
    return a->lid == b->lid && a->pkey == b->pkey && a->pkey_index == b->pkey_index
           && a->indexes[family] == b->indexes[family]
           && memcmp(a->gids[family], b->gids[family], sizeof a->gids[family]) == 0;
}

const char *pc__qp_moved(const struct pc_ib_device *rail, const struct pc_qp_info *mine,
                         const struct pc_qp_info *theirs, struct pc_qp_answer *last)
{
    uint32_t family = family_with(mine, theirs);
    if (last->of == NULL || last->family != family || !alike(last->of, mine, family))
        *last = (struct pc_qp_answer){mine, family, ask(rail, mine, family)};
    return last->why;
}
#endif
