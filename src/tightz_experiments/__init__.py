"""The paper's figures and table, computed, cached and drawn; `tightz reproduce` runs them."""
