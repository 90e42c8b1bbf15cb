"""The working model of a run: reductions, plan, polynomial, collapse, pool, each made once."""
