// How a launch knows where it stands among those that follow each other without a pause, as the calls of a graph do.
//
// A launch has to have all of its blocks on the device at once.
#pragma once
#include "honest.cuh"

constexpr unsigned long long PAUSE_NS = 3000;  // less than it takes the host to queue anything in between
__device__ unsigned long long ended;           // when the last launch ended
__device__ unsigned finished;                  // blocks of this launch that are done
__device__ int number = -1;                    // of the last launch, counted from the last pause
__device__ int longest;                        // launches from the pause before to the last one

__device__ inline unsigned long long now_ns() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// The number of this launch since the last pause, from 0. Thread 0 of each block asks once, as the block begins.
__device__ inline int place_in_sequence() {
    const unsigned long long before = *const_cast<volatile unsigned long long*>(&ended);
    return now_ns() - before > PAUSE_NS ? 0 : *const_cast<volatile int*>(&number) + 1;
}

// Thread 0 of each block says so once, as the block ends.
__device__ inline void end_of_block(int place) {
    __threadfence();
    if (atomicAdd(&finished, 1) != gridDim.x - 1) return;
    finished = 0;
    if (place == 0) longest = number + 1;
    number = place;
    __threadfence();
    ended = now_ns();
}
