/* The transport of shared memory: each rank's arena is a sealed memfd, which peers open through
 * /proc or, where they may not, get over a Unix socket (SCM_RIGHTS).
 *
 * Nothing has a name in the file system: the memory and the socket are gone when their last process
 * is, however it ends. Each rank listens on an abstract address that only the job knows; whoever
 * connects must be the same user and show the token of the address. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "core/internal.h"

#define PC_TOKEN_BYTES 16
#define PC_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define PC_SHM_MAGIC 0x53434350u /* "PCCS" */

struct address { /* the blob that the bootstrap carries */
    uint32_t magic;
    uint32_t version;
    uint32_t rank;
    uint32_t uid;
    unsigned char host[16]; /* boot id: an abstract address means nothing on another host */
    unsigned char token[PC_TOKEN_BYTES];
    char name[32];
    uint64_t namespaces[2]; /* inodes of the PID and the network namespace */
    uint64_t inode;         /* of the memfd */
    uint32_t pid;
    uint32_t memfd;
    uint64_t base; /* of the owner's mapping; for ranks that are threads, in tests */
};

struct hello {
    uint32_t magic;
    uint32_t rank;
    unsigned char token[PC_TOKEN_BYTES];
};

struct pc_shm {
    struct pc_error *error;
    const struct pc_layout *layout;
    uint32_t size, rank;
    size_t bytes; /* of what is mapped of a peer: its arena, or a window */
    int memfd, listener, epoll;
    char *arena;
    char **peers; /* what is mapped, by rank; it begins with the header */
    int *sockets; /* of connects in progress; -1: none */
    int *clients; /* accepted sockets that are not answered yet */
    uint32_t nclients;
    struct address address;
};

#define SYSTEM(d, peer, what) \
    pc__fail((d)->error, PC_SYSTEM, (peer), "%s: %s", (what), strerror(errno))

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static int watch(struct pc_shm *d, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(d->epoll, EPOLL_CTL_ADD, fd, &event);
}

/* A wrong boot id only makes a mapping fail, so a missing file is no error. */
static void read_host(unsigned char host[16])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    char text[37] = {0};
    if (fd >= 0 && read(fd, text, 36) == 36)
        for (int i = 0, j = 0; text[i] && j < 32; i++)
            if (text[i] != '-') {
                int digit = text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10;
                host[j / 2] = (unsigned char)(host[j / 2] << 4 | (digit & 15));
                j++;
            }
    close_fd(&fd);
}

static uint64_t inode_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static socklen_t socket_address(struct sockaddr_un *at, const char *name)
{
    memset(at, 0, sizeof *at);
    at->sun_family = AF_UNIX;
    size_t n = strnlen(name, sizeof((struct address *)0)->name);
    memcpy(at->sun_path + 1, name, n); /* a leading zero byte: an abstract name */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

static int listen_for_peers(struct pc_shm *d)
{
    unsigned char noise[8];
    if (getrandom(noise, sizeof noise, 0) != sizeof noise
        || getrandom(d->address.token, PC_TOKEN_BYTES, 0) != PC_TOKEN_BYTES)
        return SYSTEM(d, -1, "getrandom");
    snprintf(d->address.name, sizeof d->address.name, "pycoll-%02x%02x%02x%02x%02x%02x%02x%02x",
             noise[0], noise[1], noise[2], noise[3], noise[4], noise[5], noise[6], noise[7]);
    struct sockaddr_un at;
    socklen_t length = socket_address(&at, d->address.name);
    d->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (d->listener < 0 || bind(d->listener, (struct sockaddr *)&at, length) != 0
        || listen(d->listener, (int)d->size) != 0)
        return SYSTEM(d, -1, "unix socket");
    d->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (d->epoll < 0 || watch(d, d->listener) != 0)
        return SYSTEM(d, -1, "epoll");
    return PC_OK;
}

static char *map(int fd, size_t bytes, size_t at)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)at);
    return p == MAP_FAILED ? NULL : p;
}

/* Maps a window: this rank's record, and right before it the header. Where hundreds of ranks map
 * each other, page tables are what it costs, and these then share theirs. */
static char *map_window(const struct pc_shm *d, int fd)
{
    size_t header = d->layout->records, at = header + d->rank * d->layout->record;
    char *p = map(fd, d->bytes, at - header);
    if (p != NULL
        && mmap(p, header, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0)
               == MAP_FAILED) {
        munmap(p, d->bytes);
        p = NULL;
    }
    return p;
}

static struct pc_shm_map mapped(const struct pc_shm *d, uint32_t peer)
{
    char *arena = d->peers[peer];
    char *record
        = d->layout->windows ? arena + d->layout->records : pc__record(arena, d->layout, d->rank);
    return (struct pc_shm_map){arena, record};
}

static int make_arena(struct pc_shm *d)
{
    d->memfd = memfd_create("pycoll", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (d->memfd < 0 || ftruncate(d->memfd, (off_t)d->layout->end) != 0
        || fcntl(d->memfd, F_ADD_SEALS, PC_SEALS) != 0)
        return SYSTEM(d, -1, "memfd");
    d->arena = map(d->memfd, d->layout->end, 0);
    return d->arena ? PC_OK : SYSTEM(d, -1, "mmap of this rank's memory");
}

static void shm_close(struct pc_shm *d)
{
    if (d == NULL)
        return;
    for (uint32_t p = 0; p < d->size; p++) {
        if (d->peers && d->peers[p] && d->peers[p] != d->arena)
            munmap(d->peers[p], d->bytes);
        if (d->sockets)
            close_fd(&d->sockets[p]);
    }
    while (d->nclients > 0)
        close_fd(&d->clients[--d->nclients]);
    if (d->arena)
        munmap(d->arena, d->layout->end);
    close_fd(&d->memfd);
    close_fd(&d->listener);
    close_fd(&d->epoll);
    free(d->peers);
    free(d->sockets);
    free(d->clients);
    free(d);
}

static int shm_open_(const struct pc_layout *layout, uint32_t rank, struct pc_error *error,
                     struct pc_shm **out)
{
    uint32_t size = layout->size;
    struct pc_shm *d = calloc(1, sizeof *d);
    if (d == NULL)
        return pc__fail(error, PC_NOMEM, -1, "no memory for a transport");
    *out = d;
    *d = (struct pc_shm){.error = error,
                         .layout = layout,
                         .size = size,
                         .rank = rank,
                         .bytes = layout->windows ? layout->records + layout->record : layout->end,
                         .memfd = -1,
                         .listener = -1,
                         .epoll = -1};
    d->peers = calloc(size, sizeof *d->peers);
    d->sockets = malloc(size * sizeof *d->sockets);
    d->clients = malloc(size * sizeof *d->clients);
    if (!d->peers || !d->sockets || !d->clients)
        return pc__fail(error, PC_NOMEM, -1, "no memory for %u peers", size);
    for (uint32_t p = 0; p < size; p++)
        d->sockets[p] = -1;
    int rc = make_arena(d);
    if (rc == PC_OK)
        rc = listen_for_peers(d);
    if (rc != PC_OK)
        return rc;
    d->address.magic = PC_SHM_MAGIC;
    d->address.version = PC_VERSION;
    d->address.rank = rank;
    d->address.uid = (uint32_t)getuid();
    d->address.base = (uint64_t)(uintptr_t)d->arena;
    read_host(d->address.host);
    struct stat st;
    d->address.namespaces[0] = inode_of("/proc/self/ns/pid");
    d->address.namespaces[1] = inode_of("/proc/self/ns/net");
    d->address.inode = fstat(d->memfd, &st) == 0 ? (uint64_t)st.st_ino : 0;
    d->address.pid = (uint32_t)getpid();
    d->address.memfd = (uint32_t)d->memfd;
    d->peers[rank] = d->arena;
    return PC_OK;
}

static char *shm_arena(struct pc_shm *d)
{
    return d->arena;
}

static int shm_address(struct pc_shm *d, void *blob, size_t capacity)
{
    if (capacity < sizeof d->address)
        return pc__fail(d->error, PC_INVALID, -1, "address needs %zu bytes, got %zu",
                        sizeof d->address, capacity);
    memcpy(blob, &d->address, sizeof d->address);
    return (int)sizeof d->address;
}

static int send_hello(struct pc_shm *d, uint32_t peer, const struct address *a)
{
    struct sockaddr_un at;
    socklen_t length = socket_address(&at, a->name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return SYSTEM(d, (int)peer, "socket");
    if (connect(fd, (struct sockaddr *)&at, length) != 0) {
        int rc = PC_AGAIN; /* EAGAIN: the peer's backlog is full */
        if (errno == ECONNREFUSED || errno == ENOENT)
            rc = pc__fail(d->error, PC_UNMAPPABLE, (int)peer, "rank %u does not listen here", peer);
        else if (errno != EAGAIN && errno != EINTR)
            rc = SYSTEM(d, (int)peer, "connect");
        close(fd);
        return rc;
    }
    struct hello hello = {.magic = PC_SHM_MAGIC, .rank = d->address.rank};
    memcpy(hello.token, a->token, PC_TOKEN_BYTES);
    if (send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello || watch(d, fd) != 0) {
        int rc = SYSTEM(d, (int)peer, "send");
        close(fd);
        return rc;
    }
    d->sockets[peer] = fd;
    return PC_AGAIN;
}

/* Maps a descriptor that is a memfd of the agreed length, and sealed against shortening. */
static int adopt(struct pc_shm *d, uint32_t peer, int fd, struct pc_shm_map *out)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    size_t want = d->layout->end;
    if (fstat(fd, &st) != 0 || (size_t)st.st_size != want || seals < 0
        || (seals & PC_SEALS) != PC_SEALS)
        return pc__fail(d->error, PC_INVALID, (int)peer,
                        "memory of rank %u has %lld bytes, seals %#x; want %zu bytes, seals %#x",
                        peer, (long long)st.st_size, (unsigned)seals, want, PC_SEALS);
    if (d->peers[peer] != NULL) /* an earlier mapping, which the communicator refused */
        munmap(d->peers[peer], d->bytes);
    d->peers[peer] = d->layout->windows ? map_window(d, fd) : map(fd, d->bytes, 0);
    if (d->peers[peer] == NULL)
        return SYSTEM(d, (int)peer, "mmap of a peer's memory");
    *out = mapped(d, peer);
    return PC_OK;
}

/* Opens the memfd of a peer through /proc: no message, no answer to wait for, which counts where
 * hundreds of ranks map each other. It needs ptrace access to the peer (the same user, a dumpable
 * process), the same PID namespace, and the same network namespace: ranks in different ones count
 * as two hosts. UNMAPPABLE: it may not; LOST: it may, and the memory is not there. */
static int open_memory(struct pc_shm *d, uint32_t peer, const struct address *a,
                       struct pc_shm_map *out)
{
    char path[64];
    struct stat st;
    if (a->namespaces[0] == 0
        || memcmp(a->namespaces, d->address.namespaces, sizeof a->namespaces) != 0)
        return pc__fail(d->error, PC_UNMAPPABLE, (int)peer, "rank %u is in another namespace",
                        peer);
    snprintf(path, sizeof path, "/proc/%u/fd/%u", a->pid, a->memfd);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return pc__fail(d->error, errno == ENOENT || errno == ESRCH ? PC_LOST : PC_UNMAPPABLE,
                        (int)peer, "memory of rank %u: %s: %s", peer, path, strerror(errno));
    int rc = PC_LOST; /* another process may have got the pid meanwhile, or another file the fd */
    if (fstat(fd, &st) == 0 && (uint64_t)st.st_ino == a->inode && fcntl(fd, F_GET_SEALS) >= 0)
        rc = adopt(d, peer, fd, out);
    close_fd(&fd);
    return rc;
}

static int receive_memory(struct pc_shm *d, uint32_t peer, struct pc_shm_map *out)
{
    uint32_t magic = 0;
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec data = {&magic, sizeof magic};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(d->sockets[peer], &message, MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return PC_AGAIN;
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    int fd = -1;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        for (size_t at = 0; at + CMSG_LEN(sizeof fd) <= c->cmsg_len; at += sizeof fd) {
            close_fd(&fd); /* CMSG_SPACE of one descriptor has room for two */
            memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
        }
    int rc = fd >= 0 && magic == PC_SHM_MAGIC
                 ? adopt(d, peer, fd, out)
                 : pc__fail(d->error, PC_INVALID, (int)peer,
                            "rank %u closed the connection without handing over its memory", peer);
    close_fd(&fd);
    close_fd(&d->sockets[peer]);
    return rc;
}

/* Reads what `peer` has said of itself; UNMAPPABLE of another host's or user's. */
static int read_address(struct pc_shm *d, uint32_t peer, const void *blob, size_t nbytes,
                        struct address *a)
{
    if (nbytes != sizeof *a)
        return pc__fail(d->error, PC_INVALID, (int)peer,
                        "address of rank %u has %zu bytes, want %zu", peer, nbytes, sizeof *a);
    memcpy(a, blob, sizeof *a);
    if (a->magic != PC_SHM_MAGIC || a->version != PC_VERSION || a->rank != peer)
        return pc__fail(d->error, PC_INVALID, (int)peer,
                        "address of rank %u has magic %#x version %u rank %u, want %#x version %u",
                        peer, a->magic, a->version, a->rank, PC_SHM_MAGIC, PC_VERSION);
    if (memcmp(a->host, d->address.host, sizeof a->host) != 0 || a->uid != d->address.uid)
        return pc__fail(d->error, PC_UNMAPPABLE, (int)peer,
                        "rank %u is on another host or another user's", peer);
    return PC_OK;
}

static int shm_map(struct pc_shm *d, uint32_t peer, const void *blob, size_t nbytes,
                   struct pc_shm_map *out)
{
    struct address a;
    int rc = read_address(d, peer, blob, nbytes, &a);
    if (rc != PC_OK)
        return rc;
#ifdef PC_RANKS_ARE_THREADS /* ThreadSanitizer knows memory by its address: share the mapping */
    char *arena = (char *)(uintptr_t)a.base;
    *out = (struct pc_shm_map){arena, pc__record(arena, d->layout, d->rank)};
    return PC_OK;
#endif
    return open_memory(d, peer, &a, out);
}

static int shm_connect(struct pc_shm *d, uint32_t peer, const void *blob, size_t nbytes,
                       struct pc_shm_map *out)
{
    struct address a;
    if (d->sockets[peer] >= 0)
        return receive_memory(d, peer, out);
    int rc = read_address(d, peer, blob, nbytes, &a);
    if (rc != PC_OK)
        return rc;
    rc = shm_map(d, peer, blob, nbytes, out);
    return rc == PC_UNMAPPABLE || rc == PC_LOST ? send_hello(d, peer, &a) : rc;
}

static int shm_stand_in(struct pc_shm *d, uint32_t peer, struct pc_shm_map *out)
{
    void *p = mmap(NULL, d->bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return SYSTEM(d, (int)peer, "mmap in the place of a peer's memory");
    d->peers[peer] = p;
    *out = mapped(d, peer);
    return PC_OK;
}

enum answer { WAITING, SERVED, REFUSED };

/* Answers a client that has sent its hello. */
static enum answer answer(struct pc_shm *d, int fd)
{
    struct hello hello;
    ssize_t n = recv(fd, &hello, sizeof hello, MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return WAITING;
    unsigned char differ = 0;
    for (int i = 0; n == sizeof hello && i < PC_TOKEN_BYTES; i++) /* in constant time */
        differ |= (unsigned char)(hello.token[i] ^ d->address.token[i]);
    if (n != sizeof hello || hello.magic != PC_SHM_MAGIC || differ || hello.rank >= d->size)
        return REFUSED;
    uint32_t magic = PC_SHM_MAGIC;
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec data = {&magic, sizeof magic};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &d->memfd, sizeof(int));
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) > 0 ? SERVED : REFUSED;
}

/* Checks SO_PEERCRED: every user of the host can connect to an abstract address. */
static bool same_user(int fd)
{
    struct ucred who;
    socklen_t length = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && who.uid == getuid();
}

static void forget_client(struct pc_shm *d, uint32_t i)
{
    close_fd(&d->clients[i]);
    d->nclients--;
    memmove(d->clients + i, d->clients + i + 1, (d->nclients - i) * sizeof *d->clients);
}

static int shm_poll(struct pc_shm *d)
{
    int served = 0;
    for (;;) {
        for (uint32_t i = 0; i < d->nclients;) {
            enum answer what = answer(d, d->clients[i]);
            served += what == SERVED;
            if (what == WAITING)
                i++;
            else
                forget_client(d, i);
        }
        int fd = accept4(d->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return served;
        if (!same_user(fd) || watch(d, fd) != 0) {
            close(fd);
            continue;
        }
        if (d->nclients == d->size) /* peers send at once: drop the longest silent */
            forget_client(d, 0);
        d->clients[d->nclients++] = fd;
    }
}

static int shm_wakeup(struct pc_shm *d)
{
    return d->epoll;
}

static void shm_seal(struct pc_shm *d)
{
    while (d->nclients > 0)
        close_fd(&d->clients[--d->nclients]);
    close_fd(&d->listener);
    close_fd(&d->epoll);
}

static int shm_discard(struct pc_shm *d, size_t offset, size_t nbytes)
{
    if (fallocate(d->memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                  (off_t)nbytes)
        != 0)
        return SYSTEM(d, -1, "fallocate");
    return PC_OK;
}

const struct pc_shm_ops pc__shm_ops = {
    .name = "shm",
    .open = shm_open_,
    .close = shm_close,
    .arena = shm_arena,
    .address = shm_address,
    .connect = shm_connect,
    .map = shm_map,
    .stand_in = shm_stand_in,
    .poll = shm_poll,
    .wakeup = shm_wakeup,
    .seal = shm_seal,
    .discard = shm_discard,
};
