"""What one session.run runs: steps, copied, fused and warmed up."""
