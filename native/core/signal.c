/* A signal as news on a descriptor: a handler in C runs also while Python's main thread is inside a
 * call that never returns, where one of Python's would wait for ever. */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "pycoll.h"

static int descriptor = -1;

static void handle(int signal)
{
    const uint64_t one = 1;
    int before = errno;
    (void)signal;
    if (write(descriptor, &one, sizeof one) < 0) { /* it is full: that says as much */
    }
    errno = before;
}

int pc_signal_watch(int signal)
{
    struct sigaction now, mine = {.sa_handler = handle, .sa_flags = SA_RESTART};
    if (sigaction(signal, NULL, &now) != 0 || now.sa_handler != SIG_DFL)
        return PC_BUSY;
    if (descriptor < 0)
        descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (descriptor < 0 || sigaction(signal, &mine, NULL) != 0)
        return PC_SYSTEM;
    return descriptor;
}

void pc_signal_forget(int signal)
{
    struct sigaction now, none = {.sa_handler = SIG_DFL};
    if (sigaction(signal, NULL, &now) == 0 && now.sa_handler == handle)
        sigaction(signal, &none, NULL);
    if (descriptor >= 0)
        close(descriptor);
    descriptor = -1;
}
