/* Sends and receives of module _fastcall, without a wrapper in between.
 *
 * A Port is called with an array and a rank. What it does not serve (keyword arguments, arrays
 * without the buffer protocol, a call that failed or takes long) it hands to the Python function
 * that it was made with: what was sent or received then is said by the code that goes along. */
#include "python/fastcall.h"

struct port {
    PyObject_HEAD
    struct pc_comm *comm;
    uint32_t direction;
    double timeout;
    PyObject *otherwise; /* (code or None, arguments, keywords) -> result */
};

static int transfer(const struct port *p, const struct pc_p2p_op *m)
{
    int rc;
    if (m->nbytes < PC_KEEP_LOCK_BYTES && p->comm->options.spin != 0) {
        rc = pc__send_receive(p->comm, m, p->timeout, 0);
        if (rc != PC_AGAIN)
            return rc;
        Py_BEGIN_ALLOW_THREADS
        rc = pc_resume(p->comm, 1e-3);
        Py_END_ALLOW_THREADS
    } else {
        Py_BEGIN_ALLOW_THREADS
        rc = pc__send_receive(p->comm, m, p->timeout, PC_FIRST_PATIENCE_NS);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

static PyObject *slowly(const struct port *p, PyObject *code, PyObject *const *args,
                        Py_ssize_t nargs, PyObject *names)
{
    PyObject *result = NULL, *keywords = PyDict_New(), *positional = PyTuple_New(nargs);
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    if (keywords == NULL || positional == NULL)
        goto out;
    for (Py_ssize_t i = 0; i < nargs; i++)
        PyTuple_SetItem(positional, i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; i < named; i++)
        if (PyDict_SetItem(keywords, PyTuple_GetItem(names, i), args[nargs + i]) < 0)
            goto out;
    result = PyObject_CallFunctionObjArgs(p->otherwise, code, positional, keywords, NULL);
out:
    Py_XDECREF(keywords);
    Py_XDECREF(positional);
    return result;
}

static PyObject *port_transfer(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                               PyObject *names)
{
    struct port *p = (struct port *)self;
    struct pc_p2p_op m = {.direction = p->direction};
    Py_buffer view;
    if (p->comm != NULL)
        pc__note_entry(p->comm);
    if (p->comm == NULL || nargs != 2 || names != NULL || !PyLong_CheckExact(args[1]))
        return slowly(p, Py_None, args, nargs, names);
    int overflow;
    long peer = PyLong_AsLongAndOverflow(args[1], &overflow);
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;
    if (p->direction == PC_DIRECTION_RECV)
        flags |= PyBUF_WRITABLE;
    if (overflow || peer < 0 || peer >= (long)p->comm->options.size
        || !atomic_load_explicit(&p->comm->peers[peer].ready, memory_order_relaxed))
        return slowly(p, Py_None, args, nargs, names);
    if (PyObject_GetBuffer(args[0], &view, flags)) {
        PyErr_Clear();
        return slowly(p, Py_None, args, nargs, names);
    }
    int dtype = pc__dtype_of(&view), rc = PC_OK;
    if (dtype >= 0) {
        m.at = view.buf;
        m.nbytes = (uint64_t)view.len;
        m.peer = (uint32_t)peer;
        m.dtype = (uint32_t)dtype;
        rc = transfer(p, &m);
    }
    PyObject *result = NULL;
    if (dtype < 0) {
        result = slowly(p, Py_None, args, nargs, names);
    } else if (rc == PC_OK) {
        result = Py_NewRef(p->direction == PC_DIRECTION_RECV ? args[0] : Py_None);
    } else { /* the view is held meanwhile: nobody can resize what native code uses */
        PyObject *code = PyLong_FromLong(rc);
        if (code != NULL)
            result = slowly(p, code, args, nargs, names);
        Py_XDECREF(code);
    }
    PyBuffer_Release(&view);
    return result;
}

/* The communicator is closed. */
static PyObject *port_drop(PyObject *self, PyObject *unused)
{
    (void)unused;
    ((struct port *)self)->comm = NULL;
    Py_RETURN_NONE;
}

static PyObject *port_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    unsigned long long comm;
    int receives;
    double timeout;
    PyObject *otherwise;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "KpdO:Port", &comm, &receives, &timeout, &otherwise))
        return NULL;
    struct port *p = (struct port *)PyType_GenericAlloc(type, 0);
    if (p == NULL)
        return NULL;
    p->comm = (struct pc_comm *)(uintptr_t)comm;
    p->direction = receives ? PC_DIRECTION_RECV : PC_DIRECTION_SEND;
    p->timeout = timeout;
    p->otherwise = Py_NewRef(otherwise);
    return (PyObject *)p;
}

static int port_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct port *)self)->otherwise);
    return 0;
}

static int port_clear(PyObject *self)
{
    Py_CLEAR(((struct port *)self)->otherwise);
    return 0;
}

static void port_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    port_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef port_methods[] = {
    {"transfer", (PyCFunction)(void (*)(void))port_transfer, METH_FASTCALL | METH_KEYWORDS,
     "transfer(x, peer): send x to a rank or receive it from one."},
    {"drop", port_drop, METH_NOARGS, "drop(): never touch the communicator again."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot port_slots[] = {
    {Py_tp_new, port_new},
    {Py_tp_traverse, port_traverse},
    {Py_tp_clear, port_clear},
    {Py_tp_dealloc, port_dealloc},
    {Py_tp_methods, port_methods},
    {Py_tp_doc, "Port(comm, receives, timeout, otherwise): one direction of one communicator."},
    {0, NULL},
};

static PyType_Spec port_spec = {.name = "pycoll._fastcall.Port",
                                .basicsize = sizeof(struct port),
                                .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                .slots = port_slots};

int pc__add_send_recv(PyObject *module)
{
    PyObject *port = PyType_FromSpec(&port_spec);
    int rc = port ? PyModule_AddObjectRef(module, "Port", port) : -1;
    Py_XDECREF(port);
    return rc;
}
