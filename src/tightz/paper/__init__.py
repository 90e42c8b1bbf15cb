"""The paper as printed: trials, levels, mfrp, estimate, Theorems 1 and 2, WISH."""
