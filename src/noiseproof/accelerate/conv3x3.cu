// 3×3 convolutions, stride 1, of square images of several networks, on Hopper's matrix units (wgmma).
//
// A program brings a tile of pixels with the pixels around it into shared memory once, and all nine taps read it there
// by shifted addresses. In memory the tile is (rows, groups of 8 channels, columns, 8 channels), 16 bytes being a unit:
// 8 pixels side by side are a "core matrix" of 128 bytes wherever they begin, of 8 pixels × 8 channels in a product over
// channels, and of 8 channels × 8 pixels in one over pixels. A descriptor is the first unit and two steps in units:
// from 8 numbers to the next 8 along the sum (bits 16 up), and across it (bits 32 up).
// Images of side 4 have too few columns: there the 8 are images, and a column has all images of a tile.
//
// Python defines the sizes, and wgmma<COLUMNS>: acc += A (64 × 16) · B (16 × COLUMNS).

typedef unsigned u32;
typedef unsigned long long u64;
typedef unsigned short half;  // the bits of a bfloat16 or a float16

#ifndef EMULATED
#define DEVICE __device__ __forceinline__
extern __shared__ __align__(128) char memory[];
DEVICE u32 shared_address() { return (u32)__cvta_generic_to_shared(memory); }
DEVICE void copy(u32 to, const half* from, bool is_inside) {  // 16 bytes, or zeros
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_inside ? 16 : 0) : "memory");
}
DEVICE void await_copies() {  // and show them, and what was stored, to the matrix units
    asm volatile("cp.async.wait_all; fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
}
DEVICE void store_shared(u32 to, u32 value) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory"); }
DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
DEVICE void await_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
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

constexpr bool DEEP = SIDE == 4;
constexpr int COLUMN = DEEP ? IMAGES : 1, EDGE = DEEP ? 0 : 1;  // units of a column, columns beside the image
constexpr int PITCH = SIDE * COLUMN + 2;                       // units of a row of 8 channels; 2 more than a multiple of 8
constexpr int LAYERS = DEEP ? 1 : IMAGES;                      // images one after the other in a tile

DEVICE u64 descriptor(u32 address, int along, int across) {
    return (u64)((address & 0x3FFFF) >> 4) | (u64)along << 16 | (u64)across << 32;
}

// ROWS + 2·HALO rows of IMAGES images, GROUPS·8 channels from `channel` on.
template <int HALO, int GROUPS>
DEVICE void copy_pixels(u32 to, const half* from, int image, int row, int images, int channels, int channel) {
    constexpr int INNER = GROUPS < 4 ? GROUPS : 4, ALL = ROWS + 2 * HALO, BESIDE = HALO * EDGE;
    constexpr int WIDTH = (SIDE + 2 * BESIDE) * COLUMN;
    for (int i = threadIdx.x; i < LAYERS * ALL * WIDTH * GROUPS; i += THREADS) {
        int group = i % INNER, place = i / INNER % WIDTH, rest = i / (INNER * WIDTH);
        group += rest % (GROUPS / INNER) * INNER;
        rest /= GROUPS / INNER;
        int y = row + rest % ALL - HALO, x = place / COLUMN - BESIDE;
        int n = image + (DEEP ? place % COLUMN : rest / ALL);
        bool is_inside = y >= 0 && y < SIDE && x >= 0 && x < SIDE && n < images;
        const half* at = from + ((n * SIDE + y) * SIDE + x) * channels + channel + group * 8;
        copy(to + ((rest * GROUPS + group) * PITCH + place) * 16, is_inside ? at : from, is_inside);
    }
}

#ifdef PRODUCT
// Patches times weights (S, O, 3, 3, I): C = I to N = O, or going BACK with the taps turned round C = O to N = I.
constexpr int GROUPS = KC / 8, CHUNKS = C / KC;
constexpr int LINE = BACK ? KC + 1 : BN + 2;  // units from 8 columns of weights to the next 8, of rows going back
constexpr int PIXELS = LAYERS * (ROWS + 2) * GROUPS * PITCH * 16, WEIGHTS = 9 * (BACK ? BN / 8 : GROUPS) * LINE * 16;

DEVICE void copy_weights(u32 to, const half* from, int channel, int first) {
    constexpr int ACROSS = BACK ? BN / 8 : GROUPS, DOWN = BACK ? KC : BN;  // units are 8 of I
    for (int i = threadIdx.x; i < 9 * ACROSS * DOWN; i += THREADS) {
        int unit = i % ACROSS, tap = i / ACROSS % 9, o = i / (9 * ACROSS);
        const half* at = BACK ? from + ((channel + o) * 9 + 8 - tap) * N + first + unit * 8
                              : from + ((first + o) * 9 + tap) * C + channel + unit * 8;
        copy(to + ((tap * ACROSS + unit) * LINE + o) * 16, at, true);
    }
}

// Give each of four lanes the 8 numbers of one group instead of 2 of each.
DEVICE void transpose(u32 (&w)[4], int lane) {
    bool odd = lane & 1, high = lane & 2;
    u32 a = swap_lanes(odd ? w[0] : w[1], 1), b = swap_lanes(odd ? w[2] : w[3], 1);
    if (odd) w[0] = a, w[2] = b;
    else w[1] = a, w[3] = b;
    a = swap_lanes(high ? w[0] : w[2], 2), b = swap_lanes(high ? w[1] : w[3], 2);
    if (high) w[0] = a, w[1] = b;
    else w[2] = a, w[3] = b;
}

DEVICE void store(const float (&acc)[BN / 2], half* out, const float* bias, int lower, int lane) {
    _Pragma("unroll") for (int from = 0; from < BN; from += 32) {
        u32 w[4];
        _Pragma("unroll") for (int q = 0; q < 4 && from + q * 8 < BN; q++) {
            int i = (from / 8 + q) * 4 + lower * 2, n = from + q * 8 + lane * 2;
            w[q] = BIAS ? rounded(acc[i] + bias[n], acc[i + 1] + bias[n + 1]) : rounded(acc[i], acc[i + 1]);
            if (BN % 32 && out) *(u32*)(out + n) = w[q];
        }
        if (BN % 32 == 0) {
            transpose(w, lane);
            if (out) *(uint4*)(out + from + lane * 8) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) product(
    const half* x, const half* weight, const float* bias, half* out, int images, int tiles, int share) {
    constexpr int UP = SIDE / ROWS, GROUPS_OF_4 = THREADS / 128, WIDE = SIDE / 8 + DEEP, PER = ROWS / 8 * WIDE + DEEP;
    const u32 pixels = shared_address(), weights = pixels + 2 * PIXELS;
    const int first = blockIdx.y * BN, start = blockIdx.x * share, end = min(start + share, tiles);
    const int team = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    x += (u64)blockIdx.z * images * (SIDE * SIDE * C);
    out += (u64)blockIdx.z * images * (SIDE * SIDE * N);
    weight += (u64)blockIdx.z * (9 * C * N);
    bias += blockIdx.z * N + first;
    float acc[BLOCKS][BN / 2];
    auto load = [&](int step) {
        int tile = start + step / CHUNKS, chunk = step % CHUNKS;
        copy_pixels<1, GROUPS>(pixels + step % 2 * PIXELS, x, tile / UP * IMAGES, tile % UP * ROWS, images, C, chunk * KC);
        if (!RESIDENT || tile == start)
            copy_weights(weights + (RESIDENT ? chunk : step % 2) * WEIGHTS, weight, chunk * KC, first);
    };
    const int steps = (end - start) * CHUNKS;
    load(0);
    for (int step = 0; step < steps; step++) {
        await_copies();
        const int tile = start + step / CHUNKS, chunk = step % CHUNKS;
        if (chunk == 0)
            _Pragma("unroll") for (int m = 0; m < BLOCKS; m++)
                _Pragma("unroll") for (int i = 0; i < BN / 2; i++) acc[m][i] = 0;
        const u64 b = descriptor(weights + (RESIDENT ? chunk : step % 2) * WEIGHTS, BACK ? 8 : LINE, BACK ? LINE : 8);
        const u64 a = descriptor(pixels + step % 2 * PIXELS, PITCH, DEEP ? 8 : GROUPS * PITCH);
        begin_products();
        _Pragma("unroll") for (int m = 0; m < BLOCKS; m++) {  // of 8 × 8 pixels, or 64 images of one pixel
            const int block = team + m * GROUPS_OF_4, up = block % PER / WIDE, left = block % WIDE;
            const int at = DEEP ? block / 4 * GROUPS * PITCH + (block % 4 - 1) * COLUMN
                                : (block / PER * (ROWS + 2) + 8 * up) * GROUPS * PITCH + 8 * left;
            _Pragma("unroll") for (int tap = 0; tap < 9; tap++) {
                if (DEEP && (block % 4 + tap % 3 < 1 || block % 4 + tap % 3 > 4)) continue;  // beside the image
                _Pragma("unroll") for (int k = 0; k < GROUPS; k += 2) {
                    const int to_a = (tap / 3 * GROUPS + k) * PITCH + tap % 3 * COLUMN;
                    const int to_b = BACK ? tap * (BN / 8) * LINE + k * 8 : (tap * GROUPS + k) * LINE;
                    wgmma<BN>(acc[m], a + at + to_a, b + to_b);
                }
            }
        }
        end_products();
        if (step + 1 < steps) load(step + 1);
        await_products();
        if (chunk < CHUNKS - 1) continue;
        _Pragma("unroll") for (int m = 0; m < BLOCKS; m++) {
            _Pragma("unroll") for (int lower = 0; lower < 2; lower++) {
                const int block = team + m * GROUPS_OF_4, row = warp * 2 + lower, column = lane / 4;
                const int n = tile / UP * IMAGES + (DEEP ? row * 8 + column : block / PER);
                const int y = tile % UP * ROWS + (DEEP ? block / 4 : block % PER / WIDE * 8 + row);
                const int left = DEEP ? block % 4 : block % WIDE * 8 + column;
                half* at = out + ((n * SIDE + y) * SIDE + left) * N + first;
                store(acc[m], n < images ? at : nullptr, bias, lower, lane % 4);
            }
        }
    }
}
#else
// Sums over `share` tiles of output gradients times shifted inputs: BO outputs × three taps × KC channels, for each of
// three columns of taps a team of four warps. With 32 outputs, A is 2 rows of gradients beside each other, for which B
// has 4 rows of inputs: each half is a part of its own.
constexpr int GROUPS = KC / 8, HALVES = 64 / BO, ACROSS = (2 + HALVES) * KC, OUTS = BO / 8;
constexpr int PIXELS = LAYERS * (ROWS + 2) * GROUPS * PITCH * 16, STAGE = PIXELS + LAYERS * ROWS * OUTS * PITCH * 16;

extern "C" __global__ void __launch_bounds__(THREADS) weight_gradient(
    const half* x, const half* grad, float* out, int images, int tiles, int share) {
    constexpr int UP = SIDE / ROWS, STEP = SIDE == 8 ? 2 * HALVES : HALVES, WIDTH = SIDE == 8 ? 8 : SIDE * COLUMN;
    const u32 stages = shared_address(), ones = stages + 2 * STAGE;
    const int outputs = blockIdx.x % (N / BO) * BO, channels = blockIdx.x / (N / BO) * KC;
    const int start = blockIdx.y * share, end = min(start + share, tiles);
    const int team = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const bool sums = BIAS && channels == 0 && team == 1;
    x += (u64)blockIdx.z * images * (SIDE * SIDE * C);
    grad += (u64)blockIdx.z * images * (SIDE * SIDE * N);
    float acc[ACROSS / 2] = {}, total[4] = {};
    auto load = [&](int tile) {
        const int image = tile / UP * IMAGES, row = tile % UP * ROWS;
        const u32 to = stages + (tile - start) % 2 * STAGE;
        copy_pixels<1, GROUPS>(to, x, image, row, images, C, channels);
        copy_pixels<0, OUTS>(to + PIXELS, grad, image, row, images, N, outputs);
    };
    if (BIAS && threadIdx.x < 64) store_shared(ones + threadIdx.x * 4, ONES);
    load(start);
    for (int tile = start; tile < end; tile++) {
        await_copies();
        const u32 from = stages + (tile - start) % 2 * STAGE;
        const u64 b = descriptor(from, SIDE == 8 ? HALVES * GROUPS * PITCH : 8, PITCH);
        const u64 a = descriptor(from + PIXELS, SIDE == 8 ? HALVES * OUTS * PITCH : 8, PITCH);
        begin_products();
        for (int layer = 0; layer < LAYERS; layer++) {
            _Pragma("unroll") for (int y = 0; y < ROWS; y += STEP) {
                // With 2 halves and side 8, rows y and y + 2 follow each other in the sum, y + 1 and y + 3 beside them.
                _Pragma("unroll") for (int place = 0; place < WIDTH; place += 16) {
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
                _Pragma("unroll") for (int place = 0; place < WIDTH; place += 16)
                    wgmma<8>(total, a + (y * OUTS * PITCH + place), descriptor(ones, 8, 8));
            end_products();
        }
        if (tile + 1 < end) load(tile + 1);
        await_products();
    }
    const int seats = gridDim.z;
    _Pragma("unroll") for (int lower = 0; lower < 2; lower++) {
        const int row = warp * 16 + lower * 8 + lane / 4, half_ = row / BO, o = outputs + row % BO;
        float* part = out + (u64)(blockIdx.y * HALVES + half_) * seats * N * (9 * C + BIAS);
        _Pragma("unroll") for (int i = 0; i < ACROSS / 8; i++) {
            const int up = i * 8 / KC - half_, c = channels + i * 8 % KC + lane % 4 * 2;
            if (up < 0 || up > 2) continue;
            float2* at = (float2*)(part + ((u64)(blockIdx.z * N + o) * 9 + up * 3 + team) * C + c);
            *at = make_float2(acc[i * 4 + lower * 2], acc[i * 4 + lower * 2 + 1]);
        }
        if (sums && lane % 4 == 0) part[(u64)seats * N * 9 * C + blockIdx.z * N + o] = total[lower * 2];
    }
}
#endif
