/* Exchanges of module _fastcall: what `exchange` of a communicator calls.
 *
 * It serves lists and tuples of a few pairs, each of an object with the buffer protocol and a rank.
 * Everything else (a timeout of its own, a Work, arrays that share memory) it hands to the Python
 * function that it was made with, and transfers that failed or take long with their code. */
#include "python/fastcall.h"

enum { SENDS, RECVS, ASYNC_OP, TIMEOUT, NARGS };
enum { POINTER_ARGS = 5 };

struct exchange {
    uint32_t n;
    struct pc_p2p_op messages[PC_FEW_TRANSFERS];
    struct pc__view views[PC_FEW_TRANSFERS]; /* of their arrays, unless those came by address */
};

/* The length of a list or a tuple; -1 of anything else, a subclass too: that may iterate its way.
 */
static Py_ssize_t length(PyObject *items)
{
    return PyList_CheckExact(items)    ? PyList_Size(items)
           : PyTuple_CheckExact(items) ? PyTuple_Size(items)
                                       : -1;
}

/* Returns a new reference: what gives a view may change the list. */
static PyObject *item(PyObject *items, Py_ssize_t i)
{
    return Py_XNewRef(PyList_CheckExact(items) ? PyList_GetItem(items, i)
                                               : PyTuple_GetItem(items, i));
}

/* Looks at pair i; an array that is received goes to `result`. False: it is not served. */
static bool add_pair(const struct pc__dispatcher *l, struct exchange *e, PyObject *pairs,
                     Py_ssize_t i, uint32_t direction, PyObject *result)
{
    PyObject *pair = item(pairs, i), *x = NULL, *peer = NULL;
    if (pair != NULL && length(pair) == 2) {
        x = item(pair, 0);
        peer = item(pair, 1);
    }
    bool served = x != NULL && peer != NULL
                  && pc__message_end(l, x, peer, direction, &e->messages[e->n], &e->views[e->n]);
    e->n += served;
    if (served && direction == PC_DIRECTION_RECV)
        PyList_SetItem(result, i, Py_NewRef(x));
    Py_XDECREF(x);
    Py_XDECREF(peer);
    Py_XDECREF(pair);
    PyErr_Clear(); /* a list may have become shorter */
    return served;
}

static bool add_pairs(const struct pc__dispatcher *l, struct exchange *e, PyObject *pairs,
                      Py_ssize_t n, uint32_t direction, PyObject *result)
{
    for (Py_ssize_t i = 0; i < n; i++)
        if (!add_pair(l, e, pairs, i, direction, result))
            return false;
    return true;
}

/* Whether an array that is received shares memory with another one. */
static bool overlap(const struct exchange *e)
{
    for (uint32_t i = 0; i < e->n; i++)
        for (uint32_t j = 0; j < i; j++) {
            const struct pc_p2p_op *a = &e->messages[i], *b = &e->messages[j];
            uintptr_t p = (uintptr_t)a->at, q = (uintptr_t)b->at;
            if ((a->direction == PC_DIRECTION_RECV || b->direction == PC_DIRECTION_RECV)
                && p < q + b->nbytes && q < p + a->nbytes && a->nbytes != 0 && b->nbytes != 0)
                return true;
        }
    return false;
}

/* Moves all messages; `result` gets the arrays that were received. */
static int serve(const struct pc__dispatcher *l, struct exchange *e, PyObject *const *args,
                 PyObject **result)
{
    Py_ssize_t nsends = length(args[SENDS]), nrecvs = length(args[RECVS]);
    if (nsends < 0 || nrecvs < 0 || nsends + nrecvs > (Py_ssize_t)PC_FEW_TRANSFERS
        || !pc__blocks(args[ASYNC_OP], args[TIMEOUT]))
        return PC_NOT_SERVED;
    *result = PyList_New(nrecvs);
    if (*result == NULL) {
        PyErr_Clear();
        return PC_NOT_SERVED;
    }
    if (!add_pairs(l, e, args[SENDS], nsends, PC_DIRECTION_SEND, NULL)
        || !add_pairs(l, e, args[RECVS], nrecvs, PC_DIRECTION_RECV, *result) || overlap(e))
        return PC_NOT_SERVED;
    return pc__transfer(l, e->messages, e->n);
}

static void let_go(struct exchange *e)
{
    for (uint32_t i = 0; i < e->n; i++)
        pc__view_release(&e->views[i]);
}

static PyObject *exchange_call(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct pc__callable *c = (struct pc__callable *)self;
    struct exchange e;
    PyObject *result = NULL;
    e.n = 0;
    pc__comes(c->dispatcher);
    if (nargs != NARGS) {
        PyErr_SetString(PyExc_TypeError,
                        "exchange(sends, recvs, async_op, timeout) takes 4 arguments");
        return NULL;
    }
    int rc = serve(c->dispatcher, &e, args, &result);
    if (rc == PC_NOT_SERVED) {
        let_go(&e);
        Py_XDECREF(result);
        return pc__fall_back(c, rc, args, nargs);
    }
    PyObject *said = rc == PC_OK ? Py_NewRef(Py_None) : pc__fall_back(c, rc, args, nargs);
    let_go(&e); /* here: nobody can resize memory that native code uses */
    if (said == NULL)
        Py_CLEAR(result);
    Py_XDECREF(said);
    return result;
}

static PyMethodDef methods[] = {
    {"exchange", (PyCFunction)(void (*)(void))exchange_call, METH_FASTCALL,
     "exchange(sends, recvs, async_op, timeout): send and receive pairs of an array and a rank."},
    {NULL, NULL, 0, NULL},
};

PyObject *pc__exchange_pointers(const struct pc__dispatcher *l, PyObject *const *args,
                                Py_ssize_t nargs)
{
    struct exchange e;
    pc__comes(l);
    if (nargs % POINTER_ARGS != 0) {
        PyErr_SetString(PyExc_TypeError,
                        "transfers(receives, address, nbytes, dtype, peer, ...) takes 5 arguments "
                        "for each message");
        return NULL;
    }
    e.n = 0;
    if (l->comm == NULL || nargs > (Py_ssize_t)PC_FEW_TRANSFERS * POINTER_ARGS)
        Py_RETURN_NONE;
    for (; nargs > 0; nargs -= POINTER_ARGS, args += POINTER_ARGS) {
        struct pc_p2p_op *m = &e.messages[e.n++];
        m->direction = args[0] == Py_True ? PC_DIRECTION_RECV : PC_DIRECTION_SEND;
        m->at = PyLong_AsVoidPtr(args[1]);
        m->nbytes = (uint64_t)PyLong_AsUnsignedLongLong(args[2]);
        m->dtype = (uint32_t)PyLong_AsUnsignedLong(args[3]);
        m->reserved = 0;
        if (PyErr_Occurred())
            return NULL;
        if (!pc__reaches(l, args[4], &m->peer))
            Py_RETURN_NONE;
    }
    int rc = overlap(&e) ? PC_NOT_SERVED : pc__transfer(l, e.messages, e.n);
    if (rc == PC_NOT_SERVED)
        Py_RETURN_NONE;
    return PyLong_FromLong(rc);
}

PyObject *pc__exchange_callable(struct pc__dispatcher *l, PyObject *args)
{
    static PyObject *type;
    PyObject *what, *otherwise, *refused;
    if (!PyArg_ParseTuple(args, "OOO:exchange", &what, &otherwise, &refused))
        return NULL;
    if (type == NULL)
        type = pc__callable_type("pycoll._fastcall.Exchange", sizeof(struct pc__callable), methods);
    PyObject *made = type ? pc__make_callable(type, l, what, otherwise, refused) : NULL;
    if (made == NULL)
        return NULL;
    PyObject *method = PyObject_GetAttrString(made, "exchange");
    Py_DECREF(made);
    return method;
}
