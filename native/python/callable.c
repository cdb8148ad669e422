/* The base of the callables of module _fastcall: the Python functions that they fall back to. */
#include "python/fastcall.h"

/* Returns what `function` returns of `what`, one more and the arguments. */
static PyObject *call(PyObject *function, PyObject *what, PyObject *more, PyObject *const *args,
                      Py_ssize_t nargs)
{
    PyObject *all = PyTuple_New(nargs + 2);
    if (all == NULL)
        return NULL;
    PyTuple_SetItem(all, 0, Py_NewRef(what));
    PyTuple_SetItem(all, 1, Py_NewRef(more));
    for (Py_ssize_t i = 0; i < nargs; i++)
        PyTuple_SetItem(all, i + 2, Py_NewRef(args[i]));
    PyObject *result = PyObject_Call(function, all, NULL);
    Py_DECREF(all);
    return result;
}

PyObject *pc__fall_back(const struct pc__callable *c, int rc, PyObject *const *args,
                        Py_ssize_t nargs)
{
    PyObject *code = rc == PC_NOT_SERVED ? Py_NewRef(Py_None) : PyLong_FromLong(rc);
    PyObject *result = code ? call(c->otherwise, c->what, code, args, nargs) : NULL;
    Py_XDECREF(code);
    if (result != NULL)
        return result;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL)
        PyException_SetTraceback(error, trace);
    PyObject *told = call(c->refused, c->what, error, args, nargs);
    if (told != NULL) {
        Py_DECREF(told);
        PyErr_Restore(type, error, trace);
    } else { /* it raised another exception in its place */
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(trace);
    }
    return NULL;
}

PyObject *pc__make_callable(PyObject *type, struct pc__dispatcher *l, PyObject *what,
                            PyObject *otherwise, PyObject *refused)
{
    struct pc__callable *c = (struct pc__callable *)PyType_GenericAlloc((PyTypeObject *)type, 0);
    if (c == NULL)
        return NULL;
    c->dispatcher = (struct pc__dispatcher *)Py_NewRef((PyObject *)l);
    c->what = Py_NewRef(what);
    c->otherwise = Py_NewRef(otherwise);
    c->refused = Py_NewRef(refused);
    return (PyObject *)c;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    struct pc__callable *c = (struct pc__callable *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(c->dispatcher);
    Py_VISIT(c->what);
    Py_VISIT(c->otherwise);
    Py_VISIT(c->refused);
    return 0;
}

static int clear(PyObject *self)
{
    struct pc__callable *c = (struct pc__callable *)self;
    Py_CLEAR(c->what);
    Py_CLEAR(c->otherwise);
    Py_CLEAR(c->refused);
    return 0;
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    Py_DECREF(((struct pc__callable *)self)->dispatcher);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

PyObject *pc__callable_type(const char *name, int size, PyMethodDef *methods)
{
    PyType_Slot slots[] = {
        {Py_tp_traverse, traverse},
        {Py_tp_clear, clear},
        {Py_tp_dealloc, dealloc},
        {Py_tp_methods, methods},
        {0, NULL},
    };
    PyType_Spec spec = {
        .name = name,
        .basicsize = size,
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    return PyType_FromSpec(&spec);
}
