// The two kernels of elimination on a device; `lowering.py` says what the words mean and
// `machine.py` is the same in numpy. BITS, which is 5, is defined by the caller.

typedef long long Word;

#define REGISTERS (1 << BITS)
#define BLOCKS 2

// Strides by bit of the table read and of the one written. As a parameter they lie in constant
// memory, and the compiler adds them up once for all threads of a warp.
struct Locals {
    Word from[BITS], to[BITS];
    int loaded, stored, lanes_read, lanes_written;
};

// What register j adds to an address.
__device__ __forceinline__ Word offset_of(int j, const Word* strides) {
    Word offset = 0;
#pragma unroll
    for (int k = 0; k < BITS; ++k)
        if (j >> k & 1) offset += strides[k];
    return offset;
}

enum Head {  // as lowering.Header
    OUTER, TILE, AXES, ROWS, STEPS, LOADED, STORED, COEFFICIENTS, N_COEFFICIENTS, STATES,
    RADICES, BASES, LOCALS, PROGRAM, INNER, SMALL, LANES_READ, LANES_WRITTEN
};

// Address of row `row` at the outer index: base + strides * digits.
__device__ Word outer_address(const Word* words, int row, unsigned outer) {
    const int axes = (int) words[AXES];
    const Word* base = words + words[BASES] + row * (1 + axes);
    const Word* radix = words + words[RADICES];
    Word at = base[0];
    for (int a = axes - 1; a >= 0; --a) {
        const unsigned d = (unsigned) radix[a];
        const unsigned rest = outer / d;
        at += base[1 + a] * (Word) (outer - rest * d);
        outer = rest;
    }
    return at;
}

// One 2x2 matrix per pair of registers that differ in bit B: matrices[pair][w][v].
template <int B>
__device__ __forceinline__ void apply(double (&r)[REGISTERS], const double* matrices) {
    const double2* m = (const double2*) matrices;
#pragma unroll
    for (int i = 0; i < REGISTERS / 2; ++i) {
        const int j = ((i >> B) << (B + 1)) | (i & ((1 << B) - 1));
        const double2 zero = m[2 * i], one = m[2 * i + 1];
        const double x = r[j], y = r[j | (1 << B)];
        r[j] = fma(y, zero.y, x * zero.x);
        r[j | (1 << B)] = fma(y, one.y, x * one.x);
    }
}

// Bit B of the register's number and bit `lane` of the thread's change places.
template <int B>
__device__ __forceinline__ void exchange(double (&r)[REGISTERS], int lane) {
    const bool upper = threadIdx.x >> lane & 1;
#pragma unroll
    for (int i = 0; i < REGISTERS / 2; ++i) {
        const int j = ((i >> B) << (B + 1)) | (i & ((1 << B) - 1));
        const double mine = upper ? r[j] : r[j | (1 << B)];
        const double theirs = __shfl_xor_sync(0xffffffffu, mine, 1 << lane);
        if (upper) r[j] = theirs;
        else r[j | (1 << B)] = theirs;
    }
}

__device__ __forceinline__ void exchange_all(double (&r)[REGISTERS], int lanes) {
    if (lanes & 15) exchange<0>(r, (lanes & 15) - 1);
    if (lanes >> 4 & 15) exchange<1>(r, (lanes >> 4 & 15) - 1);
    if (lanes >> 8 & 15) exchange<2>(r, (lanes >> 8 & 15) - 1);
    if (lanes >> 12 & 15) exchange<3>(r, (lanes >> 12 & 15) - 1);
    if (lanes >> 16 & 15) exchange<4>(r, (lanes >> 16 & 15) - 1);
}

#define INFINITE __longlong_as_double(0x7ff0000000000000LL)

// One entry for the range of a message; what is no weight (NaN) makes the largest infinite.
__device__ __forceinline__ void see(double x, double& small, double& large) {
    large = fmax(large, x >= 0.0 ? x : INFINITE);
    if (x > 0.0) small = fmin(small, x);
}

// Largest entry into range[1] and smallest positive one into range[0]: as integers, positive
// doubles have the order of their values.
__device__ void note_range(double small, double large, unsigned long long* range) {
    for (int step = 16; step > 0; step /= 2) {
        small = fmin(small, __shfl_xor_sync(0xffffffffu, small, step));
        large = fmax(large, __shfl_xor_sync(0xffffffffu, large, step));
    }
    if ((threadIdx.x & 31) == 0) {
        atomicMin(range, (unsigned long long) __double_as_longlong(small));
        atomicMax(range + 1, (unsigned long long) __double_as_longlong(large));
    }
}

// LANES: whether bits change places with lanes; those that do not are faster without the code.
template <bool LANES>
__device__ __forceinline__ void run_program(
    double* memory, const Word* global_words, double scale, unsigned long long* range,
    const Locals& local) {
    extern __shared__ double shared[];
    const int n_coefficients = (int) global_words[N_COEFFICIENTS];
    const int n_words = (int) global_words[SMALL];
    const int rows = (int) global_words[ROWS];
    Word* words = (Word*) (shared + n_coefficients);
    Word* at = words + n_words;
    const double* coefficients = memory + global_words[COEFFICIENTS];
    for (int i = threadIdx.x; i < n_coefficients; i += blockDim.x) shared[i] = coefficients[i];
    for (int i = threadIdx.x; i < n_words; i += blockDim.x) words[i] = global_words[i];
    __syncthreads();
    const int steps = (int) words[STEPS], tile = (int) words[TILE];
    const unsigned outers = (unsigned) words[OUTER];
    const Word* by_bit = words + words[LOCALS];
    const Word* program = words + words[PROGRAM];
    const Word* inner = global_words + words[INNER];
    double small = INFINITE, large = 0.0;
    for (unsigned outer = blockIdx.x; outer < outers; outer += gridDim.x) {
        __syncthreads();
        for (int row = threadIdx.x; row < rows; row += blockDim.x)
            at[row] = outer_address(words, row, outer);
        __syncthreads();
        for (int t = threadIdx.x; t < tile; t += blockDim.x) {
            double r[REGISTERS];
            const double* from = memory + at[0] + inner[t];
#pragma unroll
            for (int j = 0; j < REGISTERS; ++j)
                r[j] = (j & ~local.loaded) ? 0.0 : from[offset_of(j, local.from)] * scale;
            if (LANES) exchange_all(r, local.lanes_read);
            for (int s = 0; s < steps; ++s) {
                const int bit = (int) program[3 * s + 1], row = (int) program[3 * s + 2];
                const Word place = at[row] + inner[(Word) row * tile + t];
                if (program[3 * s] == 0) {
                    const double* matrices = shared + place;
                    switch (bit) {
                        case 0: apply<0>(r, matrices); break;
                        case 1: apply<1>(r, matrices); break;
                        case 2: apply<2>(r, matrices); break;
                        case 3: apply<3>(r, matrices); break;
                        case 4: apply<4>(r, matrices); break;
                    }
                } else {
                    const double* table = memory + place;
                    const Word* strides = by_bit + BITS * row;
#pragma unroll
                    for (int j = 0; j < REGISTERS; ++j) r[j] *= table[offset_of(j, strides)];
                }
            }
            if (LANES) {
                // In place, a thread may then write what its neighbour has read. All lanes of a
                // warp are here: lanes change places only in tiles of whole warps.
                exchange_all(r, local.lanes_written);
                __syncwarp();
            }
            double* to = memory + at[1] + inner[tile + t];
#pragma unroll
            for (int j = 0; j < REGISTERS; ++j) {
                if (!(j & ~local.stored)) {
                    to[offset_of(j, local.to)] = r[j];
                    see(r[j], small, large);
                }
            }
        }
    }
    note_range(small, large, range);
}

extern "C" __global__ void __launch_bounds__(256, BLOCKS)
fused(double* memory, const Word* words, double scale, unsigned long long* range,
      const __grid_constant__ Locals local) {
    run_program<false>(memory, words, scale, range, local);
}

extern "C" __global__ void __launch_bounds__(256, BLOCKS)
fused_lanes(double* memory, const Word* words, double scale, unsigned long long* range,
            const __grid_constant__ Locals local) {
    run_program<true>(memory, words, scale, range, local);
}

extern "C" __global__ void __launch_bounds__(256)
joined(double* memory, const Word* words, double scale, unsigned long long* range) {
    extern __shared__ double shared[];
    Word* at = (Word*) shared;
    const int rows = (int) words[ROWS], tile = (int) words[TILE], states = (int) words[STATES];
    const unsigned outers = (unsigned) words[OUTER];
    const Word* offsets = words + words[LOCALS];
    const Word* inner = words + words[INNER];
    double small = INFINITE, large = 0.0;
    for (unsigned outer = blockIdx.x; outer < outers; outer += gridDim.x) {
        __syncthreads();
        for (int row = threadIdx.x; row < rows; row += blockDim.x)
            at[row] = outer_address(words, row, outer);
        __syncthreads();
        for (int t = threadIdx.x; t < tile; t += blockDim.x) {
            double total = 0.0;
            for (int e = 0; e < states; ++e) {
                double x = scale;
                for (int row = 1; row < rows; ++row)
                    x *= memory[at[row] + inner[(Word) row * tile + t]
                                + offsets[(Word) (row - 1) * states + e]];
                total += x;
            }
            memory[at[0] + inner[t]] = total;
            see(total, small, large);
        }
    }
    note_range(small, large, range);
}

// Entries at listed places, for the audit.
extern "C" __global__ void gather(const double* memory, const Word* places, double* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = memory[places[i]];
}
