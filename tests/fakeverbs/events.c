/* Asynchronous events, and the names of things. */
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>
#include "nic.h"

void fv_event(struct fv_context *c, enum ibv_event_type type, void *element)
{
    struct ibv_async_event event;
    memset(&event, 0, sizeof event);
    event.event_type = type;
    if (element)
        event.element.qp = element; /* or the SRQ: both begin with what the application sees */
    else
        event.element.port_num = 1;
    struct pollfd room = {.fd = c->async_writer, .events = POLLOUT};
    if (poll(&room, 1, 0) != 1 || write(c->async_writer, &event, sizeof event) != sizeof event)
        fv_fatal("asynchronous events overflowed");
}

static bool of_qp(const struct ibv_async_event *event)
{
    return (event->event_type <= IBV_EVENT_PATH_MIG_ERR && event->event_type != IBV_EVENT_CQ_ERR)
           || event->event_type == IBV_EVENT_QP_LAST_WQE_REACHED;
}

static bool of_srq(const struct ibv_async_event *event)
{
    return event->event_type == IBV_EVENT_SRQ_ERR
           || event->event_type == IBV_EVENT_SRQ_LIMIT_REACHED;
}

/* The QP or SRQ is being destroyed: takes its unread events out of the device's. */
void fv_event_forget(struct fv_context *c, const void *element)
{
    struct ibv_async_event kept[256];
    struct pollfd readable = {.fd = c->verbs.context.async_fd, .events = POLLIN};
    size_t n = 0;
    while (n < 256 && poll(&readable, 1, 0) == 1
           && read(readable.fd, &kept[n], sizeof *kept) == sizeof *kept)
        n += (!of_qp(&kept[n]) && !of_srq(&kept[n])) || kept[n].element.qp != element;
    for (size_t i = 0; i < n; i++)
        if (write(c->async_writer, &kept[i], sizeof *kept) != sizeof *kept)
            fv_fatal("asynchronous events overflowed");
}

int ibv_get_async_event(struct ibv_context *base, struct ibv_async_event *event)
{
    if (read(base->async_fd, event, sizeof *event) != sizeof *event)
        return -1;
    if (of_qp(event)) {
        pthread_mutex_lock(&event->element.qp->mutex);
        ((struct fv_qp *)event->element.qp)->events++;
        pthread_mutex_unlock(&event->element.qp->mutex);
    } else if (of_srq(event)) {
        pthread_mutex_lock(&event->element.srq->mutex);
        ((struct fv_srq *)event->element.srq)->events++;
        pthread_mutex_unlock(&event->element.srq->mutex);
    }
    return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
    if (of_srq(event)) {
        struct ibv_srq *srq = event->element.srq;
        pthread_mutex_lock(&srq->mutex);
        srq->events_completed++;
        pthread_cond_signal(&srq->cond);
        pthread_mutex_unlock(&srq->mutex);
        return;
    }
    if (!of_qp(event))
        return;
    struct ibv_qp *qp = event->element.qp;
    pthread_mutex_lock(&qp->mutex);
    qp->events_completed++;
    pthread_cond_signal(&qp->cond);
    pthread_mutex_unlock(&qp->mutex);
}

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
    static const char *const texts[] = {
        "success",
        "local length error",
        "local QP operation error",
        "local EE context operation error",
        "local protection error",
        "Work Request Flushed Error",
        "memory management operation error",
        "bad response error",
        "local access error",
        "remote invalid request error",
        "remote access error",
        "remote operation error",
        "transport retry counter exceeded",
        "RNR retry counter exceeded",
    };
    return (unsigned)status < sizeof texts / sizeof *texts ? texts[status] : "unknown";
}

const char *ibv_event_type_str(enum ibv_event_type event)
{
    return event == IBV_EVENT_PORT_ACTIVE           ? "port active"
           : event == IBV_EVENT_PORT_ERR            ? "port error"
           : event == IBV_EVENT_QP_ACCESS_ERR       ? "local access violation work queue error"
           : event == IBV_EVENT_SRQ_LIMIT_REACHED   ? "SRQ limit reached"
           : event == IBV_EVENT_QP_LAST_WQE_REACHED ? "last WQE reached"
           : event == IBV_EVENT_LID_CHANGE          ? "LID table change"
           : event == IBV_EVENT_GID_CHANGE          ? "GID table change"
           : event == IBV_EVENT_PKEY_CHANGE         ? "P_Key table change"
           : event == IBV_EVENT_DEVICE_FATAL        ? "local catastrophic error"
                                                    : "unknown";
}

const char *ibv_port_state_str(enum ibv_port_state state)
{
    return state == IBV_PORT_ACTIVE ? "PORT_ACTIVE" : state == IBV_PORT_DOWN ? "PORT_DOWN" : "?";
}

const char *ibv_node_type_str(enum ibv_node_type type)
{
    return type == IBV_NODE_CA ? "InfiniBand channel adapter" : "unknown";
}
