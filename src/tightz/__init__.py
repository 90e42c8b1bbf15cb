"""tightz"""
