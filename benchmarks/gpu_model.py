"""GPUs that programs are compiled for without having them, and what kernels, launches and waits cost on them.

The rate that follows is a model, not a measurement: every kernel costs the same, however much data it touches, so that
large minibatches are slower than it says. Its middle is from one H200 (`benchmark.py card --jobs costs`,
results/benchmarks/card.json). There a kernel in a CUDA graph took 1.5 us, a turn of a loop 9.6 us, and one of a loop
whose length is a value 22.7 us. Kernels of real programs took 1.0 to 1.7 us. Other GPUs have not been had: V100s are
taken to be 1.25 times as slow, which is a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.gpu_thunks import Counts


@dataclass(frozen=True)
class Costs:
    """Microseconds of a kernel, a launch by the host, and a wait of the host for the device."""

    kernel: float
    launch: float
    wait: float

    def of(self, counts: Counts) -> float:
        """Microseconds of what was counted."""
        return counts.kernels * self.kernel + counts.launches * self.launch + counts.waits * self.wait

    def times(self, factor: float) -> Costs:
        """Costs that are so many times as high."""
        return Costs(self.kernel * factor, self.launch * factor, self.wait * factor)


LOW, MIDDLE, HIGH = Costs(1.0, 4.0, 10.0), Costs(1.4, 7.0, 13.0), Costs(2.2, 12.0, 20.0)
"""Costs on H100 and H200: optimistic, likely, pessimistic."""


@dataclass(frozen=True)
class Gpu:
    """A GPU to compile for.

    Attributes:
      name: its name, as a user gives it.
      plugin: JAX's plug-in that compiles for it, `cuda12` or `cuda13`.
      slowness: factor on the costs.
      description: XLA's description of it, in protocol buffers' text format.
    """

    name: str
    plugin: str
    slowness: float
    description: str


def _described(
    name: str, capability: tuple[int, int], cores: int, fpus: int, shared: tuple[int, int], cache: int, bandwidth: int,
    memory: int, clock: float, cuda: tuple[int, int], dnn: tuple[int, int],
) -> str:  # fmt: skip
    """XLA's description of a GPU; sizes in bytes, the bandwidth in bytes per second, the clock in GHz."""
    version = f"{cuda[0]}.{cuda[1]}.0"
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared[0]}
  threads_per_core_limit: 2048
  core_count: {cores}
  fpus_per_core: {fpus}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: {cache}
  clock_rate_ghz: {clock}
  device_memory_size: {memory}
  shared_memory_per_block_optin: {shared[1]}
  cuda_compute_capability {{ major: {capability[0]} minor: {capability[1]} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  driver_version: "{version}"
  runtime_version: "{version}"
  compile_time_toolkit_version: "{version}"
  device_vendor: "NVIDIA Corporation"
}}
platform_name: "CUDA"
dnn_version_info {{ major: {dnn[0]} minor: {dnn[1]} }}
runtime_version {{ major: {cuda[0]} minor: {cuda[1]} }}
device_description_str: "{name}"
"""


_HOPPER = ((9, 0), 132, 128, (233_472, 232_448), 50 * 2**20)
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            "h100", "cuda13", 1.0,
            _described("NVIDIA H100 80GB HBM3", *_HOPPER, 3_352_320_000_000, 84_942_979_072, 1.98, (13, 0), (9, 12)),
        ),
        Gpu(
            "h200", "cuda13", 1.0,
            _described("NVIDIA H200", *_HOPPER, 4_800_000_000_000, 150_754_820_096, 1.98, (13, 0), (9, 12)),
        ),
        Gpu(
            "v100", "cuda12", 1.25,
            _described(
                "Tesla V100-SXM2-16GB", (7, 0), 80, 64, (98_304, 98_304), 6 * 2**20, 898_048_000_000, 16_935_682_048,
                1.53, (12, 9), (9, 10),
            ),
        ),
    )
}  # fmt: skip
"""GPUs by name. XLA needs the versions of CUDA, or it leaves conditionals and slices out of CUDA graphs."""


def steps_per_second(gpu: Gpu, counts: Counts, env_steps: float) -> tuple[float, float, float]:
    """Env steps per second of a chunk by the model: likely, lowest and highest.

    Args:
      gpu: the GPU.
      counts: what the chunk makes the GPU and the host do.
      env_steps: of the chunk.
    """
    likely, lowest, highest = (env_steps / (1e-6 * c.times(gpu.slowness).of(counts)) for c in (MIDDLE, HIGH, LOW))
    return likely, lowest, highest
