"""A run on Kubernetes: its manifests, and kubectl."""
