"""Who trains on which batch: tickets, leases, one table of them all."""
