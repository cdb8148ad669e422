/* Drives rails on RDMA devices, without the transport above them.
 *
 *   rails ports                              the ports, one a line
 *   rails open DEVICE PORT GID MTU           opens a rail and prints it, or the text of its failure
 *   rails pkey DEVICE PKEY                   the same in a partition, in hexadecimal digits
 *   rails deep DEVICE COMPLETIONS SENDS      the same with queues of these lengths
 *   rails renew DEVICE DEVICE TIMES          makes, connects and destroys queue pairs in one
 * process rails misfit DEVICE GID DEVICE GID       connects two ends that do not fit; prints why
 * not rails nobody DEVICE ADDRESS              connects to an IPv4 address; prints why not rails
 * locked DEVICE KIB                  the same as open, under this limit of locked memory */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <linux/capability.h>
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
#define DEPTH 64u

static const struct pc_verbs_options options
    = {.queue_pairs = 1, .timeout = 14, .retry_count = 7, .traffic_class = 104, .srq_from = 16};

static void die(const char *what, const struct pc_error *error)
{
    fprintf(stderr, "%s: %s\n", what, error == NULL ? strerror(errno) : error->text);
    exit(1);
}

static struct pc_rail_spec spec_of(const char *device, const char *port, const char *gid)
{
    struct pc_rail_spec spec = {.port = (uint32_t)atoi(port), .gid_index = atoi(gid)};
    snprintf(spec.device, sizeof spec.device, "%s", device);
    return spec;
}

static void open_rail(const char *device, const char *gid, struct pc_ib_device *rail)
{
    struct pc_rail_spec spec = spec_of(device, "1", gid);
    struct pc_error error;
    if (pc__ib_device_open(&spec, &options, 1024, &error, rail) != PC_OK)
        die("open", &error);
}

static int ports(void)
{
    static const struct pc_port none;
    struct pc_port found[16];
    int n = pc_verbs_ports(found, 16);
    if (n < 0 || pc_verbs_ports(NULL, 0) != n)
        return 1;
    for (int i = 0; i < n; i++) {
        const struct pc_port *p = &found[i];
        char gid[INET6_ADDRSTRLEN] = "-";
        if (memcmp(p->gid, none.gid, sizeof none.gid) != 0)
            inet_ntop(AF_INET6, p->gid, gid, sizeof gid);
        printf("%s port %u state %u link %u mtu %u/%u speed %llu pairs %u gid %d %s type %u "
               "numa %d driver %s\n",
               p->device, p->port, p->state, p->link_layer, p->mtu, p->max_mtu,
               (unsigned long long)p->speed, p->max_queue_pairs, p->gid_index, gid, p->gid_type,
               p->numa_node, p->driver);
    }
    return 0;
}

static int try_open(const struct pc_rail_spec *spec, uint32_t mtu, uint32_t pkey)
{
    struct pc_verbs_options with = options;
    struct pc_error error;
    struct pc_ib_device rail;
    with.mtu = mtu;
    with.pkey = pkey;
    int rc = pc__ib_device_open(spec, &with, 1024, &error, &rail);
    if (rc != PC_OK) {
        printf("%s %d %s\n", pc_code_name(rc), error.errnum, error.text);
        return 0;
    }
    if (pkey != 0)
        printf("OK pkey %u\n", rail.pkey_index);
    else
        printf("OK gid %d mtu %d inline %u message %u speed %llu active %d\n", rail.spec.gid_index,
               128 << rail.mtu, rail.max_inline, rail.max_message, (unsigned long long)rail.speed,
               pc__ib_device_active(&rail));
    pc__ib_device_close(&rail);
    return 0;
}

static int deep(const char *device, uint32_t completions, uint32_t sends)
{
    struct pc_rail_spec spec = spec_of(device, "1", "-1");
    struct pc_error error;
    struct pc_ib_device rail;
    struct pc_qp_info end;
    struct ibv_qp *qp;
    int rc = pc__ib_device_open(&spec, &options, completions, &error, &rail);
    if (rc == PC_OK) {
        rc = pc__qp_create(&rail, rail.pd, NULL, sends, DEPTH, &error, &qp, &end);
        if (rc == PC_OK)
            pc__ib.destroy_qp(qp);
        pc__ib_device_close(&rail);
    }
    printf("%s %s\n", pc_code_name(rc), rc == PC_OK ? "" : error.text);
    return 0;
}

/* Root may lock what it likes: first gives that up. */
static int locked(const struct pc_rail_spec *spec, const char *kib)
{
    struct rlimit limit = {(rlim_t)atol(kib) << 10, (rlim_t)atol(kib) << 10};
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || syscall(SYS_capget, &header, data) != 0)
        die("limit", NULL);
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    if (syscall(SYS_capset, &header, data) != 0)
        die("capset", NULL);
    const char *missing = pc_verbs_missing();
    if (*missing) {
        printf("missing %s\n", missing);
        return 0;
    }
    struct pc_ib_device rail;
    open_rail(spec->device, "-1", &rail);
    uint64_t before = pc__ib_lockable();
    char *memory = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *mr = pc__ib.reg_mr(rail.pd, memory, REGION, IBV_ACCESS_LOCAL_WRITE);
    if (mr == NULL) {
        struct pc_error error;
        pc__ib_device_refused(&rail, "ibv_reg_mr", REGION, &error);
        printf("%s\n", error.text);
    } else {
        printf("registered, %llu KiB less\n",
               (unsigned long long)(before - pc__ib_lockable()) >> 10);
        pc__ib.dereg_mr(mr);
    }
    munmap(memory, REGION);
    pc__ib_device_close(&rail);
    return 0;
}

static int renew(const char *a, const char *b, int times)
{
    struct pc_error error;
    struct pc_ib_device one, two;
    open_rail(a, "-1", &one);
    open_rail(b, "-1", &two);
    uint32_t psn = 0, repeated = 0;
    for (int i = 0; i < times; i++) {
        struct pc_qp_info here, there;
        struct ibv_qp *p, *q;
        if (pc__qp_create(&one, one.pd, NULL, DEPTH, DEPTH, &error, &p, &here) != PC_OK
            || pc__qp_create(&two, two.pd, NULL, DEPTH, DEPTH, &error, &q, &there) != PC_OK
            || pc__qp_connect(&one, p, &here, &there, &error) != PC_OK
            || pc__qp_connect(&two, q, &there, &here, &error) != PC_OK)
            die("renew", &error);
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init;
        if (pc__ib.query_qp(p, &attr, IBV_QP_STATE | IBV_QP_CAP, &init) != 0
            || attr.qp_state != IBV_QPS_RTS || init.cap.max_inline_data < one.max_inline)
            die("query_qp", NULL);
        repeated += psn == here.psn;
        psn = here.psn;
        pc__ib.destroy_qp(p);
        pc__ib.destroy_qp(q);
    }
    pc__ib_device_close(&one);
    pc__ib_device_close(&two);
    printf("%d pairs, %s\n", times, repeated < 2 ? "PSNs vary" : "PSNs repeat");
    return 0;
}

static int misfit(const char *a, const char *gid_a, const char *b, const char *gid_b)
{
    struct pc_error error;
    struct pc_ib_device one, two;
    struct pc_qp_info here, there;
    struct ibv_qp *p, *q;
    open_rail(a, gid_a, &one);
    open_rail(b, gid_b, &two);
    if (pc__qp_create(&one, one.pd, NULL, DEPTH, DEPTH, &error, &p, &here) != PC_OK
        || pc__qp_create(&two, two.pd, NULL, DEPTH, DEPTH, &error, &q, &there) != PC_OK)
        die("qp", &error);
    int rc = pc__qp_connect(&one, p, &here, &there, &error);
    printf("%s %s\n", pc_code_name(rc), rc == PC_OK ? "" : error.text);
    pc__ib.destroy_qp(p);
    pc__ib.destroy_qp(q);
    there.qpn = 1u << 24;
    if (pc__qp_create(&one, one.pd, NULL, DEPTH, DEPTH, &error, &p, &here) != PC_OK)
        die("qp", &error);
    rc = pc__qp_connect(&one, p, &here, &there, &error);
    printf("%s %s\n", pc_code_name(rc), rc == PC_OK ? "" : error.text);
    pc__ib.destroy_qp(p);
    pc__ib_device_close(&one);
    pc__ib_device_close(&two);
    return 0;
}

static int nobody(const char *device, const char *where)
{
    struct pc_error error;
    struct pc_ib_device rail;
    struct pc_qp_info here, there;
    struct ibv_qp *qp;
    open_rail(device, "-1", &rail);
    if (pc__qp_create(&rail, rail.pd, NULL, DEPTH, DEPTH, &error, &qp, &here) != PC_OK)
        die("qp", &error);
    there = here;
    if (inet_pton(AF_INET, where, there.gids[PC_GID_IPV4] + 12) != 1)
        die("address", NULL);
    int rc = pc__qp_connect(&rail, qp, &here, &there, &error);
    printf("%s %d %s\n", pc_code_name(rc), error.errnum, rc == PC_OK ? "" : error.text);
    pc__ib.destroy_qp(qp);
    pc__ib_device_close(&rail);
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "ports") == 0)
        return ports();
    if (strcmp(what, "locked") == 0 && argc == 4) {
        struct pc_rail_spec spec = spec_of(argv[2], "1", "-1");
        return locked(&spec, argv[3]);
    }
    if (strcmp(what, "open") == 0 && argc == 6) {
        struct pc_rail_spec spec = spec_of(argv[2], argv[3], argv[4]);
        return try_open(&spec, (uint32_t)atoi(argv[5]), 0);
    }
    if (strcmp(what, "pkey") == 0 && argc == 4) {
        struct pc_rail_spec spec = spec_of(argv[2], "1", "-1");
        return try_open(&spec, 0, (uint32_t)strtoul(argv[3], NULL, 16));
    }
    if (strcmp(what, "deep") == 0 && argc == 5)
        return deep(argv[2], (uint32_t)atol(argv[3]), (uint32_t)atol(argv[4]));
    if (strcmp(what, "renew") == 0 && argc == 5)
        return renew(argv[2], argv[3], atoi(argv[4]));
    if (strcmp(what, "misfit") == 0 && argc == 6)
        return misfit(argv[2], argv[3], argv[4], argv[5]);
    if (strcmp(what, "nobody") == 0 && argc == 4)
        return nobody(argv[2], argv[3]);
    fprintf(stderr, "usage: see the head of rails.c\n");
    return 2;
}
#endif
