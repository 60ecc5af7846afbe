"""The core by itself, in C++, and how it is built, kept and packed (kernels/, vtensor/native)."""
