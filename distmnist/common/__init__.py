"""What every program shares: command lines, messages, names, files, signals.

Neither TensorFlow nor NumPy.
"""
