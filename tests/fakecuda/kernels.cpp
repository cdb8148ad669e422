// Threads for kernels, and kernels for tests of the stand-in itself and of what runs beside others.
#include "driver.h"
#include <atomic>
#include <sched.h>
#include <thread>

namespace fake
{

std::map<std::string, Entry> &entries()
{
    static auto &all = *new std::map<std::string, Entry>;
    return all;
}

// A thread that waits for the next thing to do.
struct Worker {
    std::condition_variable wanted;
    std::function<void()> job;
};
static std::mutex &crew_lock = *new std::mutex;
static std::vector<Worker *> &crew = *new std::vector<Worker *>; // who has nothing to do

static void work(Worker *self)
{
    std::unique_lock held(crew_lock);
    for (;;) {
        self->wanted.wait(held, [&] { return self->job != nullptr; });
        auto job = std::move(self->job);
        self->job = nullptr;
        held.unlock();
        pass_guard();
        job();
        held.lock();
    }
}

void together(uint32_t n, const std::function<void(uint32_t)> &part)
{
    std::condition_variable ended;
    uint32_t left = n;
    std::unique_lock held(crew_lock);
    for (uint32_t i = 0; i < n; i++) {
        if (crew.empty()) {
            auto fresh = new Worker;
            crew.push_back(fresh);
            std::thread(work, fresh).detach();
        }
        Worker *worker = crew.back();
        crew.pop_back();
        worker->job = [&, i, worker] {
            part(i);
            std::lock_guard inner(crew_lock);
            // Before anybody sees the end: who then launched something would make one thread more.
            crew.push_back(worker);
            if (--left == 0)
                ended.notify_all();
        };
        worker->wanted.notify_one();
    }
    ended.wait(held, [&] { return left == 0; });
}

static void each(const Grid &grid, const std::function<void(uint32_t, uint32_t)> &thread)
{
    uint32_t threads = grid.blocks[0] * grid.blocks[1] * grid.blocks[2] * grid.threads;
    together(threads, [&](uint32_t i) { thread(i, threads); });
}

template <class T> static T value(void *const *arguments, int i)
{
    return *(T *)arguments[i];
}

// fakecuda_busy(float *x, uint64_t count, uint32_t rounds): x = x / 2 + 1, so often.
static Kernel busy("fakecuda_busy",
                   {{8, 8, 4}, 32, 0, [](void *const *arguments, const Grid &grid) {
                        auto x = value<float *>(arguments, 0);
                        auto count = value<uint64_t>(arguments, 1);
                        auto rounds = value<uint32_t>(arguments, 2);
                        each(grid, [=](uint32_t i, uint32_t n) {
                            for (uint64_t k = i; k < count; k += n)
                                for (uint32_t r = 0; r < rounds; r++)
                                    x[k] = x[k] / 2 + 1;
                        });
                    }});

// fakecuda_count(uint64_t *at): each thread adds 1.
static Kernel count("fakecuda_count", {{8}, 16, 0, [](void *const *arguments, const Grid &grid) {
                                           auto at = value<uint64_t *>(arguments, 0);
                                           each(grid, [=](uint32_t, uint32_t) {
                                               __atomic_add_fetch(at, 1, __ATOMIC_RELAXED);
                                           });
                                       }});

// fakecuda_await(uint64_t *at, uint64_t least): until the word is so much.
static Kernel await("fakecuda_await", {{8, 8}, 16, 0, [](void *const *arguments, const Grid &grid) {
                                           auto at = value<uint64_t *>(arguments, 0);
                                           auto least = value<uint64_t>(arguments, 1);
                                           each(grid, [=](uint32_t, uint32_t) {
                                               while (__atomic_load_n(at, __ATOMIC_ACQUIRE) < least)
                                                   sched_yield();
                                           });
                                       }});

// fakecuda_append(uint64_t *row, uint64_t x): row[0] entries lie behind row[0]; x is one more.
static Kernel append("fakecuda_append",
                     {{8, 8}, 16, 0, [](void *const *arguments, const Grid &) {
                          auto row = value<uint64_t *>(arguments, 0);
                          uint64_t at = __atomic_add_fetch(row, 1, __ATOMIC_RELAXED);
                          __atomic_store_n(&row[at], value<uint64_t>(arguments, 1),
                                           __ATOMIC_RELEASE);
                      }});

// fakecuda_pingpong(uint64_t *at, uint64_t, uint32_t rounds): two blocks answer each other.
static Kernel pingpong("fakecuda_pingpong",
                       {{8, 8, 4}, 16, 0, [](void *const *arguments, const Grid &grid) {
                            auto at = value<uint64_t *>(arguments, 0);
                            auto rounds = value<uint32_t>(arguments, 2);
                            each(grid, [=](uint32_t i, uint32_t) {
                                for (uint64_t r = 1; i < 2 && r <= rounds; r++) {
                                    if (i == 0)
                                        __atomic_store_n(&at[0], r, __ATOMIC_RELEASE);
                                    while (__atomic_load_n(&at[16 * (1 - i)], __ATOMIC_ACQUIRE) < r)
                                        sched_yield();
                                    if (i == 1)
                                        __atomic_store_n(&at[16], r, __ATOMIC_RELEASE);
                                }
                            });
                        }});

// fakecuda_copy(uint64_t *at, uint64_t count, uint32_t): the words at `count` become those at 0.
static Kernel copy("fakecuda_copy",
                   {{8, 8, 4}, 16, 0, [](void *const *arguments, const Grid &grid) {
                        auto at = value<uint64_t *>(arguments, 0);
                        auto count = value<uint64_t>(arguments, 1);
                        each(grid, [=](uint32_t i, uint32_t n) {
                            for (uint64_t k = i; k < count; k += n)
                                at[count + k] = at[k];
                        });
                    }});

// fakecuda_rows(float *a, float *b, float *c, uint32_t n, uint32_t k, uint32_t next_of_a, uint32_t
// next_of_c): c = a b, a block for each 128 x 128 of c, as `rows` in tests/gpu/kernels.py.
static Kernel rows("fakecuda_rows",
                   {{8, 8, 8, 4, 4, 4, 4}, 32, 0, [](void *const *arguments, const Grid &grid) {
                        auto a = value<const float *>(arguments, 0);
                        auto b = value<const float *>(arguments, 1);
                        auto c = value<float *>(arguments, 2);
                        uint64_t n = value<uint32_t>(arguments, 3);
                        uint64_t k = value<uint32_t>(arguments, 4);
                        uint64_t next_of_a = value<uint32_t>(arguments, 5);
                        uint64_t next_of_c = value<uint32_t>(arguments, 6);
                        uint64_t each = grid.blocks[1] * 128ull;
                        for (uint64_t row = 0; row < grid.blocks[2] * each; row++) {
                            uint64_t z = row / each, r = row % each;
                            for (uint64_t j = 0; j < grid.blocks[0] * 128ull; j++) {
                                float sum = 0;
                                for (uint64_t i = 0; i < k; i++)
                                    sum += a[(z * next_of_a + r) * k + i] * b[i * n + j];
                                c[(z * next_of_c + r) * n + j] = sum;
                            }
                        }
                    }});

// fakecuda_call(void (*function)(uint64_t), uint64_t argument): a test's own function, as a kernel.
static Kernel call("fakecuda_call", {{8, 8}, 16, 0, [](void *const *arguments, const Grid &) {
                                         auto function = value<void (*)(uint64_t)>(arguments, 0);
                                         function(value<uint64_t>(arguments, 1));
                                     }});

} // namespace fake
