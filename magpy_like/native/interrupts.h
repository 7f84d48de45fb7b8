// State of interruption, shared by the modules that begin and end own work.
#pragma once
#include <atomic>

#include "raise_requests.h"

struct Interrupts;

// The own work of one thread, which neither a signal's handler nor an exception that another thread
// sends (PyThreadState_SetAsyncExc) interrupts.
struct OwnWork {
  Interrupts *interrupts;
  unsigned long thread;                // identifier
  bool is_main;
  int depth = 0;                       // > 0: the thread is at own work
  int scopes = 0;                      // of `own_work`, entered and not left
  PyThreadState *stand_in = nullptr;   // receives what is sent during own work; exists in a scope
  unsigned long safe_points = 0;       // passed until now: places at which what waits may come

  inline void set_depth(int value);
  inline void receive();
  inline void pass_on();
  bool holds_exception() const { return stand_in && stand_in->async_exc; }
};

struct Interrupts {
  std::atomic<int> depth{0};        // that of the main thread, for signals
  std::atomic<bool> waiting{false};  // signals have arrived meanwhile
  std::atomic<bool> passed{false};   // one was passed on to Python, whose handler may not have run yet
  void (*deliver)() = nullptr;       // passes them on to Python's own signal handler
  OwnWork *(*own_work)() = nullptr;  // that of this thread
};

constexpr unsigned long NO_THREAD = 0;

// Has the stand-in receive what is sent to the thread. PyThreadState_SetAsyncExc sets an exception in
// the newest state that has the thread's identifier, and the interpreter raises what is set in the
// state that is current.
void OwnWork::receive() {
  PyThreadState *current = PyThreadState_Get();
  if (!stand_in) return;
  stand_in->thread_id = thread;
  if (!current->async_exc || stand_in->async_exc) return;
  stand_in->async_exc = current->async_exc;
  current->async_exc = nullptr;
  withdraw_request(is_main);
}

// Sends what the stand-in has received to the thread again; the interpreter raises it at its next check.
void OwnWork::pass_on() {
  if (!stand_in) return;
  stand_in->thread_id = NO_THREAD;
  PyObject *sent = stand_in->async_exc;
  if (!sent) return;
  stand_in->async_exc = nullptr;
  PyThreadState_SetAsyncExc(thread, sent);
  Py_DECREF(sent);
}

// Begins, continues or ends own work.
void OwnWork::set_depth(int value) {
  depth = value;
  if (is_main) interrupts->depth = value;
  safe_points += !value;
  if (value)
    receive();
  else
    pass_on();
}
