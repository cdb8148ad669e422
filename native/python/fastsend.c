/* Sends and receives of module _fastcall: what the methods of a communicator call.
 *
 * A callable gets all arguments of its method. What it does not serve (a timeout of its own, a
 * Work, arrays without the buffer protocol) it hands to the Python function that it was made with,
 * and a transfer that failed or takes long with its code. */
#include "python/fastcall.h"

enum { ARRAY, PEER, ASYNC_OP, TIMEOUT, NARGS };

struct message {
    struct pc__callable python;
    uint32_t direction;
};

int pc__transfer(const struct pc__dispatcher *l, const struct pc_p2p_op *messages, uint32_t n)
{
    int rc;
    uint64_t nbytes = 0;
    for (uint32_t i = 0; i < n; i++)
        nbytes += messages[i].nbytes;
    if (l->comm == NULL) /* closed by what gave a view */
        return PC_NOT_SERVED;
    if (nbytes < PC_KEEP_LOCK_BYTES && l->comm->options.spin != 0) {
        rc = pc__exchange(l->comm, messages, n, l->timeout, 0);
        if (rc != PC_AGAIN)
            return rc;
        Py_BEGIN_ALLOW_THREADS
        rc = pc_resume(l->comm, 1e-3);
        Py_END_ALLOW_THREADS
    } else {
        Py_BEGIN_ALLOW_THREADS
        rc = pc__exchange(l->comm, messages, n, l->timeout, PC_FIRST_PATIENCE_NS);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

bool pc__reaches(const struct pc__dispatcher *l, PyObject *number, uint32_t *peer)
{
    return l->comm != NULL && PyLong_CheckExact(number) && pc__rank_of(number, peer)
           && *peer < l->comm->options.size
           && atomic_load_explicit(&l->comm->peers[*peer].ready, memory_order_relaxed);
}

bool pc__message_end(const struct pc__dispatcher *l, PyObject *x, PyObject *peer,
                     uint32_t direction, struct pc_p2p_op *m, struct pc__view *view)
{
    m->direction = direction;
    m->reserved = 0;
    if (!pc__reaches(l, peer, &m->peer) || !pc__view_hold(x, direction == PC_DIRECTION_RECV, view))
        return false; /* the Python path says what is wrong */
    m->at = view->at;
    m->nbytes = view->nbytes;
    m->dtype = (uint32_t)view->dtype;
    return true;
}

static PyObject *message_transfer(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct message *p = (struct message *)self;
    struct pc__dispatcher *l = p->python.dispatcher;
    struct pc_p2p_op m;
    struct pc__view view;
    pc__comes(l);
    if (nargs != NARGS) {
        PyErr_SetString(PyExc_TypeError, "transfer(x, peer, async_op, timeout) takes 4 arguments");
        return NULL;
    }
    if (!pc__blocks(args[ASYNC_OP], args[TIMEOUT])
        || !pc__message_end(l, args[ARRAY], args[PEER], p->direction, &m, &view))
        return pc__fall_back(&p->python, PC_NOT_SERVED, args, nargs);
    int rc = pc__transfer(l, &m, 1);
    bool receives = p->direction == PC_DIRECTION_RECV;
    PyObject *result = rc == PC_OK ? Py_NewRef(receives ? args[ARRAY] : Py_None)
                                   : pc__fall_back(&p->python, rc, args, nargs);
    pc__view_release(&view); /* held until here: nobody can resize memory that native code uses */
    return result;
}

static PyMethodDef methods[] = {
    {"transfer", (PyCFunction)(void (*)(void))message_transfer, METH_FASTCALL,
     "transfer(x, peer, async_op, timeout): send x to a rank or receive it from one."},
    {NULL, NULL, 0, NULL},
};

PyObject *pc__message(struct pc__dispatcher *l, PyObject *args)
{
    static PyObject *type;
    int receives;
    PyObject *what, *otherwise, *refused;
    if (!PyArg_ParseTuple(args, "OpOO:message", &what, &receives, &otherwise, &refused))
        return NULL;
    if (type == NULL)
        type = pc__callable_type("pycoll._fastcall.Message", sizeof(struct message), methods);
    PyObject *made = type ? pc__make_callable(type, l, what, otherwise, refused) : NULL;
    if (made == NULL)
        return NULL;
    ((struct message *)made)->direction = receives ? PC_DIRECTION_RECV : PC_DIRECTION_SEND;
    PyObject *method = PyObject_GetAttrString(made, "transfer");
    Py_DECREF(made);
    return method;
}
