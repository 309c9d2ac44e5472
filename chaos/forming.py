"""Groups whose disks are all at hand, for simulations and tests: `broker.local_group.disks`."""

from broker.local_group.disks import describe_disk, form_disks, join_disk

__all__ = ["describe_disk", "form_disks", "join_disk"]
