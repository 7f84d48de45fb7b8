"""The C++ printer: loop nests as C++ functions with SIMD and OpenMP."""
