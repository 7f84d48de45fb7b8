// State of interruption, shared by the modules that begin and end own work.
#pragma once
#include <atomic>

struct Interrupts {
  std::atomic<int> depth{0};        // > 0: the main thread is at own work, which no handler interrupts
  std::atomic<bool> waiting{false};  // signals have arrived meanwhile
  std::atomic<bool> passed{false};   // one was passed on to Python, whose handler may not have run yet
  void (*deliver)() = nullptr;       // passes them on to Python's own signal handler
  bool (*is_main_thread)() = nullptr;
};
