// What all parts of bind.cc include.
//
// Python.h comes first; nothing outside this folder and bind.cc includes it.
#ifndef MGE_NATIVE_BIND_COMMON_HPP
#define MGE_NATIVE_BIND_COMMON_HPP

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <structmember.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../backend.hpp"
#include "../executor.hpp"
#include "../memory_pool.hpp"
#include "../thread_pool.hpp"
#include "../tuning_cache.hpp"

namespace py = pybind11;

#endif  // MGE_NATIVE_BIND_COMMON_HPP
