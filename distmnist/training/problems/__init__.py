"""What is learned: the package's images, a user's module, a Keras model."""
