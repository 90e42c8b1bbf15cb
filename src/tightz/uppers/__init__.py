"""Upper bounds on log Z: mini-buckets and tree-reweighted decompositions."""
