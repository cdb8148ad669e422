/* Messages between two processes over a rail each, as the transport sends them.
 *
 *   rail_messages DEVICE DEVICE MESSAGES
 *
 * Each way so many; every byte is checked. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "verbs/device.h"

#ifndef PC_VERBS
int main(void)
{
    puts(pc_verbs_missing());
    return 1;
}
#else

#define REGION (1u << 20)
#define MESSAGE 5000u /* two packets */
#define DEPTH 64u
#define LINE 64u
#define DEADLINE_MS 60000

static const struct pc_verbs_options options
    = {.queue_pairs = 1, .timeout = 14, .retry_count = 7, .traffic_class = 104};

static void die(const char *what, const struct pc_error *error)
{
    fprintf(stderr, "%s: %s\n", what, error == NULL ? strerror(errno) : error->text);
    exit(1);
}

struct side {
    struct pc_ib_device rail;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    unsigned char *memory; /* out: the first half; in: the second */
    uint64_t their_in;
    uint32_t their_rkey;
    uint32_t sent, acked, received;
};

struct hello {
    struct pc_qp_info end;
    uint64_t in;
    uint32_t rkey;
};

static void exchange(int fd, const void *mine, void *theirs, size_t size)
{
    if (write(fd, mine, size) != (ssize_t)size || read(fd, theirs, size) != (ssize_t)size)
        die("exchange", NULL);
}

static void post_receive(struct side *s)
{
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
    if (ibv_post_recv(s->qp, &wr, &bad) != 0)
        die("ibv_post_recv", NULL);
}

static void start(struct side *s, const char *device, int fd)
{
    struct pc_error error;
    struct hello mine = {0}, theirs;
    struct pc_rail_spec spec = {.port = 1, .gid_index = -1};
    snprintf(spec.device, sizeof spec.device, "%s", device);
    if (pc__ib_device_open(&spec, &options, 1024, &error, &s->rail) != PC_OK)
        die("open", &error);
    s->memory = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    s->mr = pc__ib.reg_mr(s->rail.pd, s->memory, REGION,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (s->mr == NULL)
        die("ibv_reg_mr", NULL);
    if (pc__qp_create(&s->rail, s->rail.pd, NULL, 2 * DEPTH, DEPTH, &error, &s->qp, &mine.end)
        != PC_OK)
        die("qp", &error);
    for (uint32_t i = 0; i < DEPTH; i++)
        post_receive(s);
    mine.in = (uintptr_t)s->memory + REGION / 2;
    mine.rkey = s->mr->rkey;
    exchange(fd, &mine, &theirs, sizeof mine);
    if (pc__qp_connect(&s->rail, s->qp, &mine.end, &theirs.end, &error) != PC_OK)
        die("connect", &error);
    s->their_in = theirs.in;
    s->their_rkey = theirs.rkey;
    exchange(fd, "", &(char){0}, 1); /* nobody sends before both are connected */
}

static void fill(unsigned char *at, uint32_t message, size_t n)
{
    for (size_t i = 0; i < n; i++)
        at[i] = (unsigned char)(message * 31 + i);
}

static bool same(const unsigned char *at, uint32_t message, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] != (unsigned char)(message * 31 + i))
            return false;
    return true;
}

/* A message: data, then inline a line that ends with the count, and its number with it. */
static void send_message(struct side *s)
{
    uint32_t slot = s->sent % 8, room = MESSAGE + LINE;
    unsigned char *data = s->memory + (size_t)slot * room;
    uint64_t count = s->sent + 1;
    fill(data, s->sent, MESSAGE + LINE - sizeof count);
    memcpy(data + MESSAGE + LINE - sizeof count, &count, sizeof count);
    struct ibv_sge parts[] = {
        {.addr = (uintptr_t)data, .length = MESSAGE, .lkey = s->mr->lkey},
        {.addr = (uintptr_t)data + MESSAGE, .length = LINE},
    };
    struct ibv_send_wr line = {
        .wr_id = 2,
        .sg_list = &parts[1],
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
        .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE,
        .imm_data = htonl(s->sent),
        .wr.rdma = {s->their_in + slot * room + MESSAGE, s->their_rkey},
    };
    struct ibv_send_wr wr = {
        .wr_id = 3,
        .next = &line,
        .sg_list = &parts[0],
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .wr.rdma = {s->their_in + slot * room, s->their_rkey},
    };
    struct ibv_send_wr *bad;
    if (ibv_post_send(s->qp, &wr, &bad) != 0)
        die("ibv_post_send", NULL);
    s->sent++;
}

static void receive_message(struct side *s, const struct ibv_wc *wc)
{
    uint32_t slot = s->received % 8;
    const unsigned char *data = s->memory + REGION / 2 + (size_t)slot * (MESSAGE + LINE);
    uint64_t count;
    memcpy(&count, data + MESSAGE + LINE - sizeof count, sizeof count);
    if (ntohl(wc->imm_data) != s->received || count != s->received + 1
        || !same(data, s->received, MESSAGE + LINE - sizeof count)) {
        fprintf(stderr, "message %u is not what was sent\n", s->received);
        exit(1);
    }
    s->received++;
    post_receive(s);
}

/* Takes one completion, or sleeps on the channel for it. */
static void take(struct side *s)
{
    struct ibv_wc wc;
    while (ibv_poll_cq(s->rail.cq, 1, &wc) == 0) {
        if (ibv_req_notify_cq(s->rail.cq, 0) != 0)
            die("ibv_req_notify_cq", NULL);
        if (ibv_poll_cq(s->rail.cq, 1, &wc) != 0)
            break;
        struct pollfd ready = {.fd = s->rail.channel->fd, .events = POLLIN};
        struct ibv_cq *cq;
        void *context;
        if (poll(&ready, 1, DEADLINE_MS) != 1)
            die("nothing came within a minute", NULL);
        if (pc__ib.get_cq_event(s->rail.channel, &cq, &context) == 0)
            pc__ib.ack_cq_events(cq, 1);
    }
    if (wc.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "completion: %s\n", pc__ib.wc_status_str(wc.status));
        exit(1);
    }
    if (wc.wr_id == 1)
        receive_message(s, &wc);
    else
        s->acked++;
}

/* In steps of at most 8 messages: the peer's slots are free when its own messages have come. */
static void pass(struct side *s, const char *device, int fd, uint32_t messages)
{
    start(s, device, fd);
    while (s->acked < messages || s->received < messages) {
        while (s->sent < messages && s->sent < s->received + 4 && s->sent < s->acked + 8)
            send_message(s);
        take(s);
    }
    exchange(fd, "", &(char){0}, 1); /* acknowledged on both sides */
    pc__ib.destroy_qp(s->qp);
    pc__ib.dereg_mr(s->mr);
    munmap(s->memory, REGION);
    pc__ib_device_close(&s->rail);
}

static int two_processes(const char *a, const char *b, uint32_t messages)
{
    struct side side = {0};
    int fds[2], status;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
        die("socketpair", NULL);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]); /* the end of the other process ends this one's reads */
        pass(&side, b, fds[1], messages);
        return 0;
    }
    close(fds[1]);
    pass(&side, a, fds[0], messages);
    if (waitpid(child, &status, 0) != child || status != 0)
        return 1;
    printf("%u messages each way\n", messages);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4)
        return two_processes(argv[1], argv[2], (uint32_t)atoi(argv[3]));
    fprintf(stderr, "usage: %s DEVICE DEVICE MESSAGES\n", argv[0]);
    return 2;
}
#endif
