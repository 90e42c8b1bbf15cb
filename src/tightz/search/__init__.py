"""Good starting states."""
