/* Memory kinds with a stand-in for NVIDIA's driver, libcuda.so.1 on LD_LIBRARY_PATH (cuda.c): GPU
 * memory is memory of the heap there. The registrar notes what it was asked for.
 *
 *   memory SCENARIO */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "memory/rcache.h"

#define PAGE ((size_t)4096)

#define want(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, error.text); \
            exit(1); \
        } \
    } while (0)

static struct pc_error error;
static struct pc_rcache *pins;
static int made, dropped;

/* As mem_type.c does, without devices. */
static int make(void *context, struct pc_mem_span *span, struct pc_error *e, void **handle)
{
    (void)context;
    *handle = &made;
    made++;
    if (span->kind == PC_MEM_HOST)
        return PC_OK;
    int fd, rc;
    uint64_t offset;
    span->kind = PC_MEM_DMABUF;
    rc = pc__mem_export_dmabuf(span, e, &fd, &offset);
    if (rc == PC_OK) {
        want(offset == span->from % PAGE && fcntl(fd, F_GETFD) >= 0);
        return close(fd);
    }
    span->kind = PC_MEM_PEERMEM;
    return pc__mem_peermem(span, e);
}

static void drop(void *context, void *handle)
{
    (void)context;
    (void)handle;
    dropped++;
}

static const struct pc_rcache_ops registrar = {make, drop};

static char *gpu; /* the stand-in's memory: 8 pages that begin 512 bytes into one */
static unsigned long long *buffer_id;
static int *refuses_export;

static struct pc_rcache_region *pin(const void *at, size_t nbytes)
{
    struct pc_rcache_region *p = pc__rcache_get(pins, at, nbytes, true, &error);
    want(p != NULL);
    return p;
}

static void kept(void)
{
    struct pc_rcache_region *p = pin(gpu, 8 * PAGE);
    want(p->span.kind == PC_MEM_DMABUF && p->span.device == 0);
    want(p->span.from == (uintptr_t)gpu && p->span.to == (uintptr_t)gpu + 8 * PAGE);
    pc__rcache_put(pins, p);
    struct pc_rcache_region *q = pin(gpu + 5000, 10);
    want(q == p && made == 1);
    pc__rcache_put(pins, q);
    want(pc__rcache_get(pins, gpu + PAGE, 8 * PAGE, true, &error) == NULL
         && error.code == PC_INVALID);
    want(strstr(error.text, "beyond their allocation of 32768 bytes") != NULL);
    ++*buffer_id; /* freed, and another allocation got the address */
    q = pin(gpu, 1);
    want(made == 2 && dropped == 1);
    pc__rcache_put(pins, q);
}

/* Of a pool: there is no telling when the address gets other memory. */
static void pooled(void)
{
    for (int i = 1; i <= 2; i++) {
        pc__rcache_put(pins, pin(gpu, 1));
        want(made == i && dropped == i);
    }
}

static void other(void)
{
    char *host = calloc(1, PAGE);
    struct pc_rcache_region *p = pin(host, PAGE); /* the driver pinned it */
    want(p->span.kind == PC_MEM_HOST && p->span.device == -1 && p->span.stamp == 0);
    pc__rcache_put(pins, p);
    pc__rcache_put(pins, pin(host, PAGE));
    want(made == (*pc__rcache_missing(pins) == 0 ? 1 : 2));
    free(host);
}

static void managed(void)
{
    want(pc__rcache_get(pins, gpu, 1, true, &error) == NULL && error.code == PC_UNMAPPABLE);
    want(strstr(error.text, "managed memory") != NULL && made == 0);
}

/* No dma-buf of this memory, nor nvidia_peermem. */
static void staged(void)
{
    *refuses_export = 1;
    want(pc__rcache_get(pins, gpu, 1, true, &error) == NULL && error.code == PC_UNMAPPABLE);
    want(strstr(error.text, "modprobe nvidia_peermem") != NULL);
}

static void missing(void)
{
    printf("%s|%s\n", pc__mem_missing(PC_MEM_DMABUF), pc__mem_missing(PC_MEM_PEERMEM));
    exit(0);
}

static void absent(void)
{
    want(pc__rcache_get(pins, &made, 1, true, &error) == NULL && error.code == PC_UNMAPPABLE);
    want(strcmp(error.text, pc__mem_missing(PC_MEM_DMABUF)) == 0);
    want(*pc__mem_missing(PC_MEM_HOST) == 0);
    missing();
}

static void flush(void)
{
    struct pc_mem_gpu a100 = {.major = 8, .ordering = 0, .options = 0}, read;
    want(pc__mem_flush_method(&a100, false) == PC_FLUSH_READ);
    a100.options = 1;
    want(pc__mem_flush_method(&a100, false) == PC_FLUSH_DRIVER);
    a100.ordering = 100;
    want(pc__mem_flush_method(&a100, false) == PC_FLUSH_NONE);
    want(pc__mem_flush_method(&a100, true) == PC_FLUSH_DRIVER);
    struct pc_mem_gpu h100 = {.major = 9}, gh200 = {.major = 9, .coherent = true};
    want(pc__mem_flush_method(&h100, false) == PC_FLUSH_NONE);
    want(pc__mem_flush_method(&h100, true) == PC_FLUSH_READ);
    want(pc__mem_flush_method(&gh200, false) == PC_FLUSH_READ);
    gh200.ordering = 100;
    want(pc__mem_flush_method(&gh200, false) == PC_FLUSH_READ);
    want(pc__mem_query_gpu(0, &error, &read) == PC_OK);
    want(read.major == 8 && read.ordering == 100 && read.options == 1 && !read.coherent);
    want(pc__mem_query_gpu(1, &error, &read) == PC_INVALID);
    want(pc__mem_flush_by_driver(0, &error) == PC_OK);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"kept", kept},     {"pooled", pooled}, {"other", other},     {"managed", managed},
               {"staged", staged}, {"absent", absent}, {"missing", missing}, {"flush", flush}};
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    for (size_t i = 0; argc == 2 && i < sizeof all / sizeof *all; i++) {
        if (strcmp(argv[1], all[i].name) != 0)
            continue;
        if (library != NULL) {
            char *(*memory)(unsigned long long **, int **);
            *(void **)&memory = dlsym(library, "standin_memory");
            gpu = memory(&buffer_id, &refuses_export);
        }
        pins = pc__rcache_open(&registrar, NULL, 1 << 20);
        all[i].run();
        pc__rcache_close(pins);
        printf("%s\n", argv[1]);
        return 0;
    }
    fprintf(stderr, "usage: %s SCENARIO\n", argv[0]);
    return 2;
}
