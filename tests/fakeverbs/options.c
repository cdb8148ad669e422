/* The environment variables FAKEVERBS_*, read once. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "nic.h"

struct fv_options fv_options;

void fv_fatal(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("fakeverbs: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

static uint64_t number(const char *name, uint64_t otherwise, uint64_t most)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return otherwise;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 0);
    if (*end || errno || value > most)
        fv_fatal("%s=%s: want a number of at most %llu", name, text, (unsigned long long)most);
    return value;
}

/* FAKEVERBS_FAIL=create_qp:3,reg_mr:5+ makes the third ibv_create_qp of this process fail, and the
 * fifth ibv_reg_mr and all behind it; `count` is of calls of `verb` so far. */
bool fv_fails(const char *verb, _Atomic uint32_t *count)
{
    const char *text = getenv("FAKEVERBS_FAIL");
    uint32_t now = atomic_fetch_add(count, 1) + 1;
    size_t n = strlen(verb);
    while (text && *text) {
        if (!strncmp(text, verb, n) && text[n] == ':') {
            char *end;
            unsigned long at = strtoul(text + n + 1, &end, 10);
            if (at == now || (*end == '+' && at < now)) {
                errno = ENOMEM;
                return true;
            }
        }
        text = strchr(text, ',');
        text += text != NULL;
    }
    return false;
}

static unsigned choice(const char *name, const char *first, const char *second)
{
    const char *text = getenv(name);
    if (!text || !strcmp(text, first))
        return 0;
    if (strcmp(text, second))
        fv_fatal("%s=%s: want %s or %s", name, text, first, second);
    return 1;
}

static enum fv_hold hold(void)
{
    const char *text = getenv("FAKEVERBS_HOLD");
    static const char *const names[]
        = {[FV_HOLD] = "flush", [FV_HOLD_A_WHILE] = "late", [FV_HOLD_NOTHING] = "none"};
    for (int i = 0; i < 3; i++)
        if (!text || !strcmp(text, names[i]))
            return (enum fv_hold)i;
    fv_fatal("FAKEVERBS_HOLD=%s: want flush, late or none", text);
}

__attribute__((constructor)) static void read_options(void)
{
    struct fv_options *o = &fv_options;
    const char *text;
    o->host = (uint32_t)number("FAKEVERBS_HOST", 0, FV_HOSTS - 1);
    o->devices = (uint32_t)number("FAKEVERBS_DEVICES", 2, FV_DEVICES);
    o->max_inline = (uint32_t)number("FAKEVERBS_INLINE", 512, 4096);
    o->jitter_us = (uint32_t)number("FAKEVERBS_JITTER", 0, 1000000);
    o->late_us = (uint32_t)number("FAKEVERBS_LATE", 0, 1000000);
    o->overtake_us = (uint32_t)number("FAKEVERBS_OVERTAKE", 0, 5000000);
    o->seed = number("FAKEVERBS_SEED", 1, UINT64_MAX);
    o->srq_wr = (uint32_t)number("FAKEVERBS_SRQ", 32767, 32767);
    o->max_cqe = (uint32_t)number("FAKEVERBS_CQE", FV_MAX_CQE, FV_MAX_CQE);
    o->memlock = number("FAKEVERBS_MEMLOCK", UINT64_MAX, UINT64_MAX);
    o->like = choice("FAKEVERBS_LIKE", "mlx5", "rxe") ? FV_RXE : FV_MLX5;
    o->dmabuf = number("FAKEVERBS_DMABUF", o->like == FV_MLX5, 1);
    o->peermem = number("FAKEVERBS_PEERMEM", 0, 1);
    o->hold = hold();
    o->infiniband = choice("FAKEVERBS_LINK", "ethernet", "infiniband");
    text = getenv("FAKEVERBS_FAMILY");
    o->ipv4 = !text || strcmp(text, "6") != 0;
    o->ipv6 = text && (!strcmp(text, "6") || !strcmp(text, "both"));
    if (text && !o->ipv6 && strcmp(text, "4") != 0)
        fv_fatal("FAKEVERBS_FAMILY=%s: want 4, 6 or both", text);
    o->compat = choice("FAKEVERBS_ABI", "extended", "compat");
    o->mtu = (uint32_t)number("FAKEVERBS_MTU", 4096, 4096);
    if (o->mtu < 256 || (o->mtu & (o->mtu - 1)))
        fv_fatal("FAKEVERBS_MTU=%u: want 256, 512, 1024, 2048 or 4096", o->mtu);
    text = getenv("FAKEVERBS_GBPS"); /* of the devices in turn; the last also of the rest */
    uint32_t gbps = 100;
    for (uint32_t i = 0; i < FV_DEVICES; i++) {
        char *end;
        if (text && *text) {
            gbps = (uint32_t)strtoul(text, &end, 10);
            if (end == text || (*end && *end != ','))
                fv_fatal("FAKEVERBS_GBPS=%s: want numbers with commas between", text);
            text = *end ? end + 1 : end;
        }
        o->gbps[i] = gbps;
    }
}
