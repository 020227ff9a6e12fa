"""Nsight Compute's counters, by their names from compute capability 7.0 on, and the readings of the canary."""

ELAPSED, ACTIVE = "avg.pct_of_peak_sustained_elapsed", "avg.pct_of_peak_sustained_active"
"""Suffixes for the percentage of a unit's peak rate: over the kernel's whole time, or over the active cycles."""

DURATION = "gpu__time_duration.sum"
CYCLES = "sm__cycles_elapsed.max"
CYCLES_ACTIVE = "sm__cycles_active.avg"
ISSUED = f"smsp__issue_active.{ACTIVE}"

ISSUE_SLOTS_USED = f"smsp__issue_active.{ELAPSED}"
TENSOR_CORES_USED = f"sm__pipe_tensor_cycles_active.{ELAPSED}"
MATRIX_PRODUCTS_USED = f"sm__pipe_tensor_type_hmma_hgmma_qgmma_imma_igmma_bmma_bgmma_cycles_active.{ELAPSED}"
"""Activity of the tensor cores without HFMA2.MMA, by which compilers load constants. GPUs before 9.0 lack it."""
XU_USED = f"sm__inst_executed_pipe_xu.{ELAPSED}"
FMA_USED = f"sm__pipe_fma_cycles_active.{ELAPSED}"
ALU_USED = f"sm__pipe_alu_cycles_active.{ELAPSED}"
LSU_USED = f"sm__inst_executed_pipe_lsu.{ELAPSED}"
L1_USED = f"l1tex__throughput.{ELAPSED}"
L2_USED = f"lts__throughput.{ELAPSED}"
DRAM_USED = f"dram__throughput.{ELAPSED}"

SHARED_ACCESSES = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
SHARED_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
DRAM_READ = "dram__bytes_read.sum"

WAITS = {
    "barrier": "a barrier of the CTA",
    "branch_resolving": "a branch",
    "dispatch_stall": "the dispatch",
    "drain": "stores at the exit",
    "gmma": "wgmma",
    "imc_miss": "constants",
    "lg_throttle": "room for loads and stores",
    "long_scoreboard": "global memory",
    "math_pipe_throttle": "a free pipe",
    "membar": "a memory fence",
    "mio_throttle": "room for shared memory and XU",
    "misc": "something else",
    "no_instruction": "instructions",
    "short_scoreboard": "shared memory or XU",
    "sleeping": "a sleep to end",
    "tex_throttle": "room for textures",
    "wait": "a fixed latency",
}
"""The causes of stalled warps, by the name in Nsight Compute's metric. (Not) selected warps are not stalled."""


def stalled(reason: str) -> str:
    """The counter of warps in a state, one of `WAITS`, selected or not_selected, per issued instruction."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


COUNTERS = (
    *(DURATION, CYCLES, CYCLES_ACTIVE, ISSUED, ISSUE_SLOTS_USED, "sm__inst_executed.sum"),
    *(f"sm__warps_active.{ACTIVE}", "sm__maximum_warps_per_active_cycle_pct"),
    *(TENSOR_CORES_USED, MATRIX_PRODUCTS_USED, XU_USED, FMA_USED, ALU_USED, LSU_USED, L1_USED, L2_USED, DRAM_USED),
    *(SHARED_ACCESSES, SHARED_CONFLICTS, f"l1tex__data_pipe_lsu_wavefronts_mem_shared.{ELAPSED}"),
    *("l1tex__t_sector_hit_rate.pct", "l1tex__m_xbar2l1tex_read_bytes.sum", "lts__t_sector_hit_rate.pct"),
    *(DRAM_READ, "dram__bytes_write.sum", "launch__registers_per_thread", "launch__block_size", "launch__grid_size"),
    *(f"launch__shared_mem_per_block_{kind}" for kind in ("dynamic", "static")),
    *(f"launch__occupancy_limit_{limit}" for limit in ("registers", "shared_mem", "warps", "blocks")),
    *map(stalled, sorted((*WAITS, "not_selected", "selected"))),
)
"""The counters of a profile; a GPU that lacks a counter leaves it out."""

CANARY = "canary"
HITS, LATENCY, HIT, MISS = "hits", "latency", "hit", "miss"
"""The canary's readings of a tensor: lines in the L2 (%), cycles of a line, and cycles of a hit and of a miss."""


def of_canary(tensor: str, what: str) -> str:
    """The metric's name for a reading of the canary, such as `HITS`, on the tensor q, k or v."""
    return f"{CANARY}.{tensor}.{what}"


RECORDED = (*COUNTERS, CANARY, *(of_canary(tensor, what) for tensor in "qkv" for what in (HITS, LATENCY, HIT, MISS)))
"""All names of metrics that a run may record."""
