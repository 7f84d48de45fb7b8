"""What the C++ and the Triton printer share."""
