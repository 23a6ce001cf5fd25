// What conv3x3.cu needs of a GPU, on a CPU: every thread of a program is a coroutine that runs up to the next barrier.
//
// Copies happen when they are awaited, matrix products when they are: a kernel that reads too early finds what was
// there, NaN at first, and one that overwrites too early spoils its products.
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#define EMULATED
#define DEVICE inline
#define __global__
#define __launch_bounds__(threads, programs)
using std::min;

struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
struct Place { int x, y, z; };

constexpr unsigned SIZE = 232448;
alignas(128) static char memory[SIZE];
static Place threadIdx, blockIdx, gridDim;
static bool is_bfloat16;
static unsigned used;  // bytes of memory that the kernel asked for

struct Thread {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(1 << 16);
    std::vector<std::function<void()>> copies, products;
    std::vector<std::vector<std::function<void()>>> batches;
    unsigned exchanged[8], exchanges;
    std::function<bool()> can_go_on;
    bool is_done;
};
struct Barrier { int count, arrived, rounds; };
static std::vector<Thread> threads;
static std::map<unsigned, Barrier> barriers;
static ucontext_t scheduler;

static Thread& self() { return threads[threadIdx.x]; }
static void pause(std::function<bool()> until) {
    const int number = threadIdx.x;
    threads[number].can_go_on = until;
    swapcontext(&threads[number].context, &scheduler);
    threadIdx.x = number;
}

static void run_all(std::vector<std::function<void()>>& work) {
    for (auto& each : work) each();
    work.clear();
}

static float number(unsigned short bits) {
    if (is_bfloat16) {
        unsigned whole = (unsigned)bits << 16;
        float value;
        memcpy(&value, &whole, 4);
        return value;
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
    return exponent == 31 ? NAN : bits >> 15 ? -size : size;
}

static unsigned short narrowed(float value) {  // to the nearest, ties to even
    if (is_bfloat16) {
        unsigned whole;
        memcpy(&whole, &value, 4);
        return (whole + 0x7FFF + (whole >> 16 & 1)) >> 16;
    }
    _Float16 near = (_Float16)value;
    unsigned short bits;
    memcpy(&bits, &near, 2);
    return bits;
}

inline unsigned shared_address() { return 0; }
__attribute__((noinline)) static void copy(unsigned to, const unsigned short* from, bool is_inside) {
    if (to % 16 || to + 16 > used) std::abort();
    self().copies.push_back([=] { is_inside ? (void)memcpy(memory + to, from, 16) : (void)memset(memory + to, 0, 16); });
}
inline void store_shared(unsigned to, unsigned value) { memcpy(memory + to, &value, 4); }
inline float load_shared(unsigned from) {
    float value;
    memcpy(&value, memory + from, 4);
    return value;
}
inline unsigned bits(float value) {
    unsigned same;
    memcpy(&same, &value, 4);
    return same;
}
inline void make_barrier(unsigned at, int count) { barriers[at] = {count, 0, 0}; }
inline void arrive(unsigned at) {
    Barrier& barrier = barriers.at(at);
    if (++barrier.arrived == barrier.count) barrier.arrived = 0, barrier.rounds++;
}
inline void arrive_after_copies(unsigned at) {
    for (int i = 0; i < 3; i++) pause([] { return true; });  // they take their time
    run_all(self().copies);
    arrive(at);
}
inline void await(unsigned at, int round) {  // a GPU knows no more of the round than whether it is odd
    const Barrier& barrier = barriers.at(at);
    if (barrier.rounds % 2 == round % 2) pause([&barrier, round] { return barrier.rounds % 2 != round % 2; });
    if (barriers.at(at).rounds != round + 1) std::abort();
}
inline void __syncthreads() {
    if (!barriers.count(SIZE)) make_barrier(SIZE, threads.size());
    const int round = barriers[SIZE].rounds;
    arrive(SIZE);
    await(SIZE, round);
}
inline void await_copies() {}
inline void show_to_products() {}
inline void begin_products() {}
inline void end_products() {
    self().batches.push_back(self().products);
    self().products.clear();
}
template <int LEFT> void await_products() {
    for (auto& batches = self().batches; batches.size() > LEFT; batches.erase(batches.begin())) run_all(batches[0]);
}
inline void hold(float&) {}
inline void hold(unsigned&) {}
inline int uniform(int value) { return value; }
__attribute__((noinline)) static unsigned swap_lanes(unsigned value, int distance) {
    const int number = threadIdx.x;
    const unsigned turn = ++self().exchanges;
    self().exchanged[turn % 8] = value;
    const int other = number ^ distance;
    if (threads[other].exchanges < turn) pause([other, turn] { return threads[other].exchanges >= turn; });
    return threads[other].exchanged[turn % 8];
}
inline unsigned rounded(float low, float high) { return narrowed(low) | (unsigned)narrowed(high) << 16; }

// Number (across, along the sum) of a factor, by the layouts without swizzling of the PTX manual.
static float factor(unsigned long long descriptor, bool is_transposed, int across, int along) {
    const unsigned first = descriptor & 0x3FFF, step_along = descriptor >> 16 & 0x3FFF, step = descriptor >> 32 & 0x3FFF;
    const unsigned unit = first + across / 8 * step + along / 8 * step_along + (is_transposed ? along % 8 : across % 8);
    const unsigned at = unit * 16 + (is_transposed ? across % 8 : along % 8) * 2;
    unsigned short bits;
    if (at + 2 > used) std::abort();
    memcpy(&bits, memory + at, 2);
    return number(bits);
}

__attribute__((noinline)) static void multiply(
    int columns, bool a_is_transposed, bool b_is_transposed, float* sums, unsigned long long a, unsigned long long b) {
    const int number = threadIdx.x;
    self().products.push_back([=] {
        for (int lower = 0; lower < 2; lower++) {
            const int row = number / 32 % 4 * 16 + lower * 8 + number % 32 / 4;
            float left[16];
            for (int k = 0; k < 16; k++) left[k] = factor(a, a_is_transposed, row, k);
            for (int i = 0; i < columns / 4; i++) {
                const int column = i / 2 * 8 + number % 4 * 2 + i % 2;
                float& sum = sums[i / 2 * 4 + lower * 2 + i % 2];
                for (int k = 0; k < 16; k++) sum += left[k] * factor(b, b_is_transposed, column, k);
            }
        }
    });
}

static std::function<void()> body;
static void enter() {
    body();
    self().is_done = true;
    pause([] { return false; });
}

static void launch(Place grid, int count, unsigned size, std::function<void()> kernel) {
    used = size;
    gridDim = grid;
    body = kernel;
    threads = std::vector<Thread>(count);
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) {
                memset(memory, 0xFF, SIZE);  // NaN
                barriers.clear();
                for (Thread& thread : threads) {
                    getcontext(&thread.context);
                    thread.context.uc_stack = {thread.stack.data(), 0, thread.stack.size()};
                    thread.is_done = false;
                    thread.exchanges = 0;
                    thread.can_go_on = [] { return true; };
                    makecontext(&thread.context, enter, 0);
                }
                for (bool goes_on = true; goes_on;) {
                    goes_on = false;
                    bool has_moved = false;
                    for (int number = 0; number < count; number++) {
                        threadIdx.x = number;
                        if (self().is_done) continue;
                        goes_on = true;
                        if (!self().can_go_on()) continue;
                        has_moved = true;
                        swapcontext(&scheduler, &threads[number].context);
                    }
                    if (goes_on && !has_moved) std::abort();  // all wait for each other
                }
            }
}
