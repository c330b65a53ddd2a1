"""Files by their paths, wherever they lie: on this machine or in a store."""
