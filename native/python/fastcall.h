/* The structures and functions that the files of module _fastcall share. */
#ifndef PC_FASTCALL_H
#define PC_FASTCALL_H
#include "python/view.h"
#include "core/internal.h"

/* Below this size polling keeps the GIL: to release and take it costs more than the whole call. */
#define PC_KEEP_LOCK_BYTES (32u << 10)

#define PC_NOT_SERVED 1 /* there is no plan, or it does not serve these arrays */

struct pc__entry;

struct pc__dispatcher {
    PyObject_HEAD
    struct pc_comm *comm; /* NULL: the communicator is closed */
    double timeout;
    struct pc__entry *entries; /* open addressing, capacity a power of two */
    size_t capacity;
    size_t used;
    PyObject *others; /* algorithm -> dispatcher of the plans of calls that ask for it; or NULL */
};

/* What a method of a communicator calls; it falls back to the Python functions it was made with. */
struct pc__callable {
    PyObject_HEAD
    struct pc__dispatcher *dispatcher;
    PyObject *what;      /* tells those which callable it is */
    PyObject *otherwise; /* (what, code or None, the arguments) -> result */
    PyObject *refused; /* (what, error, the arguments): what that raised, wherever it had got to */
};

struct pc__held { /* the arrays of a call */
    struct pc__view out, x;
    int n; /* number of views: of out, and of x if it is another array */
};

/* fastcall.c */
/* Notes that a call comes in. */
void pc__comes(const struct pc__dispatcher *l);
/* The dispatcher of calls that ask for an algorithm (None: for none), a new reference; or NULL. */
struct pc__dispatcher *pc__dispatcher_of(struct pc__dispatcher *l, PyObject *algorithm);
/* Converts a rank argument; false when it is no rank. */
bool pc__rank_of(PyObject *number, uint32_t *rank);
/* Whether a call blocks, with the communicator's timeout. */
bool pc__blocks(PyObject *async_op, PyObject *timeout);
/* Starts the plan for these arrays and holds their views; or PC_NOT_SERVED. */
int pc__start(const struct pc__dispatcher *l, uint32_t collective, PyObject *x, PyObject *out,
              PyObject *op, uint32_t root, struct pc__held *held);
void pc__let_go(struct pc__held *held);

/* fastsend.c */
/* Whether an argument is a rank that can be reached now: a connection may have to be made first. */
bool pc__reaches(const struct pc__dispatcher *l, PyObject *number, uint32_t *peer);
/* Looks at one end of a message and holds its memory; false when the Python path has to. */
bool pc__message_end(const struct pc__dispatcher *l, PyObject *x, PyObject *peer,
                     uint32_t direction, struct pc_p2p_op *message, struct pc__view *view);
/* Moves messages for at most a millisecond. */
int pc__transfer(const struct pc__dispatcher *l, const struct pc_p2p_op *messages, uint32_t n);

/* callable.c */
/* Has Python serve a call, or finish one that returned `rc`. `refused` is called from here and not
 * by `otherwise`: a signal handler may raise before the first line of that. */
PyObject *pc__fall_back(const struct pc__callable *c, int rc, PyObject *const *args,
                        Py_ssize_t nargs);
/* A type whose objects begin with a struct pc__callable. */
PyObject *pc__callable_type(const char *name, int size, PyMethodDef *methods);
PyObject *pc__make_callable(PyObject *type, struct pc__dispatcher *l, PyObject *what,
                            PyObject *otherwise, PyObject *refused);

/* What a dispatcher makes: fastcoll.c, fastsend.c and fastexchange.c. */
PyObject *pc__collective(struct pc__dispatcher *l, PyObject *args);
PyObject *pc__message(struct pc__dispatcher *l, PyObject *args);
PyObject *pc__exchange_callable(struct pc__dispatcher *l, PyObject *args);

/* fastexchange.c */
/* Moves messages between addresses; returns a code, or None when it does not serve them. */
PyObject *pc__exchange_pointers(const struct pc__dispatcher *l, PyObject *const *args,
                                Py_ssize_t nargs);
#endif
