"""A Ray cluster of several nodes in this machine, for as long as standard input is open.

    python tests/ray_cluster.py FOLDER NUM_NODES

In: a short path of a folder for Ray's sessions (names of sockets have 107 characters at most), how many
nodes. Each has one CPU and, as a machine would, keeps to a core of its own. Out: the address on standard
output. Ray's processes end with this one, however it ends.
"""

import os
import sys

OBJECT_STORE_BYTES = 100 * 2**20


def main() -> None:
    folder, num_nodes = sys.argv[1], int(sys.argv[2])
    os.environ |= {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
    os.makedirs(os.path.join(folder, "ray"), exist_ok=True)  # where Ray notes the address
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    cores = sorted(os.sched_getaffinity(0))
    cluster = Cluster()
    for number in range(num_nodes):
        os.sched_setaffinity(0, {cores[number % len(cores)]})  # the node's processes inherit it
        cluster.add_node(**node)
    os.sched_setaffinity(0, cores)
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
