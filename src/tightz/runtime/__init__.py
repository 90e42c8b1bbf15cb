"""Seeds, executors, progress and provenance."""
