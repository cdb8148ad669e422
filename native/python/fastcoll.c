/* Collectives of module _fastcall: what the methods of a communicator call.
 *
 * A callable gets all arguments of its method. What it does not serve (a timeout of its own, a
 * Work, arrays without the buffer protocol, a message or an algorithm without a plan) it hands to
 * the Python function that it was made with, and a call that failed or takes long with its code. */
#include "python/fastcall.h"

enum { X, OUT, OP, ROOT, ASYNC_OP, ALGORITHM, TIMEOUT, NARGS };

struct collective {
    struct pc__callable python;
    uint32_t number;
    int x_at_root;   /* only the root reads x */
    int out_at_root; /* only the root writes out and has a result */
    int result;      /* whether there is one at all */
};

static PyObject *collective_call(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct collective *c = (struct collective *)self;
    struct pc__dispatcher *l = c->python.dispatcher;
    pc__comes(l);
    if (nargs != NARGS) {
        PyErr_SetString(PyExc_TypeError, "call(x, out, op, root, async_op, algorithm, timeout) "
                                         "takes 7 arguments");
        return NULL;
    }
    PyObject *x = args[X], *out = args[OUT], *result = NULL;
    uint32_t root;
    int rc = PC_NOT_SERVED;
    struct pc__held held;
    bool plain = PyUnicode_Check(args[OP]) && pc__blocks(args[ASYNC_OP], args[TIMEOUT]);
    struct pc__dispatcher *of = plain ? pc__dispatcher_of(l, args[ALGORITHM]) : NULL;
    if (of != NULL && of->comm != NULL && pc__rank_of(args[ROOT], &root)) {
        bool elsewhere = root != l->comm->options.rank;
        if (c->x_at_root && elsewhere)
            x = Py_None;
        if (c->out_at_root && elsewhere)
            out = Py_None;
        bool none = !c->result || (c->out_at_root && elsewhere);
        result = none ? Py_None : out == Py_None ? x : out;
        rc = pc__start(of, c->number, x, out, args[OP], root, &held);
    }
    Py_XDECREF((PyObject *)of);
    if (rc == PC_OK) {
        pc__let_go(&held);
        return Py_NewRef(result);
    }
    PyObject *said = pc__fall_back(&c->python, rc, args, nargs);
    if (rc == PC_NOT_SERVED)
        return said;
    pc__let_go(&held);
    if (said == NULL)
        return NULL;
    Py_DECREF(said);
    return Py_NewRef(result);
}

static PyMethodDef methods[] = {
    {"call", (PyCFunction)(void (*)(void))collective_call, METH_FASTCALL,
     "call(x, out, op, root, async_op, algorithm, timeout): make a call of all ranks."},
    {NULL, NULL, 0, NULL},
};

PyObject *pc__collective(struct pc__dispatcher *l, PyObject *args)
{
    static PyObject *type;
    unsigned int number;
    int x_at_root, out_at_root, result;
    PyObject *what, *otherwise, *refused;
    if (!PyArg_ParseTuple(args, "OIpppOO:collective", &what, &number, &x_at_root, &out_at_root,
                          &result, &otherwise, &refused))
        return NULL;
    if (type == NULL)
        type = pc__callable_type("pycoll._fastcall.Collective", sizeof(struct collective), methods);
    PyObject *made = type ? pc__make_callable(type, l, what, otherwise, refused) : NULL;
    if (made == NULL)
        return NULL;
    struct collective *c = (struct collective *)made;
    c->number = number;
    c->x_at_root = x_at_root;
    c->out_at_root = out_at_root;
    c->result = result;
    PyObject *method = PyObject_GetAttrString(made, "call");
    Py_DECREF(made);
    return method;
}
