"""The same Z with less to do: evidence, zeros, barren variables, leaves, components, bits."""
