"""What every program shares: command lines, messages, names, files, signals.

Imports neither TensorFlow nor NumPy.
"""
