"""The judge on a CUDA device, for tables that numpy would sum for minutes.

The one place where the judge compiles anything: its kernels are its own, and no maker's code is
imported. Nothing here is loaded unless tables lie on a device.
"""
