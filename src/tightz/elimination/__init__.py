"""One graph, one elimination game, one bucket tree; exact sums and conditioning."""
