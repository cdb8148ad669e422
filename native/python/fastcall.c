/* Module _fastcall: the calls that a communicator makes, without a wrapper in between.
 *
 * A Dispatcher remembers plans by what was asked for and starts one for arrays that speak the
 * buffer protocol. Whatever it does not serve it hands back untouched (None), and the Python path
 * finds the plan or the reason. It makes the callables that a communicator's methods call: of a
 * collective (fastcoll.c), a send or a receive (fastsend.c), an exchange (fastexchange.c). Limited
 * API, so one build serves every Python. */
#include "python/fastcall.h"
#include "python/place.h"
#include <stdlib.h>
#include <string.h>

/* How a plan wants its arrays; Python gives these to add(). */
#define PC_ARRAYS_ALIAS 1u  /* without `out`, `x` is also the output */
#define PC_ARRAYS_SHAPED 2u /* `out` has the shape of `x` */
#define PC_ARRAYS_APART 4u  /* `x` and `out` must not overlap */

struct key {
    uint64_t nbytes; /* of x, or of out where there is no x */
    uint64_t kind;   /* the rest of the request, plus one: zero is an empty entry */
};

struct pc__entry {
    struct key key;
    uint64_t out_nbytes;
    uint32_t arrays;
    struct pc_plan *plan;
};

struct bound { /* a persistent plan */
    PyObject_HEAD
    struct pc_comm *comm;
    struct pc_plan *plan;
    void *in, *out;
    double timeout;
    PyObject *result;
};

static uint64_t kind_of(uint32_t collective, uint32_t dtype, uint32_t op, uint32_t root, bool has_x)
{
    return ((uint64_t)root << 32 | has_x << 24 | (collective & 255) << 16 | (dtype & 255) << 8
            | (op & 255))
           + 1;
}

static size_t place_of(const struct pc__dispatcher *l, struct key k)
{
    uint64_t h
        = (k.nbytes * UINT64_C(0x9E3779B97F4A7C15)) ^ (k.kind * UINT64_C(0xC2B2AE3D27D4EB4F));
    return (size_t)(h >> 32) & (l->capacity - 1);
}

static const struct pc__entry *find(const struct pc__dispatcher *l, struct key k)
{
    for (size_t i = place_of(l, k); l->used && l->entries[i].key.kind;
         i = (i + 1) & (l->capacity - 1))
        if (l->entries[i].key.nbytes == k.nbytes && l->entries[i].key.kind == k.kind)
            return &l->entries[i];
    return NULL;
}

static void put(struct pc__dispatcher *l, struct pc__entry e)
{
    size_t i = place_of(l, e.key);
    while (l->entries[i].key.kind
           && (l->entries[i].key.nbytes != e.key.nbytes || l->entries[i].key.kind != e.key.kind))
        i = (i + 1) & (l->capacity - 1);
    l->used += l->entries[i].key.kind == 0;
    l->entries[i] = e;
}

static int grow(struct pc__dispatcher *l)
{
    if (2 * (l->used + 1) <= l->capacity)
        return 0;
    struct pc__dispatcher bigger = *l;
    bigger.capacity = l->capacity ? 2 * l->capacity : 64;
    bigger.used = 0;
    bigger.entries = calloc(bigger.capacity, sizeof *bigger.entries);
    if (bigger.entries == NULL)
        return -1;
    for (size_t i = 0; i < l->capacity; i++)
        if (l->entries[i].key.kind)
            put(&bigger, l->entries[i]);
    free(l->entries);
    l->entries = bigger.entries;
    l->capacity = bigger.capacity;
    l->used = bigger.used;
    return 0;
}

/* Runs a plan for at most a millisecond. */
static int launch(struct pc_comm *comm, struct pc_plan *plan, const void *in, void *out,
                  double timeout)
{
    int rc;
    if (plan->nbytes < PC_KEEP_LOCK_BYTES && comm->options.spin != 0) {
        rc = pc__call_try(comm, plan, in, out, timeout);
        if (rc != PC_AGAIN)
            return rc;
        Py_BEGIN_ALLOW_THREADS
        rc = pc_resume(comm, 1e-3);
        Py_END_ALLOW_THREADS
    } else {
        Py_BEGIN_ALLOW_THREADS
        rc = pc_run(comm, plan, in, out, timeout);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

static PyObject *answer(int rc, PyObject *result)
{
    if (rc != PC_OK)
        return PyLong_FromLong(rc);
    Py_INCREF(result);
    return result;
}

/* Whether the arrays may be used together: disjoint, or in place with the same blocks. */
static bool compatible(const struct pc__entry *e, const struct pc__view *x,
                       const struct pc__view *out)
{
    uintptr_t p = (uintptr_t)x->at, q = (uintptr_t)out->at;
    const struct pc_plan_spec *s = &e->plan->spec;
    if (p >= q + out->nbytes || q >= p + x->nbytes)
        return true;
    return !(e->arrays & PC_ARRAYS_APART)
           && p - pc__extent_at(e->plan, s->input) == q - pc__extent_at(e->plan, s->output);
}

static bool same_shape(const struct pc__view *a, const struct pc__view *b)
{
    return a->ndim == b->ndim
           && (a->ndim == 0 || memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0);
}

static int op_of(PyObject *name)
{
    static const char *const names[PC_NREDUCE] = PC_REDUCE_NAMES;
    static PyObject *interned[PC_NREDUCE]; /* as Python has what a source names */
    for (uint32_t op = 0; op < PC_NREDUCE; op++)
        if (name == interned[op])
            return (int)op;
    for (uint32_t op = 0; op < PC_NREDUCE; op++) {
        if (PyUnicode_CompareWithASCIIString(name, names[op]) != 0)
            continue;
        if (interned[op] == NULL)
            interned[op] = PyUnicode_InternFromString(names[op]);
        PyErr_Clear();
        return (int)op;
    }
    return -1;
}

/* Runs the plan for two views, or for one that is both. */
static int serve(const struct pc__dispatcher *l, uint64_t kind, const struct pc__view *x,
                 const struct pc__view *out)
{
    struct key k = {x->nbytes, kind};
    const struct pc__entry *e = find(l, k);
    if (e == NULL)
        return PC_NOT_SERVED;
    if (x == out ? !(e->arrays & PC_ARRAYS_ALIAS)
                 : out->nbytes != e->out_nbytes || !compatible(e, x, out)
                       || ((e->arrays & PC_ARRAYS_SHAPED) && !same_shape(x, out)))
        return PC_NOT_SERVED;
    return launch(l->comm, e->plan, x->at, out->at, l->timeout);
}

int pc__start(const struct pc__dispatcher *l, uint32_t collective, PyObject *x, PyObject *out,
              PyObject *op_name, uint32_t root, struct pc__held *held)
{
    bool has_x = x != Py_None;
    if (!has_x)
        x = out;
    if (out == Py_None)
        out = x;
    held->n = 0;
    long op = PyUnicode_Check(op_name) ? op_of(op_name) : PyLong_AsLong(op_name);
    if (op < 0 || op >= PC_NREDUCE || out == Py_None || !pc__view_hold(out, true, &held->out))
        goto unserved;
    held->n = 1;
    if (x != out) {
        if (!pc__view_hold(x, false, &held->x))
            goto unserved;
        held->n = 2;
        if (held->x.dtype != held->out.dtype)
            goto unserved;
    }
    int rc = serve(l, kind_of(collective, (uint32_t)held->out.dtype, (uint32_t)op, root, has_x),
                   x == out ? &held->out : &held->x, &held->out);
    if (rc != PC_NOT_SERVED)
        return rc;
unserved:
    PyErr_Clear(); /* the Python path says what is wrong */
    pc__let_go(held);
    return PC_NOT_SERVED;
}

void pc__let_go(struct pc__held *held)
{
    if (held->n > 0)
        pc__view_release(&held->out);
    if (held->n > 1)
        pc__view_release(&held->x);
    held->n = 0;
}

bool pc__rank_of(PyObject *number, uint32_t *rank)
{
    long found = PyLong_AsLong(number);
    if (found == -1)
        PyErr_Clear();
    *rank = (uint32_t)found;
    return found >= 0 && found <= INT32_MAX;
}

bool pc__blocks(PyObject *async_op, PyObject *timeout)
{
    int truth = async_op == Py_False ? 0 : PyObject_IsTrue(async_op);
    if (truth < 0)
        PyErr_Clear();
    return truth == 0 && timeout == Py_None;
}

struct pc__dispatcher *pc__dispatcher_of(struct pc__dispatcher *l, PyObject *algorithm)
{
    PyObject *found = (PyObject *)l;
    if (algorithm != Py_None)
        found = l->others ? PyDict_GetItemWithError(l->others, algorithm) : NULL;
    if (found == NULL)
        PyErr_Clear(); /* it has no hash: the Python path says what is wrong */
    return (struct pc__dispatcher *)Py_XNewRef(found);
}

static PyObject *dispatcher_of(PyObject *self, PyObject *algorithm)
{
    struct pc__dispatcher *l = (struct pc__dispatcher *)self;
    PyObject *found = (PyObject *)pc__dispatcher_of(l, algorithm);
    if (found != NULL)
        return found;
    if (l->others == NULL && (l->others = PyDict_New()) == NULL)
        return NULL;
    found = PyObject_CallFunction((PyObject *)Py_TYPE(self), "Kd",
                                  (unsigned long long)(uintptr_t)l->comm, l->timeout);
    if (found != NULL && PyDict_SetItem(l->others, algorithm, found) != 0)
        Py_CLEAR(found);
    return found;
}

void pc__comes(const struct pc__dispatcher *l)
{
    if (l->comm != NULL)
        pc__note_entry(l->comm, pc__place());
}

static PyObject *dispatcher_comes(PyObject *self, PyObject *unused)
{
    (void)unused;
    pc__comes((struct pc__dispatcher *)self);
    Py_RETURN_NONE;
}

static PyObject *dispatcher_call(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct pc__dispatcher *l = (struct pc__dispatcher *)self;
    pc__comes(l);
    if (nargs != 5) {
        PyErr_SetString(PyExc_TypeError, "call(collective, x, out, op, root) takes 5 arguments");
        return NULL;
    }
    uint32_t collective = (uint32_t)PyLong_AsUnsignedLong(args[0]), root;
    struct pc__held held;
    if (PyErr_Occurred())
        return NULL;
    int rc = pc__rank_of(args[4], &root)
                 ? pc__start(l, collective, args[1], args[2], args[3], root, &held)
                 : PC_NOT_SERVED;
    if (rc == PC_NOT_SERVED)
        Py_RETURN_NONE;
    pc__let_go(&held);
    return answer(rc, args[2] == Py_None ? args[1] : args[2]);
}

static PyObject *dispatcher_pointers(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct pc__dispatcher *l = (struct pc__dispatcher *)self;
    pc__comes(l);
    if (nargs != 8) {
        PyErr_SetString(PyExc_TypeError, "pointers(collective, in, out, nbytes, out_nbytes, dtype, "
                                         "op, root) takes 8 arguments");
        return NULL;
    }
    uint32_t collective = (uint32_t)PyLong_AsUnsignedLong(args[0]);
    struct pc__view x = {.at = PyLong_AsVoidPtr(args[1]), .nbytes = PyLong_AsSize_t(args[3])};
    struct pc__view out = {.at = PyLong_AsVoidPtr(args[2]), .nbytes = PyLong_AsSize_t(args[4])};
    uint32_t dtype = (uint32_t)PyLong_AsUnsignedLong(args[5]);
    uint32_t op = (uint32_t)PyLong_AsUnsignedLong(args[6]);
    uint32_t root = (uint32_t)PyLong_AsUnsignedLong(args[7]);
    if (PyErr_Occurred())
        return NULL;
    bool one = x.at == out.at && x.nbytes == out.nbytes; /* the caller checks shapes */
    int rc = serve(l, kind_of(collective, dtype, op, root, true), &x, one ? &x : &out);
    if (rc == PC_NOT_SERVED)
        Py_RETURN_NONE;
    return PyLong_FromLong(rc);
}

static PyObject *dispatcher_add(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct pc__dispatcher *l = (struct pc__dispatcher *)self;
    if (nargs != 9) {
        PyErr_SetString(PyExc_TypeError, "add(collective, op, root, dtype, nbytes, out_nbytes, "
                                         "has_x, arrays, plan) takes 9 arguments");
        return NULL;
    }
    uint32_t collective = (uint32_t)PyLong_AsUnsignedLong(args[0]);
    uint32_t op = (uint32_t)PyLong_AsUnsignedLong(args[1]);
    uint32_t root = (uint32_t)PyLong_AsUnsignedLong(args[2]);
    uint32_t dtype = (uint32_t)PyLong_AsUnsignedLong(args[3]);
    uint64_t nbytes = PyLong_AsUnsignedLongLong(args[4]);
    bool has_x = PyLong_AsLong(args[6]) != 0;
    struct pc__entry e = {.key = {nbytes, kind_of(collective, dtype, op, root, has_x)},
                          .out_nbytes = PyLong_AsUnsignedLongLong(args[5]),
                          .arrays = (uint32_t)PyLong_AsUnsignedLong(args[7]),
                          .plan = PyLong_AsVoidPtr(args[8])};
    if (PyErr_Occurred())
        return NULL;
    if (grow(l) != 0)
        return PyErr_NoMemory();
    put(l, e);
    Py_RETURN_NONE;
}

/* Forgets every plan, those of others as well: a thread may be about to look for one. */
static void drop(struct pc__dispatcher *l, bool closes)
{
    PyObject *algorithm, *other;
    for (Py_ssize_t at = 0; l->others && PyDict_Next(l->others, &at, &algorithm, &other);)
        drop((struct pc__dispatcher *)other, closes);
    Py_CLEAR(l->others);
    free(l->entries);
    l->entries = NULL;
    l->capacity = l->used = 0;
    if (closes)
        l->comm = NULL;
}

static PyObject *dispatcher_drop(PyObject *self, PyObject *unused)
{
    (void)unused;
    drop((struct pc__dispatcher *)self, false);
    Py_RETURN_NONE;
}

/* Called when the communicator closes. */
static PyObject *dispatcher_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    drop((struct pc__dispatcher *)self, true);
    Py_RETURN_NONE;
}

/* A callable goes with a dispatcher, which knows when the communicator is closed. */
static PyObject *dispatcher_collective(PyObject *self, PyObject *args)
{
    return pc__collective((struct pc__dispatcher *)self, args);
}

static PyObject *dispatcher_message(PyObject *self, PyObject *args)
{
    return pc__message((struct pc__dispatcher *)self, args);
}

static PyObject *dispatcher_exchange(PyObject *self, PyObject *args)
{
    return pc__exchange_callable((struct pc__dispatcher *)self, args);
}

static PyObject *dispatcher_transfers(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    return pc__exchange_pointers((struct pc__dispatcher *)self, args, nargs);
}

static PyObject *dispatcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    unsigned long long comm;
    double timeout;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "Kd:Dispatcher", &comm, &timeout))
        return NULL;
    struct pc__dispatcher *l = (struct pc__dispatcher *)PyType_GenericAlloc(type, 0);
    if (l == NULL)
        return NULL;
    l->comm = (struct pc_comm *)(uintptr_t)comm;
    l->timeout = timeout;
    return (PyObject *)l;
}

static int dispatcher_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct pc__dispatcher *)self)->others);
    return 0;
}

static int dispatcher_clear(PyObject *self)
{
    Py_CLEAR(((struct pc__dispatcher *)self)->others);
    return 0;
}

static void dispatcher_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    dispatcher_clear(self);
    free(((struct pc__dispatcher *)self)->entries);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef dispatcher_methods[] = {
    {"call", (PyCFunction)(void (*)(void))dispatcher_call, METH_FASTCALL,
     "call(collective, x, out, op, root): run the plan for these arrays; None when there is none."},
    {"pointers", (PyCFunction)(void (*)(void))dispatcher_pointers, METH_FASTCALL,
     "pointers(collective, in, out, nbytes, out_nbytes, dtype, op, root): the same for addresses."},
    {"add", (PyCFunction)(void (*)(void))dispatcher_add, METH_FASTCALL,
     "add(collective, op, root, dtype, nbytes, out_nbytes, has_x, arrays, plan): remember a plan."},
    {"collective", dispatcher_collective, METH_VARARGS,
     "collective(what, number, x_at_root, out_at_root, result, otherwise, refused): what a method "
     "calls."},
    {"message", dispatcher_message, METH_VARARGS,
     "message(what, receives, otherwise, refused): what `send` or `recv` calls."},
    {"exchange", dispatcher_exchange, METH_VARARGS,
     "exchange(what, otherwise, refused): what `exchange` calls."},
    {"transfers", (PyCFunction)(void (*)(void))dispatcher_transfers, METH_FASTCALL,
     "transfers(receives, address, nbytes, dtype, peer, ...): move messages between addresses."},
    {"comes", dispatcher_comes, METH_NOARGS,
     "comes(): a call comes in that begins by none of the others here."},
    {"of", dispatcher_of, METH_O,
     "of(algorithm): the dispatcher of calls that ask for it; None: of those that ask for none."},
    {"drop", dispatcher_drop, METH_NOARGS,
     "drop(): forget every plan, and every other dispatcher."},
    {"close", dispatcher_close, METH_NOARGS, "close(): never touch the communicator again."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot dispatcher_slots[] = {
    {Py_tp_new, dispatcher_new},
    {Py_tp_dealloc, dispatcher_dealloc},
    {Py_tp_traverse, dispatcher_traverse},
    {Py_tp_clear, dispatcher_clear},
    {Py_tp_methods, dispatcher_methods},
    {Py_tp_doc, "Dispatcher(comm, timeout): plans of one communicator, by message."},
    {0, NULL},
};

static PyType_Spec dispatcher_spec = {.name = "pycoll._fastcall.Dispatcher",
                                      .basicsize = sizeof(struct pc__dispatcher),
                                      .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                      .slots = dispatcher_slots};

static PyObject *bound_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    unsigned long long comm, plan, in, out;
    double timeout;
    PyObject *result;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "KKKKdO:Plan", &comm, &plan, &in, &out, &timeout, &result))
        return NULL;
    struct bound *b = (struct bound *)PyType_GenericAlloc(type, 0);
    if (b == NULL)
        return NULL;
    b->comm = (struct pc_comm *)(uintptr_t)comm;
    b->plan = (struct pc_plan *)(uintptr_t)plan;
    b->in = (void *)(uintptr_t)in;
    b->out = (void *)(uintptr_t)out;
    b->timeout = timeout;
    b->result = Py_NewRef(result);
    return (PyObject *)b;
}

static PyObject *bound_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    struct bound *b = (struct bound *)self;
    if (PyTuple_Size(args) != 0 || (kwargs && PyDict_Size(kwargs) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a plan takes no arguments");
        return NULL;
    }
    if (b->plan == NULL)
        return PyLong_FromLong(PC_BROKEN);
    pc__note_entry(b->comm, pc__place());
    return answer(launch(b->comm, b->plan, b->in, b->out, b->timeout), b->result);
}

/* Called when the communicator closes, with its plans. */
static PyObject *bound_drop(PyObject *self, PyObject *unused)
{
    (void)unused;
    ((struct bound *)self)->plan = NULL;
    Py_RETURN_NONE;
}

static int bound_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct bound *)self)->result);
    return 0;
}

static int bound_clear(PyObject *self)
{
    Py_CLEAR(((struct bound *)self)->result);
    return 0;
}

static void bound_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    bound_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef bound_methods[] = {
    {"drop", bound_drop, METH_NOARGS, "drop(): never run again."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot bound_slots[] = {
    {Py_tp_new, bound_new},
    {Py_tp_call, bound_call},
    {Py_tp_traverse, bound_traverse},
    {Py_tp_clear, bound_clear},
    {Py_tp_dealloc, bound_dealloc},
    {Py_tp_methods, bound_methods},
    {Py_tp_doc, "Plan(comm, plan, in, out, timeout, result): a plan bound to its arrays."},
    {0, NULL},
};

static PyType_Spec bound_spec
    = {.name = "pycoll._fastcall.Plan",
       .basicsize = sizeof(struct bound),
       .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
       .slots = bound_slots};

static PyMethodDef functions[] = {
    {"place_begin", pc__place_begin, METH_O,
     "place_begin(folders): look where calls are made, outside of a tuple of folders; whether "
     "that goes. None: look no more."},
    {"place", pc__place_now, METH_NOARGS, "place(): of the caller, as events have it."},
    {"places", pc__places, METH_NOARGS, "places(): the code objects that places number."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT,
                                    "_fastcall",
                                    "The per-call path; see native/python/fastcall.c.",
                                    -1,
                                    functions,
                                    NULL,
                                    NULL,
                                    NULL,
                                    NULL};

__attribute__((visibility("default"))) PyMODINIT_FUNC PyInit__fastcall(void)
{
    PyObject *m = PyModule_Create(&module);
    PyObject *dispatcher = m ? PyType_FromSpec(&dispatcher_spec) : NULL;
    PyObject *bound = dispatcher ? PyType_FromSpec(&bound_spec) : NULL;
    if (bound == NULL || PyModule_AddObjectRef(m, "Dispatcher", dispatcher) < 0
        || PyModule_AddObjectRef(m, "Plan", bound) < 0
        || PyModule_AddIntConstant(m, "ALIAS", PC_ARRAYS_ALIAS) < 0
        || PyModule_AddIntConstant(m, "SHAPED", PC_ARRAYS_SHAPED) < 0
        || PyModule_AddIntConstant(m, "APART", PC_ARRAYS_APART) < 0)
        Py_CLEAR(m);
    Py_XDECREF(dispatcher);
    Py_XDECREF(bound);
    return m;
}
