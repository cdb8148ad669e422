/* Queries a port's attributes and its speed. */
#include "verbs/port.h"
#ifdef PC_VERBS
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Offset of active_speed_ex, for speeds above 8 bits (XDR); these headers may lack it. */
#define PC_SPEED_EX_AT 52
_Static_assert(offsetof(struct ibv_port_attr, flags) == 47, "the part that every library fills");
_Static_assert(sizeof(struct ibv_port_attr) <= 64, "struct ibv_port_attr has grown");

bool pc__port_read(const char *device, uint32_t port, const char *file, char *text, size_t size)
{
    char conn[64 + PC_PORT_FILE + 64];
    snprintf(conn, sizeof conn, "/sys/class/infiniband/%.63s/ports/%u/%.47s", device, port, file);
    FILE *f = fopen(conn, "re");
    /* The file of an empty table entry can be opened, but not read. */
    bool read = f != NULL && fgets(text, (int)size, f) != NULL;
    if (f != NULL)
        fclose(f);
    if (read)
        text[strcspn(text, "\n")] = 0;
    return read;
}

static uint64_t lanes(uint8_t width)
{
    switch (width) {
    case 1:
        return 1;
    case 2:
        return 4;
    case 4:
        return 8;
    case 8:
        return 12;
    case 16:
        return 2;
    default:
        return 0;
    }
}

/* Bits per second of a lane, by active_speed, as in the kernel's `rate`. */
static uint64_t lane_speed(uint32_t speed)
{
    switch (speed) {
    case 1:
        return UINT64_C(2500000000);
    case 2:
        return UINT64_C(5000000000);
    case 4: /* QDR */
    case 8: /* FDR10 */
        return UINT64_C(10000000000);
    case 16: /* FDR */
        return UINT64_C(14000000000);
    case 32: /* EDR */
        return UINT64_C(25000000000);
    case 64: /* HDR */
        return UINT64_C(50000000000);
    case 128: /* NDR */
        return UINT64_C(100000000000);
    case 256: /* XDR */
        return UINT64_C(200000000000);
    default:
        return 0;
    }
}

static uint64_t speed_in_sysfs(const char *device, uint32_t port)
{
    char text[64]; /* such as "2.5 Gb/sec (1X SDR)" */
    char *end = text;
    double gigabits = 0;
    if (pc__port_read(device, port, "rate", text, sizeof text))
        gigabits = strtod(text, &end);
    return gigabits > 0 && gigabits < 1e6 && strncmp(end, " Gb/sec", 7) == 0
               ? (uint64_t)(gigabits * 1e9)
               : 0;
}

int pc__port_query(struct ibv_context *context, uint32_t port, struct pc_port_attr *out)
{
    union {
        struct ibv_port_attr known;
        unsigned char bytes[64];
    } attr;
    uint32_t speed = 0;
    int rc;
    memset(out, 0, sizeof *out);
    memset(&attr, 0, sizeof attr);
    /* The exported ibv_query_port fills no more than the struct had in 2008, through `flags`. Later
     * members come only from the function in the context's own table, which says by its size
     * whether it has that entry. That one is told the size of the buffer, and clears what it does
     * not know. */
    struct verbs_context *extended = verbs_get_ctx_op(context, query_port);
    if (extended != NULL)
        rc = extended->query_port(context, (uint8_t)port, &attr.known, sizeof attr);
    else
        rc = pc__ib.query_port(context, (uint8_t)port, (struct _compat_ibv_port_attr *)&attr.known);
    if (rc != 0)
        return rc;
    memcpy(&speed, attr.bytes + PC_SPEED_EX_AT, sizeof speed);
    out->known = attr.known;
    if (out->known.link_layer == IBV_LINK_LAYER_UNSPECIFIED)
        out->known.link_layer = IBV_LINK_LAYER_INFINIBAND; /* a driver older than RoCE */
    out->speed
        = lanes(attr.known.active_width) * lane_speed(speed != 0 ? speed : attr.known.active_speed);
    if (out->speed == 0)
        out->speed = speed_in_sysfs(pc__ib.get_device_name(context->device), port);
    return 0;
}
#endif
