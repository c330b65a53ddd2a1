"""Training as Python calls: distmnist.run, run_sweep, start, fit.

Each runs launch or sweep in a process of its own: the caller may be a notebook
or a thread, keeps its own signals and its own TensorFlow, and needs neither
TensorFlow nor absl for the call; only fit loads Keras.
"""
