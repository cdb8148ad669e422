/* A signal as news on a descriptor: a handler in C runs also while Python's main thread is inside a
 * call that never returns, where one of Python's would wait for ever. */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "pycoll.h"

static int descriptors[NSIG]; /* plus one, so that 0 is none */

static void handle(int signal)
{
    const uint64_t one = 1;
    int before = errno;
    if (write(descriptors[signal] - 1, &one, sizeof one) < 0) { /* it is full: that says as much */
    }
    errno = before;
}

int pc_signal_watch(int signal)
{
    struct sigaction now, mine = {.sa_handler = handle, .sa_flags = SA_RESTART};
    if (signal <= 0 || signal >= NSIG)
        return PC_INVALID;
    if (sigaction(signal, NULL, &now) != 0 || now.sa_handler != SIG_DFL)
        return PC_BUSY;
    int found = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (found < 0)
        return PC_SYSTEM;
    descriptors[signal] = found + 1;
    if (sigaction(signal, &mine, NULL) != 0) {
        close(found);
        return PC_SYSTEM;
    }
    return found;
}

void pc_signal_forget(int signal)
{
    struct sigaction now, none = {.sa_handler = SIG_DFL};
    if (signal <= 0 || signal >= NSIG || descriptors[signal] == 0)
        return;
    if (sigaction(signal, NULL, &now) == 0 && now.sa_handler == handle)
        sigaction(signal, &none, NULL);
    close(descriptors[signal] - 1);
    descriptors[signal] = 0;
}
