"""The paper's figures and table, computed, cached and drawn; scripts in experiments/ run them."""
