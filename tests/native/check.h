// The whole test framework of the native tests: named checks that say where they failed, and a list of tests.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

struct NativeTest {
  std::string name;
  std::function<void()> body;
};

inline std::vector<NativeTest>& native_tests() {
  static std::vector<NativeTest> tests;
  return tests;
}

inline int run_native_tests() {
  for (const NativeTest& test : native_tests()) {
    test.body();  // a failed CHECK ends the program
    std::printf("ok  %s\n", test.name.c_str());
    std::fflush(stdout);
  }
  std::printf("%zu passed, 0 failed\n", native_tests().size());
  return 0;
}

#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);              \
      std::abort();                                                                             \
    }                                                                                           \
  } while (false)

#define TEST(id)                                                                                \
  static void id();                                                                             \
  static const bool id##_listed = (native_tests().push_back({#id, id}), true);                  \
  static void id()
