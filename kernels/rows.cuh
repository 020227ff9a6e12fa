// Rows of sequences of any lengths by TMA: a box ends where its sequence does, and what is behind reads as 0.
//
// A map has MAP_ROWS rows, as `maps.ragged` makes it. Row r of a sequence of n, which ends before row e of its tensor, is at
// (MAP_ROWS - n + r, head, e, MAP_ROWS).
#pragma once
#include "hopper.cuh"

constexpr int MAP_ROWS = 1 << 30;  // no tensor has more

// Rows of a sequence that ends at a row of its tensor come; `row` is MAP_ROWS minus their distance from it.
__device__ __forceinline__ void load_rows(unsigned to, const TensorMap& map, int column, int row, int head, int end,
                                          unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::
            "r"(to), "l"(&map), "r"(column), "r"(row), "r"(head), "r"(end), "r"(MAP_ROWS), "r"(barrier) : "memory");
}

// Whether this is the one thread of the warp that loads. Behind a branch on it ptxas needs no loop over lanes around a load.
__device__ __forceinline__ bool elected() {
    int is;
    asm volatile("{\n"
                 ".reg .pred one;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "selp.s32 %0, 1, 0, one;\n"
                 "}" : "=r"(is));
    return is;
}
