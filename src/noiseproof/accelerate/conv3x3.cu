// 3×3 convolutions, stride 1, of square images of several networks, on Hopper's matrix units (wgmma).
//
// A program brings tiles of pixels with the pixels around them into shared memory, once, and all nine taps read them
// there by shifted addresses. A tile is (rows, groups of 8 channels, columns, 8 channels), 16 bytes being a unit:
// 8 pixels side by side are a "core matrix" of 128 bytes wherever they begin, of 8 pixels × 8 channels in a product over
// channels, and of 8 channels × 8 pixels in one over pixels. A descriptor is the first unit and two steps in units:
// from 8 numbers to the next 8 along the sum (bits 16 up), and across it (bits 32 up).
// Images of side 4 have too few columns: there the 8 are images, and a column has all images of a tile.
//
// Four warps copy, TEAMS of four multiply. A tile, or a part of its channels, is a step; STAGES of them are in memory.
// Python defines the sizes, and wgmma<COLUMNS>: acc += A (64 × 16) · B (16 × COLUMNS).

typedef unsigned u32;
typedef unsigned long long u64;
typedef unsigned short half;  // the bits of a bfloat16 or a float16

#ifndef EMULATED
#define DEVICE __device__ __forceinline__
#define ASM(...) asm volatile(__VA_ARGS__ : "memory")
extern __shared__ __align__(128) char memory[];
DEVICE u32 shared_address() { return (u32)__cvta_generic_to_shared(memory); }
DEVICE void store_shared(u32 to, u32 value) { ASM("st.shared.u32 [%0], %1;" ::"r"(to), "r"(value)); }
DEVICE float load_shared(u32 from) {
    float value;
    asm("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from));
    return value;
}
// 16 bytes, or zeros. Through the first-level cache, as two groups of channels share a sector of 32 bytes, which would
// be fetched twice: they go to different places.
DEVICE void copy(u32 to, const half* from, bool is_inside) {
    ASM("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_inside ? 16 : 0));
}
DEVICE void make_barrier(u32 at, int count) { ASM("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(count)); }
DEVICE void arrive(u32 at) { ASM("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(at)); }
DEVICE void arrive_after_copies(u32 at) { ASM("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at)); }
DEVICE void await_copies() { ASM("cp.async.wait_all;" ::); }
DEVICE void await(u32 at, int round) {  // the end of this round of arrivals
    ASM("{ .reg .pred p;\nagain: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again; }" ::"r"(at), "r"(round & 1));
}
DEVICE void show_to_products() { ASM("fence.proxy.async.shared::cta;" ::); }  // what was stored or copied
DEVICE void begin_products() { ASM("wgmma.fence.sync.aligned;" ::); }
DEVICE void end_products() { ASM("wgmma.commit_group.sync.aligned;" ::); }
template <int LEFT> DEVICE void await_products() { ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT)); }
DEVICE void hold(float& value) { asm volatile("" : "+f"(value)::"memory"); }  // use it neither earlier nor later
DEVICE void hold(u32& value) { asm volatile("" : "+r"(value)::"memory"); }
DEVICE u32 bits(float value) { return __float_as_uint(value); }
DEVICE u32 swap_lanes(u32 value, int distance) { return __shfl_xor_sync(~0u, value, distance); }
DEVICE int uniform(int value) { return __shfl_sync(~0u, value, 0); }
DEVICE u32 rounded(float low, float high) {
    u32 both;
    asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
template <int COLUMNS> DEVICE void wgmma(float (&acc)[COLUMNS / 2], u64 a, u64 b);
//WGMMA
#endif
#define UNROLL _Pragma("unroll")

constexpr bool DEEP = SIDE == 4;
constexpr int COLUMN = DEEP ? IMAGES : 1, EDGE = DEEP ? 0 : 1;  // units of a column, columns beside the image
constexpr int LAYERS = DEEP ? 1 : IMAGES;                      // images one after the other in a tile
constexpr int GROUPS = KC / 8, INNER = GROUPS < LEAST ? GROUPS : LEAST;  // groups that threads side by side copy
// Units of a row of 8 channels, such that threads side by side write to different banks.
constexpr int PITCH = SIDE * COLUMN + (INNER == 8 ? 3 : 2);
constexpr int COPIERS = 128, THREADS = TEAMS * 128 + COPIERS, UP = SIDE / ROWS;

DEVICE u64 descriptor(u32 address, int along, int across) {
    return (u64)((address & 0x3FFFF) >> 4) | (u64)along << 16 | (u64)across << 32;
}

// ROWS + 2·HALO rows of IMAGES images, COUNT groups of channels from `channel` on. Columns beside the image stay zero.
template <int HALO, int COUNT>
DEVICE void copy_pixels(u32 to, const half* from, int tile, int images, int channels, int channel, int thread) {
    constexpr int ALL = ROWS + 2 * HALO, WIDTH = SIDE * COLUMN;
    const int image = tile / UP * IMAGES, row = tile % UP * ROWS - HALO;
    _Pragma("unroll 4") for (int i = thread; i < LAYERS * ALL * WIDTH * COUNT; i += COPIERS) {
        const int place = i / INNER % WIDTH, group = i % INNER + i / (INNER * WIDTH) % (COUNT / INNER) * INNER;
        const int rest = i / (WIDTH * COUNT), y = row + rest % ALL, n = image + (DEEP ? place % COLUMN : rest / ALL);
        const bool is_inside = y >= 0 && y < SIDE && n < images;
        const half* at = from + ((n * SIDE + y) * SIDE + place / COLUMN) * channels + channel + group * 8;
        copy(to + ((rest * COUNT + group) * PITCH + place + HALO * EDGE) * 16, is_inside ? at : from, is_inside);
    }
}

// Barriers of stages that are full, and of those that are free again after `readers` warps have read them.
struct Pipe {
    u32 at;
    DEVICE u32 full(int step) const { return at + step % STAGES * 16; }
    DEVICE u32 free(int step) const { return full(step) + 8; }
    DEVICE void make(int readers) const {
        if (threadIdx.x < STAGES) make_barrier(full(threadIdx.x), COPIERS), make_barrier(free(threadIdx.x), readers);
    }
};

// Columns beside the image, in all stages, and what makes the pipe known to all threads.
DEVICE void begin(u32 stages, int size) {
    constexpr int LINES = LAYERS * (ROWS + 2) * GROUPS;
    for (int i = threadIdx.x; EDGE && i < STAGES * LINES * 8; i += THREADS) {
        const int line = i / 8 % LINES, column = i % 8 / 4 * (SIDE + 1);
        store_shared(stages + i / (8 * LINES) * size + (line * PITCH + column) * 16 + i % 4 * 4, 0);
    }
    show_to_products();
    __syncthreads();
}

#ifdef PRODUCT
// Patches times weights (S, O, 3, 3, I): C = I to N = O, or going BACK with the taps turned round C = O to N = I.
// Teams take tiles in turn: one multiplies while another stores. All weights for BN outputs stay in memory.
constexpr int CHUNKS = C / KC, BLOCKS = IMAGES * ROWS * SIDE / 64, WIDE = SIDE / 8, PER = ROWS / 8 * WIDE;
constexpr int LINE = BACK ? C + 1 : BN + 2, ACROSS = BACK ? BN / 8 : C / 8;  // units of weights, lines of them for a tap
constexpr int PIXELS = LAYERS * (ROWS + 2) * GROUPS * PITCH * 16;

DEVICE void copy_weights(u32 to, const half* from, int first, int thread) {  // units are 8 of I
    for (int i = thread; i < 9 * ACROSS * (BACK ? C : BN); i += COPIERS) {
        const int unit = i % ACROSS, tap = i / ACROSS % 9, o = i / (9 * ACROSS);
        const half* at = BACK ? from + (o * 9 + 8 - tap) * N + first + unit * 8 : from + ((first + o) * 9 + tap) * C + unit * 8;
        copy(to + ((tap * ACROSS + unit) * LINE + o) * 16, at, true);
    }
}

// Give each of four lanes the 8 numbers of one group instead of 2 of each.
DEVICE void transpose(u32 (&w)[4], int lane) {
    const bool odd = lane & 1, high = lane & 2;
    u32 a = swap_lanes(odd ? w[0] : w[1], 1), b = swap_lanes(odd ? w[2] : w[3], 1);
    if (odd) w[0] = a, w[2] = b;
    else w[1] = a, w[3] = b;
    a = swap_lanes(high ? w[0] : w[2], 2), b = swap_lanes(high ? w[1] : w[3], 2);
    if (high) w[0] = a, w[1] = b;
    else w[2] = a, w[3] = b;
}

DEVICE void store(const float (&acc)[BN / 2], half* out, u32 bias, int lower, int lane) {
    UNROLL for (int from = 0; from < BN; from += 32) {
        u32 w[4];
        UNROLL for (int q = 0; q < 4 && from + q * 8 < BN; q++) {
            const int i = (from / 8 + q) * 4 + lower * 2, n = from + q * 8 + lane * 2;
            const float more = BIAS ? load_shared(bias + n * 4) : 0, next = BIAS ? load_shared(bias + n * 4 + 4) : 0;
            w[q] = rounded(acc[i] + more, acc[i + 1] + next);
            if (BN % 32 && out) *(u32*)(out + n) = w[q];
        }
        if (BN % 32 == 0) {
            transpose(w, lane);
            if (out) *(uint4*)(out + from + lane * 8) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) product(
    const half* x, const half* weight, const float* bias, half* out, int images, int tiles, int share) {
    const Pipe pipe = {shared_address()};
    const u32 pixels = pipe.at + 256 + BN * 4, weights = pixels + STAGES * PIXELS;
    u32 biases = pipe.at + 256;
    const int first = blockIdx.y * BN, start = blockIdx.x * share, end = min(start + share, tiles);
    const int team = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    x += (u64)blockIdx.z * images * (SIDE * SIDE * C);
    out += (u64)blockIdx.z * images * (SIDE * SIDE * N);
    weight += (u64)blockIdx.z * (9 * C * N);
    pipe.make(4);
    if (BIAS && threadIdx.x < BN) store_shared(biases + threadIdx.x * 4, bits(bias[blockIdx.z * N + first + threadIdx.x]));
    begin(pixels, PIXELS);
    hold(biases);  // load_shared may move, but not before it was stored
    if (team == TEAMS) {
        copy_weights(weights, weight, first, threadIdx.x % 128);
        for (int step = 0; step < (end - start) * CHUNKS; step++) {
            if (step >= STAGES) await(pipe.free(step), step / STAGES - 1);
            const u32 to = pixels + step % STAGES * PIXELS;
            copy_pixels<1, GROUPS>(to, x, start + step / CHUNKS, images, C, step % CHUNKS * KC, threadIdx.x % 128);
            arrive_after_copies(pipe.full(step));
        }
        await_copies();
        return;
    }
    for (int tile = start + team; tile < end; tile += TEAMS) {
        float acc[BLOCKS][BN / 2];
        UNROLL for (int i = 0; i < BLOCKS * BN / 2; i++) hold(acc[i / (BN / 2)][i % (BN / 2)] = 0);
        const int last = (tile - start + 1) * CHUNKS - 1;
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const int step = last - CHUNKS + 1 + chunk;
            await(pipe.full(step), step / STAGES);
            show_to_products();
            const u64 b = descriptor(weights + (BACK ? chunk * KC : chunk * GROUPS * LINE) * 16, BACK ? 8 : LINE, BACK ? LINE : 8);
            const u64 a = descriptor(pixels + step % STAGES * PIXELS, PITCH, GROUPS * PITCH);
            begin_products();
            UNROLL for (int tap = 0; tap < 9; tap++) {
                UNROLL for (int k = 0; k < GROUPS; k += 2) {
                    UNROLL for (int m = 0; m < BLOCKS; m++) {  // of 8 × 8 pixels
                        const int row = m / PER * (ROWS + 2) + m % PER / WIDE * 8 + tap / 3, column = m % WIDE * 8 + tap % 3;
                        const int to_b = BACK ? tap * ACROSS * LINE + k * 8 : (tap * ACROSS + k) * LINE;
                        wgmma<BN>(acc[m], a + ((row * GROUPS + k) * PITCH + column), b + to_b);
                    }
                }
            }
            end_products();
            if (chunk) {
                await_products<1>();
                if (lane == 0) arrive(pipe.free(step - 1));
            }
        }
        await_products<0>();
        if (lane == 0) arrive(pipe.free(last));
        UNROLL for (int m = 0; m < BLOCKS; m++) {
            UNROLL for (int i = 0; i < BN / 2; i++) hold(acc[m][i]);
            UNROLL for (int lower = 0; lower < 2; lower++) {
                const int n = tile / UP * IMAGES + m / PER, y = tile % UP * ROWS + m % PER / WIDE * 8 + warp * 2 + lower;
                half* at = out + ((n * SIDE + y) * SIDE + m % WIDE * 8 + lane / 4) * N + first;
                store(acc[m], n < images ? at : nullptr, biases, lower, lane % 4);
            }
        }
    }
}
#else
// Sums over `share` tiles of output gradients times shifted inputs: BO outputs × three taps × KC channels, for each of
// three columns of taps a team. With 32 outputs, A is 2 rows of gradients beside each other, for which B has 4 rows of
// inputs: each half is a part of its own.
constexpr int HALVES = 64 / BO, ACROSS = (2 + HALVES) * KC, OUTS = BO / 8;
constexpr int PIXELS = LAYERS * (ROWS + 2) * GROUPS * PITCH * 16, STAGE = PIXELS + LAYERS * ROWS * OUTS * PITCH * 16;

extern "C" __global__ void __launch_bounds__(THREADS, 1) weight_gradient(
    const half* x, const half* grad, float* out, int images, int tiles, int share) {
    constexpr int STEP = SIDE == 8 ? 2 * HALVES : HALVES, WIDTH = SIDE == 8 ? 8 : SIDE * COLUMN;
    const Pipe pipe = {shared_address()};
    const u32 ones = pipe.at + 256, stages = ones + 256;
    const int outputs = blockIdx.x % (N / BO) * BO, channels = blockIdx.x / (N / BO) * KC;
    const int start = blockIdx.y * share, end = min(start + share, tiles);
    const int team = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const bool sums = BIAS && channels == 0 && team == 1;
    x += (u64)blockIdx.z * images * (SIDE * SIDE * C);
    grad += (u64)blockIdx.z * images * (SIDE * SIDE * N);
    pipe.make(4 * TEAMS);
    if (BIAS && threadIdx.x < 64) store_shared(ones + threadIdx.x * 4, ONES);
    begin(stages, STAGE);
    if (team == TEAMS) {
        for (int step = 0; step < end - start; step++) {
            if (step >= STAGES) await(pipe.free(step), step / STAGES - 1);
            const u32 to = stages + step % STAGES * STAGE;
            copy_pixels<1, GROUPS>(to, x, start + step, images, C, channels, threadIdx.x % 128);
            copy_pixels<0, OUTS>(to + PIXELS, grad, start + step, images, N, outputs, threadIdx.x % 128);
            arrive_after_copies(pipe.full(step));
        }
        await_copies();
        return;
    }
    float acc[ACROSS / 2] = {}, total[4] = {};
    for (int step = 0; step < end - start; step++) {
        await(pipe.full(step), step / STAGES);
        show_to_products();
        const u32 from = stages + step % STAGES * STAGE;
        const u64 b = descriptor(from, SIDE == 8 ? HALVES * GROUPS * PITCH : 8, PITCH);
        const u64 a = descriptor(from + PIXELS, SIDE == 8 ? HALVES * OUTS * PITCH : 8, PITCH);
        begin_products();
        for (int layer = 0; layer < LAYERS; layer++) {
            _Pragma("unroll 4") for (int y = 0; y < ROWS; y += STEP) {
                // With 2 halves and side 8, rows y and y + 2 follow each other in the sum, y + 1 and y + 3 beside them.
                UNROLL for (int place = 0; place < WIDTH; place += 16) {
                    const int column = place / COLUMN + team - 1;
                    if (DEEP && (column < 0 || column >= SIDE)) continue;
                    const int to_a = (layer * ROWS + y) * OUTS * PITCH + place;
                    const int to_b = (layer * (ROWS + 2) + y) * GROUPS * PITCH + place + (team - DEEP) * COLUMN;
                    wgmma<ACROSS>(acc, a + to_a, b + to_b);
                }
            }
        }
        end_products();
        if (sums) {
            begin_products();
            for (int y = 0; y < LAYERS * ROWS; y += STEP)
                UNROLL for (int place = 0; place < WIDTH; place += 16)
                    wgmma<8>(total, a + (y * OUTS * PITCH + place), descriptor(ones, 8, 8));
            end_products();
        }
        await_products<0>();
        UNROLL for (int i = 0; i < ACROSS / 2; i++) hold(acc[i]);
        UNROLL for (int i = 0; i < 4; i++) hold(total[i]);
        if (lane == 0) arrive(pipe.free(step));
    }
    const int seats = gridDim.z;
    UNROLL for (int lower = 0; lower < 2; lower++) {
        const int row = warp * 16 + lower * 8 + lane / 4, part = row / BO, o = outputs + row % BO;
        float* to = out + (u64)(blockIdx.y * HALVES + part) * seats * N * (9 * C + BIAS);
        UNROLL for (int i = 0; i < ACROSS / 8; i++) {
            const int up = i * 8 / KC - part, c = channels + i * 8 % KC + lane % 4 * 2;
            if (up < 0 || up > 2) continue;
            float2* at = (float2*)(to + ((u64)(blockIdx.z * N + o) * 9 + up * 3 + team) * C + c);
            *at = make_float2(acc[i * 4 + lower * 2], acc[i * 4 + lower * 2 + 1]);
        }
        if (sums && lane % 4 == 0) to[(u64)seats * N * 9 * C + blockIdx.z * N + o] = total[lower * 2];
    }
}
#endif
