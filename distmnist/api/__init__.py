"""Trainings as calls of Python: distmnist.run, run_sweep, start, fit.

Each is a process of its own, `python -m distmnist.launch`: the caller may be a
notebook or a thread, has its own signals and its own TensorFlow, and needs
neither TensorFlow nor absl for the call.
"""
