"""One run over several nodes of a Ray cluster: a process on each, which find each other by `jax.distributed`.

    python examples/cluster/distributed.py --processes 2 --address auto -- engine.devices=2 env=gymnax/cartpole

What stands after `--` are overrides of `stellaris-jax train`. Every node needs the package and, to resume, the run's
directory.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote(max_retries=0)
def address() -> str:
    """Where the first process can listen."""
    with socket.socket() as found:
        found.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{found.getsockname()[1]}"


@ray.remote(max_retries=0)
def trained(number: int, processes: int, coordinator: str, overrides: list[str], directory: str) -> int:
    """The exit code of one process of the run."""
    variables = {
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_NUM_PROCESSES": str(processes),
        "JAX_PROCESS_ID": str(number),
    }
    command = [
        sys.executable,
        "-c",
        "from stellaris_jax.cli.main import main; main()",
        "train",
        "engine.distributed=true",
        *overrides,
    ]
    return subprocess.run(command, env={**os.environ, **variables}, cwd=directory).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--address", help="of the cluster; without it Ray starts on this machine")
    parser.add_argument("--cpus", type=float, default=1, help="for each process")
    parser.add_argument("--gpus", type=float, default=0, help="for each process")
    parser.add_argument("--spread", action="store_true", help="fail unless each process has a node of its own")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    ray.init(address=args.address, include_dashboard=False)
    bundle = {"CPU": args.cpus, **({"GPU": args.gpus} if args.gpus else {})}
    group = placement_group([bundle] * args.processes, strategy="STRICT_SPREAD" if args.spread else "SPREAD")
    ray.get(group.ready(), timeout=120)
    here = [
        {
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
            "num_cpus": args.cpus,
            "num_gpus": args.gpus,
        }
        for number in range(args.processes)
    ]
    coordinator = ray.get(address.options(**here[0]).remote())
    codes = ray.get(
        [
            trained.options(**here[number]).remote(number, args.processes, coordinator, args.overrides, os.getcwd())
            for number in range(args.processes)
        ]
    )
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
