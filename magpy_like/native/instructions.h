// The instructions of code objects.
#pragma once
#include "frames.h"

#include <unordered_map>
#include <vector>

namespace {

struct Instruction {
  unsigned char opcode = 0;
  bool first = false;  // false within an EXTENDED_ARG sequence: its first unit is reported
  int oparg = 0;
};

using DecodedCode = std::unordered_map<PyCodeObject *, std::vector<Instruction>>;  // keys owned

// Returns the instructions of a code object by index, without specialization and instrumentation.
const std::vector<Instruction> &decode(DecodedCode &codes, PyCodeObject *code) {
  auto found = codes.find(code);
  if (found != codes.end()) return found->second;
  std::vector<Instruction> &out = codes[code];
  Py_INCREF(code);
  PyObject *bytes = PyCode_GetCode(code);
  if (!bytes) {
    PyErr_Clear();
    return out;
  }
  const unsigned char *b = (const unsigned char *)PyBytes_AS_STRING(bytes);
  int n = (int)PyBytes_GET_SIZE(bytes) / 2;
  out.resize(n);
  for (int i = 0; i < n; i++) {
    int start = i, arg = b[2 * i + 1];
    while (b[2 * i] == EXTENDED_ARG && i + 1 < n) {
      i++;
      arg = (arg << 8) | b[2 * i + 1];
    }
    out[start].opcode = b[2 * i];
    out[start].oparg = arg;
    out[start].first = true;
  }
  Py_DECREF(bytes);
  return out;
}

constexpr int AT_RETURN = -1;  // in place of an offset: any instruction that returns from the frame

bool is_at(const Instruction &instruction, int offset, int target) {
  if (target != AT_RETURN) return offset == target;
#ifdef RETURN_CONST
  if (instruction.opcode == RETURN_CONST) return true;
#endif
  return instruction.opcode == RETURN_VALUE;
}

}  // namespace
