/* Switches one planted mutant on, or notes which are reached; every mutated source includes it.
 *
 * What MUTANT and REACH mean is told in switch.py. Tests compile a few sources each, with flags of
 * their own, as C and as C++: the state is weak, so that each program or library that is linked has
 * it once, and hidden, so that two of them in one process do not meet. A GPU's own compiler sees no
 * mutants. */
#ifndef PC_MUTATION_SWITCH_H
#define PC_MUTATION_SWITCH_H
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define pc__mutant(number) 0
#else
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What a mutated text may be warned of, where tests let warnings be errors. */
#pragma GCC diagnostic ignored "-Wbool-compare"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wformat-truncation"
#pragma GCC diagnostic ignored "-Wint-in-bool-context"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wreturn-type"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wtype-limits"

#define PC_MUTANT_SITES 4096
enum { PC_MUTANT_UNREAD = 0, PC_MUTANT_NONE = -1, PC_MUTANT_NOTES = -2, PC_MUTANT_READING = -3 };
#define PC_MUTANT_SHARED __attribute__((weak, visibility("hidden")))

#ifdef __cplusplus
extern "C" {
#endif

struct pc__mutants {
    int32_t on; /* a number, or one of the above */
    const uint32_t *epoch;
    char hits[512];
    uint32_t seen[PC_MUTANT_SITES];
};
PC_MUTANT_SHARED struct pc__mutants pc__mutants = {PC_MUTANT_UNREAD, NULL, "", {0}};

int PC_MUTANT_SHARED pc__mutant_variable(const char *environ_, size_t n, const char *name,
                                         char *value, size_t room);
int PC_MUTANT_SHARED pc__mutant_inherited(const char *name, char *value, size_t room);
int PC_MUTANT_SHARED pc__mutant_first(void);
void PC_MUTANT_SHARED pc__mutant_note(int number);

/* Finds a variable among strings that each end with 0. */
int pc__mutant_variable(const char *environ_, size_t n, const char *name, char *value, size_t room)
{
    const size_t length = strlen(name);
    for (size_t i = 0; i < n; i += strlen(environ_ + i) + 1)
        if (strncmp(environ_ + i, name, length) == 0 && environ_[i + length] == '=')
            return snprintf(value, room, "%s", environ_ + i + length + 1) > 0;
    return 0;
}

/* Finds a variable with the first ancestor that has it. */
int pc__mutant_inherited(const char *name, char *value, size_t room)
{
    static char text[1 << 17];
    for (long pid = getppid(); pid > 1;) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%ld/environ", pid);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return 0;
        size_t n = 0;
        for (ssize_t got;
             n < sizeof text - 1 && (got = read(fd, text + n, sizeof text - 1 - n)) > 0;)
            n += (size_t)got;
        close(fd);
        text[n] = 0;
        if (pc__mutant_variable(text, n, name, value, room))
            return 1;
        snprintf(path, sizeof path, "/proc/%ld/stat", pid);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return 0;
        const ssize_t got = read(fd, text, 1024);
        close(fd);
        text[got > 0 ? got : 0] = 0;
        const char *end = strrchr(text, ')');
        if (end == NULL || sscanf(end + 1, " %*c %ld", &pid) != 1)
            return 0;
    }
    return 0;
}

/* Reads the environment, on the first call of any site; other threads wait for who came first. */
int pc__mutant_first(void)
{
    int32_t was = PC_MUTANT_UNREAD;
    if (!__atomic_compare_exchange_n(&pc__mutants.on, &was, PC_MUTANT_READING, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE)) {
        while ((was = __atomic_load_n(&pc__mutants.on, __ATOMIC_ACQUIRE)) == PC_MUTANT_READING)
            sched_yield();
        return was;
    }
    const int before = errno;
    char value[480] = "";
    int on = PC_MUTANT_NONE;
    const char *mutant = getenv("MUTANT"), *reach = getenv("REACH");
    if (mutant == NULL && reach == NULL) {
        if (pc__mutant_inherited("REACH", value, sizeof value))
            reach = value;
        else if (pc__mutant_inherited("MUTANT", value, sizeof value))
            mutant = value;
    }
    if (reach != NULL) {
        char path[512];
        snprintf(path, sizeof path, "%s/epoch", reach);
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        void *at = fd < 0 ? MAP_FAILED : mmap(NULL, 4, PROT_READ, MAP_SHARED, fd, 0);
        if (fd >= 0)
            close(fd);
        if (at != MAP_FAILED) {
            snprintf(pc__mutants.hits, sizeof pc__mutants.hits, "%s/hits", reach);
            pc__mutants.epoch = (const uint32_t *)at;
            on = PC_MUTANT_NOTES;
        }
    } else if (mutant != NULL && atoi(mutant) > 0)
        on = atoi(mutant);
    errno = before;
    __atomic_store_n(&pc__mutants.on, on, __ATOMIC_RELEASE);
    return on;
}

/* Notes a site once in a process for each test. */
void pc__mutant_note(int number)
{
    const uint32_t now = __atomic_load_n(pc__mutants.epoch, __ATOMIC_RELAXED);
    uint32_t *seen = &pc__mutants.seen[number % PC_MUTANT_SITES];
    if (__atomic_load_n(seen, __ATOMIC_RELAXED) == now)
        return;
    const int before = errno;
    const int fd = open(pc__mutants.hits, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0) {
        char line[32];
        const int n = snprintf(line, sizeof line, "%u %d\n", now, number);
        if (write(fd, line, (size_t)n) == n)
            __atomic_store_n(seen, now, __ATOMIC_RELAXED);
        close(fd);
    }
    errno = before;
}

#ifdef __cplusplus
}
#endif

/* True where the mutant of this number is on. errno stays as it was. */
static inline __attribute__((unused)) int pc__mutant(int number)
{
    int on = __atomic_load_n(&pc__mutants.on, __ATOMIC_ACQUIRE);
    if (__builtin_expect(on == PC_MUTANT_UNREAD || on == PC_MUTANT_READING, 0))
        on = pc__mutant_first();
    if (__builtin_expect(on == PC_MUTANT_NOTES, 0)) {
        pc__mutant_note(number);
        return 0;
    }
    return on == number;
}
#endif
#endif
