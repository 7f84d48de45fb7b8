// Depth of a frame's operand stack.
//
// CPython 3.12 and 3.13 do not store the stack pointer in the frame before they call the trace function
// for an instruction (from 3.12.3 only for a line). There, the depth at each instruction is computed from
// the code object: by the stack effect of every instruction, along jumps and into exception handlers.
// CPython 3.11 stores it.
#pragma once
#include "interpreter_frame.h"
#define STACK_POINTER_IS_STORED (PY_VERSION_HEX < 0x030C0000)

#if STACK_POINTER_IS_STORED

inline int operand_depth(_PyInterpreterFrame *f) { return f->stacktop - code_of(f)->co_nlocalsplus; }

#else

#include <memory>
#include <vector>

namespace stack_depth {

struct Handler {
  int start, end, target, depth;
};

inline int read_varint(const unsigned char *&p) {
  int value = *p & 63;
  while (*p & 64) {
    p++;
    value = (value << 6) | (*p & 63);
  }
  p++;
  return value;
}

inline std::vector<Handler> read_handlers(PyCodeObject *code) {
  std::vector<Handler> out;
  const unsigned char *p = (const unsigned char *)PyBytes_AS_STRING(code->co_exceptiontable);
  const unsigned char *end = p + PyBytes_GET_SIZE(code->co_exceptiontable);
  while (p < end) {
    int start = read_varint(p), size = read_varint(p), target = read_varint(p), packed = read_varint(p);
    // Depth at the handler: the kept operands, the offset if requested, and the exception.
    out.push_back({start, start + size, target, (packed >> 1) + (packed & 1) + 1});
  }
  return out;
}

inline bool is_jump(int opcode) {
  switch (opcode) {
    case JUMP_FORWARD: case JUMP_BACKWARD: case JUMP_BACKWARD_NO_INTERRUPT: case FOR_ITER: case SEND:
    case POP_JUMP_IF_FALSE: case POP_JUMP_IF_TRUE: case POP_JUMP_IF_NONE: case POP_JUMP_IF_NOT_NONE:
      return true;
    default:
      return false;
  }
}

inline bool has_no_successor(int opcode) {
  switch (opcode) {
    case JUMP_FORWARD: case JUMP_BACKWARD: case JUMP_BACKWARD_NO_INTERRUPT: case RETURN_VALUE:
    case RETURN_CONST: case RAISE_VARARGS: case RERAISE:
      return true;
    default:
      return false;
  }
}

inline std::vector<int> compute_depths(PyCodeObject *code) {
  PyObject *bytes = PyCode_GetCode(code);
  if (!bytes) {
    PyErr_Clear();
    return {};
  }
  const unsigned char *b = (const unsigned char *)PyBytes_AS_STRING(bytes);
  int n = (int)PyBytes_GET_SIZE(bytes) / 2;
  std::vector<int> depth(n, -1);
  std::vector<Handler> table = read_handlers(code);
  std::vector<int> work;
  auto reach = [&](int at, int d) {
    if (at >= 0 && at < n && depth[at] < 0) {
      depth[at] = d;
      work.push_back(at);
    }
  };
  reach(0, 0);
  while (!work.empty()) {
    int at = work.back();
    work.pop_back();
    int d = depth[at], i = at, arg = b[2 * i + 1];
    while (b[2 * i] == EXTENDED_ARG && i + 1 < n) {
      i++;
      depth[i] = d;
      arg = (arg << 8) | b[2 * i + 1];
    }
    int op = b[2 * i];
    for (const Handler &h : table)
      if (i >= h.start && i < h.end) reach(h.target, h.depth);
    int next = i + 1;
    while (next < n && b[2 * next] == CACHE) next++;
    int effect_arg = op >= HAVE_ARGUMENT ? arg : 0;
    if (op == RETURN_GENERATOR) {
      reach(next, d + 1);
    } else if (is_jump(op)) {
      bool back = op == JUMP_BACKWARD || op == JUMP_BACKWARD_NO_INTERRUPT;
      int target = next + (back ? -arg : arg);
      // Exhausted, FOR_ITER leaves the iterator and a placeholder for END_FOR; SEND leaves its operands.
      int after = d + PyCompile_OpcodeStackEffectWithJump(op, effect_arg, 1);
      if (op == FOR_ITER) after = d + 1;
      if (op == SEND) after = d;
      reach(target, after);
      if (!has_no_successor(op)) reach(next, d + PyCompile_OpcodeStackEffectWithJump(op, effect_arg, 0));
    } else if (!has_no_successor(op)) {
      reach(next, d + PyCompile_OpcodeStackEffectWithJump(op, effect_arg, 0));
    }
  }
  Py_DECREF(bytes);
  return depth;
}

}  // namespace stack_depth

using Depths = std::vector<int>;

// The depths of a code object, computed once. The interpreter stores them with the code object.
inline const Depths &depths_of(PyCodeObject *code) {
  static const Py_ssize_t slot =
      PyUnstable_Eval_RequestCodeExtraIndex([](void *depths) { delete (Depths *)depths; });
  void *stored = nullptr;
  if (slot >= 0) PyUnstable_Code_GetExtra((PyObject *)code, slot, &stored);
  if (stored) return *(Depths *)stored;
  auto *depths = new Depths(stack_depth::compute_depths(code));
  if (slot < 0 || PyUnstable_Code_SetExtra((PyObject *)code, slot, depths) < 0) {
    PyErr_Clear();  // all slots are taken: they are computed anew each time
    static thread_local std::unique_ptr<Depths> last;
    last.reset(depths);
  }
  return *depths;
}

inline int operand_depth(_PyInterpreterFrame *f) {
  const Depths &depths = depths_of(code_of(f));
  int at = _PyInterpreterFrame_LASTI(f);
  return at >= 0 && at < (int)depths.size() && depths[at] > 0 ? depths[at] : 0;
}

#endif

inline PyObject **stack_base(_PyInterpreterFrame *f) { return f->localsplus + code_of(f)->co_nlocalsplus; }
