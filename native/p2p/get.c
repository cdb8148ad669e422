/* Rendezvous by a network: the receiver gets long messages from where they lie. */
#include "p2p/p2p.h"

static struct pc_net_peer *locked(const struct pc_comm *comm, const struct pc_transfer *t)
{
    pthread_mutex_lock(&comm->net->lock);
    return comm->net->peers[t->peer];
}

static bool expose(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t,
                   struct pc_line *line)
{
    struct pc_net_peer *peer = locked(comm, t);
    (void)queue;
    int rc = comm->net->ops->expose(peer, t->at, t->nbytes, line->bytes, &t->rndv);
    pc__net_unlock(comm->net);
    return rc == PC_OK;
}

static int get(struct pc_comm *comm, struct pc_edge_queue *queue, struct pc_transfer *t,
               const struct pc_line *line)
{
    struct pc_error *error = &comm->p2p->error;
    struct pc_net_peer *peer = locked(comm, t);
    int rc = PC_OK;
    if (t->rndv == NULL)
        rc = comm->net->ops->get(peer, t->at, t->nbytes, line->bytes, &t->rndv, error);
    if (rc == PC_OK)
        rc = comm->net->ops->test(peer, t->rndv, error);
    pc__net_unlock(comm->net);
    if (rc <= 0)
        return rc == PC_AGAIN ? 0 : rc;
    t->done = t->nbytes;
    t->finished = true;
    pc__transfer_release(comm, t);
    queue->fifo->received++;
    pc__edge_queue_publish(comm, queue); /* the sender waits for this credit */
    return 1;
}

void pc__transfer_release(struct pc_comm *comm, struct pc_transfer *t)
{
    if (t->rndv == NULL)
        return;
    comm->net->ops->release(locked(comm, t), t->rndv, t->finished);
    pc__net_unlock(comm->net);
    t->rndv = NULL;
}

const struct pc_rndv_ops pc__get_rndv = {.offer = expose, .read = get};
