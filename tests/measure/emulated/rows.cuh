// kernels/rows.cuh on a CPU.
#pragma once
#include "device.h"
constexpr int MAP_ROWS = 1 << 30;
inline void load_rows(unsigned to, const TensorMap& map, int column, int row, int head, int end, unsigned barrier) {
    load_row_box(to, map, column, row, head, end, MAP_ROWS, barrier);
}
inline bool elected() { __syncwarp(); return threadIdx.x % 32 == 0; }
