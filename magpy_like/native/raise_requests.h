// The request to raise what was sent to a thread (PyThreadState_SetAsyncExc), on Python 3.11.
//
// There one request stands for all threads of an interpreter, from the sending until a thread raises;
// and no thread enters a traced function while a request stands: it waits, and if the receiver waits
// for it, both do forever. What a thread receives during own work therefore makes no request. Later
// versions enter the function.
#pragma once
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#include <Python.h>

#if PY_VERSION_HEX < 0x030C0000
#undef HAVE_STD_ATOMIC  // C's `_Atomic` is no C++; the other definition has the same layout
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>

#include <cstdlib>

// Has requests for a thread's state go to an interpreter that has no threads. The state must not be
// deleted meanwhile.
inline void withhold_requests(PyThreadState *state) {
  static PyInterpreterState *without_threads = (PyInterpreterState *)calloc(1, sizeof(PyInterpreterState));
  if (without_threads) state->interp = without_threads;
}

inline void allow_requests(PyThreadState *state, PyInterpreterState *interpreter) {
  state->interp = interpreter;
}

// Ends the request that stands. Each other thread that has received an exception makes it again, when
// it takes the interpreter's lock.
inline void withdraw_request(bool is_main_thread) {
  _ceval_state &state = PyInterpreterState_Get()->ceval;
  state.pending.async_exc = 0;
  _Py_atomic_store_relaxed(&state.eval_breaker, 0);
  bool has_signals = _Py_atomic_load_relaxed(&_PyRuntime.ceval.signals_pending) ||
                     _Py_atomic_load_relaxed(&state.pending.calls_to_do);
  if ((is_main_thread && has_signals) || _Py_atomic_load_relaxed(&state.gil_drop_request))
    _Py_atomic_store_relaxed(&state.eval_breaker, 1);
}
#else
inline void withhold_requests(PyThreadState *) {}
inline void allow_requests(PyThreadState *, PyInterpreterState *) {}
inline void withdraw_request(bool) {}
#endif
