// Unit tests of the native core without Python, to be built with sanitizers: parts_test LIBRARY_FOLDER TEMPORARY.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "backend.hpp"
#include "executor.hpp"
#include "memory_pool.hpp"
#include "thread_pool.hpp"
#include "tuning_cache.hpp"

namespace {

int failures = 0;

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition);    \
      ++failures;                                                            \
    }                                                                        \
  } while (0)

template <class F>
void parallel(int64_t count, int64_t grain, F f) {
  mge::parallel_for(
      count, grain,
      [](int64_t begin, int64_t end, int32_t worker, void* data) { (*static_cast<F*>(data))(begin, end, worker); }, &f);
}

void test_each_item_is_done_once() {
  for (int64_t count : {0, 1, 7, 64, 1000, 100'000}) {
    std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
    std::atomic<int> bad{0};
    for (int64_t grain : {1, 3, 64, 5000}) {
      for (auto& s : seen) s = 0;
      parallel(count, grain, [&](int64_t begin, int64_t end, int32_t worker) {
        if (begin % grain || end - begin > grain || worker < 0 || worker >= mge::thread_count()) ++bad;
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      for (auto& s : seen) bad += s != 1;
    }
    CHECK(bad == 0);
  }
}

void test_many_small_regions() {
  std::atomic<int64_t> sum{0};
  for (int i = 0; i < 5000; ++i) {
    parallel(4, 1, [&](int64_t begin, int64_t, int32_t) { sum += begin + 1; });
    if (i % 1000 == 0) usleep(2000);  // so that workers park
  }
  CHECK(sum == 5000 * 10);
}

void test_regions_inside_regions_and_beside_each_other() {
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t)
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i)
        parallel(8, 1, [&](int64_t, int64_t, int32_t) {
          parallel(16, 4, [&](int64_t begin, int64_t end, int32_t) { sum += end - begin; });
        });
    });
  for (auto& c : callers) c.join();
  CHECK(sum == 4 * 200 * 8 * 16);
}

void test_no_two_bodies_share_a_worker() {
  std::vector<std::atomic<int>> busy(static_cast<size_t>(mge::thread_count()));
  std::atomic<int> bad{0};
  parallel(500, 1, [&](int64_t, int64_t, int32_t worker) {
    if (busy[static_cast<size_t>(worker)]++) ++bad;
    std::this_thread::yield();
    --busy[static_cast<size_t>(worker)];
  });
  CHECK(bad == 0);
}

void test_the_number_of_threads_can_change() {
  for (int32_t count : {1, 3, 2, 4}) {
    mge::set_thread_count(count);
    CHECK(mge::thread_count() == count);
    test_each_item_is_done_once();
  }
}

void test_a_child_builds_its_own_pool() {
  test_each_item_is_done_once();
  pid_t pid = fork();
  if (pid == 0) {
    std::atomic<int> sum{0};
    parallel(100, 1, [&](int64_t, int64_t, int32_t) { ++sum; });
    _exit(sum == 100 ? 0 : 1);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  CHECK(status == 0);
}

class CountingMemory : public mge::RawMemory {
 public:
  int allocate(size_t nbytes, void** out, MgeError* error) override {
    if (total + nbytes > limit) return mge_fail(error, MGE_OUT_OF_MEMORY, "full");
    total += nbytes;
    *out = aligned_alloc(64, nbytes);
    return MGE_OK;
  }
  void free(void* memory, size_t nbytes) override {
    total -= nbytes;
    ::free(memory);
  }
  size_t total = 0, limit = 1 << 20;
};

void test_the_memory_pool() {
  CountingMemory raw;
  {
    mge::MemoryPool pool(raw);
    MgeError error = mge::no_error();
    void *a, *b, *c;
    CHECK(pool.take(1000, &a, &error) == MGE_OK && pool.take(0, &b, &error) == MGE_OK && b);
    CHECK(pool.statistics().in_use_bytes == 1024 + 64 && pool.statistics().live_blocks == 2);
    memset(a, 1, 1000);
    pool.give(a, 1000);
    CHECK(pool.take(1001, &c, &error) == MGE_OK && c == a && pool.statistics().cache_hits == 1);
    pool.give(c, 1001);
    pool.give(b, 0);
    CHECK(pool.statistics().cached_bytes == 1088 && raw.total == 1088);
    // What is cached is given up before memory is said to be out.
    CHECK(pool.take((1 << 20) - 512, &a, &error) == MGE_OK && pool.statistics().cached_bytes == 0);
    CHECK(pool.take(1 << 20, &b, &error) == MGE_OUT_OF_MEMORY && strstr(error.message, "1048576 bytes were asked for"));
    CHECK(strstr(error.message, "full"));
    pool.give(a, (1 << 20) - 512);
    pool.trim();
    pool.set_limit(100);
    CHECK(pool.take(128, &a, &error) == MGE_OUT_OF_MEMORY && strstr(error.message, "the limit is 100"));
    CHECK(pool.take(64, &a, &error) == MGE_OK);
    pool.set_cache_limit(0);
    pool.give(a, 64);
    CHECK(raw.total == 0 && pool.statistics().live_blocks == 0);
    CHECK(pool.take(~size_t{0} - 3, &a, &error) == MGE_OUT_OF_MEMORY);
    pool.reset_peak();
    CHECK(pool.statistics().peak_bytes == 0);
    pool.set_limit(0);
    pool.set_cache_limit(1 << 20);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&pool] {
        MgeError mine = mge::no_error();
        for (size_t i = 0; i < 500; ++i) {
          void* block;
          if (pool.take(64 * (i % 7), &block, &mine) == MGE_OK) pool.give(block, 64 * (i % 7));
        }
      });
    for (auto& t : threads) t.join();
    CHECK(pool.statistics().in_use_bytes == 0);
  }
  CHECK(raw.total == 0);
}

void test_the_tuning_cache(const std::string& folder) {
  std::string path = folder + "/tuning", value;
  mge::TuningCache cache, other;
  cache.open(path), other.open(path);
  cache.put("a", "1"), cache.put("b key\n", std::string("\0\n", 2));
  CHECK(other.get("a", &value) && value == "1" && other.get("b key\n", &value) && value.size() == 2);
  CHECK(!other.get("c", &value) && cache.hash() == other.hash());
  for (int i = 0; i < 1000; ++i) cache.put("a", std::to_string(i));
  other.open(path);
  CHECK(other.get("a", &value) && value == "999" && other.size() == 2);
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  CHECK(text.size() < 20'000);  // written anew now and then
  srand(1);
  for (int i = 0; i < 200; ++i) {  // damage of any kind: no crash, and never a wrong value
    std::string damaged = text.substr(0, static_cast<size_t>(rand()) % (text.size() + 1));
    for (int k = 0; k < 3 && !damaged.empty(); ++k) damaged[static_cast<size_t>(rand()) % damaged.size()] ^= static_cast<char>(rand());
    std::ofstream(path, std::ios::binary) << damaged;
    other.open(path);
    if (other.get("b key\n", &value)) CHECK(value == std::string("\0\n", 2));
    other.put("new", "x");
    cache.open(path);
    CHECK(cache.get("new", &value) && value == "x");
  }
  cache.open(folder + "/no/such/folder/file");
  cache.put("k", "v");
  CHECK(cache.get("k", &value) && value == "v");
  std::vector<pid_t> children;
  std::string shared = folder + "/shared";
  for (int child = 0; child < 4; ++child) {
    children.push_back(fork());
    if (children.back() == 0) {
      mge::TuningCache mine;
      mine.open(shared);
      for (int i = 0; i < 100; ++i) mine.put(std::to_string(child) + " " + std::to_string(i), "value");
      _exit(0);
    }
  }
  for (pid_t pid : children) waitpid(pid, nullptr, 0);
  cache.open(shared);
  CHECK(cache.size() == 400 && cache.damaged() == 0);
}

MgeTensorType type_of(const std::vector<int64_t>& shape) {
  return {{MGE_FLOAT, 32, 1}, static_cast<int32_t>(shape.size()), shape.data()};
}

std::shared_ptr<mge::Kernel> kernel_of(const mge::Backend& backend, const char* name, size_t inputs,
                                       const std::vector<int64_t>& shape) {
  std::vector<MgeTensorType> types(inputs, type_of(shape));
  MgeTensorType output = type_of(shape);
  MgeOp op{};
  op.struct_size = sizeof op, op.op_version = 1, op.name = name;
  op.inputs = types.data(), op.outputs = &output;
  op.input_count = static_cast<uint32_t>(inputs), op.output_count = 1;
  MgeError error = mge::no_error();
  return mge::Kernel::prepare(backend, 0, op, &error);
}

class Calls : public mge::HostCalls {
 public:
  bool call(uint32_t first, uint32_t last, int64_t*, uint32_t* failed) override {
    for (uint32_t i = first; i < last; ++i)
      if (!body(i)) return *failed = i, false;
    return true;
  }
  bool interrupted() override { return false; }
  std::function<bool(uint32_t)> body;
};

// x -> a = x + x; b = a + x; c = b * a; d = host(c); result = -d, in an arena where dead values are reused.
void test_the_executor(const mge::Backend& backend, bool has_neg) {
  std::vector<int64_t> shape{37};
  MgeDataType f32{MGE_FLOAT, 32, 1};
  auto add = kernel_of(backend, "add", 2, shape), mul = kernel_of(backend, "mul", 2, shape);
  auto neg = has_neg ? kernel_of(backend, "neg", 1, shape) : nullptr;
  CHECK(add && mul);
  std::vector<mge::PlanValue> values{{f32, shape, mge::Place::INPUT, 0}, {f32, shape, mge::Place::ARENA, 0},
                                     {f32, shape, mge::Place::ARENA, 192}, {f32, shape, mge::Place::ARENA, 384},
                                     {f32, shape, mge::Place::RESULT, 0}, {f32, shape, mge::Place::RESULT, 1}};
  // On two streams: b's bytes are read on the other one.
  std::vector<mge::PlanStep> steps{{add, {0, 0}, {1}, 0, {}, true}, {add, {1, 0}, {2}, 1, {0}, true},
                                   {mul, {2, 1}, {3}, 0, {1}, true}, {nullptr, {3}, {4}, 0, {2}, false},
                                   {neg, {4}, {5}, 0, {}, false}};
  MgeError error = mge::no_error();
  mge::Executor plan(values, steps, &error);
  CHECK(plan.is_good());
  size_t nbytes = 576 + plan.workspace_bytes();
  auto* arena = static_cast<char*>(aligned_alloc(64, (nbytes + 63) / 64 * 64));
  const mge::Region region{arena, arena + 576};
  std::vector<float> x(37), first(37), second(37);
  Calls calls;
  calls.body = [&](uint32_t step) {
    auto* c = reinterpret_cast<float*>(arena + 384);
    for (size_t i = 0; i < 37; ++i) step == 3 ? first[i] = c[i] + 1 : second[i] = -first[i];
    return x[0] >= 0;
  };
  std::vector<int64_t> times(2 * steps.size());
  for (int run = 0; run < 1000; ++run) {
    for (size_t i = 0; i < 37; ++i) x[i] = static_cast<float>(run % 50) + static_cast<float>(i);
    void *inputs[] = {x.data()}, *results[] = {first.data(), second.data()};
    mge::RunFailure failure = plan.run(&region, inputs, results, &calls, run % 2 ? times.data() : nullptr);
    CHECK(failure.kind == mge::RunFailure::NONE);
    for (size_t i = 0; i < 37; ++i) CHECK(second[i] == -(3 * x[i] * 2 * x[i] + 1));
    if (failures) break;
  }
  x[0] = -1;
  void *inputs[] = {x.data()}, *results[] = {first.data(), second.data()};
  mge::RunFailure failure = plan.run(&region, inputs, results, &calls, nullptr);
  CHECK(failure.kind == mge::RunFailure::HOST_CALL && failure.step == 3);
  if (has_neg) {
    x[0] = 0, x[5] = 1001;
    calls.body = [&](uint32_t) { return first = x, true; };
    failure = plan.run(&region, inputs, results, &calls, nullptr);
    CHECK(failure.kind == mge::RunFailure::KERNEL && failure.step == 4);
    CHECK(!strcmp(failure.error.message, "the value is 1001"));
  }
  free(arena);
}

// x -> a copy on the device, sum = a + a, product = sum * a on another stream, copied back; y = host(product).
// The host cannot touch the device's memory, and a wait that is missing gives wrong numbers.
void test_copies(const mge::Backend& backend) {
  std::vector<int64_t> shape{37};
  MgeDataType f32{MGE_FLOAT, 32, 1};
  auto add = kernel_of(backend, "add", 2, shape), mul = kernel_of(backend, "mul", 2, shape);
  CHECK(add && mul);
  enum { HOST, DEVICE };
  std::vector<mge::PlanValue> values{{f32, shape, mge::Place::INPUT, 0, HOST}, {f32, shape, mge::Place::ARENA, 0, DEVICE},
                                     {f32, shape, mge::Place::ARENA, 192, DEVICE}, {f32, shape, mge::Place::RESULT, 0, DEVICE},
                                     {f32, shape, mge::Place::ARENA, 64, HOST}};
  auto copy = [&](MgeCopyKind kind) { return mge::PlanCopy{&backend, 0, kind, 37 * sizeof(float)}; };
  std::vector<mge::PlanStep> steps{
      {nullptr, {0}, {1}, 0, {}, true, HOST, copy(MGE_HOST_TO_DEVICE)}, {add, {1, 1}, {2}, 1, {0}, true, DEVICE, {}},
      {mul, {2, 1}, {3}, 2, {1}, true, DEVICE, {}}, {nullptr, {3}, {1}, 0, {2}, true, DEVICE, copy(MGE_DEVICE_TO_DEVICE)},
      {nullptr, {1}, {4}, 1, {3}, true, HOST, copy(MGE_DEVICE_TO_HOST)}, {nullptr, {4}, {}, 0, {4}, false, HOST, {}}};
  MgeError error = mge::no_error();
  mge::DeviceMemory raw(backend, 0);
  mge::MemoryPool pool(raw);
  void *arena = nullptr, *result = nullptr;
  CHECK(pool.allocate(448, &arena, &error) == MGE_OK && pool.take(148, &result, &error) == MGE_OK);
  {
    mge::Executor plan(values, steps, &error, {{1, 0}, backend.dlpack_device(0)});
    CHECK(plan.is_good() && plan.workspace_bytes(HOST) == 0 && plan.workspace_bytes(DEVICE) == 0);
    auto* host = static_cast<char*>(aligned_alloc(64, 256));
    const mge::Region regions[] = {{host, nullptr}, {arena, nullptr}};
    std::vector<float> x(37), y(37);
    Calls calls;
    calls.body = [&](uint32_t) { return memcpy(y.data(), host + 64, 148), true; };
    std::vector<int64_t> times(2 * steps.size());
    for (int run = 0; run < 1000 && !failures; ++run) {
      for (size_t i = 0; i < 37; ++i) x[i] = static_cast<float>(run % 50) + static_cast<float>(i);
      void *inputs[] = {x.data()}, *results[] = {result};
      mge::RunFailure failure = plan.run(regions, inputs, results, &calls, run % 100 ? nullptr : times.data());
      CHECK(failure.kind == mge::RunFailure::NONE);
      for (size_t i = 0; i < 37; ++i) CHECK(y[i] == 2 * x[i] * x[i]);
    }
    free(host);
  }
  pool.give(result, 148);
  raw.free(arena, 448);
}

}  // namespace

int main(int, char** arguments) {
  std::string folder = arguments[1], temporary = arguments[2];
  mge::set_thread_count(4);
  test_each_item_is_done_once();
  test_many_small_regions();
  test_regions_inside_regions_and_beside_each_other();
  test_no_two_bodies_share_a_worker();
#if !defined(__SANITIZE_THREAD__)  // it does not follow a fork of a process with threads
  test_a_child_builds_its_own_pool();
  test_the_tuning_cache(temporary);
#endif
  test_the_number_of_threads_can_change();
  test_the_memory_pool();
  mge::LoadProblem problem;
  for (const char* name : {"probe", "fake_async"}) {
    const mge::Backend* backend = mge::Backend::load(folder + "/lib" + name + ".so", &problem);
    CHECK(backend);
    if (!backend) fprintf(stderr, "%s\n", problem.text.c_str());
    if (backend) test_the_executor(*backend, !backend->has_streams());
  }
  const mge::Backend* own = mge::Backend::load(folder + "/libown_memory.so", &problem);
  CHECK(own);
  if (own) test_copies(*own);
  CHECK(!mge::Backend::load(folder + "/libnone.so", &problem) && problem.kind == mge::LoadProblem::NOT_LOADED);
  printf(failures ? "%d checks failed\n" : "good\n", failures);
  return failures != 0;
}
