"""The batches of each worker: tickets, leases, one table of them all."""
