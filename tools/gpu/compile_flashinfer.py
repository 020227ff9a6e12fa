"""Compile FlashInfer's attention for Hopper on a GPU machine with nvcc, after `prepare`: minutes on many cores.

``nice -n 19 python3 tools/gpu/compile_flashinfer.py fa3.bfloat16.128 decode.float16.64`` compiles the named kernels for
a dtype and a head dimension; without names, those of all studies. Later runs find the compiled kernels.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from tempfile import TemporaryDirectory

AT_ONCE, JOBS = 8, "5"
ALL = [".".join(parts) for parts in product(("fa3", "fa2", "decode"), ("bfloat16", "float16"), ("128", "64", "256"))]


def main(names: list[str]) -> None:
    with TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        about = {"MAX_JOBS": JOBS, "FLASHINFER_CUDA_ARCH_LIST": "9.0a", "FLASHINFER_WORKSPACE_BASE": folder}
        command, environment = [sys.executable, __file__, "--one"], os.environ | about | {"CUDA_VISIBLE_DEVICES": ""}
        calls = [pool.submit(subprocess.run, [*command, name], env=environment, check=True) for name in names]
        for call in calls:
            call.result()


def one(name: str) -> None:
    """Compile the named module into FlashInfer's package."""
    import torch
    from flashinfer.jit import env
    from flashinfer.jit.attention import modules

    kernels, dtype, head_dim = name.split(".")
    dtypes, dims, plain = [getattr(torch, dtype)] * 3, [int(head_dim)] * 2, (torch.int32, 0, False, False)
    if kernels == "decode":
        module = modules.gen_batch_decode_module(*dtypes, plain[0], *dims, *plain[1:])
    else:
        make = modules._gen_batch_prefill_primary_module if kernels == "fa2" else modules.gen_batch_prefill_module
        module = make(kernels, *dtypes, plain[0], *dims, *plain[1:], False)
    module.build()
    (there := env.FLASHINFER_AOT_DIR / module.name).mkdir(parents=True, exist_ok=True)
    shutil.copy(module.jit_library_path, there)
    print(f"flashinfer: compiled {name}", flush=True)


if __name__ == "__main__":
    one(sys.argv[2]) if sys.argv[1:2] == ["--one"] else main(sys.argv[1:] or ALL)
