// Recognises exceptions that another thread has sent (PyThreadState_SetAsyncExc) after they were raised.
//
// The interpreter raises them where it checks whether it has to do something else: where a function is
// entered, after a call, at a jump backwards. It makes the exception from a class without arguments.
#pragma once
#include <Python.h>
#include <opcode.h>

#include <initializer_list>

// True for an instruction at which the interpreter makes the check; the opcode is not specialized.
inline bool checks_for_requests(int opcode) {
  switch (opcode) {
    case RESUME:
    case JUMP_BACKWARD:
    case CALL:
    case CALL_FUNCTION_EX:
#ifdef PRECALL
    case PRECALL:
#endif
#ifdef CALL_KW
    case CALL_KW:
#endif
#ifdef POP_JUMP_BACKWARD_IF_TRUE
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_TRUE:
    case POP_JUMP_BACKWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
#endif
      return true;
    default:
      return false;
  }
}

// True if the function takes no other argument than `self`, or can do without the others.
inline bool needs_no_arguments(PyObject *function) {
  if (!PyFunction_Check(function)) return false;
  PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(function);
  PyObject *defaults = PyFunction_GET_DEFAULTS(function);
  PyObject *keyword_defaults = PyFunction_GET_KW_DEFAULTS(function);
  Py_ssize_t optional = defaults ? PyTuple_GET_SIZE(defaults) : 0;
  Py_ssize_t optional_keywords = keyword_defaults ? PyDict_GET_SIZE(keyword_defaults) : 0;
  return code->co_argcount - optional <= 1 && code->co_kwonlyargcount <= optional_keywords;
}

// True if the exception may have been made from its class alone. StopIteration and GeneratorExit are
// what iteration raises, and nothing to send.
inline bool is_made_without_arguments(PyObject *error) {
  for (PyObject *kind : {PyExc_StopIteration, PyExc_StopAsyncIteration, PyExc_GeneratorExit})
    if (PyErr_GivenExceptionMatches(error, kind)) return false;
  PyObject *args = ((PyBaseExceptionObject *)error)->args;
  if (!args || !PyTuple_GET_SIZE(args)) return true;
  PyObject *name = PyUnicode_InternFromString("__init__");
  PyObject *initialiser = name ? _PyType_Lookup(Py_TYPE(error), name) : nullptr;
  Py_XDECREF(name);
  return initialiser && needs_no_arguments(initialiser);
}

// True if an exception that has been raised and caught was sent, as far as its traceback tells.
inline bool was_sent(PyObject *error) {
  if (!PyExceptionInstance_Check(error) || !is_made_without_arguments(error)) return false;
  PyTracebackObject *at = (PyTracebackObject *)((PyBaseExceptionObject *)error)->traceback;
  if (!at) return false;
  while (at->tb_next) at = at->tb_next;
  PyCodeObject *code = PyFrame_GetCode(at->tb_frame);
  PyObject *bytes = PyCode_GetCode(code);
  Py_DECREF(code);
  if (!bytes) {
    PyErr_Clear();
    return false;
  }
  bool checks = at->tb_lasti >= 0 && at->tb_lasti < PyBytes_GET_SIZE(bytes) &&
                checks_for_requests((unsigned char)PyBytes_AS_STRING(bytes)[at->tb_lasti]);
  Py_DECREF(bytes);
  return checks;
}
