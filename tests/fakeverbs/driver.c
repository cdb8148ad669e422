/* driver DEVICE_A DEVICE_B GID_INDEX SCENARIO...: what verbs report, as lines that do not change
 * from run to run. It runs on the stand-in and on real devices alike, so that the lines can be
 * compared. CUT, HEAL, DOWN and UP in the environment are commands that do so to B's port. HASTY is
 * the exponent of the timeout where an answer is waited for in vain: on real devices the same
 * scenarios need answers that are in time, which on a slow machine takes more than the default. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include "scenario.h"

const char *device_a, *device_b;
int gid_index;
struct endpoint a, b;
const struct timing calm = {14, 6, 7};
struct timing hasty = {10, 2, 7};

void open_both(int access_b, struct timing timing)
{
    endpoint_open(&a, device_a, gid_index, RW);
    endpoint_open(&b, device_b, gid_index, access_b);
    endpoint_connect(&a, &b.mine, timing);
    endpoint_connect(&b, &a.mine, timing);
}

void close_both(void)
{
    endpoint_close(&a);
    endpoint_close(&b);
}

void another_pair(struct ibv_qp *out[2])
{
    out[0] = a.qp;
    out[1] = b.qp;
    endpoint_qp(&a);
    endpoint_qp(&b);
    endpoint_connect(&a, &b.mine, calm);
    endpoint_connect(&b, &a.mine, calm);
}

static void write_one(const struct ibv_wc *wc)
{
    printf(" %d=%s", (int)wc->wr_id, ibv_wc_status_str(wc->status));
    if (wc->status)
        return; /* nothing else is valid */
    printf("/%d", wc->opcode);
    if ((wc->opcode & IBV_WC_RECV) || wc->opcode == IBV_WC_RDMA_READ)
        printf("/%u", wc->byte_len);
    if ((wc->opcode & IBV_WC_RECV) && (wc->wc_flags & IBV_WC_WITH_IMM))
        printf("/imm%08x", wc->imm_data);
}

void show(const char *what, struct endpoint *e, int n)
{
    struct ibv_wc wc[8 * DEPTH];
    int have = endpoint_wait(e, n, wc);
    printf("  %s:", what);
    for (int receives = 0; receives < 2; receives++)
        for (int i = 0; i < have; i++)
            if ((wc[i].wr_id >= 100) == receives)
                write_one(&wc[i]);
    printf(have < n ? " and nothing more\n" : "\n");
}

void nothing_more(const char *what, struct endpoint *e)
{
    struct ibv_wc wc;
    printf("  %s: %d more\n", what, ibv_poll_cq(e->cq, 1, &wc));
}

void show_states(void)
{
    printf("  states %d %d\n", endpoint_query(&a), endpoint_query(&b));
}

bool readable(int fd, int ms)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    return poll(&entry, 1, ms) == 1;
}

void run(const char *variable)
{
    const char *command = getenv(variable);
    check(command && system(command) == 0, variable);
}

static bool run_named(const struct scenario *scenarios, const char *name)
{
    for (; scenarios->name; scenarios++)
        if (!strcmp(name, scenarios->name)) {
            printf("%s\n", name);
            scenarios->run();
            return true;
        }
    return false;
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fputs("usage: driver DEVICE_A DEVICE_B GID_INDEX SCENARIO...\n", stderr);
        return 2;
    }
    device_a = argv[1];
    device_b = argv[2];
    gid_index = atoi(argv[3]);
    if (getenv("HASTY"))
        hasty.timeout = (uint8_t)atoi(getenv("HASTY"));
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 4; i < argc; i++)
        if (!run_named(request_scenarios, argv[i]) && !run_named(ending_scenarios, argv[i])
            && !run_named(sharing_scenarios, argv[i]) && !run_named(strict_scenarios, argv[i])
            && !run_named(gpu_scenarios, argv[i])) {
            fprintf(stderr, "%s: no such scenario\n", argv[i]);
            return 2;
        }
    return 0;
}
