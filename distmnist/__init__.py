"""distmnist: classic parameter-server training that starts, ends, survives."""

__version__ = '0.1.0'
