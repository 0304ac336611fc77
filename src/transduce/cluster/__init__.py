"""Many machines: recordings through the actors of a Ray cluster. The only folder that imports ray."""

from transduce.cluster.engine import Cluster, Pool, connected
from transduce.cluster.plan import Item
from transduce.cluster.worker import Job, Rendered

__all__ = ["Cluster", "Item", "Job", "Pool", "Rendered", "connected"]
