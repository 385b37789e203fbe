/* SPDX-License-Identifier: Apache-2.0 */
/* The module tarn._tarn: its types, the tables of codes and dtypes, the library's version. */
#include "ext.h"

static PyObject *lib_version(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(tarn_version());
}

PyObject *return_self(PyObject *self, PyObject *unused)
{
    (void)unused;
    Py_INCREF(self);
    return self;
}

/* {code: (name, class, text)} */
static PyObject *error_table(void)
{
    static const struct {
        const char *name;
        int code;
        int class;
        const char *text;
    } rows[] = {
#define ROW(name_, value_, class_, text_) {#name_, value_, TARN_CLASS_##class_, text_},
        TARN_ERRORS(ROW)
#undef ROW
            {"TENSOR_MISMATCH", EXT_E_TENSOR_MISMATCH, TARN_CLASS_REQUEST,
             "the buffer's dtype or shape differ"},
        {"FORKED", EXT_E_FORKED, TARN_CLASS_REQUEST, "the client was opened before fork()"},
    };
    PyObject *table = PyDict_New();

    for (size_t i = 0; table && i < sizeof rows / sizeof rows[0]; i++) {
        PyObject *code = PyLong_FromLong(rows[i].code);
        PyObject *row = Py_BuildValue("(sis)", rows[i].name, rows[i].class, rows[i].text);
        if (!code || !row || PyDict_SetItem(table, code, row) < 0)
            Py_CLEAR(table);
        Py_XDECREF(code);
        Py_XDECREF(row);
    }
    return table;
}

/* Names of all dtypes. */
static PyObject *dtype_names(void)
{
    PyObject *names = PyTuple_New(TARN_DTYPE_COUNT);

    for (uint32_t d = 0; names && d < TARN_DTYPE_COUNT; d++) {
        PyObject *name = dtype_name(d);
        if (!name)
            Py_CLEAR(names);
        else
            PyTuple_SET_ITEM(names, d, name);
    }
    return names;
}

static PyMethodDef functions[] = {
    {"lib_version", lib_version, METH_NOARGS,
     "lib_version()\n--\n\nVersion of libtarn, \"MAJOR.MINOR.PATCH\"."},
    {"transports", transports, METH_NOARGS, "[(name, why it is not usable or None)] of each."},
    {"_seconds", args_checked_seconds, METH_VARARGS, NULL},
    {"_set_error_maker", error_set_maker, METH_O, NULL},
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "tarn._tarn", .m_doc = "The extension below the package tarn.",
    .m_size = -1,          .m_methods = functions,
};

static PyObject *no_pickle(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyErr_Format(PyExc_TypeError,
                 "%s: it belongs to this process and cannot be pickled or copied: make one in each process",
                 Py_TYPE(self)->tp_name);
    return NULL;
}

/* A method of all our types: without it, pickle's error has no remedy. */
static PyMethodDef pickle_methods[] = {
    {"__reduce__", no_pickle, METH_NOARGS, NULL},
    {0},
};

/* Adds a type's methods that are defined in other files. */
static int add_methods(PyTypeObject *type, PyMethodDef *methods)
{
    for (PyMethodDef *m = methods; m->ml_name; m++) {
        PyObject *f = PyDescr_NewMethod(type, m);
        if (!f)
            return -1;
        int rc = PyDict_SetItemString(type->tp_dict, m->ml_name, f);
        Py_DECREF(f);
        if (rc < 0)
            return -1;
    }
    PyType_Modified(type);
    return 0;
}

static const struct {
    const char *name; /* in the module; NULL: not there */
    PyTypeObject *type;
} types[] = {
    {"Client", &client_type},
    {"Hits", &hits_type},
    {"Piece", &piece_type},
    {"Layout", &layout_type},
    {"Pages", &pages_type},
    {"PutSession", &session_type},
    {"Operation", &operation_type},
    {"Registration", &registration_type},
    {"Window", &window_type},
    {"Lease", &lease_type},
    {"WindowMemory", &window_memory_type},
    {"Reach", &reach_type},
    {"Channel", &channel_type},
    {"Table", &table_type},
    {NULL, &view_type},
};
#define TYPES (sizeof types / sizeof types[0])

static int make_types(void)
{
    PyMethodDef *const of_client[] = {get_methods,      put_methods,       lookup_methods, view_methods,
                                      session_methods,  operation_methods, submit_methods, manage_methods,
                                      register_methods, channel_methods,   table_methods};

    for (size_t i = 0; i < TYPES; i++)
        if (PyType_Ready(types[i].type) < 0 || add_methods(types[i].type, pickle_methods) < 0)
            return -1;
    for (size_t i = 0; i < sizeof of_client / sizeof of_client[0]; i++)
        if (add_methods(&client_type, of_client[i]) < 0)
            return -1;
    return info_setup();
}

/* Takes the reference to o, which may be NULL after an exception. */
static int add(PyObject *module, const char *name, PyObject *o)
{
    if (o && PyModule_AddObject(module, name, o) == 0)
        return 0;
    Py_XDECREF(o);
    return -1;
}

static int add_type(PyObject *module, const char *name, PyTypeObject *type)
{
    Py_INCREF(type);
    return add(module, name, (PyObject *)type);
}

static int add_types(PyObject *module)
{
    for (size_t i = 0; i < TYPES; i++)
        if (types[i].name && add_type(module, types[i].name, types[i].type) < 0)
            return -1;
    return add_type(module, "TensorInfo", &info_type);
}

PyMODINIT_FUNC PyInit__tarn(void);

PyMODINIT_FUNC PyInit__tarn(void)
{
    if (make_types() < 0 || value_setup() < 0 || torch_setup() < 0 || dlpack_setup() < 0)
        return NULL;
    if (client_setup() != 0)
        return PyErr_NoMemory();
    PyObject *m = PyModule_Create(&definition);
    if (!m)
        return NULL;
    if (add_types(m) < 0 || add(m, "errors", error_table()) < 0 || add(m, "dtypes", dtype_names()) < 0 ||
        PyModule_AddIntConstant(m, "MISS", TARN_STATE_MISS) < 0 ||
        PyModule_AddIntConstant(m, "HIT", TARN_STATE_HIT) < 0 ||
        PyModule_AddIntConstant(m, "NODE_DOWN", TARN_STATE_NODE_DOWN) < 0) {
        Py_DECREF(m);
        return NULL;
    }
    return m;
}
