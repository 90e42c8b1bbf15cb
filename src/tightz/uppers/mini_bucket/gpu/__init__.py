"""Mini-buckets in a device's memory: larger tables than a CPU can sum in the time."""
