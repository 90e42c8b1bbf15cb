"""Batched trials on an NVIDIA GPU (extra `gpu`): draws, row reduction, ascent, evaluation."""
